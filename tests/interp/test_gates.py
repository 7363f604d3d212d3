"""Gate profiles against sums over entries, offsets and channels written out, and cycling against moved weights."""

import math

import pytest
import torch

import hooks
from hooks import CompressedTransformer, SiteError, preset
from interp import cycle_gates, gate_profile
from interp.tasks import RecallTask


@pytest.mark.parametrize("changes", [{}, {"window": 6, "gate": "vector"}])
def test_profile_is_the_mean_gate_over_whole_windows(changes):
    model = CompressedTransformer(preset("tiny").replace(gate_init_std=1.0, **changes)).eval()
    task = RecallTask.for_model(model)
    found = gate_profile(model, task, n=task.modulus, progress=False)
    prompts = task.sample(task.modulus, seed=0)
    geometry = model.geometry(1)
    _, seen = model.run_with_cache(prompts.tokens, "blocks.1.attn.compressor.value.hook_gate")
    gate = seen["blocks.1.attn.compressor.value.hook_gate"].double()
    whole = [j for j in range(gate.shape[1]) if len(geometry.covered(j)) == geometry.window]
    windows = [gate[b, j, :, 1] for b in range(len(prompts)) for j in whole]  # KV head 1: [offset, channel]
    mean = sum(windows) / len(windows)
    row = found.sel(unit="1.1")
    assert row.gate_value.values == pytest.approx(mean.mean(1).tolist(), abs=1e-6)

    def entropy(weights):
        return -sum(w * math.log(w) for w in weights if w > 0)

    channels = range(mean.shape[1])
    static = math.exp(sum(entropy(mean[:, c].tolist()) for c in channels) / len(channels))
    assert float(row.static_value) == pytest.approx(static, abs=1e-6)
    each = [math.exp(sum(entropy(w[:, c].tolist()) for c in channels) / len(channels)) for w in windows]
    assert float(row.per_window_value) == pytest.approx(sum(each) / len(each), abs=1e-6)
    for phase in range(4):
        offsets = [i for i in range(geometry.window) if (i - geometry.window) % 4 == phase]
        expected = float(mean[offsets].mean(1).sum()) / (len(offsets) / geometry.window)
        assert float(row.profile_value.sel(phase=phase)) == pytest.approx(expected, abs=1e-6)


def test_uniform_gates_are_one_everywhere_and_tied_values_absent():
    model = CompressedTransformer(preset("tiny").replace(gate="uniform", tied_kv=True)).eval()
    found = gate_profile(model, n=12, progress=False)
    assert found.profile_key.values == pytest.approx(1.0)
    assert found.static_key.values == pytest.approx(4.0)
    assert found.profile_value.isnull().all()


def test_full_attention_has_no_gates():
    with pytest.raises(SiteError, match="no gates"):
        gate_profile(CompressedTransformer(preset("tiny").replace(attention="full")), n=12)


def test_cycling_moves_gates_and_leaves_payloads():
    model = hooks.load("tiny")
    moved = cycle_gates(model, 1)
    tokens = RecallTask.for_model(model).sample(2, seed=0).tokens
    at = "blocks.0.attn.compressor.key."
    branch, other = model.blocks[0].attn.compressor.key, moved.blocks[0].attn.compressor.key
    assert torch.equal(other.b_gate[1], branch.b_gate[0])
    assert torch.equal(other.W_gate[0], branch.W_gate[3])
    _, before = model.run_with_cache(tokens, [at + "hook_payload"])
    _, after = moved.run_with_cache(tokens, [at + "hook_payload"])
    assert torch.equal(before[at + "hook_payload"], after[at + "hook_payload"])
    assert cycle_gates(model, 4).content_hash() == model.content_hash()
    with pytest.raises(SiteError, match="window = stride"):
        cycle_gates(CompressedTransformer(preset("w8s4-4kv")), 1)
    with pytest.raises(SiteError, match="nothing to cycle"):
        cycle_gates(CompressedTransformer(preset("v41-w2s2-1kv")), 1)
