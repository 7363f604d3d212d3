"""Intervals of differences between phases whose best and worst are not known beforehand, on paired prompts.

The largest of several noisy means lies above the largest true one, so a resampled gap is biased upward, the more so
the flatter and the noisier the model; two flat models of different accuracy then seem to differ in their gaps. The
intervals here are of the true gaps: they hold for whichever phases are truly best and worst.

Axis legend: prompt P, phase S, pair (i, j) of different phases that could be best and worst.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from hooks.errors import StatisticsError
from interp.rng import numpy_rng
from interp.stats._data import MIN_BOOTSTRAP_PROMPTS, MIN_TEST_PROMPTS, table

__all__ = ["gap_bounds", "gap_difference_bounds", "gap_test", "paired_bounds"]

_RULED_OUT = 0.005
"""Chance, over all phases of a model, of ruling out its truly best or worst one."""
_ADDED = 4  # rows added to bounded differences
_CHUNK = 2_000_000  # pairs of pairs held at once
_DRAWS = 2000  # of which the 2.5% quantile of a family is known to about 2%
_FIXED = 16  # pairs tried as the true one of the other model


def paired_bounds(
    values: ArrayLike, *, scale: float | None = None, level: float = 0.95, family: int = 1
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Interval of the mean over prompts of paired differences.

    Parameters
    ----------
    values : array [prompt, ...]
        One difference a prompt_id, e.g. accuracy at one phase minus that at another.
    scale : float, optional
        The largest possible difference, e.g. 1 for accuracies and 100 for percent; None if there is none.
    level : float
        Coverage aimed at.
    family : int
        Intervals that are to hold together (Bonferroni).

    Returns
    -------
    low, high : arrays [...]
        Within ±`scale`; NaN below ``MIN_BOOTSTRAP_PROMPTS`` prompts, and without spread if `scale` is None.

    Notes
    -----
    Student's t. With a `scale`, four prompts are added, two with the largest difference and two with its opposite, as
    Agresti & Coull (1998) add four to a proportion: where all prompts agree the interval is still as wide as so many
    prompts can tell. Two, which Bonett & Price (2012) add to paired proportions, are too few there: 0 of 64 would have
    an upper limit of 4.3%, where the exact one is 5.6%.
    """
    d = np.asarray(values, dtype=float)
    d = table(d, axes="[prompt, ...]", ndim=max(d.ndim, 1))
    n = len(d)
    if n < MIN_BOOTSTRAP_PROMPTS:
        return np.full(d.shape[1:], np.nan), np.full(d.shape[1:], np.nan)
    added = None if scale is None else _Added(_ADDED, scale)
    mean, error = _mean_and_error(d.mean(axis=0), d.var(axis=0), n, added)
    reach = _quantile((1 - level) / 2 / family, n) * error
    defined = (error > 1e-12 * (1 + np.abs(mean))) | (scale is not None)
    limit = np.inf if scale is None else scale
    low, high = np.maximum(mean - reach, -limit), np.minimum(mean + reach, limit)
    return np.where(defined, low, np.nan), np.where(defined, high, np.nan)


