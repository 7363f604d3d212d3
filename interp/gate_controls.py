"""What results on gates are held against: random weights, other shifts, other heads, gates in the wrong place.

Placebo strides say nothing here: a gate is counted by its offset, whatever residue the target has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from hooks.sites import HookedModel
from interp import stats
from interp.controls import random_like
from interp.gate_interventions import phase_correlation, r_squared, resampled_bounds, rolled
from interp.gates import gate_profile
from interp.rng import derive_seed, numpy_rng
from interp.tasks.prompts import Task

__all__ = ["cycling_controls", "parts_controls", "profile_controls"]

BRANCHES = ("key", "value")


def profile_controls(
    model: HookedModel, found: xr.Dataset, task: Task | None = None, *, n: int | None = None, seed: int = 0
) -> xr.Dataset:
    """Hold gate profiles against those of the same model with random weights.

    Parameters
    ----------
    model : HookedModel
        What was measured.
    found : Dataset
        Its :func:`interp.gates.gate_profile`.
    task, n, seed
        As there; the seed is that of the weights too.

    Returns
    -------
    Dataset
        Every variable of a gate profile by ``control``, "own" and "random weights"; ``spread_* (control, unit)``,
        largest minus smallest profile over phases; ``bar``, the largest spread of any unit and branch of the
        random model; ``exceeds_* (unit)``, whether the own spread is larger than that. A gate that does not
        exceed it has no preference that training made.

    Raises
    ------
    SiteError
        For a model that its configuration cannot make again.
    """
    other = random_like(model, seed=derive_seed(seed, "random weights") % 2**31)
    drawn = gate_profile(other, task, n=n, seed=seed, stride=int(found.attrs["stride"]), progress=False)
    names = pd.Index(["own", "random weights"], name="control")
    both = xr.concat([found, drawn], names, data_vars="all", combine_attrs="override")
    for branch in BRANCHES:
        profile = both[f"profile_{branch}"]
        both[f"spread_{branch}"] = profile.max("phase") - profile.min("phase")
    random = both.sel(control="random weights")
    bar = float(np.nanmax([random[f"spread_{branch}"].values for branch in BRANCHES]))
    for branch in BRANCHES:
        both[f"exceeds_{branch}"] = both[f"spread_{branch}"].sel(control="own", drop=True) > bar
    both["bar"] = bar
    return both.assign_attrs(control_model_hash=drawn.attrs["model_hash"])


def cycling_controls(found: xr.Dataset, *, seed: int = 0, n_resamples: int = 500) -> xr.Dataset:
    """Hold the prediction of every cycle against those of all other shifts, 0 ("nothing moves") among them.

    Parameters
    ----------
    found : Dataset
        Of :func:`interp.gate_interventions.cycling`.
    seed, n_resamples : int
        Of the resamples of prompt_ids.

    Returns
    -------
    Dataset
        ``r2 (shift, other)``: R² of accuracy after cycling by `shift` against A_0((r − other) mod S), for other =
        0 … S − 1; ``lead (shift)``: R² of the shift itself minus the best of all others, with a percentile
        interval ``lead_low lead_high`` over prompt_ids (NaN below 10); ``exceeds (shift)``: the interval lies
        above 0. The same without the boundary phase as ``r2_inner``, ``lead_inner`` and so on. A cycle
        that another shift predicts as well did not move the phases by δ.
    """
    step = int(found.attrs["stride"])
    before = stats.phase_means(found["clean_correct"].values, step)  # [prompt, phase]
    after = stats.phase_means(found["correct"].values, step)  # [shift, prompt, phase]
    own = found["shift"].values.astype(int) % step
    others = np.arange(step)
    data: dict[str, Any] = {}
    for end, phases in (("", others), ("_inner", others[: step - 1])):

        def scores(rows: Any, phases: np.ndarray = phases) -> np.ndarray:
            predicted = rolled(before[rows].mean(0), others)[:, phases]
            return r_squared(after[:, rows].mean(1)[:, None, phases], predicted)

        def lead(rows: Any, scores: Any = scores) -> np.ndarray:
            each = scores(rows)
            mine = each[np.arange(len(own)), own]
            each[np.arange(len(own)), own] = -np.inf
            return mine - each.max(axis=1)

        rng = numpy_rng(seed, "cycling controls")
        low, high = resampled_bounds(lead, len(before), rng, n_resamples)
        data |= {f"r2{end}": (("shift", "other"), scores(slice(None)))}
        data |= {f"lead{end}": ("shift", lead(slice(None)))}
        data |= {f"lead{end}_low": ("shift", low), f"lead{end}_high": ("shift", high)}
        data |= {f"exceeds{end}": ("shift", low > 0)}
    return xr.Dataset(data, coords={"shift": found["shift"].values, "other": others}, attrs=found.attrs)


def parts_controls(found: xr.Dataset, *, seed: int = 0, n_resamples: int = 500) -> xr.Dataset:
    """Hold the similarity of heads under forced gates against two that mean nothing.

    Parameters
    ----------
    found : Dataset
        Of :func:`interp.gate_interventions.gate_parts`, with the part "moved" for the second control.
    seed, n_resamples : int
        Of the resamples of prompt_ids.

    Returns
    -------
    Dataset
        By ``(control, gates, unit)``: ``similarity``, under "another head" the largest correlation of a head's
        change with that of any OTHER specialised head under intact gates; under "moved gates", for static gates
        only, the head's similarity when the same mean gate is moved by half a window. ``lead``, the head's own
        similarity minus that, with interval ``lead_low lead_high`` over prompt_ids; ``exceeds``, the interval
        lies above 0, each cell by itself. NaN (and False) for heads that serve no phase when intact and where a
        control does not exist. A similarity that does not exceed its controls says nothing about the gates.
    """
    gates = [str(each) for each in found["gates"].values]
    parts = [each for each in gates if each not in ("intact", "moved")]
    rows = [gates.index(each) for each in parts]
    change = stats.phase_means(
        found["logprob"].values - found["clean_logprob"].values[:, None], int(found.attrs["stride"])
    )  # [gates, unit, prompt, phase]
    special = np.asarray(found["serves"].sel(gates="intact").values.any(axis=1))

    def measure(prompts: Any) -> np.ndarray:
        mean = change[:, :, prompts].mean(axis=2)
        intact = mean[gates.index("intact")]
        own = phase_correlation(mean, intact)
        crossed = phase_correlation(mean[rows][:, :, None], intact)  # [gates, unit, other unit]
        crossed[:, ~special[:, None] | ~special | np.eye(len(special), dtype=bool)] = -np.inf
        control = np.full((2, len(parts), len(special)), np.nan)
        control[0] = crossed.max(axis=-1)
        if "moved" in gates and "static" in parts:
            control[1, parts.index("static"), special] = own[gates.index("moved"), special]
        control[~np.isfinite(control)] = np.nan
        return np.stack([control, own[rows] - control])

    similarity, lead = measure(slice(None))
    rng = numpy_rng(seed, "parts controls")
    low, high = resampled_bounds(lambda prompts: measure(prompts)[1], change.shape[2], rng, n_resamples)
    axes = ("control", "gates", "unit")
    return xr.Dataset(
        {
            "similarity": (axes, similarity),
            "lead": (axes, lead),
            "lead_low": (axes, low),
            "lead_high": (axes, high),
            "exceeds": (axes, low > 0),
        },
        coords={"control": ["another head", "moved gates"], "gates": parts, "unit": found["unit"].values},
        attrs=found.attrs,
    )
