"""Cycling and forcing gates."""

import numpy as np
import pytest
import torch

import hooks
from hooks import SiteError
from hooks.errors import PhaselensError, StatisticsError
from interp import cycle_gates, gate_profile, knockout, phase_sweep
from interp.gate_interventions import cycling, forced_gates, gate_parts, r_squared
from interp.tasks import RecallTask
from interp.units import units
from tests.interp.intervention_models import TASK, small


def gates_of(model, tokens):
    names = [n for n in model.site_names() if n.endswith("hook_gate")]
    return model.run_with_cache(tokens, names)[1]


def test_r_squared_is_its_definition_and_may_be_negative():
    assert r_squared(np.array([1.0, 2, 3]), np.array([1.0, 2, 3])) == 1
    assert r_squared(np.array([1.0, 2, 3]), np.array([2.0, 2, 2])) == 0
    assert r_squared(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == -3
    assert np.isnan(r_squared(np.ones(3), np.zeros(3)))


@pytest.mark.parametrize("window", [4, 6])
def test_forced_gates_are_what_they_are_called(window):
    model, tokens = small(window=window), TASK.sample(4, seed=0).tokens
    plain = gates_of(model, tokens)

    def forced(to):
        kept = {}
        names = list(plain)
        # A second hook on the same site sees what the first one made of it.
        notes = [(n, lambda t, hook: kept.__setitem__(hook.name, t.clone())) for n in names]
        with forced_gates(model, to, TASK, seed=0), torch.no_grad(), model.hooks(notes):
            model(tokens)
        return kept

    for name, gate in forced("uniform").items():
        open_slots = (plain[name] > 0).sum(2, keepdim=True)
        assert torch.allclose(gate, (plain[name] > 0) / open_slots, atol=1e-6)
    for gate in forced(window - 1).values():
        assert torch.equal(gate, torch.eye(window)[window - 1][None, None, :, None, None].expand_as(gate))
    static, deviation = forced("static"), forced("deviation")
    for name, gate in static.items():
        assert gate.sum(2) == pytest.approx(1, abs=1e-5)
        assert torch.equal(gate[:, 1:], gate[:1, 1:2].expand_as(gate[:, 1:]))
        assert ((gate == 0) == (plain[name] == 0)).all()
        if name.startswith("blocks.1"):
            continue  # its inputs have changed with layer 0's gates
        product = gate[:, 1:] * deviation[name][:, 1:]  # the two parts give the gate back
        whole = product / product.sum(2, keepdim=True)
        assert torch.allclose(whole, plain[name][:, 1:], atol=1e-5)
    assert torch.equal(gates_of(model, tokens)[name], plain[name])  # nothing outlives the context


def test_measurements_inside_equal_one_plain_pass_with_the_gate_set():
    model = small()
    prompts = TASK.sample(24, seed=0)
    with forced_gates(model, "uniform"):
        found = knockout(model, TASK, n=24, n_calibration=8, progress=False)

    def even(t, hook):
        return torch.full_like(t, 0.25)

    with torch.no_grad():
        logits = model.run_with_hooks(prompts.tokens, [(n, even) for n in gates_of(model, prompts.tokens)])
    expected = logits[:, -1].log_softmax(-1).gather(1, prompts.answer[:, None])[:, 0]
    assert torch.allclose(torch.from_numpy(found.clean_logprob.values).flatten(), expected, atol=1e-5)


def test_results_under_changed_gates_are_told_from_those_of_the_intact_model():
    model, options = small(), {"n": 24, "n_calibration": 8, "unit": "layer", "progress": False}
    sweep = {"n_per_residue": 6, "progress": False}
    intact = knockout(model, TASK, **options)
    with forced_gates(model, "uniform"):
        forced = knockout(model, TASK, **options)
        again = phase_sweep(model, TASK, clean=forced, **sweep)  # the same gates: the same run
        with pytest.raises(StatisticsError, match=r"altered=''.*gates forced to uniform"):
            phase_sweep(model, TASK, clean=intact, **sweep)
        with forced_gates(model, 0):
            assert knockout(model, TASK, **options).attrs["altered"] == (
                "gates forced to uniform; gates forced to offset 0"
            )
    assert again.attrs["altered"] == forced.attrs["altered"] == "gates forced to uniform"
    assert forced.attrs["model"] == f"{model.name}, gates forced to uniform"
    with pytest.raises(StatisticsError, match="altered='gates forced to uniform'"):
        phase_sweep(model, TASK, clean=forced, **sweep)
    means = []
    for seed in (0, 1):  # E[α] of other prompts is another gate
        with forced_gates(model, "static", TASK, seed=seed, progress=False):
            means.append(knockout(model, TASK, **options).attrs["altered"])
    assert means[0] != means[1]
    after = knockout(model, TASK, **options)
    assert "altered" not in after.attrs
    assert after.attrs["model"] == intact.attrs["model"] == model.name


def test_results_measured_under_ones_own_hooks_name_their_sites():
    model, name = small(), "blocks.0.hook_mlp_out"
    with model.hooks([(name, lambda t, hook: 0 * t)]):
        found = gate_profile(model, TASK, n=4, progress=False)
    assert found.attrs["altered"] == f"hooks at {name}"
    assert "altered" not in gate_profile(model, TASK, n=4, progress=False).attrs


def test_cycled_gates_have_a_name_and_weights_of_their_own():
    model = small()
    cycled = gate_profile(cycle_gates(model, 1), TASK, n=4, progress=False)
    assert cycled.attrs["model"] == f"{model.name}, gates cycled by 1"
    assert cycled.attrs["model_hash"] != model.content_hash()


def test_what_cannot_be_forced_is_named():
    full = small(attention="full")
    for to, model, told in (
        ("uniform", full, "no gates"),
        (4, small(), "offset 4"),
        ("mean", small(), "'mean'"),
    ):
        with pytest.raises(ValueError, match=told), forced_gates(model, to):
            pass
    with pytest.raises(SiteError):
        cycling(small(window=6), TASK, n_per_residue=2)


@pytest.mark.parametrize(
    ("said", "verb"),
    [
        ("shifts=[] cycles nothing", lambda m: cycling(m, TASK, shifts=[], n_per_residue=2)),
        ("shift=0 moves no gate at stride 4; valid: ±1 to ±3", lambda m: cycling(m, TASK, shifts=[1, 0])),
        ("shift=4 moves no gate at stride 4", lambda m: cycling(m, TASK, shifts=[4])),
        ("shift=-99 comes round at stride 4", lambda m: cycling(m, TASK, shifts=[-99])),
        ("windows of one offset", lambda m: cycling(small(window=1, stride=1), TASK)),
        (
            "windows of one offset",
            lambda m: knockout(small(window=1, stride=1), TASK, unit="gate_offset", n=4),
        ),
        ("shift=1.5", lambda m: cycling(m, TASK, shifts=[1.5], n_per_residue=2)),
        ("n_resamples=0", lambda m: cycling(m, TASK, n_per_residue=2, n_resamples=0)),
        ("n_per_residue=1.5", lambda m: cycling(m, TASK, n_per_residue=1.5)),
        ("offset=1.5", lambda m: gate_parts(m, TASK, to=[1.5], n=4)),
        ("offset=True", lambda m: gate_parts(m, TASK, to=[True], n=4)),
        ("to='s'", lambda m: gate_parts(m, TASK, to="s", n=4)),
        ("to=[] forces nothing", lambda m: gate_parts(m, TASK, to=[], n=4)),
    ],
)
def test_values_that_cannot_be_are_named(said, verb):
    with pytest.raises(PhaselensError) as raised:
        verb(small())
    assert said in str(raised.value)


def test_cycling_predicts_by_rolling_and_counts_phases():
    found = cycling(small(), TASK, n_per_residue=12, shifts=(1, -3), progress=False)
    assert found.predicted.values[0].tolist() == np.roll(found.accuracy.values, 1).tolist()
    assert (found.observed.values[0] == found.observed.values[1]).all()  # once round is the same
    assert (found.predicted.values[0] == found.predicted.values[1]).all()
    assert (found.attrs["n"], found.attrs["n_inner"]) == (4, 3)
    inner = found.observed.values[0][:3], found.predicted.values[0][:3]
    assert found.r2_inner.values[0] == pytest.approx(r_squared(*inner), nan_ok=True)


@pytest.mark.parametrize(("window", "stride"), [(2, 1), (4, 4), (3, 1)])
def test_without_one_offset_a_gate_is_renormalised_and_an_entry_that_has_no_other_keeps_its_own(
    window, stride
):
    model, prompts = small(window=window, stride=stride), TASK.sample(4, seed=0)
    name = "blocks.0.attn.compressor.value.hook_gate"
    plain = model.run_with_cache(prompts.tokens, [name])[1][name].numpy()
    for offset, unit in enumerate(units(model, "gate_offset")[:window]):
        assert unit.label == f"0.{offset}"
        edit = next(e for e in unit.edits(None) if e.site == name)
        got = edit.apply(torch.from_numpy(plain.copy()), None).numpy()
        for entry in range(plain.shape[1]):
            # Slot i of entry j is token (j+1)·S − W + i; before the sequence it is clipped.
            there = [i for i in range(window) if (entry + 1) * stride - window + i >= 0]
            rest = [i for i in there if i != offset]
            expected = np.zeros_like(plain[:, entry]) if rest else plain[:, entry]
            for i in rest:
                expected[:, i] = plain[:, entry, i] / plain[:, entry, rest].sum(axis=1)
            assert got[:, entry] == pytest.approx(expected, abs=1e-6)
            assert got[:, entry].sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_layers_of_one_offset_have_none_to_knock_out_and_others_do():
    found = units(small(window=(1, 4), stride=(1, 4)), "gate_offset")
    assert [one.label for one in found] == ["1.0", "1.1", "1.2", "1.3"]


def test_the_window_is_stated():
    assert gate_profile(small(window=6), TASK, n=4).attrs["window"] == 6


def test_cycling_moves_what_a_trained_model_can_retrieve():
    model = hooks.load("tiny")
    found = cycling(model, RecallTask.for_model(model), n_per_residue=24, progress=False)
    assert found.sizes["shift"] == 2
    assert np.isfinite(found.r2.values).all()
    parts = gate_parts(model, n=10 * RecallTask.for_model(model).modulus, progress=False)
    assert parts.gates.values.tolist() == ["intact", "static", "deviation", "uniform"]
    known = ~np.isnan(parts.similarity.sel(gates="intact").values)
    assert known.any()
    assert parts.similarity.sel(gates="intact").values[known] == pytest.approx(1)
