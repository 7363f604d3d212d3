"""Controls of gate results: each passes a planted effect and fails what only looks like one."""

import numpy as np
import pytest
import xarray as xr

from interp import gate_profile
from interp.gate_controls import cycling_controls, parts_controls, profile_controls
from interp.gate_interventions import gate_parts
from tests.interp.intervention_models import TASK, small

PROMPTS = 40


def cycled(clean, after, shifts):
    """What cycling() hands over, with accuracies by phase planted exactly: phase means over prompts and cycles."""
    rng = np.random.default_rng(0)

    def drawn(p):
        return (rng.random((PROMPTS, 3 * len(p))) < np.tile(p, 3)).astype(bool)

    return xr.Dataset(
        {
            "clean_correct": (("prompt", "residue"), drawn(clean)),
            "correct": (("shift", "prompt", "residue"), np.stack([drawn(p) for p in after])),
        },
        {"shift": shifts},
        {"stride": len(clean)},
    )


def test_a_cycle_must_be_predicted_better_by_its_own_shift_than_by_any_other():
    clean = [0.9, 0.5, 0.2, 0.7]
    moved, unmoved, flat = [0.7, 0.9, 0.5, 0.2], clean, [1.0] * 4
    backwards = [0.5, 0.2, 0.7, 0.9]
    found = cycled(clean, [moved, unmoved, backwards, flat], [1, 2, -1, 3])
    held = cycling_controls(found)
    before = found.clean_correct.values.reshape(PROMPTS, 3, 4).mean((0, 1))
    for i in range(3):
        after = found.correct.values[i].reshape(PROMPTS, 3, 4).mean((0, 1))
        for other in range(4):
            predicted = np.array([before[(r - other) % 4] for r in range(4)])
            for name, n in (("r2", 4), ("r2_inner", 3)):
                rest, total = (
                    ((after - predicted)[:n] ** 2).sum(),
                    ((after[:n] - after[:n].mean()) ** 2).sum(),
                )
                assert held[name].values[i, other] == pytest.approx(1 - rest / total)
        own = [1, 2, 3][i]
        rest = [held.r2.values[i, other] for other in range(4) if other != own]
        assert held.lead.values[i] == pytest.approx(held.r2.values[i, own] - max(rest))
    assert held.exceeds.values.tolist() == [True, False, True, False]
    assert held.lead.values[1] < 0 < held.lead_low.values[0]  # what did not move is predicted by no move
    assert np.isnan(held.lead.values[3])
    few = cycling_controls(found.isel(prompt=slice(9)))
    assert np.isnan(few.lead_low.values).all()
    assert not few.exceeds.any()


def forced(effects, gates):
    """What gate_parts() hands over: effects [gates, unit, phase] in nats with noise over prompts."""
    rng = np.random.default_rng(1)
    effects = np.tile(np.array(effects, float), 2)[:, :, None]
    changes = effects + rng.normal(scale=0.3, size=(*effects.shape[:2], PROMPTS, effects.shape[-1]))
    clean = rng.normal(size=(len(gates), PROMPTS, effects.shape[-1]))
    serves = np.zeros((len(gates), 3, 4), bool)
    serves[0] = effects[0, :, 0, :4] < -1
    return xr.Dataset(
        {
            "logprob": (("gates", "unit", "prompt", "residue"), clean[:, None] + changes),
            "clean_logprob": (("gates", "prompt", "residue"), clean),
            "serves": (("gates", "unit", "phase"), serves),
        },
        {"gates": gates, "unit": ["0.0", "0.1", "1.0"]},
        {"stride": 4},
    )


def test_similarity_must_exceed_that_with_other_heads_and_with_moved_gates():
    a, b, nothing = [-3, 0, 0, 0], [0, -3, 0, 0], [0, 0, 0, 0]
    found = forced(
        [
            [a, b, nothing],  # intact: 1.0 serves nothing
            [a, a, nothing],  # static: 0.0 keeps its phase, 0.1 looks like 0.0
            [b, b, nothing],  # deviation: the other way round
            [a, nothing, nothing],  # moved: 0.0 has its phase wherever the gate is, so the gate is not why
        ],
        ["intact", "static", "deviation", "moved"],
    )
    held = parts_controls(found)
    assert held.gates.values.tolist() == ["static", "deviation"]
    expected = {
        ("another head", "static"): [True, False, False],
        ("another head", "deviation"): [False, True, False],
        ("moved gates", "static"): [False, False, False],
        ("moved gates", "deviation"): [False, False, False],
    }
    for (control, gates), values in expected.items():
        assert held.exceeds.sel(control=control, gates=gates).values.tolist() == values
    change = (found.logprob - found.clean_logprob).values.reshape(4, 3, PROMPTS, 2, 4).mean((2, 3))
    cell = held.sel(control="another head", gates="static", unit="0.0")
    other = np.corrcoef(change[1, 0], change[0, 1])[0, 1]
    assert float(cell.similarity) == pytest.approx(other)
    assert float(cell.lead) == pytest.approx(np.corrcoef(change[1, 0], change[0, 0])[0, 1] - other)
    moved = held.sel(control="moved gates", gates="static", unit="0.0")
    assert float(moved.similarity) == pytest.approx(np.corrcoef(change[3, 0], change[0, 0])[0, 1])
    assert np.isnan(held.lead.sel(unit="1.0")).all()
    assert np.isnan(held.lead.sel(control="moved gates", gates="deviation")).all()


def test_one_specialised_head_has_no_other_and_parts_without_moved_gates_no_second_control():
    a, nothing = [-3, 0, 0, 0], [0, 0, 0, 0]
    held = parts_controls(forced([[a, nothing, nothing]] * 2, ["intact", "static"]))
    assert np.isnan(held.lead).all()
    assert not held.exceeds.any()


def test_profiles_must_be_less_even_than_random_weights_make_them():
    sharp, plain = small(gate_init_std=1.0), small(gate_init_std=0.02)
    for model in (sharp, plain):
        own = gate_profile(model, TASK, n=8, progress=False)
        held = profile_controls(model, own, TASK, n=8)
        for branch in ("key", "value"):
            profile = own[f"profile_{branch}"].values
            spread = held[f"spread_{branch}"].sel(control="own").values
            assert spread == pytest.approx(profile.max(1) - profile.min(1))
            assert (held[f"exceeds_{branch}"].values == (spread > float(held.bar))).all()
        random = held.sel(control="random weights")
        assert float(held.bar) == max(float(random.spread_key.max()), float(random.spread_value.max()))
        # Neither was trained: at most some gates of four units exceed the largest of another draw.
        assert held.exceeds_key.values.mean() < 1
    bent = own.assign(profile_key=own.profile_key * 0 + np.array([4.0, 0, 0, 0]))
    assert profile_controls(plain, bent, TASK, n=8).exceeds_key.values.all()


def test_moved_gates_are_the_mean_gate_half_a_window_on():
    model, name = small(), "blocks.0.attn.compressor.key.hook_gate"
    kept = {}
    from interp.gate_interventions import forced_gates

    for to in ("static", "moved"):
        with forced_gates(model, to, TASK, seed=0, progress=False):
            kept[to] = model.run_with_cache(TASK.sample(4, seed=1).tokens, [name])[1][name]
    for i in range(4):
        assert np.allclose(kept["moved"][:, :, (i + 2) % 4], kept["static"][:, :, i], atol=1e-6)
    found = gate_parts(model, TASK, to=["moved"], n=24, progress=False)
    assert found.gates.values.tolist() == ["intact", "moved"]
