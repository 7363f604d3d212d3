"""Cache accounting against numbers worked out by hand and against transformers' own configuration."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from hooks.accounting import (
    CACHE_SPECS,
    CacheSpec,
    LayerCache,
    bytes_per_token,
    cache_spec,
    describe,
    from_config,
    prefill_layer_operations,
    row_bytes,
    savings,
    window_bytes,
)
from hooks.config import ModelConfig, preset
from hooks.errors import ConfigError

FLASH, PRO, V41 = (cache_spec(f"deepseek-{name}") for name in ("v4-flash", "v4-pro", "v4.1-flash"))


def test_rows():
    assert row_bytes(512, "fp4") == 512 / 2 + 512 / 16
    assert row_bytes(128, "mxfp4") == 128 / 2 + 128 / 32
    assert row_bytes(512, "fp8") == 512 + 16
    assert row_bytes(512, "fp8+bf16") == 448 + 2 * 64 + 8
    assert row_bytes(64, "fp32") == 256
    assert row_bytes(0, "mxfp4") == 0


def test_the_published_totals():
    assert bytes_per_token(V41) == (3 * 0.5 + 1) * (512 / 2 + 512 / 16 + 128 / 2 + 128 / 32) == 890
    assert bytes_per_token(FLASH) == 21 * (584 + 68) / 4 + 20 * 584 / 128 == 3514.25
    assert bytes_per_token(PRO) == 29 * (584 + 68) / 4 + 32 * 584 / 128


def test_roles_of_v41():
    roles = Counter(layer.role for layer in V41.layers)
    assert roles == {"window": 2, "full": 4, "reindex": 4, "reuse": 30}
    assert [layer.stride for layer in V41.layers] == [0] * 2 + [2] * 18 + [1] * 20


def test_v4_layers_are_those_of_transformers():
    from transformers import DeepseekV4Config

    kinds = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128, "sliding_attention": 0}
    default = DeepseekV4Config(num_hidden_layers=61)
    assert [layer.stride for layer in PRO.layers] == [kinds[kind] for kind in default.layer_types]
    ratios = DeepseekV4Config(num_hidden_layers=43, compress_ratios=[0, 0, *[4, 128] * 20, 4])
    assert [layer.stride for layer in FLASH.layers] == [kinds[kind] for kind in ratios.layer_types]


def test_savings_of_v41_step_by_step():
    # 40 layers x 64 heads x (key + value) x 512 x 2 bytes
    baseline = 40 * 64 * 2 * 512 * 2
    width = 2 * 2 * 512 + 38 * 2 * (512 + 128)  # two window layers have no index key
    sequence = 18 * 1280 / 2 + 20 * 1280
    layers = 3 * 1280 / 2 + 1280
    found = savings(V41)
    assert [s.name for s in found] == ["entry width", "sequence", "layers", "precision"]
    assert [s.before for s in found] == [baseline, width, sequence, layers]
    assert [s.after for s in found] == [width, sequence, layers, 890]


@pytest.mark.parametrize("spec", CACHE_SPECS.values(), ids=list(CACHE_SPECS))
def test_the_factors_multiply_to_the_whole_saving(spec):
    steps = savings(spec)
    whole = len(spec.layers) * spec.n_heads * 2 * spec.d_head * 2 / bytes_per_token(spec)
    assert math.prod(s.factor for s in steps) == pytest.approx(whole, rel=1e-12)
    assert all(s.factor >= 1 for s in steps)
    assert describe(spec)["bytes_per_token"] == bytes_per_token(spec)


def test_v4_shares_no_caches_between_layers():
    assert savings(FLASH)[2].factor == 1


def test_windows_are_a_constant():
    assert window_bytes(V41) == 40 * 128 * (512 + 16)
    assert window_bytes(FLASH) == 43 * 128 * 584


@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 131072])
def test_prefill_with_and_without_the_split(tokens):
    assert prefill_layer_operations(V41, tokens, split=False) == 40 * tokens
    assert prefill_layer_operations(V41, tokens, split=True) == 20 * tokens + 20 * min(tokens, 128)
    with pytest.raises(ConfigError, match=r"v4-flash.*split"):
        prefill_layer_operations(FLASH, tokens, split=True)


def test_own_models():
    full = from_config(preset("full-4kv"), name="full-4kv")
    assert bytes_per_token(full) == 4 * 2 * 4 * 32 * 4  # layers, K and V, KV heads, d_head, bytes
    tied = from_config(preset("v41-w2s2-1kv"), name="v41", stored="bf16")
    assert bytes_per_token(tied) == 4 * 32 * 2 / 2
    mixed = ModelConfig(
        n_layers=3, d_model=8, n_heads=2, n_kv_heads=1, d_head=4, d_mlp=8, d_vocab=9,
        attention=("sliding", "chunked", "full"), window=6, stride=3, exact_window=(5, 7, 0),
    )  # fmt: skip
    spec = from_config(mixed, name="mixed")
    assert bytes_per_token(spec) == 8 * 4 / 3 + 8 * 4
    assert spec.window == 7


def test_what_cannot_be_is_refused():
    window, full = LayerCache("window", 0, 32), LayerCache("full", 2, 32)
    sizes = {"n_heads": 1, "d_head": 32, "index_stored": "bf16", "window_stored": "bf16", "window": 4}
    with pytest.raises(ConfigError, match=r"layer 1 .*no earlier layer owns"):
        CacheSpec("x", (window, LayerCache("reuse", 2, 32), full), stored="bf16", **sizes)
    with pytest.raises(ConfigError, match=r"'fp5'.*fp4"):
        CacheSpec("x", (full,), stored="fp5", **sizes)
    with pytest.raises(ConfigError, match="stride 0 in a full layer"):
        LayerCache("full", 0, 32)
    with pytest.raises(ConfigError, match="width 40 is not a multiple of 16"):
        row_bytes(40, "fp4")
    with pytest.raises(ConfigError, match="rotary"):
        row_bytes(64, "fp8+bf16")
    with pytest.raises(ConfigError, match=r"'deepseek-v5'.*deepseek-v4-pro"):
        cache_spec("deepseek-v5")