def gap_bounds(
    by: ArrayLike, *, scale: float | None = None, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Interval of a true gap: best minus worst phase, whichever they are.

    Parameters
    ----------
    by : array [prompt, phase]
        Means by prompt_id and phase.
    scale, level
        As in :func:`paired_bounds`; the four are rows here, and a prompt with several rows a phase is worth more.
    seed : int
        Of the draws that give the corrected quantile.

    Returns
    -------
    low, high : float
        From 0 up, around the measured gap; NaN below ``MIN_BOOTSTRAP_PROMPTS`` prompts, with one phase, and without
        spread if `scale` is None.

    Notes
    -----
    See :func:`gap_difference_bounds`, of which this is the case of a first model that has no gap, surely.
    """
    array = table(by, axes="[prompt, phase]")
    n, phases = array.shape
    if n < MIN_BOOTSTRAP_PROMPTS or phases < 2:
        return float("nan"), float("nan")
    added = _added(array, scale)
    pairs = _pairs(array, added)
    d, error = _mean_and_error(pairs.mean, pairs.variance, n, added)
    tail = (1 - level) / 2
    drawn, size = _drawn(array, 0.0 if added is None else added.prompts * added.size**2 / 2, seed)
    together = _together(
        drawn[:, pairs.best] - drawn[:, pairs.worst], np.zeros((_DRAWS, 1)), size, tail=tail, n=n
    )
    low = float((d - together * error).max())
    high = float((d + _quantile(tail, n) * error).max())
    return _within(max(low, 0.0), high, scale)


def gap_difference_bounds(
    by: ArrayLike, *, scale: float | None = None, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Interval of the difference of two true gaps, the second model's minus the first's.

    Parameters
    ----------
    by : array [prompt, model, phase]
        Means of two models by prompt_id and phase, on the same prompts, in any unit.
    scale, level
        As in :func:`paired_bounds`.
    seed : int
        Of the draws that give the corrected quantiles.

    Returns
    -------
    low, high : float
        Around the difference of the measured gaps; NaN as in :func:`gap_bounds`.

    Raises
    ------
    StatisticsError
        Unless there are two models.

    Notes
    -----
    A gap is the largest θ_ij over pairs of phases, θ_ij the mean at i minus the mean at j. So the difference of
    gaps is max over ij of min over kl of d_ijkl = θ_ij (second) − θ_kl (first), each a paired difference as in
    :func:`paired_bounds`. The upper limit is max over ij of min over kl of theirs, and the lower one min over kl of max
    over ij: for the second's truly best and worst phase the first errs only if a limit of some kl does, so limits hold
    together over the kl alone (max-t, of normal draws with the prompts' covariance, as t); tests of an intersection
    need no correction, those of a union do (Berger 1982). Pairs that cannot be best and worst are left out and not
    corrected for (Chernozhukov, Lee & Rosen 2013): a phase is ruled out if another one lies beyond it at a level of
    0.5% over all phases. Where best and worst are clear this is the usual paired t interval.
    """
    array = table(by, axes="[prompt, model, phase]", ndim=3)
    n, models, phases = array.shape
    if models != 2:
        raise StatisticsError(f"{models} models were given; valid: two, [prompt, 2, phase]")
    if n < MIN_BOOTSTRAP_PROMPTS or phases < 2:
        return float("nan"), float("nan")
    added = _added(array, scale)
    first, second = _pairs(array[:, 0], added), _pairs(array[:, 1], added)
    noise = 0.0 if added is None else added.prompts * added.size**2 / 4
    drawn, size = _drawn(array.reshape(n, -1), noise, seed)
    theirs = drawn[:, first.best] - drawn[:, first.worst]
    ours = drawn[:, phases + second.best] - drawn[:, phases + second.worst]
    tail = (1 - level) / 2
    upper = _together(theirs, ours[:, _likely(second)], size, tail=tail, n=n)
    lower = _together(ours, theirs[:, _likely(first)], size, tail=tail, n=n)
    cross = np.cov(array.reshape(n, -1).T, bias=True)[:phases, phases:]  # [phase of first, of second]
    high, low = np.full(len(second.best), np.inf), np.inf
    step = max(1, _CHUNK // len(second.best))
    for start in range(0, len(first.best), step):
        some = slice(start, start + step)
        best, worst = first.best[some, None], first.worst[some, None]
        shared = cross[best, second.best] - cross[best, second.worst]
        shared += cross[worst, second.worst] - cross[worst, second.best]
        d = second.mean - first.mean[some, None]  # [pair of first, pair of second]
        apart = second.variance + first.variance[some, None]
        variance = apart - 2 * shared
        variance[variance < 1e-12 * apart] = 0.0  # rounding, where a pair moves alike in both models
        d, error = _mean_and_error(d, variance, n, added)
        high = np.minimum(high, (d + upper * error).min(axis=0))
        low = min(low, float((d - lower * error).max(axis=1).min()))
    return _within(low, float(high.max()), scale)


def gap_test(by: ArrayLike, *, seed: int = 0, n_permutations: int = 1999) -> float:
    """Chance of a gap as large as the one measured if phases meant nothing.

    Parameters
    ----------
    by : array [prompt, phase]
        Means by prompt_id and phase.
    seed, n_permutations
        Of the permutations; p = (b+1)/(m+1).

    Returns
    -------
    float
        p; NaN below ``MIN_TEST_PROMPTS`` prompts.

    Notes
    -----
    Phases are permuted within prompt_id, whole: residues of one phase often agree, and permuting them one by one would
    take their agreement for a gap. Exact if phases are exchangeable within a prompt.
    """
    array = table(by, axes="[prompt, phase]")
    if len(array) < MIN_TEST_PROMPTS:
        return float("nan")
    observed, rng, exceed = np.ptp(array.mean(axis=0)), numpy_rng(seed, "gap test"), 0
    step = max(1, _CHUNK // array.size)
    for start in range(0, n_permutations, step):
        size = min(step, n_permutations - start)
        order = rng.random((size, *array.shape)).argsort(axis=-1)
        means = np.take_along_axis(array[None], order, axis=-1).mean(axis=1)
        exceed += int((np.ptp(means, axis=-1) >= observed - 1e-9 * (1 + observed)).sum())
    return (exceed + 1) / (n_permutations + 1)


class _Pairs(NamedTuple):
    """Pairs of phases that could be the best and the worst one, and θ of each."""

    best: Int[np.ndarray, " pair"]
    worst: Int[np.ndarray, " pair"]
    mean: Float[np.ndarray, " pair"]
    variance: Float[np.ndarray, " pair"]


class _Added(NamedTuple):
    """Prompts added to differences, half of them with the largest one and half with its opposite."""

    prompts: float
    size: float


def _added(by: Float[np.ndarray, "prompt ..."], scale: float | None) -> _Added | None:
    """Four rows, counted as the part of a prompt that a row is worth.

    A prompt has several rows a phase. Where they agree, four rows are four prompts; where they are independent, four of
    c rows a prompt are 4/c. What they are worth is the spread between prompts over what it would be with one row each,
    the design effect by which Korn & Graubard (1998) count a clustered sample; one row that agrees is added to both, so
    that a handful of wrong answers does not pass for independence.
    """
    if scale is None:
        return None
    share = by.reshape(len(by), -1) / scale
    mean = share.mean(axis=0)
    between, single = len(by) * share.var(axis=0).sum(), len(by) * (mean * (1 - mean)).sum()
    return _Added(_ADDED * min(1.0, float((between + 1) / (single + 1))), scale)


def _pairs(by: Float[np.ndarray, "prompt phase"], added: _Added | None) -> _Pairs:
    n, phases = by.shape
    mean, covariance = by.mean(axis=0), np.cov(by.T, bias=True)
    spread = np.diag(covariance)
    difference = mean[:, None] - mean  # [i, j]
    variance = spread[:, None] + spread - 2 * covariance
    d, error = _mean_and_error(difference, variance, n, added)
    above = d - _quantile(_RULED_OUT / (phases * (phases - 1)), n) * error > 0
    best, worst = np.flatnonzero(~above.any(axis=0)), np.flatnonzero(~above.any(axis=1))
    i, j = (each.ravel() for each in np.meshgrid(best, worst, indexing="ij"))
    i, j = i[i != j], j[i != j]
    return _Pairs(i, j, difference[i, j], variance[i, j])


def _likely(pairs: _Pairs) -> Int[np.ndarray, " pair"]:
    """The pairs whose difference is largest; quantiles hardly depend on which one is held fixed."""
    return pairs.mean.argsort()[-_FIXED:]


def _mean_and_error(
    mean: np.ndarray, variance: np.ndarray, n: int, added: _Added | None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and its standard error, of n differences and those that are added."""
    if added is None:
        return mean, np.sqrt(np.maximum(variance, 0) / (n - 1))
    total = n + added.prompts
    moved = n / total * mean
    square = (n * (np.maximum(variance, 0) + mean**2) + added.prompts * added.size**2) / total
    return moved, np.sqrt((square - moved**2) / (total - 1))


class _Draws(NamedTuple):
    """Errors of all means together, up to a common factor."""

    errors: Float[np.ndarray, "draw phase"]
    """Normal, with the prompts' covariance."""
    size: Float[np.ndarray, " draw"]
    """By what an estimated standard error differs from the true one."""


def _drawn(by: Float[np.ndarray, "prompt phase"], added: float, seed: int) -> _Draws:
    """Draw errors of the means; `added` to n times each variance is what :func:`_mean_and_error` adds to a pair."""
    n, phases = by.shape
    rng = numpy_rng(seed, "gaps")
    values, vectors = np.linalg.eigh(n * np.cov(by.T, bias=True) + added * np.eye(phases))
    normal = rng.normal(size=(_DRAWS, phases)) * np.sqrt(np.maximum(values, 0))
    return _Draws(normal @ vectors.T, np.sqrt(rng.chisquare(n - 1, size=_DRAWS) / (n - 1)))


def _together(
    family: Float[np.ndarray, "draw pair"],
    fixed: Float[np.ndarray, "draw fixed"],
    size: np.ndarray,
    *,
    tail: float,
    n: int,
) -> float:
    """Quantile that holds for a whole family less a fixed pair, whichever of these that is (max-t)."""
    square = (family**2).mean(axis=0) - 2 * fixed.T @ family / len(size) + (fixed**2).mean(axis=0)[:, None]
    inverse = np.divide(
        1.0, np.sqrt(np.maximum(square, 0)), out=np.zeros_like(square), where=square > 1e-12 * square.max()
    )
    largest = [
        ((family - one[:, None]) * scaled).max(axis=1) / size
        for one, scaled in zip(fixed.T, inverse, strict=True)
    ]
    found = np.quantile(np.array(largest), 1 - tail, axis=1).max()
    return float(np.clip(found, _quantile(tail, n), _quantile(tail / family.shape[1], n)))


def _within(low: float, high: float, scale: float | None) -> tuple[float, float]:
    """The interval inside what is possible; undefined without spread."""
    if scale is not None:
        return max(low, -scale), min(high, scale)
    return (low, high) if high - low > 1e-12 * (1 + abs(high)) else (float("nan"), float("nan"))


def _quantile(tail: float, n: int) -> float:
    return float(scipy.stats.t.isf(tail, n - 1))
