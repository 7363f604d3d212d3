"""The phase sweep's other axis: how full the open window is when the model is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xarray as xr

from hooks.checks import whole_number
from hooks.errors import TaskError
from hooks.sites import HookedModel
from interp import engine, results, stats
from interp.audit.inference import cross_shares, gap_test, query_gap_test
from interp.phases import measured_stride
from interp.tasks.recall import RecallTask

__all__ = ["query_sweep"]

_SCORES = ("correct", "logprob", "margin")


def query_sweep(
    model: HookedModel,
    task: RecallTask | None = None,
    *,
    n_per_residue: int = 64,
    seed: int = 0,
    stride: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Measure retrieval by query phase, every target staying where it is, and by target × query phase.

    Parameters
    ----------
    model : HookedModel
        What to measure.
    task : RecallTask, optional
        Samples prompts at a query phase: fillers between context and demonstrations move the query alone.
        :meth:`RecallTask.for_model` if left out.
    n_per_residue : int
        Base prompts; each is shown at every pair of target phase and query phase.
    seed : int
        Of the prompts.
    stride : int, optional
        S; the model's own if left out (8, a placebo, for models without one).
    memory, progress
        As in :func:`interp.engine.run`.

    Returns
    -------
    Dataset
        As of :func:`interp.sweep.phase_sweep`, with ``residue`` and ``phase`` both the query phase
        (q+1) mod S, and one row ``prompt`` for every base prompt and target phase (coordinates ``prompt_id``,
        ``row_target_phase``). ``accuracy_cell (target_phase, phase)`` with Wilson interval ``accuracy_cell_low
        accuracy_cell_high``; ``target_gap (phase)``, the gap over target phases at each query phase in
        percentage points. Attributes ``target_gap_pp target_null_pp target_p`` and ``query_gap_pp
        query_null_pp query_p``, and ``share_target share_query share_interaction`` of what varies between
        cells (:func:`interp.audit.inference.cross_shares`; NaN where neither axis has p ≤ 5%). There is no
        period: the query takes S positions only.

    Raises
    ------
    TaskError
        If the task cannot move its query.
    PhaselensError
        For less than one base prompt, or a stride that does not divide R.
    """
    whole_number("n_per_residue", n_per_residue, 1)
    task = task or RecallTask.for_model(model)
    if not isinstance(task, RecallTask):
        raise TaskError(f"{type(task).__name__} cannot move its query; valid: RecallTask")
    step = measured_stride(model, task, stride)
    rows = _rows(n_per_residue, step, task.modulus)
    tables: dict[str, list[np.ndarray]] = {name: [] for name in _SCORES}
    position = np.empty(0, dtype=np.int64)
    for phase in range(step):
        prompts = task.sample(n_per_residue * task.modulus, seed=seed, query_phase=phase, query_stride=step)
        prompts = prompts.select(rows)
        scores = engine.run(model, prompts, memory=memory, progress=progress, label=f"query phase {phase}")
        position = prompts.target_position.numpy().reshape(n_per_residue, step)  # the same every time
        for name in _SCORES:
            tables[name].append(scores[name][0].numpy().reshape(n_per_residue, step))
    crossed = {name: np.stack(parts) for name, parts in tables.items()}  # [query, prompt, target]
    attrs = results.provenance(model, task, seed, n_per_residue=n_per_residue, axis="query", stride=step)
    return _dataset(crossed, position, step, seed, attrs)


def _rows(blocks: int, stride: int, modulus: int) -> torch.Tensor:
    """One row for every base prompt and target phase; its residue goes round the cycles of R."""
    block = np.arange(blocks)[:, None]
    residue = np.arange(stride)[None, :] + stride * (block % (modulus // stride))
    return torch.from_numpy((block * modulus + residue).reshape(-1))


def _dataset(
    crossed: dict[str, np.ndarray], position: np.ndarray, stride: int, seed: int, attrs: dict[str, Any]
) -> xr.Dataset:
    correct = crossed["correct"]
    n = correct.shape[1]
    by_prompt = correct.mean(axis=2).T  # [prompt, query]: the resampling unit is the base prompt
    accuracy = by_prompt.mean(axis=0)
    low, high = stats.phase_intervals(by_prompt, stride, seed=seed)
    gap_low, gap_high = stats.gap_interval(by_prompt, stride, seed=seed)
    counts = correct.sum(axis=1).T  # [target, query]
    cell_low, cell_high = stats.wilson(counts, n)
    flat = {name: values.transpose(1, 2, 0).reshape(n * stride, stride) for name, values in crossed.items()}
    rows, cells = ("prompt", "residue"), ("target_phase", "phase")
    return xr.Dataset(
        {
            **{name: (rows, values) for name, values in flat.items()},
            "target_position": (rows, np.repeat(position.reshape(-1, 1), stride, axis=1)),
            "accuracy": ("phase", accuracy),
            "accuracy_low": ("phase", low),
            "accuracy_high": ("phase", high),
            "accuracy_residue": ("residue", accuracy),
            "accuracy_residue_low": ("residue", low),
            "accuracy_residue_high": ("residue", high),
            "accuracy_cell": (cells, counts / n),
            "accuracy_cell_low": (cells, cell_low),
            "accuracy_cell_high": (cells, cell_high),
            "target_gap": ("phase", 100 * np.ptp(counts / n, axis=0)),
        },
        coords={
            "prompt": np.arange(n * stride),
            "prompt_id": ("prompt", np.repeat(np.arange(n), stride)),
            "row_target_phase": ("prompt", np.tile(np.arange(stride), n)),
            "residue": np.arange(stride),
            "phase": np.arange(stride),
            "target_phase": np.arange(stride),
        },
        attrs={
            **attrs,
            "modulus": stride,
            "gap_pp": 100 * float(np.ptp(accuracy)),
            "gap_pp_low": 100 * gap_low,
            "gap_pp_high": 100 * gap_high,
            "gap_residue_pp": 100 * float(np.ptp(accuracy)),
            "null_gap_pp": 100 * stats.null_gap(by_prompt, stride, seed=seed),
            "worst_phase": int(accuracy.argmin()),
            "period": 0,  # the target's phase is fixed: there is no position to find one in
            "period_p": float("nan"),
            **_shares(correct, stride, seed),
        },
    )


def _shares(correct: np.ndarray, stride: int, seed: int) -> dict[str, float]:
    """Both gaps with their tests, and how variation between cells splits between the axes."""
    target = gap_test(correct.mean(axis=0), stride, seed=seed)
    query = query_gap_test(correct, seed=seed)
    share = cross_shares(correct, stride)
    told = min(target.p, query.p) <= stats.SIGNIFICANCE
    found = {f"{name}_gap_pp": 100 * test.gap for name, test in (("target", target), ("query", query))}
    found |= {
        f"{name}_null_pp": 100 * test.null_mean for name, test in (("target", target), ("query", query))
    }
    found |= {"target_p": target.p, "query_p": query.p}
    for name in ("target", "query", "interaction"):
        found[f"share_{name}"] = float(getattr(share, name)) if told else float("nan")
    return found
