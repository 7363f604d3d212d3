"""Two models on the same prompts, and how much wider the phase gap of the second is.

The pairs that this is for: a model and itself with quantization off, with every entry attended instead of the
picked ones, or another trained model of the same task.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from hooks.errors import StatisticsError
from hooks.sites import HookedModel
from interp import engine, results, stats
from interp.phases import fold, measured_stride
from interp.sweep import clean_tables
from interp.tasks.prompts import Task
from interp.tasks.recall import RecallTask

__all__ = ["compare", "gap_difference"]


def compare(
    first: HookedModel,
    second: HookedModel,
    task: Task | None = None,
    *,
    n_per_residue: int = 64,
    seed: int = 0,
    stride: int | None = None,
    known: tuple[xr.Dataset | None, xr.Dataset | None] = (None, None),
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Measure how the phase gap differs between two models, prompt by prompt.

    Parameters
    ----------
    first, second : HookedModel
        What is compared; differences are second minus first.
    task : Task, optional
        The prompts of both; the recall task of `first` if left out.
    n_per_residue, seed, stride, memory, progress
        As in :func:`interp.sweep.phase_sweep`; the stride is that of `first` if left out.
    known : pair of Dataset or None
        Knockouts of the two models on the same prompts, whose clean runs are taken instead of running again.

    Returns
    -------
    Dataset
        ``correct logprob margin (model, prompt, residue)``; ``accuracy mean_logprob (model, phase)``;
        ``change change_pp (phase)``, second minus first, of the log-probability (nats) and of the accuracy
        (percentage points), with BCa intervals ``_low _high`` over prompt_ids. Attributes ``gap_pp`` and
        ``gap_nats``, one value a model; ``widening_pp`` and ``widening_nats``, the second's gap minus the
        first's, with ``_low _high`` of :func:`gap_difference`.

    Raises
    ------
    StatisticsError
        If the models have different vocabularies, or what is `known` is of other prompts.

    Notes
    -----
    A gap is best minus worst phase of the mean, biased upward in both models, and not alike: the interval of the
    widening allows for it. Where accuracy is at its ceiling the gap in nats is the one to read.
    """
    if first.cfg.d_vocab != second.cfg.d_vocab:
        raise StatisticsError(
            f"{first.name!r} has {first.cfg.d_vocab} tokens, {second.name!r} {second.cfg.d_vocab}; valid: two "
            "models of one task"
        )
    task = task or RecallTask.for_model(first)
    step = measured_stride(first, task, stride)
    prompts = task.sample(n_per_residue * task.modulus, seed=seed)

    def scores(model: HookedModel, knockout: xr.Dataset | None) -> dict[str, np.ndarray]:
        if knockout is not None:
            return clean_tables(knockout, results.provenance(model, task, seed, n_per_residue=n_per_residue))
        ran = engine.run(model, prompts, memory=memory, progress=progress, label=model.name)
        return {name: fold(values[0], task.modulus) for name, values in ran.items()}

    pair = [scores(model, one) for model, one in zip((first, second), known, strict=True)]
    tables = {
        name: np.stack([one[name] for one in pair]).astype(bool if name == "correct" else float)
        for name in ("correct", "logprob", "margin")
    }
    data: dict[str, Any] = {name: (("model", "prompt", "residue"), values) for name, values in tables.items()}
    attrs = results.provenance(
        first, task, seed, other_model=second.name, other_model_hash=second.content_hash(), stride=step,
        modulus=task.modulus, n_per_residue=n_per_residue, query_position=prompts.query_position,
    )  # fmt: skip
    for name, unit, scale, change in (
        ("correct", "pp", 100.0, "change_pp"), ("logprob", "nats", None, "change"),
    ):  # fmt: skip
        by = (scale or 1.0) * stats.phase_means(tables[name], step).swapaxes(0, 1)  # [prompt, model, phase]
        widening, low, high = gap_difference(by, scale=scale, seed=seed)
        data |= _with_interval(change, by[:, 1] - by[:, 0], seed)
        attrs |= {
            f"gap_{unit}": np.ptp(by.mean(axis=0), axis=-1).tolist(),
            f"widening_{unit}": widening,
            f"widening_{unit}_low": low,
            f"widening_{unit}_high": high,
        }
        data["accuracy" if name == "correct" else "mean_logprob"] = (
            ("model", "phase"),
            by.mean(axis=0) / (scale or 1.0),
        )
    return xr.Dataset(
        data,
        coords={
            "model": [first.name, second.name], "prompt": np.arange(n_per_residue),
            "residue": np.arange(task.modulus), "phase": np.arange(step),
        },
        attrs=attrs,
    )  # fmt: skip


def gap_difference(
    by: Float[np.ndarray, "prompt model phase"], *, scale: float | None = None, seed: int = 0
) -> tuple[float, float, float]:
    """The second model's gap minus the first's, with the 95% interval (low, high) of the true difference.

    Parameters
    ----------
    by : array [prompt, model, phase]
        Means of the two models by prompt_id and phase, on the same prompts, in any unit.
    scale : float, optional
        The largest possible gap: 1 for accuracies, 100 for percent; None for log-probabilities.
    seed : int
        Of the draws behind the interval.

    Notes
    -----
    The gaps of two flat models of accuracy 0.5 and 1.0 differ by chance alone; :func:`stats.gap_difference_bounds`
    holds 0 there, and holds the truth whichever phases are best and worst in either model.
    """
    gaps = np.ptp(by.mean(axis=0), axis=-1)
    return float(gaps[1] - gaps[0]), *stats.gap_difference_bounds(by, scale=scale, seed=seed)


def _with_interval(name: str, change: np.ndarray, seed: int) -> dict[str, Any]:
    low, high = stats.bca(change, seed=seed)
    return {
        name: ("phase", change.mean(axis=0)),
        f"{name}_low": ("phase", low),
        f"{name}_high": ("phase", high),
    }
