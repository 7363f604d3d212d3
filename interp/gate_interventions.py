"""Changing gates on purpose: cycling them, and forcing them to one part of what they do."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from hooks.checks import whole_number
from hooks.cycling import cycled_layers
from hooks.errors import PhaselensError, SiteError
from hooks.sites import HookedModel
from interp import engine, results, stats
from interp.altered import altered
from interp.gates import cycle_gates
from interp.knockout import knockout
from interp.phases import measured_stride, sample_blocks, whole_blocks
from interp.rng import derive_seed
from interp.specialization import specialization
from interp.sweep import phase_sweep
from interp.tasks.prompts import Task
from interp.tasks.recall import RecallTask

__all__ = [
    "FORCED", "WORDS", "check_shifts", "cycling", "forced_gates", "gate_parts", "phase_correlation", "r_squared",
    "resampled_bounds", "rolled",
]  # fmt: skip

FORCED = ("static", "deviation", "uniform")
"""Parts of a gate."""
WORDS = (*FORCED, "moved")
"""What a gate can be forced to, beside a single offset; "moved" is a control."""
MEAN_BLOCKS = 4


def r_squared(observed: np.ndarray, predicted: np.ndarray) -> Any:
    """1 − SS_res/SS_tot over the last axis, may be negative; NaN (undefined) where nothing observed varies.

    `predicted` is taken as it is: nothing is fitted.
    """
    total = ((observed - observed.mean(-1, keepdims=True)) ** 2).sum(-1)
    rest = ((observed - predicted) ** 2).sum(-1)
    return 1 - np.divide(rest, total, out=np.full(np.shape(rest), np.nan), where=total > 1e-12)


def rolled(accuracy: np.ndarray, shifts: Iterable[int]) -> np.ndarray:
    """Predict [shift, phase] by A_0((r − δ) mod S)."""
    return np.stack([np.roll(accuracy, shift) for shift in shifts])


def phase_correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Correlation over the last axis; NaN (undefined) where one side does not vary."""
    a, b = (x - x.mean(-1, keepdims=True) for x in (a, b))
    norm = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return np.divide((a * b).sum(-1), norm, out=np.full(norm.shape, np.nan), where=norm > 1e-12)


