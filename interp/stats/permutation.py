"""The two tests that are never mixed (effect, selectivity), the null gap, and false discovery rates.

Axis legend: unit U, prompt P, residue R, phase S, cycle (residues of one phase), permutation B.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from hooks.errors import StatisticsError
from interp.rng import numpy_rng
from interp.stats._data import MIN_CLEAN_CORRECT, MIN_TEST_PROMPTS, by_cycle, phase_means, table

__all__ = [
    "EffectTest",
    "SelectivityTest",
    "benjamini_hochberg",
    "effect_test",
    "null_gap",
    "selectivity_test",
]

_CHUNK = 1_000_000  # floats held at once while permuting
_TIE = 1e-9  # statistics closer than this are ties: rounding must not decide whether a permutation counts


class EffectTest(NamedTuple):
    """Result of :func:`effect_test`."""

    p: Float[np.ndarray, "unit phase"]
    """Family-wise adjusted p."""
    statistic: Float[np.ndarray, "unit phase"]
    """Signed T; negative = loss when deltas are ablated minus clean."""


class SelectivityTest(NamedTuple):
    """Result of :func:`selectivity_test`."""

    p: Float[np.ndarray, " unit"]
    """Family-wise adjusted p; NaN for all units when fewer than two phases have a defined loss."""
    statistic: Float[np.ndarray, " unit"]
    """Largest T over phases."""
    loss: Float[np.ndarray, "unit phase"]
    """Loss relative to the clean score; NaN where that is undefined."""


def effect_test(deltas: ArrayLike, stride: int, *, seed: int = 0, n_permutations: int = 4999) -> EffectTest:
    """Paired sign-flip max-T test over the whole unit × phase family.

    Parameters
    ----------
    deltas : array [unit, prompt, residue]
        Ablated minus clean log-probability (or margin) of the same prompt. For every phase the residues of
        one prompt_id are averaged first.
    stride : int
        S; pass the number of residues to test residues.
    seed : int
        Of the sign flips.
    n_permutations : int
        m; p = (b+1)/(m+1).

    Returns
    -------
    EffectTest
        ``p`` and ``statistic``, each [unit, phase].

    Raises
    ------
    StatisticsError
        Below ``MIN_TEST_PROMPTS`` prompt_ids, or for a delta that is not finite.

    Notes
    -----
    T = Σd/√Σd² over prompt_ids (√n when all d are equal; 0 when nothing changed, and then p = 1, the cell
    still counting in the family). The null flips the sign of a whole prompt_id, all its units and residues
    together. The test is two-sided, as an ablation may also help: a verdict of loss needs the sign of the
    effect besides.
    """
    array = table(deltas, axes="[unit, prompt, residue]", ndim=3)
    _need_prompts(array.shape[1])
    d = phase_means(array, stride)  # U P S
    n_units, n_prompts, n_phases = d.shape
    flat = np.moveaxis(d, 1, 0).reshape(n_prompts, n_units * n_phases)
    norm = np.sqrt((flat**2).sum(axis=0))
    scale = np.divide(1.0, norm, out=np.zeros_like(norm), where=norm > 0)
    unit_length = flat * scale
    statistic = unit_length.sum(axis=0)
    rng = numpy_rng(seed, "effect", n_prompts)
    exceed = np.zeros(statistic.shape, dtype=int)
    step = max(1, _CHUNK // flat.size)
    for start in range(0, n_permutations, step):
        signs = rng.integers(0, 2, size=(min(step, n_permutations - start), n_prompts)) * 2.0 - 1.0
        largest = np.abs(signs @ unit_length).max(axis=1)
        exceed += (largest[:, None] >= np.abs(statistic) - _TIE).sum(axis=0)
    p = (exceed + 1) / (n_permutations + 1)
    return EffectTest(p.reshape(n_units, n_phases), statistic.reshape(n_units, n_phases))


def selectivity_test(
    clean: ArrayLike, ablated: ArrayLike, stride: int, *, seed: int = 0, n_permutations: int = 999
) -> SelectivityTest:
    """Test whether each unit's loss depends on the phase; a unit that hurts every phase alike passes as null.

    Parameters
    ----------
    clean : array [prompt, residue]
        Score of the clean run, ≥ 0: the probability of the answer, exp(log-probability); or correct (0/1)
        where nothing else exists.
    ablated : array [unit, prompt, residue]
        The same score with the unit ablated.
    stride : int
        S.
    seed : int
        Of the permutations.
    n_permutations : int
        m; p = (b+1)/(m+1).

    Returns
    -------
    SelectivityTest
        ``p [unit]``, ``statistic [unit]``, ``loss [unit, phase]`` (0.3 = 30% of the clean score lost).

    Raises
    ------
    StatisticsError
        Below ``MIN_TEST_PROMPTS`` prompt_ids, for a score that is negative or not finite, or shapes that
        differ.

    Notes
    -----
    Scale. Loss is the summed loss of a phase ÷ its summed clean score, for probabilities as for accuracies.
    Raw differences of log-probability will not do: a phase that is weak before the ablation (22% against
    100%) has less log-probability to lose, so that a unit breaking 30% of the answers everywhere, or all of
    them, would seem to spare that phase. Relative losses are alike there, and so are they for a unit that
    scales every probability by the same factor. Phases whose clean scores sum to less than
    ``MIN_CLEAN_CORRECT`` have no defined ratio and are left out.

    Statistic. max over phases of |loss there − mean loss|, each deviation in the form of the effect test,
    T = Σd/√Σd² over prompt_ids. The weak phase's relative losses scatter several times as much as the
    others'; labels permuted over unequal scatter keep their level only for a statistic that is relative to
    its own scatter (Janssen 1997; Chung & Romano 2013). What is permuted is the residual (clean − ablated −
    mean loss × clean) ÷ the phase's mean clean score: its phase means are exactly loss there − mean loss,
    without the scatter that the prompts' clean scores alone bring. Labels are permuted within prompt_id, the
    same way for all units; max over units.
    """
    scores = table(clean, axes="[prompt, residue]")
    after = table(ablated, axes="[unit, prompt, residue]", ndim=3)
    if after.shape[1:] != scores.shape or min(scores.min(), after.min()) < 0:
        raise StatisticsError(
            f"clean {scores.shape}, ablated {after.shape}, from {min(scores.min(), after.min()):.3g} up; "
            "valid: [prompt, residue], [unit, prompt, residue], >= 0"
        )
    n_units, n_prompts, _ = after.shape
    _need_prompts(n_prompts)
    base = by_cycle(scores, stride)  # P cycle S
    lost = by_cycle(scores - after, stride)  # U P cycle S
    defined = base.sum(axis=(0, 1)) >= MIN_CLEAN_CORRECT
    loss = np.full((n_units, stride), np.nan)
    loss[:, defined] = lost[..., defined].sum(axis=(1, 2)) / base[..., defined].sum(axis=(0, 1))
    if defined.sum() < 2:
        undefined = np.full(n_units, np.nan)
        return SelectivityTest(undefined, undefined.copy(), loss)
    mean_loss = loss[:, defined].mean(axis=1)
    residual = (lost - mean_loss[:, None, None, None] * base)[..., defined] / base[..., defined].mean(
        axis=(0, 1)
    )
    # P, label (cycle by cycle), U: labels move along the middle axis, and what moves together lies together.
    rows = residual.transpose(1, 2, 3, 0).reshape(n_prompts, -1, n_units)
    rows = rows - rows.mean(axis=1, keepdims=True)  # the prompt's mean residual, which no permutation changes
    n_phases = int(defined.sum())
    statistic = _largest_deviation(rows, np.arange(rows.shape[1])[None, None], n_phases)[0]
    largest = _permuted_maxima(rows, n_phases, numpy_rng(seed, "selectivity", n_prompts), n_permutations)
    p = (1 + (largest[:, None] >= statistic - _TIE).sum(axis=0)) / (n_permutations + 1)
    return SelectivityTest(p, statistic, loss)


def null_gap(values: ArrayLike, stride: int, *, seed: int = 0, n_permutations: int = 1000) -> float:
    """Phase gap to be expected when the phase means nothing: labels permuted within prompt_id.

    Parameters
    ----------
    values : array [prompt, residue]
        E.g. correct.
    stride : int
        S; the residue count gives the null of the residue gap.
    seed, n_permutations
        Of the permutations, whose gaps are averaged.

    Returns
    -------
    float
        In the unit of `values`; above 0 because max − min is biased upward.
    """
    array = table(values)
    cycles = by_cycle(array, stride).shape[1]
    rng = numpy_rng(seed, "null gap")
    total = 0.0
    step = max(1, _CHUNK // array.size)
    for start in range(0, n_permutations, step):
        size = min(step, n_permutations - start)
        order = rng.random((size, *array.shape)).argsort(axis=-1)
        shuffled = np.take_along_axis(np.broadcast_to(array, order.shape), order, axis=-1)
        means = shuffled.reshape(size, len(array), cycles, stride).mean(axis=(1, 2))
        total += float(np.ptp(means, axis=-1).sum())
    return total / n_permutations


def benjamini_hochberg(p: ArrayLike) -> Float[np.ndarray, "*shape"]:
    """Adjust p-values to control the false discovery rate: for exploration, and to be labelled so.

    Parameters
    ----------
    p : array
        Any shape, one family; NaN (undefined) stays NaN and is no member.

    Returns
    -------
    array of the same shape
        Adjusted p (Benjamini & Hochberg 1995, through :func:`scipy.stats.false_discovery_control`).

    Raises
    ------
    StatisticsError
        If a p is outside 0 … 1.
    """
    array = np.asarray(p, dtype=float)
    known: Bool[np.ndarray, "*shape"] = ~np.isnan(array)
    if np.any((array[known] < 0) | (array[known] > 1)):
        raise StatisticsError("a p-value outside 0 … 1 was given; valid: 0 to 1, NaN where undefined")
    adjusted = np.full(array.shape, np.nan)
    if known.any():
        adjusted[known] = scipy.stats.false_discovery_control(array[known], method="bh")
    return adjusted


def _permuted_maxima(
    rows: Float[np.ndarray, "prompt label unit"], n_phases: int, rng: np.random.Generator, n_permutations: int
) -> Float[np.ndarray, " permutation"]:
    """Largest deviation over units and phases, labels permuted within every prompt_id."""
    n_prompts, n_labels, _ = rows.shape
    maxima = np.empty(n_permutations)
    step = max(1, _CHUNK // rows.size)
    for start in range(0, n_permutations, step):
        stop = min(start + step, n_permutations)
        order = rng.random((stop - start, n_prompts, n_labels)).argsort(axis=-1)
        maxima[start:stop] = _largest_deviation(rows, order, n_phases).max(axis=1)
    return maxima


def _largest_deviation(
    rows: Float[np.ndarray, "prompt label unit"], order: Int[np.ndarray, "permutation _ label"], n_phases: int
) -> Float[np.ndarray, "permutation unit"]:
    """Max over phases of |Σd|/√Σd², d the sum of a prompt_id's centred residuals at the phase.

    `order` says which row each label gets; label l is phase l mod `n_phases`.
    """
    prompts = np.arange(len(rows))[:, None]
    d = rows[prompts, order[..., :n_phases]]
    for cycle in range(n_phases, rows.shape[1], n_phases):
        d += rows[prompts, order[..., cycle : cycle + n_phases]]
    norm = np.sqrt(np.einsum("bpsu,bpsu->bsu", d, d))
    size = np.abs(d.sum(axis=1))
    # Rounding leaves about 1e-16 where nothing changed; that is no spread to divide by.
    return np.divide(size, norm, out=np.zeros_like(size), where=norm > 1e-12).max(axis=1)


def _need_prompts(n_prompts: int) -> None:
    if n_prompts < MIN_TEST_PROMPTS:
        raise StatisticsError(
            f"{n_prompts} prompt_ids are too few for a test; valid: {MIN_TEST_PROMPTS} or more"
        )
