"""Small DeepSeek-V4 models: built by seed, trained, saved and loaded."""

from __future__ import annotations

import json

import pytest
import torch

from hooks.errors import CheckpointError, ConfigError
from tests.hooks.deepseek_models import CSA, HCA, SLIDING

TINY = dict(
    d_vocab=40, hidden_size=32, moe_intermediate_size=32, head_dim=16, index_head_dim=8, q_lora_rank=16,
    o_lora_rank=16, hca_stride=8, sliding_window=4, index_n_heads=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny():
    from hooks.hf_train import build_deepseek_v4

    return build_deepseek_v4("mix", seed=1, **TINY)


def test_patterns_and_recipe_sizes():
    from hooks.hf_train import hf_deepseek_v4

    mix, csa = hf_deepseek_v4("mix"), hf_deepseek_v4("csa")
    assert mix.config.layer_types == [SLIDING, CSA, HCA, CSA]
    assert csa.config.layer_types == [SLIDING, CSA, SLIDING, CSA]
    config = mix.config
    assert config.compress_rates == {CSA: 4, HCA: 16}
    assert (config.hidden_size, config.head_dim, config.qk_rope_head_dim, config.vocab_size) == (
        128,
        32,
        16,
        273,
    )
    assert 2 * sum(p.numel() for p in mix.parameters()) < 6e6, "fp16 file above 6 MB"
    with pytest.raises(ConfigError, match="unknown layer pattern 'hca'; valid:"):
        hf_deepseek_v4("hca")


def test_weights_and_expert_tables_depend_on_the_seed_alone(tiny):
    from hooks.hf_train import build_deepseek_v4

    before = torch.get_rng_state()
    again = build_deepseek_v4("mix", seed=1, **TINY)
    assert torch.equal(torch.get_rng_state(), before)
    assert again.content_hash() == tiny.content_hash()
    assert build_deepseek_v4("mix", seed=2, **TINY).content_hash() != tiny.content_hash()
    table = tiny.plain.model.layers[0].mlp.gate.tid2eid
    assert bool((table[:, 0] != table[:, 1]).all()), "both choices of a token are one expert"
    assert set(table.flatten().tolist()) == {0, 1, 2, 3}


def test_the_loss_falls_under_the_optimiser():
    from hooks.hf_train import build_deepseek_v4

    model = build_deepseek_v4("mix", seed=0, **TINY)
    generator = torch.Generator().manual_seed(0)
    untrained = model.content_hash()
    trained = model.trainable().train()
    optimiser = torch.optim.AdamW(trained.parameters(), lr=5e-3, betas=(0.9, 0.98))
    losses = []
    for _ in range(12):
        # Every token is repeated at once: the window alone can learn it.
        tokens = torch.randint(40, (16, 8), generator=generator).repeat_interleave(2, dim=1)
        with torch.autocast("cpu", torch.bfloat16):
            logits = trained(tokens).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1:2].flatten(0, 1).float(), tokens[:, 1::2].flatten()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    missing = {name for name, p in trained.named_parameters() if p.grad is None}
    assert all(".indexer." in name for name in missing), "only the indexer's hard picks stop the gradient"
    assert losses[-1] < losses[0] - 0.5
    assert model.content_hash() != untrained
    model.eval()
    trained.eval()
    tokens = torch.randint(40, (2, 19), generator=generator)
    with torch.no_grad():
        assert torch.equal(model(tokens), trained(tokens).logits)


def test_saved_models_load_with_their_task(tiny, tmp_path):
    import hooks
    from hooks.deepseek import load_deepseek_v4, save_deepseek_v4

    tiny.task = {"kind": "recall", "n_keys": 8}
    hooks.save(tiny, tmp_path / "a")
    loaded = hooks.load(tmp_path / "a")
    tokens = torch.arange(19)[None]
    with torch.no_grad():
        assert torch.equal(loaded(tokens), tiny(tokens))
    assert loaded.content_hash() == tiny.content_hash()
    assert (loaded.name, loaded.task) == ("a", tiny.task)
    save_deepseek_v4(tiny, tmp_path / "half", dtype=torch.float16)
    half = load_deepseek_v4(tmp_path / "half")
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    with torch.no_grad():
        torch.testing.assert_close(half(tokens), tiny(tokens), atol=0.02, rtol=0.05)
    assert sorted(p.suffix for p in (tmp_path / "a").iterdir()) == [".json", ".json", ".safetensors"]


def test_damaged_folders_are_refused(tiny, tmp_path):
    from safetensors.torch import load_file, save_file

    from hooks.deepseek import load_deepseek_v4, save_deepseek_v4

    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        load_deepseek_v4(tmp_path)
    folder = save_deepseek_v4(tiny, tmp_path / "m")
    weights = folder / "model.safetensors"
    whole = load_file(weights)
    name = next(n for n in whole if n.endswith(("sinks", "attn_sink")))
    save_file({k: v for k, v in whole.items() if k != name}, weights, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"has 1 missing keys: model\.layers"):
        load_deepseek_v4(folder)
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot read the weights"):
        load_deepseek_v4(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ConfigError, match="quantized weights"):
        load_deepseek_v4(folder)
    for asked in ({"attn_implementation": "sdpa"}, {"_attn_implementation": "flash_attention_2"}):
        (folder / "config.json").write_text(json.dumps(config | asked))
        with pytest.raises(ConfigError, match=r"(sdpa|flash_attention_2)' in config.json: .*'eager'"):
            load_deepseek_v4(folder)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": "four"}))
    with pytest.raises(CheckpointError, match="no DeepSeek-V4 config"):
        load_deepseek_v4(folder)
