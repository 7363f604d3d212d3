"""Activation patching between prompts that differ in one thing, at any site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from hooks.checks import require_choice, whole_number
from hooks.errors import PhaselensError, SiteError, StatisticsError, did_you_mean
from hooks.sites import SITE_AXES, HookedModel
from hooks.sites import site as parse_site
from interp import engine, results, stats
from interp.controls import NOTHING, compared, paired_statistics
from interp.engine import At, Rows, Variant, accepted_logits, answer_metrics
from interp.phases import by_phase, fold, measured_stride, whole_blocks
from interp.replacement import ValueAt
from interp.tasks.prompts import Prompts
from interp.tasks.recall import RecallTask
from interp.units import Unit, select_units, units

__all__ = ["held_values", "patch"]

MIN_DIFFERENCE = 0.1
"""Mean logit difference between the two runs below which a normalised effect is undefined."""
N_RESAMPLES = 1000

PatchUnit = Literal["head", "kv_head", "layer", "mlp", "position", "entry", "offset"]
_DEFAULT_SITES: dict[str, tuple[str, ...]] = {
    "position": ("hook_resid_pre",),
    "entry": ("attn.hook_entry_k", "attn.hook_entry_v"),
    "offset": ("attn.compressor.key.hook_gate", "attn.compressor.value.hook_gate"),
}
_AXIS = {"position": "pos", "entry": "entry", "offset": "offset", "head": "head", "kv_head": "kv_head"}


def patch(
    model: HookedModel,
    task: RecallTask | None = None,
    *,
    pairs: Literal["shift", "value"] = "shift",
    shift: int = 1,
    direction: Literal["noising", "denoising"] = "noising",
    unit: PatchUnit = "head",
    site: str | None = None,
    at: At | None = None,
    only: Sequence[str] | None = None,
    reach: int | None = None,
    n: int | None = None,
    seed: int = 0,
    stride: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Write part of a source run's activations into a base run, by layer × part × phase.

    Parameters
    ----------
    model : HookedModel
        What to measure.
    task : RecallTask, optional
        Makes the pairs; :meth:`RecallTask.for_model` if left out.
    pairs : "shift" or "value"
        The corrupt prompt shows the same with its target `shift` residues on; or with another value.
    shift : int
        In residues.
    direction : "noising" or "denoising"
        Whether the base is the clean prompt and the source the corrupt one, or the other way round.
    unit : str
        What is patched together: "head", "kv_head" or "layer" (outputs z), "mlp"; one "position" (relative to
        the target key, and the query; the stream before a layer unless `site` says otherwise), one "entry"
        (relative to the target's first; keys and values as read), one gate "offset". With "layer" and a
        `site`, its whole tensor.
    site : str, optional
        A site within a block, e.g. "attn.indexer.hook_picks"; it must have the unit's axis.
    at : "final" or "all", optional
        Positions that are patched; "final" for heads, layers and MLPs unless told otherwise, "all" for the
        rest, and always for sites without a ``pos`` axis.
    only : sequence of str, optional
        Labels; all if left out.
    reach : int, optional
        How far positions (entries) go on both sides of the target's, 0 for its own alone; S (2) if left out.
    n : int, optional
        Prompts, rounded up to whole blocks of R; 32 a residue if left out.
    seed : int
        Of the prompts.
    stride, memory, progress
        As in :func:`interp.knockout.knockout`.

    Returns
    -------
    Dataset
        By ``(unit, phase)``: ``effect_logprob``, mean change of log-probability (nats) with BCa interval
        ``_low _high``, family-wise ``_p`` and exploratory ``_q``; ``normalised``, change of the logit
        difference ÷ its whole difference between the two runs (``difference (phase)``, ``difference_low
        difference_high``), 0 if patching does nothing and 1 if it gives the source run, with BCa interval
        ``normalised_low normalised_high`` of the ratio of means; NaN (undefined) where the whole cannot be told
        from 0, see Notes; ``effect_pp``, accuracy; ``kl_mean``, KL(base ‖ patched) in nats. The answer scored is the same in both
        runs ("shift"), or the source's ("value"), so that a part that carries the value is positive. The logit
        difference is between the source's and the base's answer, or, where they are one, the margin. Per
        prompt ``logprob margin correct logit_difference kl (unit, prompt, residue)``, ``base_…`` and
        ``source_… (prompt, residue)``. Phases are the base prompt's.

    Raises
    ------
    PhaselensError
        For a shift that is a multiple of the stride, a negative reach, or another kind of pair, direction, unit or
        `at`.
    SiteError
        For a site that no layer has, or without the unit's axis.

    Notes
    -----
    A ratio over about 0 is any number at all. The whole difference can be told from 0 if its mean is 0.1 logits
    or more and its 95% BCa interval over prompt_ids leaves 0 out; where there is no such interval (below 10
    prompt_ids, or without scatter), if all prompt_ids agree in its sign. What counts is the scatter of the mean
    over prompt_ids, not that of single prompts, which is logits wide in solved models as well. So a solved
    model keeps every ratio where pairs differ in the value, which is worth many logits at each phase; where they
    differ by a shift, it keeps those of phases whose margins differ and loses those of phases that are solved
    alike, between which there is nothing to normalise by.
    """
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task, stride)
    _check(pairs, shift, direction, unit, at, step)
    reach = (step if unit == "position" else 2) if reach is None else whole_number("reach", reach, 0)
    blocks = whole_blocks(task, n, 32)
    base, source = task.sample_pairs(blocks * task.modulus, seed=seed, kind=pairs, shift=shift)
    if direction == "denoising":
        base, source = source, base
    # A shifted prompt stands where its clean partner does; rows must stand under their own residue to be folded.
    order = np.lexsort((base.residue.numpy(), base.prompt_id.numpy()))
    base, source = (prompts.select(torch.from_numpy(order)) for prompts in (base, source))
    chosen, everywhere = _parts(model, base, unit, site, at, reach)
    chosen = select_units(chosen, only)
    options: dict[str, Any] = dict(metric=_metric(base, source), memory=memory)
    names = list(dict.fromkeys(name for one in chosen for name in one.sites))

    def on(rows: range) -> dict[str, Tensor]:  # what it holds is let go before the next batch is run
        held = held_values(model, source, names, at=everywhere, rows=rows, memory=memory, progress=False)
        variants = [Variant(one.label, one.edits(held)) for one in chosen]
        return engine.run(model, base, variants, at=everywhere, rows=rows, progress=False, **options)

    batches = engine.portions(
        model, source, names, len(chosen), at=everywhere, memory=memory, progress=progress, label="patch"
    )
    patched = [on(rows) for rows in batches]
    other = engine.run(model, source, label="source", progress=progress, **options)
    tables = {name: fold(torch.cat([p[name] for p in patched], dim=1), task.modulus) for name in patched[0]}
    ends = {name: fold(v[0], task.modulus) for name, v in other.items()}
    return _dataset(tables, ends, chosen, fold(base.target_position, task.modulus), step, seed, results.provenance(
        model, task, seed, unit_kind=unit, pairs=pairs, shift=shift, direction=direction, at=everywhere,
        site=site or "", stride=step, modulus=task.modulus, n_per_residue=blocks,
        query_position=base.query_position, **compared(
            logprob="base_logprob", margin="base_margin", correct="base_correct", logit_difference="base_logit_difference",
            kl=NOTHING,
        ),
    ))  # fmt: skip


