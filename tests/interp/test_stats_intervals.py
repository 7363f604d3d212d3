from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from hooks.errors import StatisticsError
from interp.stats import (
    MIN_BOOTSTRAP_PROMPTS,
    MIN_SEEDS,
    bca,
    family_interval,
    gap_interval,
    phase_gap,
    phase_intervals,
    phase_means,
    wilson,
)
from tests.interp.simulated_recall import clean_rows


def wilson_by_formula(k: int, n: int) -> tuple[float, float]:
    z = 1.959963984540054
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * (k * (n - k) / n + z * z / 4) ** 0.5
    return centre - half, centre + half


def test_wilson_by_hand():
    # The textbook case 5 of 10, and the published needle counts of 256.
    low, high = wilson([5, 112], [10, 256])
    assert [low[0], high[0]] == pytest.approx([0.2366, 0.7634], abs=1e-4)
    assert [low[1], high[1]] == pytest.approx(wilson_by_formula(112, 256), abs=1e-9)


def test_wilson_without_trials_is_undefined_and_all_correct_is_not():
    low, high = wilson([0, 64, 0], [0, 64, 64])
    assert np.isnan([low[0], high[0]]).all()
    assert high[1] == pytest.approx(1)
    assert low[1] == pytest.approx(64 / (64 + 1.96**2), abs=1e-4)
    assert low[2] == pytest.approx(0)
    assert high[2] > 0.05


@pytest.mark.parametrize(("correct", "n"), [(5, 4), (-1, 4), (0.5, 4)])
def test_wilson_refuses_impossible_counts(correct, n):
    with pytest.raises(StatisticsError, match="0 <= correct <= n"):
        wilson(correct, n)


@pytest.mark.parametrize(("n", "p"), [(50, 0.1), (50, 0.6), (200, 0.22), (200, 0.98)])
def test_wilson_coverage_is_its_exact_binomial_coverage(n, p):
    k = np.arange(n + 1)
    inside = [wilson_by_formula(i, n)[0] <= p <= wilson_by_formula(i, n)[1] for i in k]
    exact = scipy_stats.binom.pmf(k, n, p) @ inside
    drawn = np.random.default_rng(3).binomial(n, p, size=20_000)
    seen = np.bincount(drawn, minlength=n + 1)
    low, high = wilson(k, n)
    assert abs(seen @ ((low <= p) & (p <= high)) / seen.sum() - exact) < 0.01


def test_phase_means_by_hand():
    values = np.array([[1.0, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 12]])
    assert phase_means(values, 2).tolist() == [[3, 4], [0, 4]]
    assert phase_means(values, 3).tolist() == [[2.5, 3.5, 4.5], [0, 0, 6]]
    assert phase_gap(values, 2) == 2.5
    with pytest.raises(StatisticsError, match="whole cycles of stride 4"):
        phase_means(values, 4)


def test_bca_equals_scipy_on_the_values_themselves():
    values = np.random.default_rng(0).exponential(size=40)
    low, high = bca(values, seed=1, n_resamples=4000)
    expand = (40 / 39) ** 0.5 * scipy_stats.t.ppf(0.975, 39)
    reference = scipy_stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=4000,
        method="BCa",
        confidence_level=2 * scipy_stats.norm.cdf(expand) - 1,
        rng=np.random.default_rng(5),
    ).confidence_interval
    assert [float(low), float(high)] == pytest.approx(list(reference), abs=0.03)
    assert low < values.mean() < high


def test_bca_is_refused_without_spread_or_below_the_minimum():
    values = np.ones((30, 2))
    values[:10, 1] = 0
    low, high = bca(values)
    assert np.isnan(low[0])
    assert np.isnan(high[0])
    assert low[1] < 2 / 3 < high[1]
    few = np.arange(MIN_BOOTSTRAP_PROMPTS - 1.0)
    assert np.isnan(bca(few)).all()
    assert np.isfinite(bca(np.arange(float(MIN_BOOTSTRAP_PROMPTS)))).all()
    with pytest.raises(StatisticsError, match="not finite"):
        bca(np.array([np.nan] * 20))
    with pytest.raises(StatisticsError, match="level=95"):
        bca(values, level=95)


