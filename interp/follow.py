"""Follow one prompt through a model: gates, payloads, entries, attention, answer, at every residue.

One base prompt is shown at all R residues, so that shifting its target is choosing another row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from hooks.checks import whole_number
from hooks.cycling import cycled_layers
from hooks.errors import PhaselensError, SiteError
from hooks.geometry import ChunkGeometry
from hooks.sites import HookedModel
from interp import engine, results
from interp.engine import Edit, Metric, Rows, Variant, accepted_logits
from interp.phases import measured_stride
from interp.replacement import Replace, calibrate
from interp.tasks.prompts import Prompts, Task
from interp.tasks.recall import RecallTask
from interp.units import select_units, union, units, where

__all__ = [
    "LAST_PROMPT", "before_after", "changed_gates", "follow", "followed_units", "gate_changes", "one_prompt", "shifted",
    "token_word", "top_tokens",
]  # fmt: skip

TOP = 5
LAST_PROMPT = 9999
"""Largest number of a base prompt: all before it are drawn too."""
_BRANCHES = ("key", "value")


def token_word(task: RecallTask, token: int) -> str:
    """Short name of a recall token: "k3" and "v3" for keys and values, "?" the marker, "·" fillers."""
    if token in task.keys:
        return f"k{token - task.keys.start}"
    if token in task.values:
        return f"v{token - task.values.start}"
    return "?" if token == task.marker else "·"


def one_prompt(task: Task, prompt: int, *, seed: int = 0) -> Prompts:
    """All R residues of base prompt number `prompt`.

    Raises
    ------
    PhaselensError
        For no whole number from 0 to :data:`LAST_PROMPT`.
    """
    whole_number("prompt", prompt, 0, LAST_PROMPT)
    size = task.modulus
    return task.sample((prompt + 1) * size, seed=seed).select(slice(prompt * size, (prompt + 1) * size))


def followed_units(model: HookedModel) -> list[str]:
    """KV heads, "layer.head", whose gates :func:`follow` records: those of layers that pool entries themselves."""
    return [f"{layer}.{g}" for layer, g in _owned(model)]


def gate_changes(model: HookedModel, stride: int) -> list[str]:
    """What :func:`changed_gates` can do to a model's gates; not every model has gates that can be cycled."""
    try:
        cycled_layers(model)
    except SiteError:
        return ["trained", "uniform", "static"]
    return ["trained", "uniform", "static", *(f"cycled {shift}" for shift in range(1, stride))]


@contextlib.contextmanager
def changed_gates(model: Any, gates: str, task: Task) -> Iterator[Any]:
    """Context with a model whose gates are "trained", forced to a word of `forced_gates`, or "cycled N".

    Raises
    ------
    PhaselensError
        For another word, or gates that this model cannot cycle.
    """
    if gates == "trained":
        yield model
    elif gates.startswith("cycled "):
        from interp.gates import cycle_gates

        shift = gates.removeprefix("cycled ")
        if not shift.removeprefix("-").isdecimal():
            raise PhaselensError(f"gates={gates!r}; valid: trained, a word of forced_gates, or cycled N")
        yield cycle_gates(model, int(shift))
    else:
        from interp.gate_interventions import forced_gates

        with forced_gates(model, gates, task):
            yield model


def follow(
    model: HookedModel, task: RecallTask | None = None, *, prompt: int = 0, seed: int = 0
) -> xr.Dataset:
    """Record what happens to one base prompt at each of its R residues.

    Parameters
    ----------
    model : HookedModel
        What to look into.
    task : RecallTask, optional
        Makes the prompt; :meth:`RecallTask.for_model` if left out.
    prompt : int
        Number of the base prompt.
    seed : int
        Of the prompts.

    Returns
    -------
    Dataset
        ``tokens (residue, pos)``, ``word``, ``target_position answer predicted probability (residue)``; for KV
        heads with gates ``gate_key gate_value`` and ``payload_key payload_value`` (norms) ``(unit, residue,
        entry, offset)``, channels averaged, NaN where absent; ``target_key (unit, residue)``, the key gate's
        weight on the target key, and ``target_value``, the value gate's on the token after it, summed over the
        windows they are in; attention of the query position ``on_exact (reader, residue, pos)``, ``on_entry
        (reader, residue, entry)`` and ``on_target (reader, residue)``, the part on entries that pool the target;
        readers are query heads.
    """
    task = task or RecallTask.for_model(model)
    prompts = one_prompt(task, prompt, seed=seed)
    kept = _record(model, prompts)
    scores = engine.run(model, prompts, metric=top_tokens(prompts))
    length = prompts.tokens.shape[1]
    data = {**_gates(model, prompts, kept), **_attention(model, prompts, kept)}
    words = [[token_word(task, t) for t in row] for row in prompts.tokens.tolist()]
    data |= {
        "tokens": (("residue", "pos"), prompts.tokens.numpy()),
        "word": (("residue", "pos"), np.array(words)),
        "target_position": ("residue", prompts.target_position.numpy()),
        "answer": ("residue", prompts.answer.numpy()),
        "predicted": ("residue", scores["token0"][0].numpy()),
        "probability": ("residue", scores["probability"][0].numpy()),
    }
    owned = _owned(model)
    return xr.Dataset(
        data,
        coords={
            "unit": followed_units(model),
            "window": ("unit", [_geometry(model, layer).window for layer, _ in owned]),
            "stride": ("unit", [_geometry(model, layer).stride for layer, _ in owned]),
            "reader": [f"{i}.{h}" for i in range(model.cfg.n_layers) for h in range(model.cfg.n_heads)],
            "residue": np.arange(task.modulus),
            "pos": np.arange(length),
        },
        attrs=results.provenance(
            model, task, seed, prompt_number=prompt, modulus=task.modulus, query_position=prompts.query_position,
            phase_stride=measured_stride(model, task), heads_per_kv=model.cfg.n_heads // model.cfg.n_kv_heads,
        ),
    )  # fmt: skip


