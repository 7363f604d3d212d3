from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from hooks.errors import StatisticsError
from interp.rng import numpy_rng
from interp.stats import (
    MIN_TEST_PROMPTS,
    benjamini_hochberg,
    effect_test,
    null_gap,
    placebo_strides,
    selectivity_test,
)
from tests.interp.simulated_recall import ablated_rows, clean_rows

WEAK_BOUNDARY = [100, 100, 100, 100, 100, 100, 100, 22]


def highest_rate(trials: int) -> int:
    """Upper end of the binomial interval of 5%, in counts."""
    return int(scipy_stats.binom.ppf(0.975, trials, 0.05))


# Effect.


def test_effect_by_hand():
    deltas = np.zeros((3, 9, 4))
    deltas[0, :, 0] = 1.0
    deltas[1, :, 1] = -2.5
    deltas[2, :3, 2] = 1.0
    result = effect_test(deltas, 4)
    assert result.statistic[0, 0] == pytest.approx(3)  # √9
    assert result.statistic[1, 1] == pytest.approx(-3)
    assert result.statistic[2, 2] == pytest.approx(3 / 3**0.5)
    assert result.statistic[0, 1] == 0
    assert result.p[0, 1] == 1
    assert result.p[0, 0] == result.p[1, 1] < 0.05 < result.p[2, 2]


def test_effect_equals_enumeration_by_loops():
    rng = np.random.default_rng(0)
    n_units, n_prompts, stride = 2, 7, 2
    deltas = rng.normal(size=(n_units, n_prompts, 4)) - np.array([1.2, 0, 1.2, 0])
    deltas[1, :, 1::2] = 0  # a cell in which nothing changed

    def t(unit: int, phase: int, signs) -> float:
        d = [s * (deltas[unit, p, phase] + deltas[unit, p, phase + 2]) / 2 for p, s in enumerate(signs)]
        norm = sum(x * x for x in d) ** 0.5
        return abs(sum(d)) / norm if norm else 0.0

    cells = [(u, s) for u in range(n_units) for s in range(stride)]
    largest = [
        max(t(u, s, signs) for u, s in cells) for signs in itertools.product([1, -1], repeat=n_prompts)
    ]
    result = effect_test(deltas, stride, n_permutations=20_000)
    for unit, phase in cells:
        exact = np.mean(np.array(largest) >= t(unit, phase, [1] * n_prompts) - 1e-9)
        assert abs(result.statistic[unit, phase]) == pytest.approx(t(unit, phase, [1] * n_prompts))
        assert result.p[unit, phase] == pytest.approx(
            exact, abs=4 * (exact * (1 - exact) / 20_000) ** 0.5 + 1e-4
        )
    assert {result.p[1, 1]} == {1.0}


def test_effect_of_one_prompt_shown_many_times_is_one_observation():
    rng = np.random.default_rng(1)
    prompt = rng.normal(size=(1, 8, 1)) - 0.5
    once = effect_test(prompt, 1, seed=3)
    often = effect_test(np.repeat(prompt, 24, axis=2), 1, seed=3)
    assert often.p == pytest.approx(once.p)


def test_effect_family_is_the_whole_table():
    rng = np.random.default_rng(2)
    planted = rng.normal(size=(1, 30, 8)) - 0.6
    alone = effect_test(planted, 8).p.min()
    crowd = effect_test(np.concatenate([planted, rng.normal(size=(40, 30, 8))]), 8).p[0].min()
    assert alone < crowd


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        (np.ones((1, MIN_TEST_PROMPTS - 1, 4)), "too few"),
        (np.full((1, 9, 4), np.nan), "not finite"),
        (np.ones((9, 4)), r"shape \(9, 4\)"),
        (np.ones((1, 9, 6)), "whole cycles of stride 4"),
    ],
)
def test_effect_refuses(deltas, message):
    with pytest.raises(StatisticsError, match=message):
        effect_test(deltas, 4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 100))
def test_effect_does_not_depend_on_scale_sign_or_order_of_units(seed, scale):
    deltas = np.random.default_rng(seed).normal(size=(3, 10, 4)) + 0.5
    plain = effect_test(deltas, 4, n_permutations=200)
    assert effect_test(-scale * deltas, 4, n_permutations=200).p == pytest.approx(plain.p)
    assert effect_test(deltas[::-1], 4, n_permutations=200).p[::-1] == pytest.approx(plain.p)
    assert ((plain.p > 0) & (plain.p <= 1)).all()


# Selectivity.


