"""Which period each unit's effect has in the target's position, held against strides that mean nothing.

Where encoder and decoder pool at different strides, the period of a decoder unit tells whose stride it follows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from scipy import optimize
from scipy import stats as scipy_stats

from hooks.errors import StatisticsError
from interp import stats

__all__ = ["POWER", "detectable_gap", "unit_periods"]

POWER = 0.8
"""With which a gap counts as detectable."""
_STILL = 1e-12
"""Spread relative to the largest value below which only rounding varies."""


def unit_periods(
    found: xr.Dataset, *, stride: int | None = None, variable: str = "logprob", seed: int = 0
) -> xr.Dataset:
    """Find the period of what every unit's knockout does.

    Parameters
    ----------
    found : Dataset
        Of :func:`interp.knockout.knockout`: `variable` (unit, prompt, residue) and its clean counterpart.
    stride : int, optional
        S, the stride asked about, e.g. an encoder's; the one the result is measured at if left out.
    variable : str
        The score; effects are its change.
    seed : int
        Of the permutations.

    Returns
    -------
    Dataset
        ``period (unit)`` (0: none) and ``period_p (unit)`` of :func:`interp.stats.find_period` on the unit's
        effect, among 2 to 16 and S; ``p (unit)``, the latter after Holm over units; ``follows (unit)``: the
        period is S with p < 0.05; ``score (unit, candidate)``, the adjusted share of the effect's variance that
        target_position mod candidate explains, for S and every placebo stride (coordinate ``placebo``);
        ``by_phase (unit, phase)``, the mean effect, and ``gap (unit)``, best minus worst of it; ``detectable
        (unit)``, the gap that would have been found with 80% power (all in the score's unit). The unit "clean" is
        the unchanged run itself.

    Raises
    ------
    StatisticsError
        If the stride does not divide R, is 1, or cannot be tested on so few prompts.
    """
    modulus = int(found.attrs["modulus"])
    step = int(found.attrs["stride"]) if stride is None else stride
    if step < 2 or modulus % step:
        raise StatisticsError(f"stride={step}; valid: a divisor of R={modulus} of at least 2")
    clean = found[f"clean_{variable}"].values.astype(float)
    values = np.concatenate([clean[None], found[variable].values.astype(float) - clean])
    position = found["target_position"].values
    candidates = stats.candidates_for(step)
    each: list[stats.Period] = []
    for one in values:
        each.append(stats.find_period(one, position, candidates=candidates, seed=seed))
        if step not in each[0].tested:
            raise StatisticsError(
                f"stride={step} has under two values a phase at n={len(clean)}; valid: 2 prompts a residue or more"
            )
    shown = [c for c in (step, *stats.placebo_strides(step, modulus)) if c in each[0].tested]
    p = np.array([one.p for one in each])
    adjusted = np.concatenate([p[:1], _holm(p[1:])])
    period = np.array([one.period for one in each])
    by = stats.phase_means(values, step).mean(axis=1)
    layer = np.concatenate([[-1], found["layer"].values]) if "layer" in found.coords else [-1] * len(values)
    return xr.Dataset(
        {
            "period": ("unit", period),
            "period_p": ("unit", p),
            "p": ("unit", adjusted),
            "follows": ("unit", (period == step) & (adjusted < stats.SIGNIFICANCE)),
            "score": (("unit", "candidate"), [[one.scores[c] for c in shown] for one in each]),
            "by_phase": (("unit", "phase"), by),
            "gap": ("unit", np.ptp(by, axis=-1)),
            "detectable": (
                "unit",
                [detectable_gap(one, step, candidates=len(each[0].tested)) for one in values],
            ),
        },
        coords={
            "unit": ["clean", *map(str, found["unit"].values)],
            "layer": ("unit", layer),
            "phase": np.arange(step),
            "candidate": shown,
            "placebo": ("candidate", [c != step for c in shown]),
        },
        attrs={
            **found.attrs,
            "stride": step,
            "scored": variable,
            "power": POWER,
            "n_prompts": len(clean),
            "period_tested": each[0].tested,
        },
    )


def detectable_gap(
    values: np.ndarray, stride: int, *, power: float = POWER, candidates: int = len(stats.CANDIDATES)
) -> float:
    """Return the gap between one phase and all others that the period test would find.

    Parameters
    ----------
    values : array [prompt, residue]
        Only their spread within prompt_ids and phases counts: a gap that is there is no noise.
    stride : int
        S.
    power : float
        With which it is found.
    candidates : int
        Periods looked for; the level is divided by it.

    Returns
    -------
    float
        In the unit of `values`; 0 if nothing varies.

    Notes
    -----
    Power of the one-way F test on S classes at level 0.05/candidates, noncentral F with λ = N·g²·(S−1)/(S²·σ²)
    for N values of spread σ: close to the permutation test, which takes the maximum over candidates.
    """
    array = np.asarray(values, dtype=float)
    centred = array - array.mean(axis=1, keepdims=True)
    freedom = array.size - len(array)
    within = freedom - (stride - 1)
    by_cycle = centred.reshape(len(array), -1, stride)
    noise = by_cycle - by_cycle.mean(axis=(0, 1))
    sigma = float(np.sqrt((noise**2).sum() / within)) if within > 0 else 0.0
    if sigma <= _STILL * float(np.abs(array).max(initial=0.0)) or within < 1:
        return 0.0
    bar = scipy_stats.f.isf(stats.SIGNIFICANCE / candidates, stride - 1, within)

    def missing(noncentrality: float) -> float:
        return float(scipy_stats.ncf.sf(bar, stride - 1, within, noncentrality)) - power

    found: Any = optimize.brentq(missing, 1e-6, 1e4)
    needed = float(found)
    return sigma * float(np.sqrt(needed * stride**2 / ((stride - 1) * array.size)))


def _holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment of p values."""
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, stepped)
    return adjusted
