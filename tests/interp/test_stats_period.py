from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats
from scipy.ndimage import uniform_filter1d

from hooks.errors import StatisticsError
from interp.published import load_published
from interp.rng import numpy_rng
from interp.stats import candidates_for, find_period, period_label, period_of_counts
from tests.interp.simulated_recall import clean_rows

ACCURACIES = {
    8: [100, 100, 100, 100, 100, 100, 100, 22],
    4: [52, 100, 100, 74],
    6: [92, 70, 66, 69, 51, 82],
    12: [74, 100, 100, 63, 77, 80, 100, 100, 100, 100, 44, 16],
    2: [100, 60],
}


def positions(n_prompts, rng, *, modulus=24):
    """Every prompt_id shows all residues, somewhere between token 24 and token 480, in any cycle."""
    return modulus * rng.integers(1, 20, size=(n_prompts, modulus)) + np.arange(modulus)


@pytest.mark.parametrize("period", ACCURACIES)
@pytest.mark.parametrize("quantity", ["correct", "logprob"])
def test_periods_of_known_models(period, quantity):
    rng = np.random.default_rng(period)
    rows = clean_rows(ACCURACIES[period], 64, rng)
    found = find_period(getattr(rows, quantity), positions(64, rng), n_permutations=199)
    assert found.period == period
    assert found.p == 1 / 200
    assert max(found.scores, key=lambda c: found.scores[c]) % period == 0


@pytest.mark.parametrize("period", [2, 4, 8])
def test_multiples_do_not_win_over_twenty_samples(period):
    found = []
    for seed in range(20):
        rng = numpy_rng(seed, "multiples")
        rows = clean_rows(ACCURACIES[period], 32, rng)
        found.append(find_period(rows.correct, positions(32, rng), seed=seed, n_permutations=99).period)
    # At most 5% of samples may give a multiple: of 20, more than 3 have a chance of 1.6%.
    assert found.count(period) >= 17


def test_neighbours_that_fail_together_are_not_a_finer_period():
    # Noise is a moving average over 4 residues of a prompt; with free permutations 19% came out as a multiple.
    found = []
    for seed in range(60):
        rng = numpy_rng(seed, "neighbours")
        t = positions(32, rng)
        noise = uniform_filter1d(rng.normal(size=t.shape), 4, axis=1, mode="wrap") * 2
        values = np.empty_like(noise)
        np.put_along_axis(values, np.argsort(t % t.shape[1], axis=1), noise, axis=1)
        values += t % 4 == 3
        found.append(find_period(values, t, seed=seed, n_permutations=99).period)
    assert 60 - found.count(4) <= scipy_stats.binom.ppf(0.975, 60, 0.05)


def flat_periods(trials, *, n_prompts, accuracy=90):
    found = []
    for seed in range(trials):
        rng = numpy_rng(seed, "flat")
        rows = clean_rows([accuracy], n_prompts, rng)
        found.append(
            find_period(rows.correct, positions(n_prompts, rng), seed=seed, n_permutations=99).period
        )
    return sum(period > 0 for period in found)


def test_flat_data_have_no_period():
    found = flat_periods(100, n_prompts=8)
    assert 0 < found <= scipy_stats.binom.ppf(0.975, 100, 0.05)


@pytest.mark.slow
def test_flat_data_have_no_period_over_500_samples():
    assert flat_periods(500, n_prompts=64) <= scipy_stats.binom.ppf(0.975, 500, 0.05)


def test_rows_of_a_few_prompts_are_no_sample_of_prompts():
    rng = np.random.default_rng(6)
    t = positions(6, rng)
    values = (t % 8 == 7) + 0.1 * rng.normal(size=t.shape)
    assert find_period(values, t, n_permutations=99).period == 8
    for few in (1, 5):
        found = find_period(values[:few], t[:few], n_permutations=99)
        assert found.period == 0
        assert np.isnan(found.p)
        assert max(found.scores, key=lambda c: found.scores[c]) % 8 == 0  # what it looks like is still told


def test_values_without_variation_have_no_period():
    found = find_period(np.ones((8, 24)), positions(8, np.random.default_rng(0)))
    assert (found.period, found.p) == (0, 1.0)
    assert set(found.scores.values()) == {0.0}


def test_difficult_prompts_are_not_a_period():
    # Whole prompt_ids are hard or easy, and each sits in one place: position tells the prompt, but no period.
    found = 0
    for seed in range(40):
        rng = numpy_rng(seed, "difficulty")
        difficulty = rng.normal(size=(8, 1)) * 20
        values = difficulty + rng.normal(size=(8, 24))
        t = 24 * rng.integers(1, 20, size=(8, 1)) + rng.integers(0, 24, size=(8, 1)) + np.arange(24)
        found += find_period(values, t, seed=seed, n_permutations=99).period > 0
    assert found <= scipy_stats.binom.ppf(0.975, 40, 0.05)


def test_difficult_prompts_do_not_hide_a_period():
    rng = np.random.default_rng(5)
    t = positions(12, rng)
    values = 30 * rng.normal(size=(12, 1)) + (t % 8 == 7) + 0.5 * rng.normal(size=t.shape)
    assert find_period(values, t, n_permutations=99).period == 8


def test_the_period_is_in_the_position_and_not_in_the_column():
    # Columns shuffled: only target_position knows.
    rng = np.random.default_rng(1)
    t = rng.permuted(positions(40, rng), axis=1)
    values = (t % 8 == 5) + 0.3 * rng.normal(size=t.shape)
    assert find_period(values, t, n_permutations=99).period == 8