def shifted(followed: xr.Dataset, shift: int) -> int:
    """Residue at which the target stands `shift` tokens behind the earliest place it has in this prompt."""
    order = np.argsort(followed["target_position"].values, kind="stable")
    return int(followed["residue"].values[order[shift % len(order)]])


def top_tokens(prompts: Prompts) -> Metric:
    """Probability of the right tokens, the likeliest tokens ``token0`` … and their probabilities ``p0`` …."""

    def metric(logits: Tensor, prompt: Tensor) -> dict[str, Tensor]:
        log_p = logits.double().log_softmax(-1)
        best = log_p.exp().topk(min(TOP, log_p.shape[-1]), dim=-1)
        found = {"probability": accepted_logits(prompts, log_p, prompt)[1].logsumexp(-1).exp()}
        for i in range(best.values.shape[-1]):
            found |= {f"token{i}": best.indices[..., i], f"p{i}": best.values[..., i]}
        return found

    return metric


def before_after(
    model: HookedModel,
    task: RecallTask | None = None,
    *,
    only: list[str],
    unit: str = "kv_head",
    replace: Replace = "mean",
    prompt: int = 0,
    seed: int = 0,
) -> xr.Dataset:
    """Likeliest tokens of one base prompt before and after some units are removed together.

    It is what :func:`interp.knockout.knockout` of that set does to this prompt: the same calibration prompts
    and donors, at the final position, or everywhere for units without positions.

    Parameters
    ----------
    model, task, unit, replace, seed
        As in :func:`interp.knockout.knockout`.
    only : list of str
        Labels of the units.
    prompt : int
        Number of the base prompt.

    Returns
    -------
    Dataset
        ``probability (run, residue)`` of the right tokens; ``token p (run, residue, rank)``, the five likeliest; runs
        "before" and "after".

    Raises
    ------
    SiteError
        For an empty set, a label that does not exist, or units that hold nothing on this prompt.
    PhaselensError
        For another unit or replacement.
    """
    task = task or RecallTask.for_model(model)
    prompts = one_prompt(task, prompt, seed=seed)
    chosen = union(select_units(units(model, unit, prompts), only))
    at = where([chosen], "final")
    value_at = calibrate(
        model, task, prompts, chosen.sites if chosen.replaced else (), replace=replace, at=at,
        stride=measured_stride(model, task), seed=seed,
    ).at  # fmt: skip
    reached: set[str] = set()
    variant = Variant(chosen.label, tuple(_noting(edit, reached) for edit in chosen.edits(value_at)))
    scores = engine.run(model, prompts, [variant], at=at, metric=top_tokens(prompts))
    empty = [name for name in chosen.sites if name not in reached]
    if empty:
        raise SiteError(
            f"{chosen.label} changes nothing here: {empty[0]} holds nothing in {prompts.tokens.shape[1]} tokens; valid: "
            "units of layers in which a window closes"
        )
    ranks = range(sum(name.startswith("token") for name in scores))
    axes = ("run", "residue", "rank")
    return xr.Dataset(
        {
            "probability": (axes[:2], scores["probability"].numpy()),
            "token": (axes, np.stack([scores[f"token{i}"].numpy() for i in ranks], -1)),
            "p": (axes, np.stack([scores[f"p{i}"].numpy() for i in ranks], -1)),
            "answer": ("residue", prompts.answer.numpy()),
        },
        coords={"run": ["before", "after"], "residue": np.arange(task.modulus)},
        attrs=results.provenance(
            model,
            task,
            seed,
            unit_kind=unit,
            removed=chosen.label,
            replace=replace if chosen.replaced else "masked",
            at=at,
            prompt_number=prompt,
        ),
    )


def _noting(edit: Edit, reached: set[str]) -> Edit:
    """The same edit, noting its site once it is given any value to change."""

    def apply(tensor: Tensor, rows: Rows) -> Tensor:
        if tensor.numel():
            reached.add(edit.site)
        return edit.apply(tensor, rows)

    return Edit(edit.site, apply)


# ---- parts -------------------------------------------------------------------------------------------------


