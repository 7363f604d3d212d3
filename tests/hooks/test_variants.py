"""The same weights under another configuration."""

import copy

import pytest
import torch

from hooks.errors import ConfigError
from hooks.variants import entries_seen, with_picks, without_quantization
from tests.hooks.deepseek_models import hooked
from tests.hooks.deepseek_models import tokens as hf_tokens
from tests.hooks.shared_models import build, small, tokens

MIX = "picks shared over a sliding layer"


def test_quantization_off_is_the_same_model_without_it():
    stored = build(small(MIX, stored=True)).float()
    plain = build(
        stored.cfg.replace(exact_precision=None, entry_precision=None, index_precision=None)
    ).float()
    plain.load_state_dict(stored.state_dict())
    ids = tokens(2, 13)
    with torch.no_grad():
        off = without_quantization(stored)(ids)
        assert torch.equal(off, plain(ids))
        assert float((off - stored(ids)).abs().max()) > 1e-3
    with pytest.raises(ConfigError, match="nothing at a lower precision"):
        without_quantization(plain)


def test_all_picks_read_what_no_picks_read_and_the_given_model_stays():
    model = build(small(MIX)).float()
    before = copy.deepcopy(model.state_dict())
    ids = tokens(2, 13)
    length = entries_seen(model, 13)
    assert length == 6  # stride 2
    everything = with_picks(model, length)
    with torch.no_grad():
        _, seen = everything.run_with_cache(ids, lambda name: name.endswith("hook_pattern"))
        for layer in (0, 2, 3):  # every visible entry draws mass
            last = seen[f"blocks.{layer}.attn.hook_pattern"][:, :, -1, 13 : 13 + length]
            assert bool((last > 0).all())
        one = with_picks(model, 1)
        _, seen = one.run_with_cache(ids, ["blocks.0.attn.hook_pattern"])
        assert ((seen["blocks.0.attn.hook_pattern"][:, :, -1, 13 : 13 + length] > 0).sum(-1) == 1).all()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ConfigError, match="valid: a whole number, 1 or more"):
        with_picks(model, 0)
    with pytest.raises(ConfigError, match="attends every visible one"):
        with_picks(build(small("all entries, stride 1")), 2)


def test_the_class_takes_other_picks_too():
    _, model = hooked()
    ids = hf_tokens(1, 21)
    picked = {}
    for topk in (1, 5):
        _, seen = with_picks(model, topk).run_with_cache(ids, ["blocks.1.attn.indexer.hook_picks"])
        picked[topk] = seen["blocks.1.attn.indexer.hook_picks"][0, -1]
    assert (picked[1] >= 0).sum() == 1
    assert sorted(picked[5].tolist()) == [0, 1, 2, 3, 4]  # 21 tokens close five windows of 4
    assert model.plain.config.index_topk == 64
