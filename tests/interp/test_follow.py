"""Following one prompt, held to the model's own activations, read by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import hooks
from hooks.errors import PhaselensError, SiteError
from interp import knockout
from interp.follow import before_after, changed_gates, follow, one_prompt, shifted, token_word, top_tokens
from interp.tasks import RecallTask
from tests.interp.intervention_models import TASK, small

GATE = "blocks.{}.attn.compressor.{}.hook_gate"


@pytest.fixture(scope="module")
def model():
    return hooks.load("tiny")


@pytest.fixture(scope="module")
def task(model):
    return RecallTask.for_model(model)


@pytest.fixture(scope="module")
def followed(model, task):
    return follow(model, task, prompt=2, seed=5)


@pytest.fixture(scope="module")
def ran(model, task):
    """(tokens, logits, cache) of the same prompt, run plainly."""
    tokens = task.sample(3 * task.modulus, seed=5).tokens[2 * task.modulus :]
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens)
    return tokens, logits, cache


def test_the_prompt_is_the_one_with_that_number(followed, ran, task):
    tokens, logits, _ = ran
    assert np.array_equal(followed["tokens"].values, tokens.numpy())
    assert followed["predicted"].values.tolist() == logits[:, -1].argmax(-1).tolist()
    for row in range(task.modulus):
        at = int(followed["target_position"][row])
        assert int(tokens[row, at + 1]) == int(followed["answer"][row])  # a value follows its key
        assert int(tokens[row, -1]) == int(tokens[row, at])  # the query asks for that key
        expected = logits[row, -1].double().softmax(-1)[int(followed["answer"][row])]
        assert float(followed["probability"][row]) == pytest.approx(float(expected), abs=1e-6)


def test_gates_are_the_models_and_the_target_weight_sums_its_windows(followed, ran):
    _, _, cache = ran
    for unit in map(str, followed["unit"].values):
        layer, head = map(int, unit.split("."))
        one = followed.sel(unit=unit)
        window, stride = int(one["window"]), int(one["stride"])
        for number, branch in enumerate(("key", "value")):
            gate = cache[GATE.format(layer, branch)][:, :, :, head].double().mean(-1).numpy()
            assert np.allclose(one[f"gate_{branch}"].values, gate, atol=1e-6)
            for row, target in enumerate(followed["target_position"].values):
                token = int(target) + number
                expected = sum(
                    gate[row, entry, token - ((entry + 1) * stride - window)]
                    for entry in range(gate.shape[1])
                    if (entry + 1) * stride - window <= token < (entry + 1) * stride
                )
                assert float(one[f"target_{branch}"][row]) == pytest.approx(float(expected), abs=1e-6)


def test_attention_adds_up_to_one_and_names_entries_with_the_target(followed, ran):
    total = followed["on_exact"].sum("pos") + followed["on_entry"].sum("entry", skipna=True)
    assert np.allclose(total.values, 1.0, atol=1e-5)
    target = int(followed["target_position"][3])
    entry = target // 4  # W = S = 4: the only entry it is in
    assert np.allclose(
        followed["on_target"].sel(residue=3).values, followed["on_entry"].sel(residue=3)[:, entry].values
    )


def test_a_shift_of_one_moves_the_target_by_one_token(followed):
    places = [int(followed["target_position"].sel(residue=shifted(followed, s))) for s in range(4)]
    assert places == [min(followed["target_position"].values) + s for s in range(4)]


def test_words_name_each_kind_of_token(task):
    assert token_word(task, task.keys.start + 3) == "k3"
    assert token_word(task, task.values.start) == "v0"
    assert token_word(task, task.marker) == "?"


def test_prompts_are_numbered_from_zero(task):
    assert one_prompt(task, 0).tokens.shape[0] == task.modulus
    for number in (-1, 0.5):
        with pytest.raises(PhaselensError, match=f"prompt={number}"):
            one_prompt(task, number)


def test_gates_are_uniform_or_cycled_inside_and_as_trained_afterwards(model, task):
    tokens = task.sample(task.modulus, seed=0).tokens
    before = model(tokens)
    with changed_gates(model, "uniform", task) as changed:
        _, cache = changed.run_with_cache(tokens)
        assert torch.allclose(cache[GATE.format(1, "key")], torch.tensor(0.25))
    with changed_gates(model, "cycled 1", task) as changed:
        assert changed is not model
        assert not torch.allclose(changed(tokens), before)
    with changed_gates(model, "trained", task) as changed:
        assert changed is model
    assert torch.equal(model(tokens), before)
    for word in ("nonsense", "cycled x"):
        with pytest.raises(PhaselensError, match=word), changed_gates(model, word, task):
            pass


def test_removing_units_gives_what_zeroing_them_by_hand_gives(model, task):
    found = before_after(model, task, only=["1.0", "1.1"], replace="zero", prompt=1)
    tokens = task.sample(2 * task.modulus, seed=0).tokens[task.modulus :]

    def zero(z, hook):
        z = z.clone()
        z[:, -1] = 0.0  # all KV heads of the layer together are all of its query heads
        return z

    with torch.no_grad():
        plain = model(tokens)[:, -1].double().softmax(-1)
        gone = model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_z", zero)])[:, -1]
    gone = gone.double().softmax(-1)
    for run, expected in (("before", plain), ("after", gone)):
        for row in range(task.modulus):
            at = found.sel(run=run, residue=row)
            best = expected[row].topk(5)
            assert float(at["probability"]) == pytest.approx(
                float(expected[row, int(at["answer"])]), abs=1e-6
            )
            assert np.allclose(at["p"].values, best.values.numpy(), atol=1e-6)
            assert int(at["token"][0]) == int(best.indices[0])


@pytest.mark.parametrize("replace", ["mean", "phase_mean", "resample"])
def test_one_prompt_is_the_intervention_that_many_prompts_get(replace):
    """Means and donors are those of a knockout of any number of prompts."""
    model = small()
    one = before_after(model, TASK, only=["0.1"], replace=replace, prompt=1)
    many = knockout(model, TASK, only=["0.1"], replace=replace, n=5 * TASK.modulus, progress=False)
    expected = np.exp(many["logprob"].values[0, 1])
    assert np.allclose(one["probability"].sel(run="after").values, expected, atol=1e-6)
    assert np.abs(one["probability"].diff("run").values).max() > 1e-3  # and it is not nothing


@pytest.mark.parametrize(("unit", "only"), [("gate_offset", "0.0"), ("entry_branch", "0")])
def test_units_without_positions_or_replacement_are_reached_on_one_prompt_too(unit, only):
    model = small()
    one = before_after(model, TASK, only=[only], unit=unit, prompt=1)
    prompts = one_prompt(TASK, 1)
    gates = [GATE.format(0, branch) for branch in ("key", "value")]

    def without(gate, hook):
        gate = gate.clone()
        gate[:, :, 0] = 0
        return gate / gate.sum(2, keepdim=True)

    def blind(scores, hook):
        scores = scores.clone()
        scores[:, :, -1, prompts.tokens.shape[1] :] = -torch.inf
        return scores

    by_hand = {
        "gate_offset": [(name, without) for name in gates],
        "entry_branch": [("blocks.0.attn.hook_attn_scores", blind)],
    }
    with torch.no_grad():
        logits = model.run_with_hooks(prompts.tokens, fwd_hooks=by_hand[unit])[:, -1].double()
    expected = logits.softmax(-1).gather(1, prompts.answer[:, None])[:, 0]
    assert np.allclose(one["probability"].sel(run="after").values, expected.numpy(), atol=1e-6)
    assert np.abs(one["probability"].diff("run").values).max() > 1e-4
    assert one.attrs["at"] == ("all" if unit == "gate_offset" else "final")


def test_a_unit_that_holds_nothing_on_the_prompt_is_said_to_do_nothing():
    model = small(window=(4, 64), stride=(4, 64), exact_window=(4, 64))
    with pytest.raises(SiteError, match=r"1\.0 changes nothing here.*tokens"):
        before_after(model, TASK, only=["1.0"], unit="gate_offset")
    with pytest.raises(PhaselensError, match="replace='bogus'"):
        before_after(model, TASK, only=["0.0"], unit="gate_offset", replace="bogus")
    with pytest.raises(SiteError, match="empty"):
        before_after(model, TASK, only=[])


def test_the_probabilities_of_two_right_tokens_add():
    prompts = TASK.sample(8, seed=0)
    logits = torch.randn(8, 2, TASK.d_vocab, generator=torch.Generator().manual_seed(0))
    other = (prompts.answer + 1) % TASK.d_vocab
    other[0] = prompts.answer[0]  # one token named twice counts once
    found = top_tokens(dataclasses.replace(prompts, alternative=other))(logits, torch.arange(8))
    p = logits.double().softmax(-1)
    for i in range(8):
        right = sorted({int(prompts.answer[i]), int(other[i])})
        assert torch.allclose(found["probability"][i], p[i][:, right].sum(-1))


def test_a_prompt_far_beyond_is_told_where_the_last_one_is():
    with pytest.raises(PhaselensError, match="prompt=10000; valid: a whole number from 0 to 9999"):
        one_prompt(RecallTask(), 10_000)
