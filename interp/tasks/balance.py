"""Target positions whose mean and variance are the same for every residue.

Scheme: t = start + u1 + u2 + u3 with the u independent and uniform on 0 … R−1. Three such sums reproduce
polynomials of degree two (the Strang–Fix condition of the quadratic B-spline), so E[t] and Var[t] given
t mod R do not depend on the residue; no scheme with a narrower span than 3R−2 positions does this. One base
prompt draws (u1, u2), that is a window of R consecutive positions [start+u1+u2, start+u1+u2+R), and shows its
target once at every residue in that window, so the targets of a block are at most R−1 tokens apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Int64

from hooks.errors import TaskError
from interp.rng import numpy_rng

__all__ = ["PositionBalance", "placebo_strides"]


@dataclass(frozen=True)
class PositionBalance:
    """The sampling distribution of target positions, and exact stratified draws from it.

    Parameters
    ----------
    modulus : int
        R, the number of residues.
    start : int
        Lowest target position.

    Raises
    ------
    TaskError
        Unless R ≥ 1 and start ≥ 0.
    """

    modulus: int
    start: int

    def __post_init__(self) -> None:
        if self.modulus < 1 or self.start < 0:
            raise TaskError(
                f"modulus={self.modulus}, start={self.start}: balance needs modulus >= 1, start >= 0"
            )

    @staticmethod
    def span(modulus: int) -> int:
        """How many consecutive positions the scheme needs: 3R−2."""
        return 3 * modulus - 2

    @classmethod
    def centred(cls, modulus: int, length: int) -> PositionBalance:
        """Centre the positions in a context of `length` admissible positions 0 … length−1.

        Raises
        ------
        TaskError
            If fewer than 3R−2 positions are admissible.
        """
        span = cls.span(modulus)
        if length < span:
            raise TaskError(
                f"{length} target positions are too few for modulus={modulus}: equal mean and variance at "
                f"every residue need {span}; use a longer context or modulus <= {(length + 2) // 3}"
            )
        return cls(modulus, (length - span) // 2)

    @property
    def positions(self) -> range:
        """Every position a target can have."""
        return range(self.start, self.start + self.span(self.modulus))

    @property
    def exact_count(self) -> int:
        """R²: with a multiple of so many prompts per residue the sample moments are equal exactly."""
        return self.modulus**2

    def distribution(self, residue: int) -> tuple[list[int], list[Fraction]]:
        """Positions congruent to `residue` and their probabilities, exact, in units of 1/R².

        Parameters
        ----------
        residue : int
            0 … R−1.

        Raises
        ------
        TaskError
            If there is no such residue.
        """
        modulus = self.modulus
        if not 0 <= residue < modulus:
            raise TaskError(
                f"residue {residue} does not exist at modulus {modulus}; valid: 0 to {modulus - 1}"
            )
        lowest = self.start + (residue - self.start) % modulus
        positions, probabilities = [], []
        for position in range(lowest, self.positions.stop, modulus):
            # (u1, u2) pairs whose window [start+u1+u2, start+u1+u2+R) holds the position
            sums = range(max(0, position - self.start - modulus + 1), position - self.start + 1)
            pairs = sum(max(0, min(s, 2 * modulus - 2 - s) + 1) for s in sums)
            positions.append(position)
            probabilities.append(Fraction(pairs, modulus**2))
        return positions, probabilities

    def windows(self, first: int, count: int, *, seed: int) -> Int64[np.ndarray, " count"]:
        """First positions of the windows of base prompts `first` … `first+count−1`.

        Every R² consecutive base prompts from a multiple of R² use each pair (u1, u2) once, up to pairs with
        the same sum mod R and the same carry, which give the same window; every R of them use each start
        mod R once, which already makes the residue means equal. Depends on (seed, base prompt) only.
        """
        modulus = self.modulus
        prompts = np.arange(first, first + count, dtype=np.int64)
        starts = np.empty(count, dtype=np.int64)
        for superblock in np.unique(prompts // modulus**2):
            rows = prompts // modulus**2 == superblock
            group, place = np.divmod(prompts[rows] % modulus**2, modulus)
            rng = numpy_rng(seed, "target window", modulus, int(superblock))
            phase0, draw0 = rng.integers(modulus, size=modulus), int(rng.integers(modulus))
            # Coprime steps, so that every value comes once; the ratios spread the first few draws evenly, so
            # that a sample shorter than R² has nearly equal variances.
            phase = (phase0[group] + _coprime_step(modulus, 0.62) * place) % modulus
            draw = (draw0 + _coprime_step(modulus, 0.55) * group + 2 * modulus // 3 * phase) % modulus
            starts[rows] = self.start + phase + modulus * (draw > phase)
        return starts

    def targets(self, windows: Int64[np.ndarray, " block"]) -> Int64[np.ndarray, "block residue"]:
        """Return the position of each residue inside each window of R consecutive positions."""
        return windows[:, None] + (np.arange(self.modulus) - windows[:, None]) % self.modulus


def placebo_strides(stride: int, modulus: int) -> list[int]:
    """Placebo strides that are balanced jointly with `stride` in every block of R residues.

    A placebo stride aliases with the stride unless the pairs (t mod stride, t mod placebo) all come equally
    often: that holds iff the two are coprime and their product divides R.

    Examples
    --------
    >>> placebo_strides(8, 24), placebo_strides(8, 40), placebo_strides(6, 30)
    ([3], [5], [5])
    """
    return [p for p in range(2, modulus + 1) if math.gcd(p, stride) == 1 and modulus % (p * stride) == 0]


def _coprime_step(modulus: int, ratio: float) -> int:
    """Return the integer coprime to `modulus` nearest to ratio·modulus."""
    candidates = [step for step in range(1, modulus + 1) if math.gcd(step, modulus) == 1]
    return min(candidates, key=lambda step: abs(step - ratio * modulus))
