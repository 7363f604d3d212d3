"""Tests of an audit: is there a gap, how large a one would have been seen, and whose phase makes it.

Axis legend: prompt P (prompt_id), residue R, phase S, query phase Q, permutation or simulation B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from hooks.errors import StatisticsError
from interp.rng import numpy_rng
from interp.stats import phase_gap, phase_means

__all__ = ["POWER", "CrossShare", "GapTest", "cross_shares", "detectable_gap", "gap_test", "query_gap_test"]

POWER = 0.8
_CHUNK = 4_000_000  # floats held at once


class GapTest(NamedTuple):
    """A gap, what is expected of it by chance, and how often chance gives as much."""

    gap: float
    null_mean: float
    critical: float
    """The gap that chance exceeds with the test's level."""
    p: float


def gap_test(
    values: ArrayLike,
    stride: int,
    *,
    given: int | None = None,
    level: float = 0.05,
    seed: int = 0,
    n_permutations: int = 1999,
) -> GapTest:
    """Test the phase gap: labels permuted within every prompt_id.

    Parameters
    ----------
    values : array [prompt, residue]
        E.g. correct (0 or 1).
    stride : int
        Of the phases; it divides the residue count.
    given : int or None
        Another stride, coprime to `stride`, whose phases are held fixed: labels are permuted only among
        residues of the same phase of it. For a placebo stride beside the true one: what the true one does to
        accuracy then is in neither the gap nor its null.
    level : float
        Of the critical gap.
    seed, n_permutations
        Of the permutations; p = (b+1)/(m+1).

    Raises
    ------
    StatisticsError
        If a stride does not divide the residue count.
    """
    table = np.asarray(values, dtype=float)
    observed = phase_gap(table, stride)
    prompts, residues = table.shape
    group = 1 if given is None else given
    if residues % group:
        raise StatisticsError(f"{residues} residues are not whole cycles of stride {group}")
    # [prompt, phase of `given`, cycle]: permuting the last axis keeps the phases of `given`
    split = table.reshape(prompts, residues // group, group).swapaxes(1, 2)
    rng = numpy_rng(seed, "gap test", stride, group)
    gaps = []
    step = max(1, _CHUNK // table.size)
    for start in range(0, n_permutations, step):
        size = min(step, n_permutations - start)
        order = rng.random((size, *split.shape)).argsort(axis=-1)
        drawn = np.take_along_axis(np.broadcast_to(split, order.shape), order, axis=-1)
        flat = drawn.swapaxes(2, 3).reshape(size, prompts, residues)
        gaps.append(np.ptp(phase_means(flat.mean(axis=1), stride), axis=-1))
    return _decide(observed, np.concatenate(gaps), level)


def query_gap_test(
    values: ArrayLike, *, level: float = 0.05, seed: int = 0, n_permutations: int = 1999
) -> GapTest:
    """Test best minus worst query phase: query labels permuted within every prompt_id, all residues together.

    Parameters
    ----------
    values : array [query, prompt, residue]
        The same prompt_ids at every query phase.
    level, seed, n_permutations
        As in :func:`gap_test`.
    """
    table = np.asarray(values, dtype=float).mean(axis=-1).T  # [prompt, query]
    rng = numpy_rng(seed, "query gap test", table.shape[1])
    order = rng.random((n_permutations, *table.shape)).argsort(axis=-1)
    drawn = np.take_along_axis(np.broadcast_to(table, order.shape), order, axis=-1)
    return _decide(float(np.ptp(table.mean(axis=0))), np.ptp(drawn.mean(axis=1), axis=-1), level)


def _decide(observed: float, null: Float[np.ndarray, " permutation"], level: float) -> GapTest:
    p = float((1 + (null >= observed - 1e-12).sum()) / (len(null) + 1))
    return GapTest(observed, float(null.mean()), float(np.quantile(null, 1 - level)), p)


def detectable_gap(
    values: ArrayLike,
    stride: int,
    critical: float,
    *,
    level: float = 0.05,
    power: float = POWER,
    seed: int = 0,
    n_simulations: int = 400,
) -> float:
    """Smallest gap that the gap test would have found with a given power, at this n and this accuracy.

    Parameters
    ----------
    values : array [prompt, residue] of 0 and 1
        Correct.
    stride : int
        Of the phases.
    critical : float
        The gap above which the test calls it one (:attr:`GapTest.critical`).
    level : float
        Of the test.
    power : float
        Share of simulated experiments that must exceed it.
    seed, n_simulations
        Of the simulation.

    Returns
    -------
    float
        In the unit of `values`; NaN if no gap up to 1 is large enough.

    Notes
    -----
    Every prompt keeps its own accuracy, (correct + ½)/(R + 1), and one phase is shifted by x: down where
    mean accuracy is over one half, else up. Answers are drawn as independent. The gap reported is the mean
    shift after clipping to 0 … 1. The critical gap is raised to what simulations without a shift exceed with
    the test's level, so that tables of equal answers, whose permutations all give 0, promise nothing.
    """
    table = np.asarray(values, dtype=float)
    prompts, residues = table.shape
    own = (table.sum(axis=1) + 0.5) / (residues + 1)
    sign = -1.0 if table.mean() > 0.5 else 1.0
    shifted = np.arange(residues) % stride == 0
    rng = numpy_rng(seed, "detectable gap", stride)
    draws = rng.random((n_simulations, prompts, residues))

    def gaps(shift: float) -> Float[np.ndarray, " simulation"]:
        p = np.where(shifted[None, :], np.clip(own + sign * shift, 0, 1)[:, None], own[:, None])
        return np.ptp(phase_means((draws < p).mean(axis=1), stride), axis=-1)

    threshold = max(critical, float(np.quantile(gaps(0.0), 1 - level))) + 1e-12

    def found(shift: float) -> float:
        return float((gaps(shift) > threshold).mean())

    low, high = 0.0, 1.0
    if found(high) < power:
        return float("nan")
    while high - low > 5e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) >= power else (middle, high)
    return float(np.abs(np.clip(own + sign * high, 0, 1) - own).mean())


@dataclass(frozen=True)
class CrossShare:
    """How the variation between the cells of a target × query table splits, as shares of 1.

    Each is a sum of squares less what noise puts there (its degrees of freedom times the variance within
    cells), divided by their sum; NaN where noise explains everything.
    """

    target: float
    query: float
    interaction: float


def cross_shares(values: ArrayLike, stride: int) -> CrossShare:
    """Split the variation of a crossed design into target phase, query phase and their interaction.

    Parameters
    ----------
    values : array [query, prompt, residue]
        The same prompt_ids at every query phase.
    stride : int
        Of the target's phases.
    """
    table = np.asarray(values, dtype=float)
    queries, prompts, residues = table.shape
    cells = phase_means(table.mean(axis=1), stride)  # [query, phase]
    weight = prompts * residues // stride
    mean, rows, columns = cells.mean(), cells.mean(axis=1), cells.mean(axis=0)
    square = {
        "target": queries * weight * float(((columns - mean) ** 2).sum()),
        "query": stride * weight * float(((rows - mean) ** 2).sum()),
        "interaction": weight * float(((cells - rows[:, None] - columns + mean) ** 2).sum()),
    }
    freedom = {
        "target": stride - 1,
        "query": queries - 1,
        "interaction": (stride - 1) * (queries - 1),
    }
    # What is left once every prompt_id and every cell has its mean.
    left = table - table.mean(axis=(0, 2), keepdims=True) + mean
    left = left - np.tile(cells, residues // stride)[:, None, :]
    left_freedom = table.size - queries * stride - (prompts - 1)
    noise = float((left**2).sum()) / left_freedom if left_freedom > 0 else float("nan")
    signal = {name: max(0.0, square[name] - freedom[name] * noise) for name in square}
    total = sum(signal.values())
    if not total > 1e-12:
        return CrossShare(float("nan"), float("nan"), float("nan"))
    return CrossShare(**{name: value / total for name, value in signal.items()})