def test_one_row_a_prompt_and_flat_arrays_agree():
    rng = np.random.default_rng(2)
    t = rng.integers(0, 1000, size=300)
    values = (t % 5 == 0) + 0.5 * rng.normal(size=300)
    flat = find_period(values, t, n_permutations=99)
    assert flat.period == 5
    assert find_period(values[:, None], t[:, None], n_permutations=99) == flat


def test_score_is_the_adjusted_r_squared_of_a_regression():
    rng = np.random.default_rng(3)
    t = rng.integers(0, 500, size=200)
    values = (t % 4 == 1) * 0.7 + rng.normal(size=200)
    scores = find_period(values, t, n_permutations=9).scores
    for candidate in (2, 4, 7, 16):
        design = (t[:, None] % candidate == np.arange(candidate)).astype(float)
        residuals = np.linalg.lstsq(design, values, rcond=None)[1][0]
        adjusted = 1 - (residuals / (200 - candidate)) / (values.var(ddof=1))
        assert scores[candidate] == pytest.approx(adjusted)


def test_published_needle_periods():
    found = {
        model["name"]: period_of_counts(model["correct"], model["n_per_residue"])
        for model in load_published("needle_128k")["models"]
    }
    assert [result.period for result in found.values()] == [4, 4, 4, 4, 2]
    assert all(result.p < 0.01 for result in found.values())
    assert np.isnan(found["DeepSeek-V4.1-Flash"].scores[3])  # cannot be told from residues mod 8


@pytest.mark.parametrize("quantity", ["p_8", "p_32"])
def test_published_completion_period(quantity):
    table = load_published("completion_fp8")
    found = find_period(table[quantity], table["filler_tokens"])
    assert found.period == 4
    assert found.p < 0.05


def test_flat_counts_have_no_period():
    rng = np.random.default_rng(4)
    found = [
        period_of_counts(rng.binomial(64, 0.6, size=24), 64, n_permutations=199).period for _ in range(100)
    ]
    assert 0 < sum(period > 0 for period in found) <= scipy_stats.binom.ppf(0.975, 100, 0.05)
    assert period_of_counts([64] * 8, 64).period == 0


def test_counts_and_rows_score_alike():
    correct, n = np.array([30, 12, 28, 14]), 40
    rows = np.array([[i < k for k in correct] for i in range(n)], dtype=float)
    t = np.tile(np.arange(4), n)
    flat = find_period(rows.reshape(-1), t, candidates=[2, 4], n_permutations=99)
    counted = period_of_counts(correct, n, candidates=[2, 4], n_permutations=99)
    assert counted.scores == pytest.approx(flat.scores)
    assert counted.period == flat.period == 2


@pytest.mark.parametrize(
    ("values", "t", "message"),
    [
        (np.ones((4, 6)), np.ones((4, 5), dtype=int), "20 target positions"),
        (np.ones((4, 6)), np.ones((4, 6)), "float64"),
        (np.full((4, 6), np.nan), np.ones((4, 6), dtype=int), "not finite"),
        (np.arange(24.0), np.zeros(24, dtype=int), "no period"),
        (np.arange(3.0), np.arange(3), "no period"),
    ],
)
def test_find_period_refuses(values, t, message):
    with pytest.raises(StatisticsError, match=message):
        find_period(values, t)


@pytest.mark.parametrize("counts", [([5, 6], 4), ([-1, 2], 4), ([0.5, 1], 4), ([0, 0], 0)])
def test_period_of_counts_refuses(counts):
    with pytest.raises(StatisticsError, match="0 <= correct <= n"):
        period_of_counts(*counts)


def test_period_of_counts_needs_a_divisor_of_the_modulus():
    with pytest.raises(StatisticsError, match="no period"):
        period_of_counts([3, 4, 5, 6, 7], 10, candidates=[2, 3])


def test_a_stride_above_16_is_looked_for_where_it_is_asked_about():
    """One weak phase in 32: no candidate of 2 to 16 is its period, and without it a divisor stands in."""
    t = np.tile(np.arange(64, 96), (12, 1))
    values = np.random.default_rng(0).normal(size=t.shape) - 3.0 * (t % 32 == 5)
    assert candidates_for(32) == (*range(2, 17), 32)
    assert candidates_for(16) == candidates_for(3) == tuple(range(2, 17))
    found = find_period(values, t, candidates=candidates_for(32), n_permutations=199)
    assert (found.period, found.tested) == (32, [*range(2, 17), 32])


@pytest.mark.parametrize(
    ("attrs", "label"),
    [
        ({"period": 4, "stride": 4, "period_p": 0.001}, "4"),
        ({"period": 0, "stride": 4, "period_p": 0.4}, "none"),
        ({"period": 0, "stride": 32, "period_p": 0.4}, "none of 2 to 16, 32 not testable"),
        ({"period": 0, "stride": 32, "period_p": 0.4, "period_tested": np.array([2, 4, 32])}, "none"),
        (
            {"period": 0, "stride": 3, "period_p": 0.4, "period_tested": [2, 4, 8]},
            "none of 2, 4, 8, 3 not testable",
        ),
        ({"period": 0, "stride": 4, "period_p": 0.4, "period_tested": 2}, "none of 2, 4 not testable"),
        ({"period": 0, "stride": 8, "period_p": np.nan}, "not tested"),
    ],
)
def test_no_period_is_only_said_where_one_was_looked_for(attrs, label):
    assert period_label(attrs) == label
