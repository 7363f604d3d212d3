"""Knockout: what every unit's removal does to retrieval, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from hooks.checks import whole_number
from hooks.errors import SiteError
from hooks.sites import HookedModel
from interp import engine, results, stats
from interp.controls import compared
from interp.engine import At, Variant
from interp.phases import by_phase, fold, measured_stride, sample_blocks
from interp.replacement import CALIBRATION_BLOCKS, Replace, calibrate
from interp.tasks.prompts import Task
from interp.tasks.recall import RecallTask
from interp.units import Unit, select_units, union, units, where

__all__ = ["effects", "knockout"]

DEFAULT_PER_RESIDUE = 64
_SCORES = ("logprob", "margin", "correct")


def knockout(
    model: HookedModel,
    task: Task | None = None,
    *,
    unit: str = "kv_head",
    replace: Replace = "mean",
    at: At = "final",
    n: int | None = None,
    seed: int = 0,
    only: Sequence[str] | None = None,
    sets: Sequence[Sequence[str]] | None = None,
    stride: int | None = None,
    n_calibration: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Knock out one unit at a time and measure accuracy, log-probability and margin by phase.

    Parameters
    ----------
    model : HookedModel
        What to measure.
    task : Task, optional
        The prompts; :meth:`RecallTask.for_model` if left out.
    unit : str
        One of :data:`interp.units.UNIT_KINDS`; "kv_head" replaces the outputs z of the query heads that read
        one KV head, as Zhu et al. (2026, arXiv 2609.36322) do.
    replace : "mean", "zero", "phase_mean" or "resample"
        By what; means come from a disjoint calibration set.
    at : "final" or "all"
        At the final position only, or everywhere.
    n : int, optional
        Prompts, rounded up to whole blocks of R; 64 a residue if left out.
    seed : int
        Of the prompts; calibration prompts use (seed, "calibration").
    only : sequence of str, optional
        Labels of the units to knock out; all if left out.
    sets : sequence of sequences of str, optional
        Sets of labels instead: all units of a set are knocked out at once, under the label "0.1+1.0".
    stride : int, optional
        Phases are counted by it; the model's own if left out.
    n_calibration : int, optional
        Calibration prompts; 8 blocks of R if left out.
    memory, progress
        As in :func:`interp.engine.run`.

    Returns
    -------
    Dataset
        ``effect (unit, phase)`` = 100·(knockout − clean)/clean from pooled counts, negative = loss, NaN
        (undefined) where fewer than 20 prompts were right; ``effect_pp (unit, phase)`` in percentage points;
        ``effect_residue (unit, residue)``; ``correct logprob margin (unit, prompt, residue)`` and the same with
        ``clean_`` in front ``(prompt, residue)``; ``clean_accuracy (phase)``.

    Raises
    ------
    PhaselensError
        For a unit, replacement, label or word for `at` that does not exist, or an empty list of them.
    """
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task, stride)
    prompts = sample_blocks(task, n, seed, DEFAULT_PER_RESIDUE)
    chosen = select_units(units(model, unit, prompts), only)
    if sets is not None:
        if not len(sets):
            raise SiteError("an empty list of sets knocks nothing out; leave it out for single units")
        chosen = [union(select_units(chosen, labels)) for labels in sets]
    at = where(chosen, at)
    names = [name for one in chosen if one.replaced for name in one.sites]
    if n_calibration is None:
        n_calibration = CALIBRATION_BLOCKS * task.modulus
    value_at = calibrate(
        model, task, prompts, names, replace=replace, at=at, stride=step, seed=seed,
        n=whole_number("n_calibration", n_calibration, 1), memory=memory, progress=progress,
    ).at  # fmt: skip
    variants = [Variant(one.label, one.edits(value_at, repeatable=True)) for one in chosen]
    scores = engine.run(model, prompts, variants, at=at, memory=memory, progress=progress, label="knockout")
    tables = {name: fold(values, task.modulus) for name, values in scores.items()}
    attrs = results.provenance(
        model, task, seed, unit_kind=unit, replace=replace if names else "masked", at=at,
        stride=step, modulus=task.modulus, n_per_residue=tables["correct"].shape[1],
        query_position=prompts.query_position, heads_per_kv=model.cfg.n_heads // model.cfg.n_kv_heads,
        **compared(**{name: f"clean_{name}" for name in _SCORES}),
    )  # fmt: skip
    return effects(
        tables, chosen, position=fold(prompts.target_position, task.modulus), stride=step, attrs=attrs
    )


def effects(
    tables: dict[str, np.ndarray],
    chosen: Sequence[Unit],
    *,
    position: np.ndarray,
    stride: int,
    attrs: dict[str, object],
) -> xr.Dataset:
    """Turn per-prompt values of a clean run and of every variant into effects by phase.

    Parameters
    ----------
    tables : dict of arrays [1 + unit, prompt, residue]
        ``correct``, ``logprob``, ``margin``; row 0 is the clean run.
    chosen : sequence of Unit
        What the other rows are.
    position : array [prompt, residue]
        Target positions.
    stride : int
        S.
    attrs : dict
        Of the result.
    """
    correct = tables["correct"].astype(np.int64)
    counts = by_phase(correct, stride)
    per_phase = correct.shape[1] * correct.shape[2] // stride
    by_residue = correct.sum(1)
    axes = ("unit", "prompt", "residue")
    data: dict[str, tuple] = {
        "effect": (("unit", "phase"), _relative(counts)),
        "effect_pp": (("unit", "phase"), 100 * (counts[1:] - counts[0]) / per_phase),
        "effect_residue": (("unit", "residue"), _relative(by_residue)),
        "clean_accuracy": ("phase", counts[0] / per_phase),
        "target_position": (axes[1:], position),
    }
    for name, values in tables.items():
        data[name] = (axes, values[1:])
        data[f"clean_{name}"] = (axes[1:], values[0])
    coords = {
        "unit": [one.label for one in chosen],
        "layer": ("unit", [one.layer for one in chosen]),
        "head": ("unit", [one.head for one in chosen]),
        "phase": np.arange(stride),
        "prompt": np.arange(correct.shape[1]),
        "residue": np.arange(correct.shape[2]),
    }
    return xr.Dataset(data, coords=coords, attrs=attrs)


def _relative(counts: np.ndarray) -> np.ndarray:
    """Percent change against row 0; NaN below the minimum of right prompts."""
    clean = np.where(counts[0] >= stats.MIN_CLEAN_CORRECT, counts[0], np.nan).astype(float)
    return 100 * (counts[1:] - counts[0]) / clean