def _geometry(model: HookedModel, layer: int) -> ChunkGeometry:
    geometry = model.geometry(layer)
    assert geometry is not None
    return geometry


def _owned(model: HookedModel) -> list[tuple[int, int]]:
    """(layer, KV head) of every layer whose compressor fires a gate."""
    valid = set(model.site_names())
    owners = [
        layer
        for layer in range(model.cfg.n_layers)
        if model.geometry(layer) and f"blocks.{layer}.attn.compressor.key.hook_gate" in valid
    ]
    return [(layer, g) for layer in owners for g in range(model.cfg.n_kv_heads)]


def _record(model: HookedModel, prompts: Prompts) -> dict[str, Tensor]:
    """Gates, payload norms and the query position's attention."""
    valid = set(model.site_names())
    wanted = [f"blocks.{i}.attn.hook_pattern" for i in range(model.cfg.n_layers)]
    for layer in range(model.cfg.n_layers):
        for branch in _BRANCHES:
            wanted += [
                f"blocks.{layer}.attn.compressor.{branch}.{kind}" for kind in ("hook_gate", "hook_payload")
            ]
    wanted = [name for name in wanted if name in valid]
    parts: dict[str, list[Tensor]] = {name: [] for name in wanted}
    for _, kept in engine.activations(model, prompts, wanted, at="all", progress=False):
        for name, value in kept.items():
            if name.endswith("hook_pattern"):
                value = value[:, :, -1]
            elif name.endswith("hook_payload"):
                value = value.norm(dim=-1, keepdim=True)
            else:
                value = value.mean(-1, keepdim=True)
            parts[name].append(value.cpu())
    return {name: torch.cat(values).double() for name, values in parts.items()}


def _gates(model: HookedModel, prompts: Prompts, kept: dict[str, Tensor]) -> dict[str, Any]:
    owned, rows = _owned(model), len(prompts)
    length = prompts.tokens.shape[1]
    entries = max((_geometry(model, layer).n_entries(length) for layer, _ in owned), default=0)
    width = max((_geometry(model, layer).window for layer, _ in owned), default=0)
    shape = (len(owned), rows, entries, width)
    found = {
        f"{kind}_{branch}": np.full(shape, np.nan) for kind in ("gate", "payload") for branch in _BRANCHES
    }
    target = {branch: np.full(shape[:2], np.nan) for branch in _BRANCHES}
    for row, (layer, g) in enumerate(owned):
        geometry = _geometry(model, layer)
        for number, branch in enumerate(_BRANCHES):
            for kind in ("gate", "payload"):
                value = kept.get(f"blocks.{layer}.attn.compressor.{branch}.hook_{kind}")
                if value is not None:
                    one = value[:, :, :, min(g, value.shape[3] - 1), 0].numpy()
                    found[f"{kind}_{branch}"][row, :, : one.shape[1], : one.shape[2]] = one
            gate = found[f"gate_{branch}"][row]
            if np.isfinite(gate).any():
                target[branch][row] = [
                    _weight_of(int(t) + number, geometry, one)
                    for t, one in zip(prompts.target_position, gate, strict=True)
                ]
    axes = ("unit", "residue", "entry", "offset")
    return {name: (axes, values) for name, values in found.items()} | {
        f"target_{branch}": (axes[:2], values) for branch, values in target.items()
    }


def _weight_of(token: int, geometry: ChunkGeometry, gate: np.ndarray) -> float:
    """Sum of a token's gate weights over the closed windows it is in."""
    return float(
        sum(
            gate[entry, token - (entry + 1) * geometry.stride + geometry.window]
            for entry in geometry.entries_of(token)
            if entry < len(gate) and np.isfinite(gate[entry, 0])
        )
    )


def _attention(model: HookedModel, prompts: Prompts, kept: dict[str, Tensor]) -> dict[str, Any]:
    length, rows, heads = prompts.tokens.shape[1], len(prompts), model.cfg.n_heads
    layers = range(model.cfg.n_layers)
    most = max((g.n_entries(length) for i in layers if (g := model.geometry(i)) is not None), default=0)
    exact = np.zeros((len(layers) * heads, rows, length))
    entry = np.full((len(layers) * heads, rows, most), np.nan)
    target = np.full((len(layers) * heads, rows), np.nan)
    for layer in layers:
        pattern = kept[f"blocks.{layer}.attn.hook_pattern"].transpose(0, 1).numpy()  # [head, row, key]
        own = slice(layer * heads, (layer + 1) * heads)
        exact[own] = pattern[:, :, :length]
        geometry = model.geometry(layer)
        if geometry is None:
            continue
        count = geometry.n_entries(length)
        entry[own, :, :count] = pattern[:, :, length : length + count]
        for row, position in enumerate(prompts.target_position.tolist()):
            pooled = [j for j in geometry.entries_of(position) if j < count]
            target[own, row] = entry[own, row][:, pooled].sum(-1)
    return {
        "on_exact": (("reader", "residue", "pos"), exact),
        "on_entry": (("reader", "residue", "entry"), entry),
        "on_target": (("reader", "residue"), target),
    }
