"""What heads read: attention mass by kind of column, and one prompt's value path multiplied out.

Axis legend: query head H, KV head G, entry E, offset W, path P (one exact column, or one offset of one entry).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from hooks.checks import whole_number
from hooks.errors import PhaselensError, SiteError
from hooks.sites import HookedModel
from interp import engine, results, stats
from interp.controls import compared
from interp.phases import fold, measured_stride, sample_blocks
from interp.tasks.prompts import Prompts, Task
from interp.tasks.recall import RecallTask

__all__ = ["reading", "value_path"]

DEFAULT_PER_RESIDUE = 16
_ROWS = 64
_KINDS = ("entries", "exact", "sink")


def reading(
    model: HookedModel,
    task: Task | None = None,
    *,
    n: int | None = None,
    seed: int = 0,
    stride: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Measure where the final query's attention goes, head by head and phase by phase.

    Parameters
    ----------
    model, task, n, seed, stride, memory, progress
        As in :func:`interp.knockout.knockout`; 16 prompts a residue if `n` is left out.

    Returns
    -------
    Dataset
        Attention mass (0 … 1, never renormalised) on ``entries``, all visible entries_of(target); on ``exact``,
        the exact columns of the target key and of the value behind it; and on the ``sink``: each ``(unit,
        phase)`` with BCa interval ``_low _high`` over prompt_ids, and per prompt ``mass_entries mass_exact
        mass_sink (unit, prompt, residue)``, beside each prompt's mean over residues, ``mean_mass_… (unit,
        prompt)``, which a head that reads every phase alike does not leave. Units are query heads. NaN where a
        layer has no such column. What is left lies on other columns.
    """
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task, stride)
    prompts = sample_blocks(task, n, seed, DEFAULT_PER_RESIDUE)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    parts: list[Tensor] = []
    for chunk, kept in engine.activations(
        model, prompts, names, memory=memory, progress=progress, label="reading"
    ):
        some = prompts.select(slice(chunk.start, chunk.stop))
        rows = [_masses(model, layer, kept[name][:, :, -1], some) for layer, name in enumerate(names)]
        parts.append(torch.cat(rows, dim=1))  # [kind, unit, prompt]
    mass = fold(torch.cat(parts, dim=-1).double(), task.modulus)
    data: dict[str, Any] = {}
    for kind, values in zip(_KINDS, mass, strict=True):
        by = stats.phase_means(values, step)  # [unit, prompt, phase]
        there = ~np.isnan(by).any(axis=(1, 2))
        bounds = np.full((2, len(by), step), np.nan)
        if there.any():
            bounds[:, there] = stats.bca(by[there].swapaxes(0, 1), seed=seed, n_resamples=500)
        data |= {
            kind: (("unit", "phase"), by.mean(1)),
            f"mass_{kind}": (("unit", "prompt", "residue"), values),
            f"mean_mass_{kind}": (("unit", "prompt"), values.mean(-1)),
        }
        data |= {
            f"{kind}_{end}": (("unit", "phase"), b) for end, b in zip(("low", "high"), bounds, strict=True)
        }
    heads = [(layer, head) for layer in range(model.cfg.n_layers) for head in range(model.cfg.n_heads)]
    data["target_position"] = (("prompt", "residue"), fold(prompts.target_position, task.modulus))
    return xr.Dataset(
        data,
        coords={
            "unit": [f"{layer}.{head}" for layer, head in heads],
            "layer": ("unit", [layer for layer, _ in heads]), "head": ("unit", [head for _, head in heads]),
            "phase": np.arange(step), "prompt": np.arange(mass.shape[2]), "residue": np.arange(task.modulus),
        },
        attrs=results.provenance(
            model, task, seed, unit_kind="head", stride=step, modulus=task.modulus,
            n_per_residue=mass.shape[2], query_position=prompts.query_position,
            **compared(**{f"mass_{kind}": f"mean_mass_{kind}" for kind in _KINDS}),
        ),
    )  # fmt: skip