def resampled_bounds(
    statistic: Callable[[Any], np.ndarray], prompts: int, rng: np.random.Generator, n_resamples: int
) -> np.ndarray:
    """95% percentile bounds [2, …] of a statistic of prompt numbers.

    NaN below the minimum n, and where more than 5% of the resamples leave the statistic undefined.
    """
    if prompts < stats.MIN_BOOTSTRAP_PROMPTS:
        return np.full((2, *statistic(slice(None)).shape), np.nan)
    drawn = np.stack([statistic(rng.integers(prompts, size=prompts)) for _ in range(n_resamples)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cells that no resample defines
        bounds = np.nanquantile(drawn, [0.025, 0.975], axis=0)
    bounds[:, np.isnan(drawn).mean(0) > 0.05] = np.nan
    return bounds


def check_shifts(model: Any, shifts: Sequence[int], stride: int, name: str = "shift=") -> None:
    """Refuse shifts that move no gate or come round again.

    Raises
    ------
    SiteError
        For such a shift, one that is no whole number, or a model whose gates cannot be cycled.
    """
    cycled_layers(model)
    for shift in shifts:
        if not 0 < abs(whole_number("shift", shift, error=SiteError)) < stride:
            does = "comes round" if shift % stride else "moves no gate"
            raise SiteError(f"{name}{shift} {does} at stride {stride}; valid: ±1 to ±{stride - 1}")


def cycling(
    model: Any,
    task: Task | None = None,
    *,
    shifts: Sequence[int] = (1, -1),
    n_per_residue: int = 64,
    seed: int = 0,
    n_resamples: int = 1000,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Cycle all gates by δ offsets and compare accuracy by phase with A_δ(r) = A_0((r − δ) mod S).

    Parameters
    ----------
    model : CompressedTransformer
        With W = S, see :func:`hooks.cycling.cycle_gates`.
    task : Task, optional
        :meth:`RecallTask.for_model` if left out.
    shifts : sequence of int
        δ, from ±1 to ±(S − 1).
    n_per_residue, seed, memory, progress
        As in :func:`interp.sweep.phase_sweep`; all models answer the same prompts.
    n_resamples : int
        Resamples of prompt_ids behind the intervals.

    Returns
    -------
    Dataset
        ``accuracy (phase)`` of the model as it is; ``observed predicted (shift, phase)``, ``observed_low
        observed_high`` (BCa); ``correct (shift, prompt, residue)`` and ``clean_correct (prompt, residue)``;
        ``r2 (shift)`` over all ``n`` = S phases and ``r2_inner (shift)`` over the ``n_inner`` = S − 1 without
        the boundary phase, which no gate can make strong: 1 − SS_res/SS_tot with nothing fitted, each with a
        percentile bootstrap interval over prompt_ids.

    Raises
    ------
    SiteError
        If windows overlap or hold one offset, or gates are not learned, or for a shift that is no whole number
        or moves nothing.
    PhaselensError
        For no shift at all, or fewer than one resample.
    """
    if not len(shifts):
        raise PhaselensError("shifts=[] cycles nothing; valid: one offset or more, e.g. 1, -1")
    whole_number("n_resamples", n_resamples, 1)
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task)
    check_shifts(model, shifts, step)
    options: dict[str, Any] = dict(n_per_residue=n_per_residue, seed=seed, memory=memory, progress=progress)
    moved = [cycle_gates(model, shift) for shift in shifts]
    clean = phase_sweep(model, task, **options)
    swept = [phase_sweep(one, task, **options) for one in moved]
    before = stats.phase_means(clean["correct"].values, step)  # [prompt, phase]
    after = np.stack([stats.phase_means(s["correct"].values, step) for s in swept])
    inner = np.arange(step) != step - 1
    data: dict[str, Any] = {
        "accuracy": ("phase", before.mean(0)),
        "observed": (("shift", "phase"), after.mean(1)),
        "predicted": (("shift", "phase"), rolled(before.mean(0), shifts)),
        "observed_low": (("shift", "phase"), np.stack([s["accuracy_low"].values for s in swept])),
        "observed_high": (("shift", "phase"), np.stack([s["accuracy_high"].values for s in swept])),
        "correct": (("shift", "prompt", "residue"), np.stack([s["correct"].values for s in swept])),
        "clean_correct": (("prompt", "residue"), clean["correct"].values),
    }
    for name, phases in (("r2", np.full(step, True)), ("r2_inner", inner)):

        def of(rows: Any, phases: np.ndarray = phases) -> np.ndarray:
            return r_squared(
                after[:, rows].mean(1)[:, phases], rolled(before[rows].mean(0), shifts)[:, phases]
            )

        rng = np.random.default_rng(derive_seed(seed, "cycling"))
        low, high = resampled_bounds(of, len(before), rng, n_resamples)
        data |= {
            name: ("shift", of(slice(None))),
            f"{name}_low": ("shift", low),
            f"{name}_high": ("shift", high),
        }
    return xr.Dataset(
        data,
        coords={
            "shift": list(shifts), "phase": np.arange(step), "prompt": np.arange(len(before)),
            "residue": np.arange(task.modulus),
        },
        attrs=results.provenance(
            model, task, seed, stride=step, modulus=task.modulus, n_per_residue=n_per_residue, n=step,
            n_inner=step - 1, boundary_phase=step - 1,
        ),
    )  # fmt: skip


# ---- forcing -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def forced_gates(
    model: HookedModel,
    to: str | int,
    task: Task | None = None,
    *,
    seed: int = 0,
    n: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> Iterator[HookedModel]:
    """Context in which every key and value gate of a model is forced; any measurement runs inside.

    Results measured inside say so (:func:`interp.results.provenance`).

    Parameters
    ----------
    model : HookedModel
        With at least one chunked layer.
    to : "static", "deviation", "uniform", "moved" or int
        E[α], the gate's own mean over calibration windows; what is left when that mean is divided out,
        α/E[α] normalised, so that only the window's own deviation acts; 1/W; E[α] moved by half a window (W ÷ 2
        offsets, rounded down), a control of the first that is as static and in the wrong place; or one offset
        alone.
    task : Task, optional
        Of the calibration prompts, seeded by (seed, "gate mean").
    seed, n, memory, progress
        As elsewhere; 4 blocks of R if `n` is left out.

    Raises
    ------
    SiteError
        If the model has no gates, or no such offset.
    PhaselensError
        For another word, or a number that is not whole.

    Notes
    -----
    Clipped slots stay 0 and the rest is renormalised; a window whose only offset is clipped stays as it is.
    """
    names = [
        name for name in model.site_names() if ".attn.compressor." in name and name.endswith("hook_gate")
    ]
    if not names:
        raise SiteError(f"model {model.name!r} has no gates: none of its layers is chunked")
    _check_part(to)
    mean: dict[str, Tensor] = {}
    how = f"gates forced to {to if isinstance(to, str) else f'offset {to}'}"
    if to in ("static", "deviation", "moved"):
        task = task or RecallTask.for_model(model)
        mean = _mean_gates(model, task, names, n, seed, memory, progress)
        how += (
            f" ({whole_blocks(task, n, MEAN_BLOCKS)} base prompts, seed {seed})"  # others have another mean
        )
    hooks = [(name, _forcing(model, name, to, mean.get(name))) for name in names]
    with altered(model, how, hooks):
        yield model


def _check_part(to: Any) -> None:
    if not isinstance(to, str):
        whole_number("offset", to)
    elif to not in WORDS:
        raise PhaselensError(f"to={to!r}; valid: {', '.join(WORDS)} or an offset")


def _mean_gates(
    model: HookedModel, task: Task, names: list[str], n: int | None, seed: int, memory: int,
    progress: bool | None,
) -> dict[str, Tensor]:  # fmt: skip
    """E[α] [offset, kv_head, channel] over windows without clipped slots."""
    prompts = sample_blocks(task, n, derive_seed(seed, "gate mean"), MEAN_BLOCKS)
    total: dict[str, Tensor] = {}
    count: dict[str, int] = dict.fromkeys(names, 0)
    for _, kept in engine.activations(model, prompts, names, at="all", memory=memory, progress=progress):
        for name, gate in kept.items():
            geometry = model.geometry(int(name.split(".")[1]))
            assert geometry is not None
            whole = gate[:, -(-(geometry.window - geometry.stride) // geometry.stride) :].double()
            total[name] = total.get(name, torch.zeros(())).to(whole.device) + whole.sum((0, 1))
            count[name] += whole.shape[0] * whole.shape[1]
    if min(count.values()) == 0:
        raise SiteError("the prompts are too short: no window of some layer closes without clipped slots")
    return {name: total[name] / count[name] for name in names}


def _forcing(model: HookedModel, name: str, to: str | int, mean: Tensor | None) -> Callable[..., Tensor]:
    geometry = model.geometry(int(name.split(".")[1]))
    assert geometry is not None
    if not isinstance(to, str) and not 0 <= to < geometry.window:
        raise SiteError(f"offset {to} does not exist in {name}; valid: 0 to {geometry.window - 1}")

    def force(gate: Tensor, hook: object) -> Tensor:
        open_slot = gate > 0
        if to == "uniform":
            wanted = torch.ones_like(gate)
        elif to in ("static", "moved") and mean is not None:
            shift = geometry.window // 2 if to == "moved" else 0
            wanted = mean.roll(shift, 0).to(gate).expand_as(gate)
        elif to == "deviation" and mean is not None:
            wanted = gate / mean.to(gate).clamp_min(torch.finfo(gate.dtype).tiny)
        else:
            wanted = torch.zeros_like(gate)
            wanted.select(2, int(to)).fill_(1)
        wanted = wanted * open_slot
        mass = wanted.sum(2, keepdim=True)
        return torch.where(mass > 0, wanted / mass.clamp_min(torch.finfo(gate.dtype).tiny), gate)

    return force


def gate_parts(
    model: HookedModel,
    task: Task | None = None,
    *,
    to: Sequence[str | int] = FORCED,
    unit: str = "kv_head",
    n: int | None = None,
    seed: int = 0,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Knock units out under forced gates: which part of a gate carries the phases a head serves.

    Parameters
    ----------
    model, task, unit, n, seed, memory, progress
        As in :func:`interp.knockout.knockout`.
    to : sequence
        See :func:`forced_gates`; the gates as they are come first as "intact".

    Returns
    -------
    Dataset
        By ``gates``: ``accuracy (gates, phase)`` with BCa interval, ``effect_pp loss serves p_effect (gates,
        unit, phase)``, and ``similarity (gates, unit)``: correlation over phases of a unit's mean change of
        log-probability with that under intact gates, with interval ``similarity_low similarity_high`` over
        prompt_ids; NaN for units that serve no phase when intact. Per prompt ``correct logprob (gates, unit,
        prompt, residue)`` and ``clean_correct clean_logprob (gates, prompt, residue)``.

    Raises
    ------
    SiteError
        If the model has no gates, or no such offset.
    PhaselensError
        For a part, unit or number of prompts that does not exist, and for no part at all.
    """
    parts = [to] if isinstance(to, str) else list(to)
    if not parts:
        raise PhaselensError(f"to=[] forces nothing; valid: {', '.join(FORCED)} or offsets")
    for each in parts:  # refuses before anything runs
        _check_part(each)
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task)
    found: list[xr.Dataset] = []
    for each in ("intact", *parts):
        inside: Any = contextlib.nullcontext(model)
        if each != "intact":
            inside = forced_gates(model, each, task, seed=seed, memory=memory, progress=progress)
        with inside:
            found.append(knockout(model, task, unit=unit, n=n, seed=seed, memory=memory, progress=progress))
    served = [specialization(one, seed=seed) for one in found]
    change = np.stack(
        [stats.phase_means(one["logprob"].values - one["clean_logprob"].values, step) for one in found]
    )
    specialised = np.asarray(served[0]["serves"].values.any(axis=1))
    similar = [_similarity(change[0], each, specialised, seed) for each in change]
    bounds = [stats.phase_intervals(one["clean_correct"].values, step, seed=seed) for one in found]
    cells, rows, attrs = ("gates", "unit", "phase"), ("prompt", "residue"), dict(found[0].attrs)
    return xr.Dataset(
        {
            "accuracy": (("gates", "phase"), np.stack([one["clean_accuracy"].values for one in found])),
            "accuracy_low": (("gates", "phase"), np.stack([low for low, _ in bounds])),
            "accuracy_high": (("gates", "phase"), np.stack([high for _, high in bounds])),
            "effect_pp": (cells, np.stack([one["effect_pp"].values for one in found])),
            **{
                v: (cells, np.stack([one[v].values for one in served]))
                for v in ("loss", "serves", "p_effect")
            },
            "change": (cells, change.mean(axis=2)),
            **{
                v: (("gates", "unit", *rows), np.stack([one[v].values for one in found]))
                for v in ("correct", "logprob")
            },
            **{
                v: (("gates", *rows), np.stack([one[v].values for one in found]))
                for v in ("clean_correct", "clean_logprob")
            },
            **{
                f"similarity{end}": (("gates", "unit"), np.stack([one[i] for one in similar]))
                for i, end in enumerate(("", "_low", "_high"))
            },
        },
        coords={
            "gates": [
                str(each) if isinstance(each, str) else f"offset {each}" for each in ("intact", *parts)
            ],
            **{name: found[0].coords[name] for name in ("unit", "layer", "head", "phase", *rows)},
        },
        attrs=attrs,
    )


def _similarity(
    intact: np.ndarray, forced: np.ndarray, specialised: np.ndarray, seed: int, n_resamples: int = 500
) -> np.ndarray:
    """Correlation over phases of two [unit, prompt, phase] changes: value, low, high by unit."""
    rng = np.random.default_rng(derive_seed(seed, "similarity"))

    def correlate(rows: Any) -> np.ndarray:
        return phase_correlation(intact[:, rows].mean(1), forced[:, rows].mean(1))

    bounds = resampled_bounds(correlate, intact.shape[1], rng, n_resamples)
    return np.where(specialised, np.stack([correlate(slice(None)), *bounds]), np.nan)
