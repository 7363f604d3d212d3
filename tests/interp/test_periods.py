"""Periods of effects, on made-up effects whose period is known."""

import numpy as np
import pytest
import xarray as xr

from hooks.errors import StatisticsError
from interp import stats
from interp.periods import detectable_gap, unit_periods

RESIDUES = np.arange(24)


def knocked(n=16, seed=0):
    """Unit 0.0 matters at even targets, 1.0 at every third, 1.1 at none; noise of 1 nat."""
    rng = np.random.default_rng(seed)
    position = rng.permuted(np.tile(np.arange(48, 72), (n, 1)), axis=1) * 0 + 48 + RESIDUES
    noise = rng.normal(size=(3, n, 24))
    noise[0] -= 3.0 * (position % 2 == 0)
    noise[1] -= 3.0 * (position % 3 == 0)
    clean = rng.normal(size=(n, 24))
    return xr.Dataset(
        {
            "logprob": (("unit", "prompt", "residue"), clean + noise),
            "clean_logprob": (("prompt", "residue"), clean),
            "target_position": (("prompt", "residue"), position),
        },
        coords={"unit": ["0.0", "1.0", "1.1"], "layer": ("unit", [0, 1, 1])},
        attrs={"stride": 2, "modulus": 24},
    )


def test_each_unit_gets_its_own_period_and_only_the_stride_counts_as_following():
    found = unit_periods(knocked(), stride=2)
    assert found["unit"].values.tolist() == ["clean", "0.0", "1.0", "1.1"]
    assert found["period"].values.tolist() == [0, 2, 3, 0]
    assert found["follows"].values.tolist() == [False, True, False, False]
    # 2, and the placebos coprime to it with 2q dividing 24.
    assert found["candidate"].values.tolist() == [2, 3]
    assert found["placebo"].values.tolist() == [False, True]
    score = found["score"]
    assert float(score.sel(unit="0.0", candidate=2)) > 0.5 > abs(float(score.sel(unit="0.0", candidate=3)))
    assert float(score.sel(unit="1.0", candidate=3)) > 0.5
    assert float(found["gap"].sel(unit="0.0")) == pytest.approx(3.0, abs=0.4)
    # Holm by hand: the smallest of three p times 3.
    p = np.sort(found["period_p"].values[1:])
    assert found["p"].values[1:].min() == pytest.approx(min(1.0, 3 * p[0]))


def test_wrong_strides_are_refused():
    for stride in (1, 5):
        with pytest.raises(StatisticsError, match=f"stride={stride}"):
            unit_periods(knocked(2), stride=stride)


def test_a_stride_above_16_is_a_candidate():
    rng = np.random.default_rng(0)
    clean, position = rng.normal(size=(6, 32)), np.tile(np.arange(64, 96), (6, 1))
    effect = rng.normal(size=(1, 6, 32)) - 5.0 * (position % 32 == 7)
    found = xr.Dataset(
        {
            "logprob": (("unit", "prompt", "residue"), clean + effect),
            "clean_logprob": (("prompt", "residue"), clean),
            "target_position": (("prompt", "residue"), position),
        },
        coords={"unit": ["0.0"]},
        attrs={"stride": 32, "modulus": 32},
    )
    periods = unit_periods(found)
    assert periods["period"].values.tolist() == [0, 32]
    assert periods["follows"].values.tolist() == [False, True]
    assert periods.attrs["period_tested"] == [*range(2, 17), 32]
    with pytest.raises(StatisticsError, match="stride=32 has under two values a phase at n=1"):
        unit_periods(found.isel(prompt=[0]))


def found_share(gap, stride, runs=60):
    """How often the permutation test finds the period of a gap at one phase, noise of 1."""
    rng, hits = np.random.default_rng(1), 0
    for run in range(runs):
        values = rng.normal(size=(6, 24)) - gap * (RESIDUES % stride == 0)
        position = np.tile(48 + RESIDUES, (6, 1))
        hits += stats.find_period(values, position, n_permutations=199, seed=run).p <= 0.05
    return hits / runs


@pytest.mark.parametrize("stride", [2, 4])
def test_a_detectable_gap_is_found_with_about_the_power_it_states(stride):
    noise = np.random.default_rng(0).normal(size=(6, 24))
    gap = detectable_gap(noise / noise.std(), stride)
    assert found_share(gap, stride) >= 0.65  # 0.8 within sampling error of 60 runs
    assert found_share(gap / 3, stride) <= 0.5


def test_a_gap_that_is_there_is_not_taken_for_noise():
    noise = np.random.default_rng(0).normal(size=(6, 24))
    assert detectable_gap(noise + 4.0 * (RESIDUES % 2), 2) == pytest.approx(detectable_gap(noise, 2))


def test_nothing_that_varies_needs_no_gap():
    assert detectable_gap(np.zeros((4, 24)), 2) == 0.0
    assert detectable_gap(np.tile(3.7 * (RESIDUES % 2), (4, 1)), 2) == 0.0