def _masses(model: HookedModel, layer: int, pattern: Tensor, prompts: Prompts) -> Tensor:
    """Mass of patterns [batch, head, column] by kind: [kind, head, batch]; NaN where there is no column."""
    length, geometry = prompts.tokens.shape[1], model.geometry(layer)
    entries = geometry.n_entries(length) if geometry else 0
    found = torch.full((len(_KINDS), pattern.shape[1], pattern.shape[0]), torch.nan)
    if geometry is not None:
        found[0] = 0
    found[1] = 0
    for row, target in enumerate(prompts.target_position.tolist()):
        if geometry is not None:
            columns = [length + j for j in geometry.entries_of(target) if j < entries]
            found[0, :, row] = pattern[row][:, columns].sum(-1).float().cpu()
        found[1, :, row] = pattern[row, :, target : target + 2].sum(-1).float().cpu()
    if pattern.shape[2] > length + entries:
        found[2] = pattern[:, :, -1].T.float().cpu()
    return found


# ---- one prompt --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Head:
    """One head on one prompt: clean activations of the final query, and where its entries are made."""

    layer: int
    head: int
    length: int
    owner: int | None
    branch: str
    pattern: Tensor
    gate: Tensor | None
    payload: Tensor | None
    pooled: Tensor | None

    def site(self, name: str) -> str:
        return f"blocks.{self.owner}.attn.compressor.{self.branch}.{name}"


def value_path(
    model: HookedModel, prompts: Prompts, *, layer: int, head: int, row: int = 0, token: int | None = None
) -> xr.Dataset:
    """Multiply out one head's value path on one prompt: token → offset weight → entry → head → logit.

    The final query's attention pattern, the gates, and the scales of all norms on the way are frozen at
    their clean values; what is left is linear, so that the paths sum to the head's output.

    Parameters
    ----------
    model : HookedModel
        The model.
    prompts : Prompts
        Holds the prompt in row `row`.
    layer, head : int
        A query head.
    row : int
        Which prompt.
    token : int, optional
        Whose logit; the prompt's answer if left out.

    Returns
    -------
    Dataset
        One ``path`` for every exact column and every offset of every entry (coordinates ``kind``, "exact" or
        "entry", ``entry``, ``offset`` and ``position`` of the token; −1 where there is none): ``pattern
        (path)``, ``gate (path)`` (of the branch that makes values; 1 for exact columns), ``output (path, d_model)``,
        ``logit (path)``. ``head_output (d_model)`` and ``head_logit``, of the head as it is, and beside them,
        not multiplied, the key side: ``score (path)``, the column's scaled attention score, and ``key_gate
        (path)``. Attributes ``residual``, the largest |Σ output − head output| (above 1e-5 only where stored
        entries are rounded), ``target_share``, the part of ``head_logit`` that comes from the target's
        key and value tokens, and ``logit_defined``: 0 with NaN logits where the model has no single residual
        stream.

    Raises
    ------
    SiteError
        For a layer or head that does not exist.
    PhaselensError
        For a row or token that does not exist.
    """
    layer, head, row = (
        whole_number(name, value) for name, value in (("layer", layer), ("head", head), ("row", row))
    )
    if not 0 <= layer < model.cfg.n_layers or not 0 <= head < model.cfg.n_heads:
        raise SiteError(
            f"head {layer}.{head} does not exist; valid: 0.0 to {model.cfg.n_layers - 1}.{model.cfg.n_heads - 1}"
        )
    if not 0 <= row < len(prompts):
        raise PhaselensError(f"row {row} does not exist; valid: 0 to {len(prompts) - 1}")
    if token is None:
        token = int(prompts.answer[row])
    answer = whole_number("token", token, 0, model.cfg.d_vocab - 1)
    tokens = prompts.tokens[row : row + 1].to(model.device)
    read, clean, key_gate = _read_head(model, tokens, layer, head)
    paths = _paths(read, model)
    output = _outputs(model, tokens, read, paths)
    head_output = clean["result"]
    logits = _to_logits(model, torch.cat([output, head_output[None]]), clean["stream"], answer)
    position = np.array([p[3] for p in paths])
    target = int(prompts.target_position[row])
    on_target = np.isin(position, (target, target + 1))
    column = [p[4] for p in paths]
    total = float(logits[-1])
    return xr.Dataset(
        {
            "pattern": ("path", read.pattern[column].cpu().numpy()),
            "gate": ("path", [_gate_of(read.gate, p, read, model) for p in paths]),
            "output": (("path", "d_model"), output.cpu().numpy()),
            "logit": ("path", logits[:-1]),
            "score": ("path", clean["scores"][column].cpu().numpy()),
            "key_gate": ("path", [_gate_of(key_gate, p, read, model) for p in paths]),
            "on_target": ("path", on_target),
            "head_output": ("d_model", head_output.cpu().numpy()),
            "head_logit": ((), total),
        },
        coords={
            "kind": ("path", [p[0] for p in paths]), "entry": ("path", [p[1] for p in paths]),
            "offset": ("path", [p[2] for p in paths]), "position": ("path", position),
        },
        attrs=results.provenance(
            model, None, 0, layer=layer, head=head, token=answer, target_position=target,
            query_position=prompts.query_position, logit_defined=int(np.isfinite(total)),
            residual=float((output.sum(0) - head_output).abs().max()),
            target_share=float(logits[:-1][on_target].sum() / total) if total else float("nan"),
        ),
    )  # fmt: skip