def held_values(
    model: HookedModel,
    source: Prompts,
    names: Sequence[str],
    *,
    at: At,
    rows: range | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> ValueAt:
    """Run source prompts and return their activations, row by row, as replacement values.

    With `rows` only those prompts are run and held, and only they can be asked for.
    """
    rows = rows if rows is not None else range(len(source))
    parts: dict[str, list[Tensor]] = {name: [] for name in dict.fromkeys(names)}
    for _, kept in engine.activations(
        model, source, list(parts), at=at, rows=rows, memory=memory, progress=progress, label="source"
    ):
        for name, tensor in kept.items():
            parts[name].append(tensor)
    # One part, the usual case, is held as it is: joining would copy it.
    values = {name: part[0] if len(part) == 1 else torch.cat(part) for name, part in parts.items()}

    def value_at(name: str, tensor: Tensor, wanted: Rows) -> Tensor:
        found, axes = values[name][wanted.prompt - rows.start], SITE_AXES[_kind(name)]
        if "pos" in axes and found.shape[axes.index("pos")] > len(wanted.positions):
            found = found.index_select(axes.index("pos"), wanted.positions)
        return found

    return value_at


def _check(pairs: str, shift: int, direction: str, unit: str, at: str | None, stride: int) -> None:
    require_choice("pairs", pairs, ("shift", "value"))
    require_choice("direction", direction, ("noising", "denoising"))
    require_choice("unit", unit, get_args(PatchUnit))
    if at is not None:
        require_choice("at", at, get_args(At))
    if whole_number("shift", shift) % stride == 0 and pairs == "shift":
        raise PhaselensError(
            f"shift={shift} leaves every phase where it is at stride {stride}; valid: 1 to {stride - 1}"
        )


# ---- what is patched ---------------------------------------------------------------------------------------


def _kind(name: str) -> str:
    return parse_site(name).kind


def _parts(
    model: HookedModel, base: Prompts, unit: str, kind: str | None, at: At | None, reach: int
) -> tuple[list[Unit], At]:
    """Units to patch, and at which positions."""
    if kind is None and unit not in _DEFAULT_SITES:
        return units(model, unit), at or "final"
    kinds = _DEFAULT_SITES[unit] if kind is None else (kind,)
    for one in kinds:
        if one not in SITE_AXES:
            raise SiteError(f"site={one!r}; {did_you_mean(one, SITE_AXES, 40)}")
        if unit in _AXIS and _AXIS[unit] not in SITE_AXES[one]:
            raise SiteError(
                f"{one} has no axis {_AXIS[unit]!r} for unit={unit!r}; its axes: {', '.join(SITE_AXES[one])}"
            )
    valid = set(model.site_names())
    found: list[Unit] = []
    for layer in range(model.cfg.n_layers):
        names = tuple(name for one in kinds if (name := f"blocks.{layer}.{one}") in valid)
        if kinds == ("hook_embed",) and layer == 0:
            names = ("hook_embed",)
        if names:
            found += _of_layer(model, layer, names, unit, base, reach)
    if not found:
        raise SiteError(
            f"site {kinds[0]!r} never fires in model {model.name!r}; {did_you_mean(kinds[0], valid, 30)}"
        )
    positions = unit in ("position", "entry", "offset") or "pos" not in SITE_AXES[kinds[0]]
    return found, "all" if positions else at or "final"


def _of_layer(
    model: HookedModel, layer: int, names: tuple[str, ...], unit: str, base: Prompts, reach: int
) -> list[Unit]:
    if unit in ("layer", "mlp"):
        return [
            Unit(
                str(layer), layer, -1, names, True, lambda name, t, rows, value: _given(value)(name, t, rows)
            )
        ]
    axis = SITE_AXES[_kind(names[0])].index(_AXIS[unit])
    geometry = model.geometry(layer)
    if unit in ("head", "kv_head", "offset"):
        sizes = {"head": model.cfg.n_heads, "kv_head": model.cfg.n_kv_heads}
        size = sizes.get(unit) or (geometry.window if geometry else 0)
        return [
            Unit(f"{layer}.{i}", layer, i if unit != "offset" else -1, names, True, _fixed(axis, i))
            for i in range(size)
        ]
    target = base.target_position
    if unit == "entry":
        assert geometry is not None
        first = torch.tensor([geometry.entries_of(t)[0] for t in target.tolist()])
        where = {f"{d:+d}": first + d for d in range(-reach, reach + 1)}
    else:
        where = {f"{d:+d}": target + d for d in range(-reach, reach + 1)}
        where["query"] = torch.full_like(target, base.query_position)
    return [
        Unit(f"{layer}.{label}", layer, -1, names, True, _moving(axis, at)) for label, at in where.items()
    ]


def _given(value: ValueAt | None) -> ValueAt:
    assert value is not None
    return value


Editing = Callable[[str, Tensor, Rows, ValueAt | None], Tensor]


def _fixed(axis: int, index: int) -> Editing:
    """Patch one index of an axis."""

    def edit(name: str, tensor: Tensor, rows: Rows, value: ValueAt | None) -> Tensor:
        tensor.select(axis, index).copy_(_given(value)(name, tensor, rows).select(axis, index))
        return tensor

    return edit


def _moving(axis: int, where: Tensor) -> Editing:
    """Patch one index of an axis, another for every prompt; prompts that lack it stay as they are."""

    def edit(name: str, tensor: Tensor, rows: Rows, value: ValueAt | None) -> Tensor:
        values = _given(value)(name, tensor, rows)
        first = int(rows.positions[0]) if SITE_AXES[_kind(name)][axis] == "pos" else 0
        for row, prompt in enumerate(rows.prompt.tolist()):
            index = int(where[prompt]) - first
            if 0 <= index < tensor.shape[axis]:
                tensor[row].select(axis - 1, index).copy_(values[row].select(axis - 1, index))
        return tensor

    return edit


# ---- what it does ------------------------------------------------------------------------------------------


def _metric(base: Prompts, source: Prompts) -> engine.Metric:
    """Scores of the source's answer, the logit difference of the two answers, KL(base ‖ variant)."""
    of_answer = answer_metrics(source)

    def metric(logits: Tensor, prompt: Tensor) -> dict[str, Tensor]:
        found = dict(of_answer(logits, prompt))
        (mine, ours), (theirs, other) = (accepted_logits(p, logits, prompt) for p in (base, source))
        same = mine[..., 0] == theirs[..., 0]
        log_odds = other.logsumexp(-1) - ours.logsumexp(-1)
        found["logit_difference"] = torch.where(same, found["margin"], log_odds)
        log = logits.log_softmax(-1)
        found["kl"] = (log[:, :1].exp() * (log[:, :1] - log)).sum(-1).clamp_min(0)
        return found

    return metric


def _dataset(
    tables: dict[str, np.ndarray],
    ends: dict[str, np.ndarray],
    chosen: Sequence[Unit],
    position: np.ndarray,
    stride: int,
    seed: int,
    attrs: dict[str, Any],
) -> xr.Dataset:
    logprob, difference = (tables[name].astype(float) for name in ("logprob", "logit_difference"))
    if not np.isfinite(logprob).all():
        raise StatisticsError(
            "a patched run gave log-probabilities that are not finite; nothing can be averaged"
        )
    count = logprob.shape[1] * logprob.shape[2] // stride
    whole = stats.phase_means(ends["logit_difference"] - difference[0], stride)  # [prompt, phase]
    moved = stats.phase_means(difference[1:] - difference[0], stride)
    correct = by_phase(tables["correct"].astype(float), stride) / count
    axes, cells = ("unit", "prompt", "residue"), ("unit", "phase")
    return xr.Dataset(
        {
            **paired_statistics("effect_logprob", logprob[1:] - logprob[0], stride, seed=seed),
            **_normalised(moved, whole, seed),
            "effect_pp": (cells, 100 * (correct[1:] - correct[0])),
            "kl_mean": (cells, by_phase(tables["kl"][1:].astype(float), stride) / count),
            **{name: (axes, values[1:]) for name, values in tables.items()},
            **{f"base_{name}": (axes[1:], v[0]) for name, v in tables.items() if name != "kl"},
            **{f"source_{name}": (axes[1:], values) for name, values in ends.items() if name != "kl"},
            "target_position": (axes[1:], position),
        },
        coords={
            "unit": [one.label for one in chosen],
            "layer": ("unit", [one.layer for one in chosen]),
            "head": ("unit", [one.head for one in chosen]),
            "phase": np.arange(stride),
            "residue": np.arange(logprob.shape[2]),
            "prompt": np.arange(logprob.shape[1]),
        },
        attrs=attrs,
    )


def _normalised(
    moved: Float[np.ndarray, "unit prompt phase"], whole: Float[np.ndarray, "prompt phase"], seed: int
) -> dict[str, Any]:
    """Ratio of mean changes to the mean whole difference, with intervals; NaN where the whole may be 0."""
    low, high = stats.bca(whole, seed=seed, n_resamples=N_RESAMPLES)
    mean = whole.mean(axis=0)
    one_sign = (np.sign(whole) == np.sign(mean)).all(axis=0)
    apart = np.where(np.isnan(low), one_sign, (low > 0) | (high < 0))
    known = apart & (np.abs(mean) >= MIN_DIFFERENCE)
    ratio = np.full((3, len(moved), len(mean)), np.nan)
    if known.any():
        both = np.concatenate([whole[None], moved])[..., known].swapaxes(0, 1)  # [prompt, 1 + unit, phase]

        def of(sample: np.ndarray) -> np.ndarray:
            means = sample.mean(axis=1)
            return means[:, 1:] / means[:, :1]

        ratio[..., known] = [of(both[None])[0], *stats.bca(both, of, seed=seed, n_resamples=N_RESAMPLES)]
    ends = ("", "_low", "_high")
    return {
        **{f"normalised{end}": (("unit", "phase"), ratio[i]) for i, end in enumerate(ends)},
        **{f"difference{end}": ("phase", v) for end, v in zip(ends, (mean, low, high), strict=True)},
    }
