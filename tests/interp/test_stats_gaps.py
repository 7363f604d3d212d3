"""Intervals of gaps and of their differences: false positives and power by simulation, edges by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from hooks.errors import StatisticsError
from interp.stats import gap_bounds, gap_difference_bounds, gap_test, paired_bounds


def answers(accuracy, n, rng, *, cycles=3, agree=False):
    """Accuracy [prompt, phase] of independent rows; with `agree`, of residues of a phase that all agree."""
    accuracy = np.asarray(accuracy, dtype=float)
    return (rng.random((n, 1 if agree else cycles, len(accuracy))) < accuracy).mean(axis=1)


def differences(first, second, *, n, trials, seed, agree=False):
    rng = np.random.default_rng(seed)
    return np.array([
        gap_difference_bounds(
            np.stack([answers(one, n, rng, agree=agree) for one in (first, second)], axis=1), scale=1.0
        )
        for _ in range(trials)
    ])  # fmt: skip


def most(trials, level=0.025):
    """Upper end of the binomial interval of the nominal level."""
    return scipy_stats.binom.ppf(0.975, trials, level)


FLAT = [(0.5, 1.0), (0.6, 0.9), (0.5, 0.99), (0.8, 0.8)]


def false_positives(first, second, phases, **options):
    low, high = differences([first] * phases, [second] * phases, **options).T
    return int((low > 0).sum()), int((high < 0).sum())


@pytest.mark.parametrize(("first", "second"), FLAT)
@pytest.mark.parametrize("n", [12, 64])
def test_flat_models_of_different_accuracy_have_no_different_gaps(first, second, n):
    wider, narrower = false_positives(first, second, 4, n=n, trials=60, seed=n, agree=True)
    assert max(wider, narrower) <= most(60)


@pytest.mark.slow
@pytest.mark.parametrize("agree", [False, True])
@pytest.mark.parametrize(("first", "second"), FLAT)
@pytest.mark.parametrize("phases", [2, 8])
def test_flat_models_of_different_accuracy_over_300_samples(phases, first, second, agree):
    for n in (12, 64):
        wider, narrower = false_positives(first, second, phases, n=n, trials=300, seed=n, agree=agree)
        assert max(wider, narrower) <= most(300)


SAME_GAP = [
    ([0.9] * 3 + [0.6], [0.6] + [0.3] * 3),
    ([0.95, 0.9, 0.8, 0.5], [0.95, 0.95, 0.5, 0.5]),
    ([0.9, 0.6], [0.6, 0.9]),
]


@pytest.mark.parametrize(("first", "second"), SAME_GAP)
def test_equal_gaps_at_other_phases_are_not_different(first, second):
    low, high = differences(first, second, n=64, trials=60, seed=3, agree=True).T
    assert (low > 0).sum() <= most(60)
    assert (high < 0).sum() <= most(60)


@pytest.mark.parametrize("agree", [False, True])
def test_a_gap_wider_by_thirty_points_is_seen_at_64_prompts(agree):
    """Flat at 100%, against one phase of eight at 70%."""
    low, high = differences([1.0] * 8, [1.0] * 7 + [0.7], n=64, trials=25, seed=5, agree=agree).T
    assert (low > 0).mean() >= 0.8
    assert ((low <= 0.3) & (high >= 0.3)).mean() >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accuracy", "agree", "least"), [(0.95, False, 0.99), (0.9, False, 0.95), (1.0, True, 0.9)]
)
def test_power_at_thirty_points(accuracy, agree, least):
    flat, weak = [accuracy] * 8, [accuracy] * 7 + [accuracy - 0.3]
    for first, second, sign in ((flat, weak, 1), (weak, flat, -1)):
        low, high = differences(first, second, n=64, trials=400, seed=6, agree=agree).T
        assert (low > 0 if sign > 0 else high < 0).mean() >= least
        assert ((low <= sign * 0.3) & (high >= sign * 0.3)).mean() >= 0.93


@pytest.mark.slow
def test_power_where_the_residues_of_a_phase_agree_and_errors_are_many_falls_short():
    """A miss, kept in sight: 90% against one phase at 60%, where 64 prompts are 64 rows a phase and not 192."""
    low, _ = differences([0.9] * 8, [0.9] * 7 + [0.6], n=64, trials=200, seed=7, agree=True).T
    assert 0.15 <= (low > 0).mean() < 0.8


def test_the_interval_holds_the_measured_difference_and_turns_with_the_models():
    rng = np.random.default_rng(8)
    for accuracy in ([0.9, 0.5, 0.7, 0.9], [0.8] * 4, [1.0, 1.0, 1.0, 0.0]):
        by = np.stack([answers([0.8, 0.7, 0.9, 0.4], 30, rng), answers(accuracy, 30, rng)], axis=1)
        gaps = np.ptp(by.mean(axis=0), axis=-1)
        low, high = gap_difference_bounds(by, scale=1.0)
        assert -1 <= low <= gaps[1] - gaps[0] <= high <= 1
        back = gap_difference_bounds(by[:, ::-1], scale=1.0)
        assert back == pytest.approx((-high, -low), abs=0.02)
        assert gap_difference_bounds(100 * by, scale=100.0) == pytest.approx((100 * low, 100 * high))


def test_clear_best_and_worst_phases_give_the_paired_t_interval():
    rng = np.random.default_rng(9)
    by = rng.normal(size=(50, 2, 3)) * 0.1 + np.array([[0, 2, 5], [9, 3, 0]])
    d = (by[:, 1, 0] - by[:, 1, 2]) - (by[:, 0, 2] - by[:, 0, 0])
    expected = scipy_stats.ttest_1samp(d, 0).confidence_interval(0.95)
    assert gap_difference_bounds(by) == pytest.approx(tuple(expected))
    d = by[:, 1, 0] - by[:, 1, 2]
    expected = scipy_stats.ttest_1samp(d, 0).confidence_interval(0.95)
    assert gap_bounds(by[:, 1]) == pytest.approx(tuple(expected))


def test_a_model_and_itself_have_a_difference_of_nothing():
    by = np.random.default_rng(10).normal(size=(40, 1, 4)).repeat(2, axis=1)
    assert np.isnan(gap_difference_bounds(by)).all()
    low, high = gap_difference_bounds((by > 0).astype(float), scale=1.0)
    assert low < 0 < high  # so many prompts do not rule out a rare difference


@pytest.mark.parametrize("n", [12, 64])
def test_a_gap_without_spread_has_the_bounds_of_so_many_prompts(n):
    """Best always right, worst never: a prompt that shows it has probability π or more, and the gap is 2π − 1 or more."""
    always = np.ones((n, 4))
    exact = scipy_stats.binomtest(n, n).proportion_ci(method="exact").low
    low, high = gap_bounds(np.concatenate([always, np.zeros((n, 1))], axis=1), scale=1.0)
    assert low <= 2 * exact - 1
    assert high == 1
    low, high = gap_bounds(always, scale=1.0)
    assert low == 0
    assert 1 - exact <= high <= 1.2 * (1 - exact)


def test_paired_bounds_cover_rare_and_common_differences():
    rng = np.random.default_rng(11)
    for chances in ((0.02, 0.0), (0.3, 0.1), (0.0, 0.0), (0.8, 0.05)):
        drawn = rng.choice([1, -1, 0], p=[*chances, 1 - sum(chances)], size=(40, 4000))
        low, high = paired_bounds(drawn, scale=1.0)
        truth = chances[0] - chances[1]
        assert (low > truth).mean() <= 0.035
        assert (high < truth).mean() <= 0.035
    wide, plain = (paired_bounds(drawn[:, 0], scale=1.0, family=family) for family in (8, 1))
    assert wide[0] < plain[0]
    assert plain[1] < wide[1]
    assert np.isnan(paired_bounds(drawn[:9])).all()
    assert np.isnan(paired_bounds(np.ones(20))).all()


def test_flat_models_are_tested_at_their_level_even_where_the_residues_of_a_phase_agree():
    rng = np.random.default_rng(12)
    for agree in (False, True):
        p = [gap_test(answers([0.6] * 8, 16, rng, agree=agree), n_permutations=199) for _ in range(200)]
        assert 0 < np.mean(np.array(p) <= 0.05) <= most(200, 0.05) / 200
    assert gap_test(answers([0.95] * 7 + [0.65], 64, rng, agree=True)) < 0.05
    assert gap_test(np.ones((12, 8))) == 1
    assert np.isnan(gap_test(np.ones((5, 8))))


def test_too_few_prompts_phases_and_models():
    by = np.random.default_rng(13).random((12, 2, 3))
    assert np.isnan(gap_difference_bounds(by[:9])).all()
    assert np.isnan(gap_difference_bounds(by[..., :1])).all()
    assert np.isnan(gap_bounds(by[:9, 0])).all()
    assert np.isnan(gap_bounds(by[:, 0, :1])).all()
    with pytest.raises(StatisticsError, match="3 models"):
        gap_difference_bounds(np.ones((12, 3, 4)))
