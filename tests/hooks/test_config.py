"""Configurations: what is promised of them, and every way one can be wrong."""

import dataclasses
import json
import math

import pytest

from hooks import ModelConfig, preset
from hooks.config import preset_names
from hooks.errors import ConfigError
from tests.hooks.own_models import SMALL, STACKS

PROMISED = {
    "attention": "chunked", "exact_window": 16, "tail": "window", "gate": "scalar", "gate_bias": True,
    "payload": "per_offset", "tied_kv": False, "qk_norm": True, "rope_dims": None, "rope_base": 1e4,
    "inverse_rope": False, "sink": False, "index_topk": None, "index_heads": None, "index_dim": None,
    "gate_init_std": 0.02,
}  # fmt: skip
WHOLE = {"n_layers": 2, "d_model": 8, "n_heads": 4, "n_kv_heads": 2, "d_head": 4, "d_mlp": 8, "d_vocab": 9}


def test_every_promised_field_with_its_default():
    cfg = ModelConfig(**WHOLE, seed=5, window=8, stride=8)
    assert {name: getattr(cfg, name) for name in PROMISED} == PROMISED
    assert {name: getattr(cfg, name) for name in WHOLE} == WHOLE
    assert cfg.seed == 5


@pytest.mark.parametrize("name", PROMISED)
def test_each_field_takes_one_value_or_one_per_layer(name):
    first = PROMISED[name]
    others = {
        "attention": "full", "exact_window": 3, "tail": "open", "gate": "vector", "payload": "shared",
        "rope_dims": 2, "rope_base": 1e3, "index_topk": 2, "index_heads": 3, "index_dim": 2,
        "gate_init_std": 0.5,
    }  # fmt: skip
    other = others.get(name, not first)
    cfg = ModelConfig(**WHOLE, window=4, stride=4, **{name: (first, other)})
    resolved = {"rope_dims": 4}.get(name, first) if first is None else first
    assert getattr(cfg.layer(0), name) == resolved
    assert getattr(cfg.layer(1), name) == other
    both = ModelConfig(**WHOLE, window=4, stride=4, **{name: other})
    assert getattr(both.layer(0), name) == getattr(both.layer(1), name) == other


def test_geometries_and_strides():
    cfg = ModelConfig(**STACKS["full, sliding and W8/S6"])
    assert cfg.layer(0).geometry is None
    assert cfg.layer(1).geometry is None
    assert (cfg.layer(2).geometry.window, cfg.layer(2).geometry.stride) == (8, 6)
    assert cfg.strides == (6,)
    assert ModelConfig(**{**SMALL, "window": (8, 4), "stride": (8, 4)}).strides == (4, 8)
    assert [cfg.layer(i).has_exact_branch for i in range(3)] == [True] * 3
    bare = ModelConfig(**STACKS["open tails, no exact branch"])
    assert [bare.layer(i).has_exact_branch for i in range(3)] == [True, False, False]


@pytest.mark.parametrize("fields", STACKS.values(), ids=STACKS)
def test_a_configuration_survives_json(fields):
    cfg = ModelConfig(**fields, seed=2)
    again = ModelConfig.from_dict(json.loads(json.dumps(cfg.to_dict())))
    assert again == cfg
    assert hash(again) == hash(cfg)


