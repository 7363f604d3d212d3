"""The n-gram memory: what it looks up, what it adds, and that it needs tokens, not attention."""

from __future__ import annotations

import pytest
import torch

from hooks.engram import Engram
from hooks.errors import ConfigError, PhaselensError
from tests.hooks.shared_models import build, small, tokens

MEMORY = dict(engram=(False, True, False), engram_rows=50, engram_heads=2, engram_dim=4)


def with_memory(mix: str = "all entries, stride 1", **changes):
    return build(small(mix, **{**MEMORY, **changes}))


def _signed(value: int) -> int:
    """What 64-bit arithmetic makes of an integer."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def test_rows_gate_and_sum_by_hand():
    model = with_memory()
    ids = tokens(2, 9)
    with torch.no_grad():
        _, seen = model.run_with_cache(ids, lambda name: "blocks.1." in name)
    memory: Engram = model.blocks[1].engram
    assert memory.multipliers.shape == (3, 2, 4)
    w = {name: p.detach() for name, p in memory.named_parameters()}

    def norm(x, weight):
        return x / (x.square().mean() + 1e-6).sqrt() * weight

    for row in range(2):
        padded = [19, 19, 19, *ids[row].tolist()]  # before the first token stands the vocabulary's size
        for t in range(9):
            found = []
            for number, length in enumerate((2, 3, 4)):
                for head in range(2):
                    mixed = 0
                    for back in range(length):
                        mixed += (padded[t + 3 - back] + 1) * int(memory.multipliers[number, head, back])
                    mixed = _signed(mixed)
                    found.append(w["W_table"][number * 2 + head, (mixed ^ (mixed >> 29)) % 50])
            e = torch.cat(found)
            x = seen["blocks.1.hook_resid_pre"][row, t]
            value, key = e @ w["W_value"], norm(e @ w["W_key"], w["key_norm.weight"])
            d = float(norm(x, w["stream_norm.weight"]) @ key) / 24**0.5
            gate = 1 / (
                1 + torch.exp(torch.tensor(-(1 if d > 0 else -1) * abs(d) ** 0.5, dtype=torch.float64))
            )
            assert torch.allclose(seen["blocks.1.engram.hook_value"][row, t], value, rtol=0, atol=1e-10)
            assert float(seen["blocks.1.engram.hook_gate"][row, t]) == pytest.approx(float(gate), abs=1e-10)
            out = seen["blocks.1.engram.hook_out"][row, t]
            assert torch.allclose(out, gate * value, rtol=0, atol=1e-10)
    added = seen["blocks.1.hook_resid_mid"] - seen["blocks.1.hook_resid_pre"]
    expected = seen["blocks.1.engram.hook_out"] + seen["blocks.1.hook_attn_out"]
    assert torch.allclose(added, expected, rtol=0, atol=1e-10)


def test_the_value_depends_on_the_last_four_tokens_alone():
    model, ids = with_memory(), tokens(1, 12)
    name = "blocks.1.engram.hook_value"
    _, clean = model.run_with_cache(ids, [name])
    for j in (0, 5, 11):
        changed = ids.clone()
        changed[0, j] = (ids[0, j] + 1) % 19
        _, seen = model.run_with_cache(changed, [name])
        moved = (seen[name] - clean[name]).abs().amax((0, 2)) > 0
        assert moved.nonzero().flatten().tolist() == list(range(j, min(12, j + 4)))
    shifted = torch.cat((tokens(1, 3, seed=8), ids), 1)
    _, later = model.run_with_cache(shifted, [name])
    assert torch.allclose(later[name][:, 6:], clean[name][:, 3:], rtol=0, atol=1e-12)  # whatever the position


@pytest.mark.parametrize("site", ["hook_gate", "hook_value", "hook_out"])
def test_knocked_out_it_is_the_model_without(site):
    model, ids = with_memory(), tokens(2, 12)
    plain = build(small("all entries, stride 1"))
    weights = model.state_dict()
    with torch.no_grad():
        for name, p in plain.named_parameters():
            p.copy_(weights[name])
        zero = [(f"blocks.1.engram.{site}", lambda x, hook: x * 0)]
        assert torch.equal(model.run_with_hooks(ids, fwd_hooks=zero), plain(ids))
        assert float((model(ids) - plain(ids)).abs().max()) > 1e-2


def test_it_starts_as_nothing_and_every_part_learns():
    from hooks.transformer import CompressedTransformer

    cfg = small("all entries, stride 1", **MEMORY)
    model, ids = CompressedTransformer(cfg), tokens(4, 12)
    _, seen = model.run_with_cache(ids, ["blocks.1.engram.hook_out"])
    assert float(seen["blocks.1.engram.hook_out"].abs().max()) == 0
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimiser.zero_grad()
        model(ids).square().mean().backward()
        optimiser.step()
    grads = {name: p.grad for name, p in model.blocks[1].engram.named_parameters()}
    assert all(bool(g.abs().sum() > 0) and bool(torch.isfinite(g).all()) for g in grads.values())


def test_it_answers_ngram_recall_without_attention():
    """The token after a pair, learned with attention switched off; the gate knocked out, it is lost."""
    from hooks.transformer import CompressedTransformer

    cfg = small(
        "all entries, stride 1", engram=(True, False, False), engram_rows=400, engram_heads=2, engram_dim=16
    )
    model = CompressedTransformer(cfg).train()
    after = torch.randint(19, (19, 19), generator=torch.Generator().manual_seed(2))
    off = [(f"blocks.{i}.hook_attn_out", lambda x, hook: x * 0) for i in range(3)]
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-2)
    pairs = torch.cartesian_prod(torch.arange(19), torch.arange(19))
    for _ in range(25):
        logits = model.run_with_hooks(pairs, fwd_hooks=off)[:, -1]
        loss = torch.nn.functional.cross_entropy(logits, after.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    gate = ("blocks.0.engram.hook_gate", lambda x, hook: x * 0)
    with torch.no_grad():
        right = (
            (model.run_with_hooks(pairs, fwd_hooks=off)[:, -1].argmax(-1) == after.flatten()).float().mean()
        )
        lost = model.run_with_hooks(pairs, fwd_hooks=[*off, gate])[:, -1].argmax(-1) == after.flatten()
    assert float(right) > 0.9
    assert float(lost.float().mean()) < 0.4  # one token is known: 19 pairs share it


@pytest.mark.parametrize("rewind", [True, False])
def test_no_split_changes_anything(rewind):
    model, ids = with_memory(), tokens(2, 11)
    with torch.no_grad():
        whole = model(ids)
        for cuts in ([1], [2, 3], [5], list(range(1, 11))):
            cache = model.start_cache(2, rewind=rewind)
            parts = [model(ids[:, a:b], cache) for a, b in zip([0, *cuts], [*cuts, 11], strict=True)]
            assert torch.allclose(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
        assert cache.tokens.shape == (2, 11 if rewind else 3)


def test_clone_crop_and_fork():
    model, ids = with_memory(), tokens(2, 11)
    with torch.no_grad():
        whole = model(ids)
        cache = model.start_cache(2)
        model(ids, cache)
        copy = cache.clone()
        cache.crop(6)
        assert torch.allclose(model(ids[:, 6:], cache), whole[:, 6:], rtol=0, atol=1e-10)
        copy.crop(10)
        fork = copy.fork()
        stream = model(ids[:, -1:], fork, stop_at_layer=0)
        stream = model(stream, fork, start_at_layer=0, stop_at_layer=1)
        three = stream.repeat_interleave(3, 0)  # two variants join
        got = model(three, fork, start_at_layer=1).unflatten(0, (2, 3))
        assert torch.allclose(got[:, :, 0], whole[:, -1:].expand(-1, 3, -1), rtol=0, atol=1e-10)
        assert copy.tokens.shape == (2, 10)


def test_it_needs_the_tokens():
    model = with_memory()
    with pytest.raises(PhaselensError, match="n-gram memory needs the tokens"):
        model(torch.randn(1, 4, 24, dtype=torch.float64), start_at_layer=0)


def test_the_decoder_of_an_encoder_decoder_may_have_one():
    model = with_memory("encoder-decoder", engram=(False, True) * 4)
    ids = tokens(2, 24)
    assert model.prefill_error(ids, 7).max_logit < 1e-10
    assert model.prefill_error(ids, 1).max_logit > 1e-4
    with torch.no_grad():
        cache = model.start_cache(2)
        model.prefill_encoder(ids[:, :20], cache, 12)
        assert torch.allclose(model(ids[:, 20:], cache), model(ids)[:, 20:], rtol=0, atol=1e-10)


def test_hashes_are_architecture_not_weights():
    one, other = with_memory(seed=0), with_memory(seed=3)
    assert torch.equal(one.blocks[1].engram.multipliers, other.blocks[1].engram.multipliers)
    assert not any("multipliers" in name for name in one.state_dict())
    both = build(small("all entries, stride 1", **{**MEMORY, "engram": True}))
    drawn = [block.engram.multipliers for block in both.blocks]
    assert not torch.equal(drawn[0], drawn[1])


def test_impossible_sizes():
    for field in ("engram_rows", "engram_heads", "engram_dim"):
        with pytest.raises(ConfigError, match=f"{field}=0 is not an integer of at least 1"):
            small("all entries, stride 1", **{field: 0})
    with pytest.raises(ConfigError, match="engram=1 in layer 0; valid: True, False"):
        small("all entries, stride 1", engram=1)
