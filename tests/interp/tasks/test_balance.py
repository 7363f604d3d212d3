"""Target positions: moments by exact fractions, and stratified draws by counting."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from hooks.errors import TaskError
from interp.tasks import PositionBalance, placebo_strides


def _moments(positions: list[int], probabilities: list[Fraction]) -> tuple[Fraction, Fraction, Fraction]:
    total = sum(probabilities, Fraction(0))
    mean = sum((p * t for t, p in zip(positions, probabilities, strict=True)), Fraction(0))
    square = sum((p * t * t for t, p in zip(positions, probabilities, strict=True)), Fraction(0))
    return total, mean, square - mean**2


@pytest.mark.parametrize(("modulus", "start"), [(1, 0), (2, 5), (4, 0), (7, 3), (24, 36), (48, 0)])
def test_moments_are_equal_at_every_residue(modulus: int, start: int) -> None:
    balance = PositionBalance(modulus, start)
    for residue in range(modulus):
        positions, probabilities = balance.distribution(residue)
        assert all(t % modulus == residue and t in balance.positions for t in positions)
        # Three independent uniforms on 0 … R−1: mean 3(R−1)/2, variance 3(R²−1)/12.
        assert _moments(positions, probabilities) == (
            1,
            start + Fraction(3 * (modulus - 1), 2),
            Fraction(modulus**2 - 1, 4),
        )


def test_distribution_against_all_triples() -> None:
    balance = PositionBalance(5, 2)
    sums = [2 + sum(u) for u in product(range(5), repeat=3)]
    for residue in range(5):
        positions, probabilities = balance.distribution(residue)
        matching = [s for s in sums if s % 5 == residue]
        for position, probability in zip(positions, probabilities, strict=True):
            assert probability == Fraction(matching.count(position), len(matching))


@pytest.mark.parametrize("modulus", [2, 3, 6, 11])
def test_no_narrower_scheme_exists(modulus: int) -> None:
    # Linear in the probabilities and the two shared moments, so a linear program decides it.
    def feasible(span: int) -> bool:
        rows, right = [], []
        for residue in range(modulus):
            member = np.arange(span) % modulus == residue
            for power, shared in ((0, (0, 0)), (1, (1, 0)), (2, (0, 1))):
                rows.append([*np.where(member, np.arange(span) ** power, 0), *(-s for s in shared)])
                right.append(1 if power == 0 else 0)
        return linprog(np.zeros(span + 2), A_eq=rows, b_eq=right, bounds=(0, None)).status == 0

    assert feasible(3 * modulus - 2)
    assert not feasible(3 * modulus - 3)


@pytest.mark.parametrize("modulus", [3, 8, 12])
def test_windows_over_squares_have_the_exact_distribution(modulus: int) -> None:
    balance = PositionBalance(modulus, 10)
    targets = balance.targets(balance.windows(0, 2 * modulus**2, seed=3))
    for residue in range(modulus):
        positions, probabilities = balance.distribution(residue)
        seen, counts = np.unique(targets[:, residue], return_counts=True)
        assert seen.tolist() == positions
        assert counts.tolist() == [2 * modulus**2 * p for p in probabilities]


def test_windows_hold_each_residue_once() -> None:
    balance = PositionBalance(24, 36)
    windows = balance.windows(0, 50, seed=0)
    targets = balance.targets(windows)
    assert (targets % 24 == np.arange(24)).all()
    assert (np.sort(targets, 1) == windows[:, None] + np.arange(24)).all()


def test_windows_depend_on_seed_and_prompt_only() -> None:
    balance = PositionBalance(6, 0)
    whole = balance.windows(0, 100, seed=1)
    assert (balance.windows(0, 37, seed=1) == whole[:37]).all()
    assert (balance.windows(30, 50, seed=1) == whole[30:80]).all()
    assert (balance.windows(0, 100, seed=2) != whole).any()
    assert (whole[:36] != whole[36:72]).any()  # superblocks draw anew


def test_means_are_equal_after_every_r_prompts() -> None:
    balance = PositionBalance(24, 36)
    targets = balance.targets(balance.windows(0, 72, seed=5))
    assert len(set(targets.sum(0).tolist())) == 1


def test_placebo_strides_by_counting_pairs() -> None:
    for stride, modulus in [(8, 24), (6, 24), (4, 24), (8, 40), (12, 24), (2, 24)]:
        balanced = []
        for placebo in range(2, modulus + 1):
            pairs = [(t % stride, t % placebo) for t in range(modulus)]
            counts = {pairs.count(pair) for pair in product(range(stride), range(placebo))}
            if len(counts) == 1 and modulus % placebo == 0:
                balanced.append(placebo)
        assert placebo_strides(stride, modulus) == balanced


def test_too_few_positions() -> None:
    PositionBalance.centred(24, 70)
    with pytest.raises(TaskError, match=r"69 target positions.*modulus=24.*70.*modulus <= 23"):
        PositionBalance.centred(24, 69)
    with pytest.raises(TaskError, match="residue 24 does not exist"):
        PositionBalance(24, 0).distribution(24)
