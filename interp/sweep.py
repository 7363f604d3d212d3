"""The phase sweep: how well a model retrieves, by residue and by phase, and the period found in the data."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import xarray as xr

from hooks.checks import require_choice, whole_number
from hooks.errors import StatisticsError, TaskError
from hooks.sites import HookedModel
from interp import engine, results, stats
from interp.phases import by_phase, fold, measured_stride, model_strides
from interp.tasks.prompts import Prompts, Task
from interp.tasks.recall import RecallTask

__all__ = ["clean_tables", "phase_sweep", "summarise"]


def phase_sweep(
    model: HookedModel,
    task: Task | None = None,
    *,
    n_per_residue: int = 64,
    seed: int = 0,
    axis: Literal["target", "query"] = "target",
    stride: int | None = None,
    clean: xr.Dataset | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Measure accuracy, log-probability and margin of the answer at every residue.

    Parameters
    ----------
    model : HookedModel
        What to measure.
    task : Task, optional
        The prompts; :meth:`RecallTask.for_model` if left out.
    n_per_residue : int
        Base prompts; each is shown at every residue.
    seed : int
        Of the prompts.
    axis : "target" or "query"
        Whether residues count the target's position, or phases count the query's.
    stride : int, optional
        Phases are counted by it; the model's own if left out (8, a placebo, for models without one).
    clean : Dataset, optional
        A knockout of the same model, task, number and seed of prompts: its clean run is taken instead of
        running it again.
    memory : int
        Budget for activations, in bytes.
    progress : bool, optional
        Show a bar; None: only on a terminal.

    Returns
    -------
    Dataset
        ``correct logprob margin target_position (prompt, residue)``; ``accuracy (phase)`` with BCa interval
        ``accuracy_low accuracy_high``; ``accuracy_residue (residue)`` with Wilson interval; attributes as in
        :func:`summarise` and the provenance.

    Raises
    ------
    PhaselensError
        If the model cannot do the task, `stride` does not divide R, or `clean` is of other prompts.
    """
    task = task or RecallTask.for_model(model)
    whole_number("n_per_residue", n_per_residue, 1)
    require_choice("axis", axis, ("target", "query"))
    if axis == "query":
        from interp.query_phase import query_sweep

        if not isinstance(task, RecallTask):
            raise TaskError(
                f"axis='query' moves the query of a RecallTask; {type(task).__name__} has a fixed one; valid: axis='target'"
            )
        return query_sweep(
            model,
            task,
            n_per_residue=n_per_residue,
            seed=seed,
            stride=stride,
            memory=memory,
            progress=progress,
        )
    prompts = task.sample(n_per_residue * task.modulus, seed=seed)
    attrs = results.provenance(model, task, seed, n_per_residue=n_per_residue, axis=axis)
    if not model_strides(model):
        attrs["placebo"] = 1  # the stride below is declared, not the model's
    if clean is None:
        scores = engine.run(model, prompts, memory=memory, progress=progress, label="sweep")
        tables = {name: fold(values[0], task.modulus) for name, values in scores.items()}
    else:
        tables = clean_tables(clean, attrs)
    return summarise(tables, prompts, stride=measured_stride(model, task, stride), seed=seed, attrs=attrs)


def clean_tables(knockout: xr.Dataset, attrs: dict[str, Any]) -> dict[str, np.ndarray]:
    """The clean run's values in a knockout of the same prompts.

    Raises
    ------
    StatisticsError
        If the provenance in `attrs` is another's.
    """
    for name in ("model_hash", "altered", "task", "seed", "n_per_residue"):
        theirs, ours = knockout.attrs.get(name, ""), attrs.get(name, "")
        if theirs != ours:
            raise StatisticsError(
                f"the clean run has {name}={theirs!r}, this sweep {ours!r}; valid: a knockout of the same model "
                "(as it is, or under the same forced gates and hooks), task, seed and number of prompts"
            )
    return {name: knockout[f"clean_{name}"].values for name in ("correct", "logprob", "margin")}


def summarise(
    tables: dict[str, np.ndarray],
    prompts: Prompts,
    *,
    stride: int,
    seed: int,
    attrs: dict[str, object],
) -> xr.Dataset:
    """Turn per-prompt values into accuracies, intervals, gaps and a period.

    Parameters
    ----------
    tables : dict of arrays [prompt, residue]
        ``correct``, ``logprob``, ``margin``.
    prompts : Prompts
        Where the targets were.
    stride : int
        S.
    seed : int
        Of resampling and permutations.
    attrs : dict
        Provenance.

    Returns
    -------
    Dataset
        As :func:`phase_sweep` describes; attributes ``gap_pp`` (best minus worst phase, percentage points)
        with the bootstrap's interval of the measured gap, biased upward as the largest of several means is
        (:func:`interp.stats.gap_bounds` is of the true one), ``gap_residue_pp``, ``null_gap_pp`` (expected if
        phases meant nothing), ``worst_phase``, ``period`` (0: none), ``period_p`` and ``period_tested`` (the
        candidates; on log-probability), and ``position_deviation_mean`` in tokens.
    """
    correct = tables["correct"]
    n, modulus = correct.shape
    position = fold(prompts.target_position, modulus)
    by = by_phase(correct, stride) / (n * modulus // stride)
    low, high = stats.phase_intervals(correct, stride, seed=seed)
    wilson_low, wilson_high = stats.wilson(correct.sum(0), n)
    gap_low, gap_high = stats.gap_interval(correct, stride, seed=seed)
    accuracy = correct.mean(0)
    period = stats.find_period(
        tables["logprob"], position, candidates=stats.candidates_for(stride), seed=seed
    )
    deviation = prompts.position_deviation()
    return xr.Dataset(
        {
            "correct": (("prompt", "residue"), correct),
            "logprob": (("prompt", "residue"), tables["logprob"]),
            "margin": (("prompt", "residue"), tables["margin"]),
            "target_position": (("prompt", "residue"), position),
            "accuracy": ("phase", by),
            "accuracy_low": ("phase", low),
            "accuracy_high": ("phase", high),
            "accuracy_residue": ("residue", accuracy),
            "accuracy_residue_low": ("residue", wilson_low),
            "accuracy_residue_high": ("residue", wilson_high),
        },
        coords={"prompt": np.arange(n), "residue": np.arange(modulus), "phase": np.arange(stride)},
        attrs={
            **attrs,
            "stride": stride,
            "modulus": modulus,
            "query_position": prompts.query_position,
            "gap_pp": 100 * float(by.max() - by.min()),
            "gap_pp_low": 100 * gap_low,
            "gap_pp_high": 100 * gap_high,
            "gap_residue_pp": 100 * float(accuracy.max() - accuracy.min()),
            "null_gap_pp": 100 * stats.null_gap(correct, stride, seed=seed),
            "worst_phase": int(by.argmin()),
            "period": period.period,
            "period_p": period.p,
            "period_tested": period.tested,
            "position_deviation_mean": deviation.mean,
            "position_deviation_variance": deviation.variance,
        },
    )
