"""Gate cycling: gates move by some offsets, payloads stay, and nothing else changes."""

import copy

import pytest
import torch

from hooks import PhaselensError
from hooks.cycling import cycle_gates
from hooks.errors import SiteError
from tests.hooks.own_models import build, difference, prompt, shapes_unchecked


@pytest.fixture(autouse=True)
def _fast_sweeps():
    with shapes_unchecked(), torch.no_grad():
        yield


VARIANTS = [
    {},
    {"gate": "vector", "tied_kv": True},
    {"gate_bias": False},
    {"payload": "shared"},
]


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
@pytest.mark.parametrize("shift", [0, 1, 3, 4, -1, 9])
def test_offset_i_gets_the_gate_of_offset_i_minus_the_shift(fields, shift):
    model = build(**fields)
    window = model.geometry(0).window
    before = copy.deepcopy(model.state_dict())
    moved = cycle_gates(model, shift)
    for name, old in before.items():
        new = moved.state_dict()[name]
        if name.endswith("b_gate") or (
            name.endswith("W_gate") and "compressor" in name and len(old) == window
        ):
            for i in range(window):
                assert torch.equal(new[i], old[(i - shift) % window]), name
        else:
            assert torch.equal(new, old), name
        assert torch.equal(model.state_dict()[name], old), "the model itself is not changed"
    same = moved.content_hash() == model.content_hash()
    # Shared maps without biases do not tell offsets apart; these models have biases.
    assert same is (shift % window == 0)
    assert (moved.name == model.name) is False


def test_cycling_round_gives_the_same_logits_and_composes():
    model, tokens = build(gate="vector"), prompt(13)
    assert torch.equal(cycle_gates(model, 4)(tokens), model(tokens))
    twice, once = cycle_gates(cycle_gates(model, 1), 2), cycle_gates(model, 3)
    assert torch.equal(twice(tokens), once(tokens))
    assert difference(once(tokens), model(tokens)) > 1e-3


def test_cycled_gates_pool_a_repeated_token_with_weights_moved_along():
    model = build(n_layers=1, gate="vector")
    tokens, name = torch.full((1, 8), 3), "blocks.0.attn.compressor.key.hook_gate"
    before = model.run_with_cache(tokens, name)[1][name]
    for shift in range(4):
        after = cycle_gates(model, shift).run_with_cache(tokens, name)[1][name]
        assert difference(after, before.roll(shift, 2)) <= 1e-12


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"window": 6}, "layer 0 has window 6, stride 4"),
        ({"window": (4, 6)}, "layer 1 has window 6, stride 4"),
        ({"stride": 1, "window": 1}, "windows of one offset"),
        ({"gate": "uniform"}, "uniform gates"),
        ({"attention": "full"}, "has no gates to cycle"),
        ({"attention": "sliding"}, "valid: own models with chunked layers"),
    ],
)
def test_models_whose_gates_cannot_be_cycled(fields, says):
    with pytest.raises(SiteError, match=says) as caught:
        cycle_gates(build(**fields), 1)
    assert isinstance(caught.value, PhaselensError)
    assert "\n" not in str(caught.value)


def test_layers_without_gates_are_left_alone():
    model = build(attention=("full", "chunked"), window=(8, 4), stride=(2, 4))
    moved = cycle_gates(model, 1)
    assert torch.equal(moved.blocks[0].attn.W_K, model.blocks[0].attn.W_K)
    assert not torch.equal(
        moved.blocks[1].attn.compressor.key.W_gate, model.blocks[1].attn.compressor.key.W_gate
    )