Path = tuple[str, int, int, int, int]
"""Kind, entry, offset, token position, attention column."""


def _read_head(
    model: HookedModel, tokens: Tensor, layer: int, head: int
) -> tuple[_Head, dict[str, Tensor], Tensor | None]:
    """Clean activations behind one head; the last is the key branch's gate."""
    valid = set(model.site_names())
    owner = None
    if model.geometry(layer) is not None:
        made = [i for i in range(layer + 1) if f"blocks.{i}.attn.compressor.key.hook_pooled" in valid]
        owner = made[-1]
    branch = "value" if f"blocks.{owner}.attn.compressor.value.hook_pooled" in valid else "key"
    attn, stream = f"blocks.{layer}.attn.", f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    names = [attn + "hook_pattern", attn + "hook_attn_scores", attn + "hook_result", stream]
    pooling = f"blocks.{owner}.attn.compressor."
    if owner is not None:
        names += [f"{pooling}{branch}.{kind}" for kind in ("hook_gate", "hook_payload", "hook_pooled")]
        names.append(f"{pooling}key.hook_gate")
    with torch.no_grad():
        _, kept = model.run_with_cache(tokens, list(dict.fromkeys(names)))
    group = head // (model.cfg.n_heads // model.cfg.n_kv_heads)

    def of(kind: str, which: str = branch) -> Tensor | None:
        tensor = kept.get(f"{pooling}{which}.{kind}")
        return None if tensor is None else tensor[0][..., min(group, tensor.shape[-2] - 1), :]

    read = _Head(
        layer, head, tokens.shape[1], owner, branch, kept[attn + "hook_pattern"][0, head, -1],
        of("hook_gate"), of("hook_payload"), of("hook_pooled"),
    )  # fmt: skip
    clean = {
        "scores": kept[attn + "hook_attn_scores"][0, head, -1],
        "result": kept[attn + "hook_result"][0, -1, head],
        "stream": kept[stream][0, -1],
    }
    return read, clean, of("hook_gate", "key")


def _paths(read: _Head, model: HookedModel) -> list[Path]:
    paths: list[Path] = [("exact", -1, -1, t, t) for t in range(read.length)]
    paths = [path for path in paths if float(read.pattern[path[4]]) != 0]
    geometry = model.geometry(read.layer)
    if geometry is None:
        return paths
    for entry in range(geometry.n_entries(read.length)):
        end = (entry + 1) * geometry.stride
        for offset in range(geometry.window):
            position = end - geometry.window + offset
            if position >= 0:
                paths.append(("entry", entry, offset, position, read.length + entry))
    return paths


