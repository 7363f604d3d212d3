"""Statistics of changes, and the controls that a phase effect must exceed."""

import numpy as np
import pytest
import xarray as xr

from interp import knockout
from interp.controls import controls, discover_then_confirm, over_seeds, paired_statistics, random_like
from interp.figures.table import show
from tests.interp.intervention_models import TASK, small


def test_statistics_of_a_planted_change():
    rng = np.random.default_rng(0)
    deltas = rng.normal(size=(3, 30, 8))
    deltas[1, :, [2, 6]] -= 2.0  # unit 1, phase 2 of 4
    found = {name: values for name, (_, values) in paired_statistics("x", deltas, 4).items()}
    assert found["x"][1, 2] == pytest.approx(deltas[1][:, [2, 6]].mean())
    assert found["x_low"][1, 2] < found["x"][1, 2] < found["x_high"][1, 2] < 0
    assert np.argwhere(found["x_p"] < 0.05).tolist() == [[1, 2]]
    assert (found["x_q"] <= 1).all()
    few = paired_statistics("x", deltas[:, :5], 4)
    assert np.isnan(few["x_p"][1]).all()
    assert np.isnan(few["x_low"][1]).all()
    with pytest.raises(ValueError, match="not finite"):
        paired_statistics("x", deltas * np.inf, 4)


def test_random_weights_have_the_shape_and_nothing_else():
    model = small()
    other = random_like(model, seed=5)
    assert other.cfg == model.cfg.replace(seed=5)
    assert other.task == model.task
    assert other.content_hash() != model.content_hash()
    assert random_like(model, seed=5).content_hash() == other.content_hash()


def test_a_planted_phase_effect_exceeds_its_controls_and_nothing_else_does():
    found = knockout(small(), TASK, n=160, n_calibration=8, progress=False)
    rng = np.random.default_rng(1)
    noise = rng.normal(scale=0.1, size=found.logprob.shape)
    planted = noise.copy()
    planted[0, :, 3] -= 1.0
    own = found.assign(logprob=(found.logprob.dims, found.clean_logprob.values + planted))
    other = found.assign(logprob=(found.logprob.dims, found.clean_logprob.values + noise))
    seen = []

    def measure(model):
        seen.append(model.name)
        return other

    result = controls(small(), own, measure)
    assert seen == ["model, random weights"]
    assert result.control.values.tolist() == ["own", "random weights"]
    assert bool(result.exceeds.sel(control="own", unit="0.0"))
    assert result.spread.sel(control="own", unit="0.0").item() == pytest.approx(1.0, abs=0.1)
    assert result.exceeds.sel(control="random weights").sum() <= 1


def test_placebo_strides_are_among_the_controls():
    from interp.tasks import RecallTask

    task = RecallTask(
        n_keys=10,
        n_values=10,
        n_filler=4,
        n_records=5,
        context=48,
        n_queries=2,
        n_demonstrations=1,
        modulus=12,
    )
    found = knockout(small(), task, n=72, n_calibration=12, progress=False)
    result = controls(
        small(), found, lambda other: knockout(other, task, n=72, n_calibration=12, progress=False)
    )
    assert result.control.values.tolist() == ["own", "placebo 3", "random weights"]
    assert result.attrs["control_model_hash"] != result.attrs["model_hash"]


@pytest.mark.parametrize(("prompts", "defined"), [(1, False), (5, False), (6, True)])
def test_controls_of_too_few_prompts_are_undefined(prompts, defined, capsys):
    def measure(model):
        return knockout(model, TASK, n=4 * prompts, n_calibration=4, progress=False)

    result = controls(small(), measure(small()), measure)
    for name in ("spread", "null_spread"):
        assert (np.isfinite(result[name]) == defined).all()
    assert defined or not result.exceeds.any()
    show("controls", result)
    told = capsys.readouterr().out
    assert ("undefined: too few prompts" in told) is not defined
    own = next(line for line in told.splitlines() if line.startswith("own"))
    assert own.split()[1:] == ["–", "–", "–"] or defined


def effects(deltas, stride=4):
    axes = ("unit", "prompt", "residue")
    return xr.Dataset(
        {"logprob": (axes, deltas), "clean_logprob": (axes[1:], np.zeros(deltas.shape[1:]))},
        coords={"unit": [f"0.{i}" for i in range(len(deltas))]},
        attrs={"stride": stride, "model_hash": "x"},
    )


def test_what_is_discovered_is_confirmed_on_other_prompts():
    rng = np.random.default_rng(2)
    deltas = rng.normal(size=(5, 60, 8))
    deltas[2, :, [1, 5]] -= 1.5
    # Strong on the discovering half alone: not confirmed.
    from interp.stats import discover_confirm

    first, _ = discover_confirm(60, seed=0)
    deltas[4, first[:, None], [[3, 7]]] += 1.5
    found = discover_then_confirm(effects(deltas))
    assert np.argwhere(found.confirmed.values).tolist() == [[2, 1]]
    assert found.discovered.values[4, 3]
    assert np.isnan(found.p_confirm.values[~found.discovered.values.any(1)]).all()
    with pytest.raises(ValueError, match="12 or more"):
        discover_then_confirm(effects(deltas[:, :10]))


def test_a_family_is_all_its_seeds_and_its_interval_holds_their_spread():
    rng = np.random.default_rng(3)
    levels = [-1.0, -2.0, -3.0, -2.0]
    found = over_seeds([effects(level + 0.01 * rng.normal(size=(1, 20, 8))) for level in levels])
    assert found.change.values[0] == pytest.approx([-2.0] * 4, abs=0.02)
    assert found.by_seed.values[:, 0, 0] == pytest.approx(levels, abs=0.02)
    assert (found.change_low.values < -2.5).all()  # the seeds' scatter, not the prompts'
    assert np.isnan(over_seeds([effects(rng.normal(size=(1, 20, 8)))] * 2).change_low.values).all()
    with pytest.raises(ValueError, match="equal sizes"):
        over_seeds([effects(np.zeros((1, 20, 8))), effects(np.zeros((1, 10, 8)))])