def test_a_configuration_is_a_value():
    cfg = ModelConfig(**SMALL)
    assert cfg.replace(seed=1) != cfg
    assert cfg.replace(seed=1).replace(seed=0) == cfg
    with pytest.raises(dataclasses.FrozenInstanceError):
        cfg.seed = 1
    assert ModelConfig(**{**SMALL, "stride": [4, 2]}).stride == (4, 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"window": 3}, "window=3, stride=4"),
        ({"window": (4, 3)}, "window=3, stride=4"),
        ({"stride": 0}, "stride=0"),
        ({"stride": 2.0}, "stride=2.0"),
        ({"n_layers": 0}, "n_layers=0"),
        ({"d_model": -1}, "d_model=-1"),
        ({"d_head": 4.0}, "d_head=4.0"),
        ({"n_heads": True}, "n_heads=True"),
        ({"d_mlp": -1}, "d_mlp=-1"),
        ({"d_vocab": "9"}, "d_vocab='9'"),
        ({"seed": -1}, "seed=-1"),
        ({"n_kv_heads": 3}, "n_kv_heads=3 does not divide n_heads=4; valid: 1, 2, 4"),
        ({"n_kv_heads": 8}, "n_kv_heads=8"),
        ({"attention": "local"}, "attention='local' in layer 0; valid: full, sliding, chunked"),
        ({"attention": ("full", "chunk")}, "attention='chunk' in layer 1"),
        ({"tail": "closed"}, "valid: window, open"),
        ({"gate": "softmax"}, "valid: scalar, vector, uniform"),
        ({"payload": "own"}, "valid: per_offset, shared, two_series"),
        ({"payload": "two_series", "window": 6}, "window = 2\\*stride"),
        ({"payload": "two_series"}, "window=4, stride=4"),
        ({"gate_bias": 1}, "gate_bias=1"),
        ({"tied_kv": None}, "tied_kv=None"),
        ({"qk_norm": "yes"}, "qk_norm='yes'"),
        ({"sink": 0.0}, "sink=0.0"),
        ({"rope_dims": 3}, "rope_dims=3 in layer 0; valid: even numbers from 0 to d_head=6"),
        ({"rope_dims": 8}, "rope_dims=8"),
        ({"rope_dims": -2}, "rope_dims=-2"),
        ({"rope_base": -1.0}, "rope_base=-1.0"),
        ({"rope_base": 0.0}, "rope_base=0"),
        ({"rope_base": math.nan}, "rope_base=nan"),
        ({"gate_init_std": "small"}, "gate_init_std='small'"),
        ({"exact_window": -1}, "exact_window=-1"),
        ({"exact_window": 2.5}, "exact_window=2.5"),
        ({"attention": "sliding", "exact_window": 0}, "would read nothing"),
        ({"attention": "sliding", "tail": "open"}, "only chunked layers have an open window"),
        ({"window": (4, 4, 4)}, "window has 3 values for 2 layers"),
        ({"gate": ()}, "gate has 0 values"),
    ],
)
def test_what_cannot_be(changes, says):
    with pytest.raises(ConfigError, match=says) as caught:
        ModelConfig(**{**SMALL, **changes})
    assert "\n" not in str(caught.value)


def test_keys_that_are_unknown_or_missing():
    values = ModelConfig(**SMALL).to_dict()
    with pytest.raises(ConfigError, match="unknown configuration key 'strides'; valid: stride, ") as caught:
        ModelConfig.from_dict({**values, "strides": 4})
    assert "\n" not in str(caught.value)
    for name in WHOLE:
        kept = {key: value for key, value in values.items() if key != name}
        with pytest.raises(ConfigError, match=f"'{name}' is missing; required: n_layers, d_model"):
            ModelConfig.from_dict(kept)
    # Fields with a default need not be there: configurations of earlier versions stay readable.
    assert ModelConfig.from_dict(SMALL) == ModelConfig(**SMALL)


@pytest.mark.parametrize("layer", [-1, 2])
def test_layers_that_do_not_exist(layer):
    with pytest.raises(ConfigError, match="valid: 0 to 1"):
        ModelConfig(**SMALL).layer(layer)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("full-4kv", {"attention": "full", "n_kv_heads": 4}),
        ("w4s4-4kv", {"window": 4, "stride": 4, "n_kv_heads": 4}),
        ("w8s8-1kv", {"window": 8, "stride": 8, "n_kv_heads": 1}),
        ("w8s8-2kv", {"window": 8, "stride": 8, "n_kv_heads": 2}),
        ("w8s8-4kv", {"window": 8, "stride": 8, "n_kv_heads": 4}),
        ("w8s6-4kv", {"window": 8, "stride": 6, "n_kv_heads": 4}),
        ("w8s4-4kv", {"window": 8, "stride": 4, "n_kv_heads": 4}),
        ("w12s12-4kv", {"window": 12, "stride": 12, "n_kv_heads": 4}),
        ("w8s8-2kv-uniform", {"window": 8, "stride": 8, "n_kv_heads": 2, "gate": "uniform"}),
        ("w8s8-2kv-nope", {"window": 8, "stride": 8, "n_kv_heads": 2, "rope_dims": 0}),
        ("dsv4-w8s4-1kv", {"window": 8, "stride": 4, "n_kv_heads": 1, "tied_kv": True, "gate": "vector"}),
        ("v41-w2s2-1kv", {"window": 2, "stride": 2, "n_kv_heads": 1, "tied_kv": True, "gate": "vector"}),
        ("tiny", {"window": 4, "stride": 4, "n_layers": 2, "d_model": 64, "n_kv_heads": 2}),
    ],
)
def test_presets_are_what_their_names_say(name, sizes):
    assert name in preset_names()
    cfg = preset(name)
    assert {field: getattr(cfg, field) for field in sizes} == sizes


def test_an_unknown_preset_lists_those_there_are():
    with pytest.raises(ConfigError, match=r"valid: w8s8-4kv, .*tiny"):
        preset("w8s8-5kv")
