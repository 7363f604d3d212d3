"""What every statistic here shares: the axes of its input, its minimum n, and grouping residues by phase.

Axis legend: unit U, prompt P (prompt_id, the resampling unit), residue R, phase S, resample or permutation B.
Column r of a residue axis holds residue r; its phase is r mod stride.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import ArrayLike

from hooks.errors import StatisticsError

__all__ = [
    "MIN_BOOTSTRAP_PROMPTS",
    "MIN_CLEAN_CORRECT",
    "MIN_SEEDS",
    "MIN_TEST_PROMPTS",
    "SIGNIFICANCE",
    "by_cycle",
    "phase_gap",
    "phase_means",
    "unanswered",
]

SIGNIFICANCE = 0.05
"""Level of every test."""
MIN_BOOTSTRAP_PROMPTS = 10
"""Prompt_ids below which a bootstrap interval is undefined (NaN)."""
MIN_TEST_PROMPTS = 6
"""Prompt_ids below which a sign-flip test is undefined: with 5 the smallest two-sided p is 2/2⁵ > 0.05."""
MIN_CLEAN_CORRECT = 20
"""Clean-correct prompts at a phase below which a loss relative to clean accuracy is undefined (NaN)."""
MIN_SEEDS = 3
"""Trained seeds below which an interval over a model family is undefined (NaN)."""


def phase_means(values: ArrayLike, stride: int) -> Float[np.ndarray, "... phase"]:
    """Average a residue axis (the last one) to phases.

    Parameters
    ----------
    values : array [..., residue]
        The residue count is a multiple of `stride`.
    stride : int
        S.

    Raises
    ------
    StatisticsError
        If the residues are not whole cycles of the stride.
    """
    return by_cycle(np.asarray(values, dtype=float), stride).mean(axis=-2)


def phase_gap(values: ArrayLike, stride: int) -> float:
    """Best minus worst phase mean of values [prompt, residue], in the values' own unit."""
    return float(np.ptp(phase_means(table(values), stride).mean(axis=0)))


def unanswered(correct: ArrayLike, stride: int) -> Bool[np.ndarray, " phase"]:
    """Phases with fewer than :data:`MIN_CLEAN_CORRECT` right answers of [prompt, residue]: nothing to lose there."""
    return by_cycle(np.asarray(correct, dtype=int), stride).sum(axis=(0, 1)) < MIN_CLEAN_CORRECT


def by_cycle(values: Shaped[np.ndarray, "... residue"], stride: int) -> Shaped[np.ndarray, "... cycle phase"]:
    """Reshape [..., residue] to [..., cycle, phase]."""
    residues = values.shape[-1] if values.ndim else 0
    if stride < 1 or residues == 0 or residues % stride:
        raise StatisticsError(
            f"{residues} residues are not whole cycles of stride {stride}; valid: a divisor of {residues}"
        )
    return values.reshape(*values.shape[:-1], residues // stride, stride)


def table(
    values: ArrayLike, *, axes: str = "[prompt, residue]", ndim: int = 2
) -> Float[np.ndarray, "*shape"]:
    """Check axes and finiteness and return a float array."""
    array = np.asarray(values, dtype=float)
    if array.ndim != ndim or array.size == 0:
        raise StatisticsError(f"values of shape {array.shape} were given; valid: a non-empty array {axes}")
    if not np.isfinite(array).all():
        raise StatisticsError(
            f"{int((~np.isfinite(array)).sum())} of {array.size} values are not finite; valid: finite values"
        )
    return array
