"""Effects of position taken away: against brute force, and on data whose cause is known."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from hooks.errors import StatisticsError
from interp.audit.assemble import add_tests
from interp.audit.wording import period_rest, verdict
from interp.stats import without_position
from interp.tasks import PositionBalance

R, S, N = 24, 8, 32


def drawn(seed: int, n: int = N) -> np.ndarray:
    balance = PositionBalance(R, 1000)
    return balance.targets(balance.windows(0, n, seed=seed))


def sweep_of(correct: np.ndarray, position: np.ndarray, seed: int = 0) -> xr.Dataset:
    dims = ("prompt", "residue")
    attrs = {"stride": S, "modulus": R, "seed": seed, "period_on": "correct", "period": 0, "period_p": 1.0}
    by = correct.mean(0).reshape(-1, S).mean(0)
    attrs |= {"gap_pp": 100 * np.ptp(by), "gap_pp_low": np.nan, "gap_pp_high": np.nan, "worst_phase": 0}
    tables = {"correct": (dims, correct.astype(bool)), "target_position": (dims, position)}
    return xr.Dataset(tables, attrs=attrs)


def test_it_is_the_least_squares_fit_with_the_best_of_all_steps():
    rng = np.random.default_rng(0)
    position = drawn(3, 6)
    values = rng.normal(size=position.shape) + 2.0 * (position >= 1030)
    within = lambda x: (x - x.mean(1, keepdims=True)).ravel()  # noqa: E731
    x = (position - position.mean()) / np.ptp(position)
    slow = [within(x**k) for k in range(1, 6)]
    left = {}
    for place in range(position.min() + 1, position.max() + 1):
        design = np.stack([*slow, within((position >= place).astype(float))], 1)
        fit = np.linalg.lstsq(design, within(values), rcond=None)[0]
        left[place] = within(values) - design @ fit
    best = min(left, key=lambda place: (left[place] ** 2).sum())
    found = without_position(values, position)
    assert found.step == best == 1030
    np.testing.assert_allclose(found.values.ravel() - values.mean(), left[best], atol=1e-9)
    share = 1 - (left[best] ** 2).sum() / (within(values) ** 2).sum()
    assert found.share == pytest.approx(share)


def test_values_that_do_not_vary_stay_as_they_are():
    found = without_position(np.full((3, R), 0.7), drawn(0, 3))
    np.testing.assert_allclose(found.values, 0.7, rtol=1e-15)
    assert found.share == 0.0
    with pytest.raises(StatisticsError, match=r"\(3, 24\).*\(2, 24\)"):
        without_position(np.zeros((3, R)), drawn(0, 2))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_an_edge_in_position_is_no_phase_effect(noise):
    position, rng = drawn(5, 64), np.random.default_rng(1)
    right = np.where(position >= 1035, 1 - noise, noise)
    swept = add_tests(sweep_of(rng.random(position.shape) < right, position), n_tests=1)
    assert swept.attrs["gap_p"] <= 0.05  # what the gap alone would say
    assert swept.attrs["found"] == 0
    assert swept.attrs["step"] == 1035
    assert "no phase sensitivity found: a change with position explains" in verdict(swept)
    assert "a step at 1035" in verdict(swept)
    assert period_rest({**swept.attrs, "period": 16}) == f"less changes with position none ({_p(swept)})"


def _p(swept: xr.Dataset) -> str:
    return f"p = {swept.attrs['rest_period_p']:.2f}"


def test_a_phase_effect_is_one_with_an_edge_beside_it_too():
    position, rng = drawn(7), np.random.default_rng(2)
    for edge in (0.0, 0.2):
        right = np.where(position % S == S - 1, 0.3, 0.8) - edge * (position >= 1035)
        swept = add_tests(sweep_of(rng.random(position.shape) < right, position), n_tests=1)
        assert swept.attrs["found"] == 1
        assert swept.attrs["rest_gap_pp"] == pytest.approx(swept.attrs["gap_pp"], abs=8)
        assert "depends on the target's phase" in verdict(swept)


@pytest.mark.slow
def test_levels_and_power_over_samples():
    def share(right, runs=100):
        found = 0
        for seed in range(runs):
            position, rng = drawn(seed), np.random.default_rng(seed)
            found += add_tests(
                sweep_of(rng.random(position.shape) < right(position), position, seed), n_tests=1
            ).attrs["found"]
        return found / runs

    # Binomial bounds (99%) around the level of 5% for edges and trends of several sizes, and none.
    for right in (
        lambda t: np.full(t.shape, 0.6),
        lambda t: np.where(t >= 1035, 0.8, 0.3),
        lambda t: np.where(t >= 1020, 0.9, 0.1),
        lambda t: np.clip(0.5 + 0.01 * (t - 1035), 0, 1),
        lambda t: 0.5 + 0.4 * np.sin(t / 11),
    ):
        assert share(right) <= 0.11
    assert share(lambda t: np.where(t % S == S - 1, 0.35, 0.65)) >= 0.8
