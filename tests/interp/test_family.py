"""Models of one shape stacked into one pass."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from hooks.config import preset
from hooks.errors import ConfigError, ModelCheckError, PhaselensError
from hooks.transformer import CompressedTransformer
from interp.bench import family as bench
from interp.bench.page import section
from interp.family import Family, family_logits
from interp.recipes import recipe
from interp.training import fit


def test_a_stacked_pass_equals_one_pass_per_model():
    models = [CompressedTransformer(preset("tiny").replace(seed=seed)) for seed in range(3)]
    tokens = torch.randint(73, (4, 21), generator=torch.Generator().manual_seed(0))
    got = family_logits(models, tokens)
    with torch.no_grad():
        expected = torch.stack([model(tokens)[:, -1] for model in models])
    assert float((expected[0] - expected[1]).abs().max()) > 0.1
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert all(not model.training for model in models)


def test_other_shapes_indexers_and_empty_families_are_refused():
    tiny = CompressedTransformer(preset("tiny"))
    other = CompressedTransformer(preset("tiny").replace(d_mlp=64))
    indexed = CompressedTransformer(preset("tiny").replace(index_topk=3))
    tokens = torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(ConfigError, match="more than its seed"):
        family_logits([tiny, other], tokens)
    with pytest.raises(ConfigError, match="indexer"):
        family_logits([indexed], tokens)
    with pytest.raises(ConfigError, match="one or more"):
        family_logits([], tokens)
    with pytest.raises(ConfigError, match="one by one"):
        family_logits([nn.Linear(2, 2)], tokens)
    with pytest.raises(ConfigError, match="mode"):
        family_logits([tiny, CompressedTransformer(preset("tiny").replace(seed=1)).double()], tokens)
    with (
        tiny.hooks([("hook_embed", lambda x, hook: None)], must_fire=False),
        pytest.raises(ConfigError, match="hooks"),
    ):
        family_logits([tiny], tokens)


def family(**options):
    return Family([CompressedTransformer(preset("tiny").replace(seed=seed, **options)) for seed in range(3)])


def test_each_model_reads_its_own_prompts():
    stacked = family()
    tokens = torch.randint(73, (3, 2, 21), generator=torch.Generator().manual_seed(0))
    got = stacked(tokens)
    assert got.shape == (3, 2, 21, 73)
    for model, own, logits in zip(stacked.models, tokens, got, strict=True):
        torch.testing.assert_close(logits, model(own), rtol=0, atol=1e-5)
    torch.testing.assert_close(stacked(tokens, last_only=True), got[:, :, -1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["full-4kv", "w8s8-2kv-uniform", "dsv4-w8s4-1kv", "v41-w2s2-1kv"])
def test_every_kind_of_layer_without_an_indexer_can_be_stacked(name):
    models = [CompressedTransformer(preset(name).replace(seed=seed)) for seed in range(2)]
    tokens = torch.randint(273, (1, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = torch.stack([model(tokens)[:, -1] for model in models])
    torch.testing.assert_close(family_logits(models, tokens), expected, rtol=0, atol=1e-4)


def test_outside_training_ids_and_logits_are_checked():
    stacked = family()
    tokens = torch.zeros(3, 1, 8, dtype=torch.long)
    with pytest.raises(ConfigError, match=r"\[3, n, pos\]"):
        stacked(tokens[:2])
    with pytest.raises(PhaselensError, match="73"):
        stacked(tokens + 73)
    with torch.no_grad():
        stacked.stacked.W_U[1] = torch.nan
    with pytest.raises(ModelCheckError, match="model 1"):
        stacked(tokens)
    assert bool(stacked.train()(tokens)[1].isnan().all())


def test_weights_go_back_into_the_models_they_came_from():
    stacked = family()
    before = [{name: p.detach().clone() for name, p in model.named_parameters()} for model in stacked.models]
    with torch.no_grad():
        for p in stacked.parameters():
            for member in range(3):
                p[member] += member
    for model, old in zip(stacked.models, before, strict=True):
        assert all(torch.equal(p, old[name]) for name, p in model.named_parameters())
    assert stacked.write_back() is stacked.models
    for member, (model, old) in enumerate(zip(stacked.models, before, strict=True)):
        assert all(torch.equal(p, old[name] + member) for name, p in model.named_parameters())


def test_gradients_are_clipped_by_the_norm_of_each_model():
    stacked = family()
    generator = torch.Generator().manual_seed(1)
    for name, p in stacked.named_parameters():
        if not name.endswith("W_U"):  # one without a gradient
            p.grad = torch.randn(p.shape, generator=generator) * torch.tensor([1.0, 1e-4, 3.0]).reshape(
                -1, *[1] * (p.ndim - 1)
            )
    expected = []
    for member, model in enumerate(stacked.models):
        for (_, own), (_, p) in zip(model.named_parameters(), stacked.named_parameters(), strict=True):
            own.grad = None if p.grad is None else p.grad[member].clone()
        expected.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    norms = stacked.clip_gradients(1.0)
    assert norms[1] < 1 < norms[0] < norms[2]
    torch.testing.assert_close(norms, torch.stack(expected))
    for member, model in enumerate(stacked.models):
        for own, p in zip(model.parameters(), stacked.parameters(), strict=True):
            if own.grad is not None:
                torch.testing.assert_close(p.grad[member], own.grad)


def test_the_benchmark_times_training_both_ways_and_its_page_reads_older_files(monkeypatch):
    monkeypatch.setattr(bench, "STEPS", 2)
    monkeypatch.setattr(bench, "BATCH", 2)
    found = bench.bench_family(n=12, repeats=2, threads=1, seed=0, names=("tiny", "tiny"), train=True)
    assert set(found["ways"]) == {
        f"{before}{way}" for before in ("", "training, ") for way in ("one after the other", "side by side")
    }
    assert all(len(way["seconds"]) == 2 for way in found["ways"].values())
    apart, beside = (
        min(found["ways"][f"training, {way}"]["cpu_seconds"])
        for way in ("one after the other", "side by side")
    )
    assert found["training_cpu_ratio"] == pytest.approx(apart / beside)
    assert found["training_max_difference"] < 1e-5
    assert "Training one after the other takes" in section(found)
    older = {key: value for key, value in found.items() if not key.startswith("training")}
    older["ways"] = {key: value for key, value in found["ways"].items() if not key.startswith("training")}
    assert "raining" not in section(older).replace(found["what"], "")


def test_the_benchmark_trains_every_seed_as_fit_does():
    plan = dataclasses.replace(recipe("tiny"), steps=2, batch=2, warmup=0)
    cfg = preset("tiny")
    expected = []
    for seed in range(2):
        model = CompressedTransformer(cfg.replace(seed=seed))
        list(fit(model, plan, seed=seed, device=torch.device("cpu"), progress=False))
        expected += [p.detach().flatten() for p in model.parameters()]
    for beside in (False, True):
        _, weights = bench._train(cfg, 2, plan, torch.device("cpu"), beside=beside)
        torch.testing.assert_close(weights, torch.cat(expected), rtol=0, atol=1e-5)