def test_selectivity_equals_enumeration_by_loops():
    rng = np.random.default_rng(5)
    n_units, n_prompts = 2, 7
    clean = np.full((n_prompts, 2), 10.0)
    lost = rng.normal(size=(n_units, n_prompts, 2)) + np.array([[[1.0, 0.0]], [[0.4, 0.4]]])

    def t(unit: int, swaps) -> float:
        mean_loss = sum(lost[unit, p, s] / 10 for p in range(n_prompts) for s in range(2)) / (2 * n_prompts)
        best = 0.0
        for phase in range(2):
            d = []
            for p, swap in enumerate(swaps):
                here = lost[unit, p, phase ^ swap] / 10 - mean_loss
                both = (lost[unit, p, 0] + lost[unit, p, 1]) / 20 - mean_loss
                d.append(here - both)
            best = max(best, abs(sum(d)) / sum(x * x for x in d) ** 0.5)
        return best

    largest = [
        max(t(u, swaps) for u in range(n_units)) for swaps in itertools.product([0, 1], repeat=n_prompts)
    ]
    result = selectivity_test(clean, clean - lost, 2, n_permutations=20_000)
    for unit in range(n_units):
        observed = t(unit, [0] * n_prompts)
        exact = np.mean(np.array(largest) >= observed - 1e-9)
        assert result.statistic[unit] == pytest.approx(observed)
        assert result.p[unit] == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 20_000) ** 0.5 + 1e-4)
        assert result.loss[unit] == pytest.approx(lost[unit].mean(axis=0) / 10)


def test_selectivity_of_exactly_proportional_losses_is_none():
    rng = np.random.default_rng(6)
    clean = rng.random((30, 24)) * np.resize([1, 1, 1, 0.3], 24)
    result = selectivity_test(clean, 0.7 * clean[None], 4)
    assert result.loss == pytest.approx(np.full((1, 4), 0.3))
    assert result.p.tolist() == [1.0]


def test_selectivity_leaves_out_phases_without_a_base():
    rng = np.random.default_rng(7)
    clean = np.ones((20, 8))
    clean[:, 3::4] = 0
    clean[:6, 3] = 1  # 6 clean-correct prompts at phase 3: fewer than 20
    ablated = np.where(rng.random((1, 20, 8)) < 0.5, clean, 0)
    result = selectivity_test(clean, ablated, 4)
    assert np.isnan(result.loss[0, 3])
    assert np.isfinite(result.loss[0, :3]).all()
    assert np.isfinite(result.p).all()
    nothing = selectivity_test(clean * 0.01, ablated * 0.01, 4)
    assert np.isnan(nothing.p).all()
    assert np.isnan(nothing.loss).all()


@pytest.mark.parametrize(
    ("clean", "ablated", "message"),
    [
        (np.ones((20, 8)), np.ones((1, 20, 4)), r"\(1, 20, 4\)"),
        (np.ones((20, 8)), -np.ones((1, 20, 8)), "from -1 up"),
        (np.ones((3, 8)), np.ones((1, 3, 8)), "too few"),
        (np.ones((20, 8)), np.ones((1, 20, 8)) * np.nan, "not finite"),
    ],
)
def test_selectivity_refuses(clean, ablated, message):
    with pytest.raises(StatisticsError, match=message):
        selectivity_test(clean, ablated, 4)


# Controls: what the tests must find, and what they must not.


def rejections(trials, *, accuracy, broken, scale, jitter=0.5, n_prompts=24, stride=8, permutations=99):
    """(effect found at the planted cell, unit 0 selective, anything selective) counts over data sets.

    `broken` is the broken share by phase of unit 0; three more units only move margins a little.
    """
    effect = selective = anything = 0
    others = np.zeros((3, len(broken)))
    for trial in range(trials):
        rng = numpy_rng(trial, "simulated")
        clean = clean_rows(accuracy, n_prompts, rng)
        after = ablated_rows(clean, np.vstack([broken, others]), rng, jitter=jitter)
        tested = effect_test(after.logprob - clean.logprob, len(broken), n_permutations=permutations)
        effect += tested.p[0, int(np.argmax(broken))] < 0.05
        p = selectivity_test(
            getattr(clean, scale), getattr(after, scale), stride, seed=trial, n_permutations=permutations
        ).p
        selective += p[0] < 0.05
        anything += (p < 0.05).any()
    return effect, selective, anything


ONE_PHASE = [0, 0, 0, 0.4, 0, 0, 0, 0]
EVERY_PHASE = [0.3] * 8


@pytest.mark.parametrize("scale", ["probability", "correct"])
def test_planted_one_phase_unit_is_found(scale):
    # Stated effect: 40% of the answers (the least that is called serving) broken at one phase of eight,
    # 24 prompt_ids, accuracy 95%, four units.
    effect, selective, _ = rejections(25, accuracy=[95] * 8, broken=ONE_PHASE, scale=scale)
    assert effect >= 20
    assert selective >= 20


@pytest.mark.parametrize("scale", ["probability", "correct"])
@pytest.mark.parametrize("accuracy", [[95] * 8, WEAK_BOUNDARY], ids=["flat", "100x7,22"])
def test_unit_that_hurts_every_phase_alike_has_an_effect_and_is_not_selective(scale, accuracy):
    effect, selective, _ = rejections(40, accuracy=accuracy, broken=EVERY_PHASE, scale=scale, jitter=0.0)
    assert effect == 40
    assert selective <= highest_rate(40)


