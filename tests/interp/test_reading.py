"""Attention mass by kind of column, and value paths that multiply out."""

import numpy as np
import pytest
import torch

from hooks import SiteError
from hooks.geometry import ChunkGeometry
from interp.reading import reading, value_path
from tests.interp.intervention_models import TASK, small


@pytest.mark.parametrize("changes", [{}, {"window": 6, "sink": True}, {"attention": "full"}])
def test_masses_are_sums_of_columns_of_one_plain_pass(changes):
    model = small(**changes)
    found = reading(model, TASK, n=48, progress=False)
    prompts = TASK.sample(48, seed=0)
    length, geometry = prompts.tokens.shape[1], ChunkGeometry(changes.get("window", 4), 4)
    entries = 0 if "attention" in changes else length // 4
    for layer in range(2):
        _, kept = model.run_with_cache(prompts.tokens, f"blocks.{layer}.attn.hook_pattern")
        pattern = kept[f"blocks.{layer}.attn.hook_pattern"][:, :, -1]
        for row in (0, 7, 30):
            target = int(prompts.target_position[row])
            for head in range(4):
                at = dict(unit=f"{layer}.{head}", prompt=row // 4, residue=row % 4)
                columns = pattern[row, head]
                exact = float(columns[target] + columns[target + 1])
                assert found.mass_exact.sel(at).item() == pytest.approx(exact, abs=1e-5)
                if entries:
                    mass = sum(float(columns[length + j]) for j in geometry.entries_of(target) if j < entries)
                    assert found.mass_entries.sel(at).item() == pytest.approx(mass, abs=1e-5)
                else:
                    assert np.isnan(found.mass_entries.sel(at).item())
                if "sink" in changes:
                    assert found.mass_sink.sel(at).item() == pytest.approx(float(columns[-1]), abs=1e-5)
                else:
                    assert np.isnan(found.mass_sink.sel(at).item())
    means = found.mass_exact.values.mean(1)
    assert found.exact.values == pytest.approx(means)
    assert ((found.exact_low <= found.exact) | np.isnan(found.exact_low)).all()


VARIANTS = {
    "plain": {},
    "overlap": {"window": 6, "sink": True},
    "tied": {"tied_kv": True, "gate": "vector", "window": 8, "payload": "two_series", "inverse_rope": True},
    "one kv head": {"n_kv_heads": 1},
    "sliding": {"attention": "sliding"},
}


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", VARIANTS)
def test_paths_sum_to_the_head_output_and_its_logit(name, layer):
    model = small(**VARIANTS[name])
    prompts = TASK.sample(4, seed=3)
    found = value_path(model, prompts, layer=layer, head=2, row=1)
    assert found.attrs["residual"] < 1e-5
    # The head's own output and logit, from the weights.
    _, kept = model.run_with_cache(
        prompts.tokens[1:2], [f"blocks.{layer}.attn.hook_z", "blocks.1.hook_resid_post"]
    )
    result = kept[f"blocks.{layer}.attn.hook_z"][0, -1, 2] @ model.blocks[layer].attn.W_O[2].detach()
    assert np.allclose(found.output.values.sum(0), result.numpy(), atol=1e-5)
    stream = kept["blocks.1.hook_resid_post"][0, -1]
    normed = result * model.ln_final(stream).detach() / stream
    logit = float((normed @ model.W_U.detach())[prompts.answer[1]])
    assert found.head_logit.item() == pytest.approx(logit, abs=1e-4)
    assert float(found.logit.sum()) == pytest.approx(logit, abs=1e-4)


def test_one_path_is_weight_times_gate_times_payload():
    model, prompts = small(), TASK.sample(4, seed=3)
    found = value_path(model, prompts, layer=0, head=3, row=2)
    names = [f"blocks.0.attn.compressor.value.{kind}" for kind in ("hook_gate", "hook_payload")]
    _, kept = model.run_with_cache(prompts.tokens[2:3], [*names, "blocks.0.attn.hook_pattern"])
    entry = int(prompts.target_position[2]) // 4
    path = int(np.flatnonzero((found.entry.values == entry) & (found.offset.values == 1))[0])
    weight = kept["blocks.0.attn.hook_pattern"][0, 3, -1, prompts.tokens.shape[1] + entry]
    gate, payload = (kept[name][0, entry, 1, 1] for name in names)
    expected = weight * gate * payload @ model.blocks[0].attn.W_O[3].detach()
    assert np.allclose(found.output.values[path], expected.numpy(), atol=1e-6)
    assert found.position.values[path] == 4 * entry + 1
    assert found.gate.values[path] == pytest.approx(float(gate))
    assert found.pattern.values[path] == pytest.approx(float(weight))


def test_heads_and_rows_that_do_not_exist_are_named():
    prompts = TASK.sample(4, seed=0)
    with pytest.raises(SiteError, match=r"1\.4"):
        value_path(small(), prompts, layer=1, head=4)
    with pytest.raises(ValueError, match="row 9"):
        value_path(small(), prompts, layer=1, head=0, row=9)
    assert torch.isfinite(prompts.tokens.float()).all()