def test_phase_intervals_cover_each_phase_and_use_whole_prompts():
    rng = np.random.default_rng(2)
    # All residues of a prompt agree: 24 rows are one observation, and intervals must be as wide as for one.
    easy = np.repeat(rng.random((60, 1)) < 0.5, 24, axis=1)
    low, high = phase_intervals(easy, 8)
    width = 2 * 1.96 * np.sqrt(easy[:, 0].mean() * (1 - easy[:, 0].mean()) / 60)
    assert high - low == pytest.approx(np.full(8, width), rel=0.15)


def test_gap_interval_resamples_phases_together():
    rng = np.random.default_rng(4)
    easy = np.repeat(rng.normal(size=(50, 1)) * 10, 8, axis=1)
    values = easy + np.array([0, 0, 0, 0, 0, 0, 0, -3]) + rng.normal(size=(50, 8)) * 0.1
    low, high = gap_interval(values, 8)
    assert 2.9 < low < phase_gap(values, 8) < high < 3.2
    assert np.isnan(gap_interval(np.ones((50, 8)), 8)).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.floats(-50, 50), st.floats(0.1, 20))
def test_bca_moves_and_scales_with_the_values(seed, shift, scale):
    values = np.random.default_rng(seed).normal(size=25)
    low, high = bca(values, n_resamples=300)
    moved = bca(values * scale + shift, n_resamples=300)
    assert [float(m) for m in moved] == pytest.approx([low * scale + shift, high * scale + shift], abs=1e-6)
    mirrored = bca(-values, n_resamples=300)
    assert float(mirrored[0]) == pytest.approx(-high, abs=0.15)


def coverage(accuracy: float, quantity: str, n: int, *, datasets: int, seed: int) -> float:
    """Share of BCa intervals of a phase mean (three residues) that hold the truth, from 10⁶ rows."""
    rng = np.random.default_rng(seed)
    level = [accuracy] * 3
    truth = getattr(clean_rows(level, 400_000, rng, modulus=3), quantity).mean()
    drawn = [getattr(clean_rows(level, n, rng, modulus=3), quantity).mean(axis=1) for _ in range(datasets)]
    inside = []
    for block in range(0, datasets, 250):
        low, high = bca(np.stack(drawn[block : block + 250], axis=1), seed=block, n_resamples=999)
        inside.append((low <= truth) & (truth <= high))
    return float(np.mean(inside))


@pytest.mark.parametrize("quantity", ["logprob", "margin"])
def test_bca_coverage_quick(quantity):
    # 1,000 data sets: simulation error 0.7 pp (one sd) around the 93–97% asked for.
    assert 0.93 <= coverage(60, quantity, 50, datasets=1000, seed=11) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", [22, 60, 90])
@pytest.mark.parametrize("quantity", ["logprob", "margin"])
@pytest.mark.parametrize("n", [50, 200])
def test_bca_coverage(accuracy, quantity, n):
    assert 0.93 <= coverage(accuracy, quantity, n, datasets=4000, seed=12) <= 0.97


@pytest.mark.slow
def test_bca_coverage_of_a_nearly_solved_phase_falls_short():
    # A miss, kept in sight: at 98% accuracy few of 50 prompts carry nearly all log-probability that is lost.
    assert 0.915 <= coverage(98, "logprob", 50, datasets=4000, seed=13) <= 0.94
    assert 0.93 <= coverage(98, "logprob", 200, datasets=4000, seed=14) <= 0.97


def test_family_interval_counts_seeds_not_prompts():
    rng = np.random.default_rng(6)
    seeds = np.array([0.2, 0.5, 0.9])
    values = seeds[:, None] + rng.normal(size=(3, 400)) * 0.01
    low, high = family_interval(values)
    # Three seeds that differ by 0.7 cannot give an interval as narrow as 1,200 prompts would.
    assert low < 0.2
    assert high > 0.9
    assert np.isnan(family_interval(values[: MIN_SEEDS - 1])).all()
    assert np.isnan(family_interval(values[:, : MIN_BOOTSTRAP_PROMPTS - 1])).all()
    assert np.isnan(family_interval(np.ones((3, 20)))).all()


def test_family_interval_covers_the_family_mean():
    rng = np.random.default_rng(7)
    families = 2.0 * rng.normal(size=(5, 1, 400)) + rng.normal(size=(5, 30, 400))
    low, high = family_interval(families, n_resamples=400)
    assert 0.93 <= np.mean((low <= 0) & (high >= 0)) <= 1