def test_raw_differences_of_accuracy_would_call_that_unit_selective():
    # The scale matters: points lost are 30 at seven phases and 6.6 at the eighth.
    rng = np.random.default_rng(8)
    clean = clean_rows(WEAK_BOUNDARY, 24, rng)
    after = ablated_rows(clean, EVERY_PHASE, rng)
    lost = clean.correct - after.correct.astype(float)
    flat = np.full(clean.margin.shape, 10.0)  # a flat base turns relative into raw losses
    assert selectivity_test(flat, flat - lost, 8).p[0] < 0.01
    assert selectivity_test(clean.correct, after.correct, 8).p[0] > 0.05


def test_placebo_stride_finds_nothing():
    assert placebo_strides(8, 24) == [3]
    _, selective, anything = rejections(
        40, accuracy=WEAK_BOUNDARY, broken=ONE_PHASE, scale="probability", stride=3, jitter=0.3
    )
    assert selective <= highest_rate(40)
    assert anything <= highest_rate(40)


def null_rejections(trials, *, n_prompts=12, permutations=99):
    """(any effect, any selectivity) counts where clean and ablated runs differ by noise alone."""
    effect = selective = 0
    for trial in range(trials):
        rng = numpy_rng(trial, "null")
        base = clean_rows([80] * 8, n_prompts, rng)
        clean = ablated_rows(base, np.zeros(8), rng, jitter=1.0)
        after = ablated_rows(base, np.zeros((4, 8)), rng, jitter=1.0)
        effect += (
            effect_test(after.margin - clean.margin, 8, seed=trial, n_permutations=permutations).p < 0.05
        ).any()
        p = selectivity_test(
            clean.probability[0], after.probability, 8, seed=trial, n_permutations=permutations
        ).p
        selective += (p < 0.05).any()
    return effect, selective


def test_false_positives_over_200_null_data_sets():
    effect, selective = null_rejections(200)
    assert effect <= highest_rate(200) == 16
    assert selective <= 16
    assert effect + selective > 0  # tests that never reject would pass, too


@pytest.mark.slow
def test_family_wise_error_over_500_null_data_sets():
    effect, selective = null_rejections(500, n_prompts=48, permutations=299)
    assert effect <= highest_rate(500)
    assert selective <= highest_rate(500)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["probability", "correct"])
@pytest.mark.parametrize("accuracy", [[95] * 8, WEAK_BOUNDARY], ids=["flat", "100x7,22"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_alike_units_are_not_selective_over_200_data_sets(scale, accuracy, share):
    _, selective, _ = rejections(
        200, accuracy=accuracy, broken=[share] * 8, scale=scale, jitter=0.0, n_prompts=64, permutations=499
    )
    assert selective <= highest_rate(200)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["probability", "correct"])
def test_power_over_200_data_sets(scale):
    effect, selective, _ = rejections(200, accuracy=[95] * 8, broken=ONE_PHASE, scale=scale)
    assert effect >= 160
    assert selective >= 160


# Null gap and false discovery rate.


def test_null_gap_by_hand_and_by_loops():
    values = np.array([[1.0, 0.0], [1.0, 0.0]])
    # Two prompts, two phases: gap 1 if both keep or both swap, else 0.
    assert null_gap(values, 2, n_permutations=4000) == pytest.approx(0.5, abs=0.04)
    assert null_gap(np.ones((5, 8)), 4) == 0
    rng = np.random.default_rng(9)
    values = (rng.random((12, 6)) < 0.7).astype(float)
    gaps = []
    for _ in range(2000):
        shuffled = [rng.permutation(row) for row in values]
        means = [np.mean([row[phase::3] for row in shuffled]) for phase in range(3)]
        gaps.append(max(means) - min(means))
    assert null_gap(values, 3, n_permutations=2000) == pytest.approx(
        np.mean(gaps), abs=4 * np.std(gaps) / 1000**0.5
    )


def test_null_gap_ignores_difficulty_of_prompts():
    rng = np.random.default_rng(10)
    noise = rng.normal(size=(20, 8))
    hard = 100 * rng.normal(size=(20, 1))
    assert null_gap(noise + hard, 8) == pytest.approx(null_gap(noise, 8), abs=1e-9)


def test_benjamini_hochberg_by_hand():
    # Sorted p·m/rank, made monotone from the largest down; NaN is no member of the family.
    p = np.array([[0.01, 0.04], [np.nan, 0.03], [0.5, np.nan]])
    expected = np.array([[0.04, 0.04 * 4 / 3], [np.nan, 0.04 * 4 / 3], [0.5, np.nan]])
    assert benjamini_hochberg(p) == pytest.approx(expected, nan_ok=True)
    assert np.isnan(benjamini_hochberg([np.nan])).all()
    with pytest.raises(StatisticsError, match="outside"):
        benjamini_hochberg([1.5])


@pytest.mark.parametrize("verb", [effect_test, null_gap, selectivity_test])
def test_seeds_decide_everything(verb):
    rng = np.random.default_rng(11)
    values = rng.random((2, 12, 8))
    args = {effect_test: (values - 0.4, 4), null_gap: (values[0], 4)}.get(verb, (values[0] * 10, values, 4))
    runs = [verb(*args, seed=seed, n_permutations=300) for seed in (1, 1, 2)]
    first, again, other = (np.asarray(run[0] if isinstance(run, tuple) else run) for run in runs)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