def _outputs(model: HookedModel, tokens: Tensor, read: _Head, paths: list[Path]) -> Tensor:
    """Each path's part of the head's output [path, d_model], by one row of a batch per path.

    A row keeps one column of the frozen pattern, and its entries are made of one offset's payload alone. A
    norm between pooled and stored entry divides by the pooled vector's scale; a part that is first brought to
    that scale gets the frozen norm, and is divided by the same factor at the end.
    """
    parts = []
    for start in range(0, len(paths), _ROWS):
        some = paths[start : start + _ROWS]
        offset = torch.tensor([path[2] for path in some], device=tokens.device)
        scale = torch.ones(len(some), dtype=read.pattern.dtype, device=tokens.device)
        hooks: list[tuple[str, Callable[..., Any]]] = []
        if read.owner is not None:
            hooks.append((read.site("hook_pooled"), _slots(read, some, scale)))
        hooks.append((f"blocks.{read.layer}.attn.hook_pattern", _columns(read, some)))
        kept: list[Tensor] = []
        hooks.append(
            (f"blocks.{read.layer}.attn.hook_result", lambda t, hook, kept=kept: kept.append(t[:, -1]))
        )
        with torch.no_grad(), model.hooks(fwd_hooks=hooks):
            model(tokens.expand(len(offset), -1), stop_at_layer=read.layer + 1, **_whole(model, read.layer))
        parts.append(kept[0][:, read.head] / scale.to(kept[0].dtype)[:, None])
    return torch.cat(parts)


def _whole(model: HookedModel, layer: int) -> dict[str, Any]:
    """The last layer cannot be stopped behind; it runs to the end at one position."""
    return {"last_only": True} if layer == model.cfg.n_layers - 1 else {}


def _slots(read: _Head, some: list[Path], scale: Tensor) -> Callable[..., Tensor]:
    """Hook: the entries of each row made of its offset alone; notes by what factor its entry was scaled."""
    assert read.gate is not None
    assert read.payload is not None
    assert read.pooled is not None
    whole_entry = read.pooled
    part = (read.gate * read.payload).to(whole_entry.dtype)  # [entry, offset, d_head]

    def edit(pooled: Tensor, hook: object) -> Tensor:
        pooled = pooled.clone()
        for row, (kind, entry, offset, _, _) in enumerate(some):
            if kind != "entry":
                continue
            mine = part[entry, offset]
            if read.branch == "key":  # tied values: a norm lies behind
                size, whole = mine.square().mean().sqrt(), whole_entry[entry].square().mean().sqrt()
                if float(size) > 0:
                    scale[row] = whole / size
            pooled[row, entry] = mine * scale[row].to(mine.dtype)  # all KV heads: one of them is read
        return pooled

    return edit


def _columns(read: _Head, some: list[Path]) -> Callable[..., Tensor]:
    def edit(pattern: Tensor, hook: object) -> Tensor:
        frozen = torch.zeros_like(pattern)
        for row, path in enumerate(some):
            frozen[row, read.head, -1, path[4]] = read.pattern[path[4]]
        return frozen

    return edit


def _gate_of(gate: Tensor | None, path: Path, read: _Head, model: HookedModel) -> float:
    """Mean gate over channels of a path's offset; 1 for exact columns."""
    return 1.0 if path[0] == "exact" or gate is None else float(gate[path[1], path[2]].mean())


def _to_logits(model: HookedModel, vectors: Tensor, stream: Tensor, token: int) -> np.ndarray:
    """Logit of a token from vectors [path, d_model] behind the final norm with its clean scale; or NaN."""
    if stream.ndim != 1:
        return np.full(len(vectors), np.nan)
    size = vectors.double().square().mean(-1).sqrt()
    factor = torch.where(size > 0, stream.double().square().mean().sqrt() / size, 1.0)
    scaled = (vectors.double() * factor[:, None]).to(stream.dtype)
    with torch.no_grad():
        logits = model(scaled[:, None], start_at_layer=model.cfg.n_layers)
    return (logits[:, 0, token].double() / factor).cpu().numpy()
