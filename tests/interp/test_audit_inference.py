"""The audit's tests: enumeration by hand, error rate, stated power, planted effects."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from hooks.errors import StatisticsError
from interp.audit.inference import cross_shares, detectable_gap, gap_test, query_gap_test


def test_the_null_is_the_enumeration():
    # Each prompt keeps or swaps its two answers: both kept or both swapped give a gap of 1, the others 0.
    found = gap_test([[1, 0], [1, 0]], 2, n_permutations=4000)
    assert found.gap == 1
    assert found.p == pytest.approx(0.5, abs=0.03)
    assert found.null_mean == pytest.approx(0.5, abs=0.03)


def test_a_phase_effect_is_found_and_leaves_the_placebo_alone():
    correct = np.tile(np.arange(24) % 4 != 3, (20, 1))  # wrong at phase 3 and nowhere else
    assert gap_test(correct, 4).p == 1 / 2000
    placebo = gap_test(correct, 3, given=4)
    assert placebo == (0, 0, 0, 1)  # within a phase all answers agree: nothing to permute
    assert gap_test(correct, 3).null_mean > 0.02  # without holding the phase fixed its spread is in the null


def test_a_gap_at_a_placebo_stride_is_found_too():
    correct = np.tile(np.arange(24) % 3 != 0, (20, 1))
    assert gap_test(correct, 3, given=4).p == 1 / 2000


def test_the_error_rate_holds():
    rng = np.random.default_rng(1)
    own = rng.random((200, 12, 1))  # prompts differ in difficulty
    p = [gap_test(rng.random((12, 24)) < o, 8, n_permutations=199, seed=i).p for i, o in enumerate(own)]
    assert 0 < np.sum(np.array(p) <= 0.05) <= scipy_stats.binom.ppf(0.975, 200, 0.05)


@pytest.mark.parametrize(("accuracy", "sign"), [(0.8, -1), (0.2, 1)])
def test_a_detectable_gap_is_detected_with_the_stated_power(accuracy, sign):
    rng = np.random.default_rng(2)
    first = rng.random((24, 24)) < accuracy
    x = detectable_gap(first, 4, gap_test(first, 4).critical)
    assert 0.05 < x < 0.5
    p = np.where(np.arange(24) % 4 == 2, accuracy + sign * x, accuracy)  # another phase than the simulated
    found = [gap_test(rng.random((24, 24)) < p, 4, n_permutations=199, seed=i).p <= 0.05 for i in range(120)]
    low, high = scipy_stats.binomtest(sum(found), 120).proportion_ci(0.999)
    assert low < 0.8 < high + 0.05
    assert np.mean(found) > 0.65


def test_more_prompts_detect_less():
    rng = np.random.default_rng(3)
    small, large = (rng.random((n, 24)) < 0.6 for n in (8, 128))
    x = [detectable_gap(v, 8, gap_test(v, 8).critical) for v in (small, large)]
    assert x[1] < 0.6 * x[0]


def test_a_model_that_never_answers_promises_nothing_small():
    # All permutations of zeros give 0; the half answer a prompt is granted keeps the promise honest.
    assert detectable_gap(np.zeros((32, 24)), 8, 0.0) > 0.02


def test_a_stride_that_does_not_divide_raises():
    with pytest.raises(StatisticsError, match="24"):
        gap_test(np.zeros((4, 24)), 5)
    with pytest.raises(StatisticsError, match="24"):
        gap_test(np.zeros((4, 24)), 4, given=5)


# ------------------------------------------------------------------------------------------- target and query


def crossed(rule, noise=0.0, seed=0):
    """[query 4, prompt 10, residue 24] of a rule on target phase and query phase at stride 4."""
    query, _, residue = np.meshgrid(np.arange(4), np.arange(10), np.arange(24), indexing="ij")
    values = np.vectorize(rule)(residue % 4, query).astype(float)
    return values + noise * np.random.default_rng(seed).standard_normal(values.shape)


@pytest.mark.parametrize(
    ("rule", "target", "query", "both"),
    [
        (lambda t, q: t != 3, 1, 0, 0),
        (lambda t, q: q != 3, 0, 1, 0),
        (lambda t, q: (t + q) % 4 != 3, 0, 0, 1),
        # Cells 4 rows by 4: both main effects are alike, 1 + 1 of 2.
        (lambda t, q: int(t == 3) + int(q == 3), 0.5, 0.5, 0),
    ],
)
def test_shares_of_a_planted_rule(rule, target, query, both):
    share = cross_shares(crossed(rule), 4)
    assert (share.target, share.query, share.interaction) == pytest.approx((target, query, both), abs=1e-9)
    noisy = cross_shares(crossed(rule, noise=0.3), 4)
    assert (noisy.target, noisy.query, noisy.interaction) == pytest.approx((target, query, both), abs=0.06)


def test_shares_of_nothing_are_undefined():
    assert np.isnan(cross_shares(np.ones((4, 10, 24)), 4).target)


def test_noise_is_taken_out_of_the_shares():
    # Sums of squares less their expectation: over many tables of pure noise the mean of each is about 0, so
    # a planted target effect of the noise's size keeps its share on average.
    rng = np.random.default_rng(5)
    shares = []
    for _ in range(60):
        values = rng.standard_normal((4, 10, 24))
        values[:, :, 3::4] += 1
        shares.append(cross_shares(values, 4).target)
    assert np.mean(shares) > 0.95


def test_a_query_effect_is_found_and_a_target_effect_is_not_called_one():
    assert query_gap_test(crossed(lambda t, q: q != 1)).p == 1 / 2000
    assert query_gap_test(crossed(lambda t, q: t != 1)).p == 1


def test_the_query_null_permutes_whole_prompts():
    # One prompt, two query phases, all residues alike: two equally likely orders, so p is 1.
    assert query_gap_test([[[1, 1, 1]], [[0, 0, 0]]]).p == 1
