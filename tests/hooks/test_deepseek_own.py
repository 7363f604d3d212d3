"""Our own compressor and attention core, given DeepSeek-V4's weights, against the class itself."""

from __future__ import annotations

import pytest
import torch

from hooks import ChunkGeometry, ModelConfig
from tests.hooks.deepseek_models import hooked, tokens

SIZES = dict(
    n_layers=1, d_model=24, n_heads=4, n_kv_heads=1, d_head=12, d_mlp=0, d_vocab=50, gate="vector",
    tied_kv=True, rope_dims=4, rope_base=160000.0, exact_window=6,
)  # fmt: skip


def _attention_input(plain, ids, layer):
    seen = []
    handle = plain.model.layers[layer].input_layernorm.register_forward_hook(
        lambda m, a, out: seen.append(out)
    )
    plain(ids)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(("layer", "stride", "payload"), [(1, 4, "two_series"), (2, 16, "shared")])
def test_our_compressor_with_copied_weights_gives_the_classs_entries(layer, stride, payload):
    from hooks.compressor import Compressor, window_tokens

    plain, model = hooked(4, 16)
    ids, geometry = tokens(2, 37), model.geometry(layer)
    assert geometry == (ChunkGeometry(8, 4) if layer == 1 else ChunkGeometry(16, 16))
    cfg = ModelConfig(**SIZES, window=geometry.window, stride=stride, payload=payload)
    ours, theirs = Compressor(cfg, cfg.layer(0)), plain.model.layers[layer].self_attn.compressor
    series = 2 if payload == "two_series" else 1
    with torch.no_grad():
        # The class projects to [series a | series b]; its bias is per phase, ours per offset.
        for mine, his in [
            (ours.key.W_payload, theirs.kv_proj.weight),
            (ours.key.W_gate, theirs.gate_proj.weight),
        ]:
            for s in range(series):
                mine[s, :, 0] = his[12 * s : 12 * (s + 1)].T
        for offset in range(geometry.window):
            s = offset // stride
            ours.key.b_gate[offset, 0] = theirs.position_bias[offset % stride, 12 * s : 12 * (s + 1)]
        ours.key.norm.weight.copy_(theirs.kv_norm.weight)
        x = _attention_input(plain, ids, layer)
        n = 37 // stride
        pooled = ours(window_tokens(geometry, x, 0, 0, n))
        name = f"blocks.{layer}.attn.compressor.key.hook_entry"
        entries = model.run_with_cache(ids, [name])[1][name]
    torch.testing.assert_close(pooled.key, entries, atol=1e-6, rtol=1e-5)
    assert pooled.value is pooled.key


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_our_attention_core_with_sink_and_inverse_rope_gives_the_classs_z(layer):
    from hooks.numerics import rope_tables, rotate
    from hooks.softmax import Segment, attend

    plain, model = hooked(4, 16)
    ids, length = tokens(2, 37), 37
    with torch.no_grad():
        _, seen = model.run_with_cache(ids, lambda name: f"blocks.{layer}.attn.hook" in name)
        site = {name.rsplit(".", 1)[1]: tensor for name, tensor in seen.items()}
        at = torch.arange(length)
        window = (at[None] <= at[:, None]) & (at[None] > at[:, None] - 6)
        segments = [Segment(site["hook_rot_k"], site["hook_v"], window)]
        if layer:
            geometry = model.geometry(layer)
            visible = torch.tensor([geometry.visible(t) for t in range(length)])
            closed = torch.arange(length // geometry.stride)[None] < visible[:, None]
            segments.append(Segment(site["hook_entry_k"], site["hook_entry_v"], closed))
        z = attend(site["hook_rot_q"], segments, sink=plain.model.layers[layer].self_attn.sinks)
        z = rotate(z, rope_tables(at, 4, 160000.0 if layer else 10000.0, z.dtype), inverse=True)
    torch.testing.assert_close(z, site["hook_z"], atol=1e-6, rtol=1e-5)
