"""Words of stock TransformerLens on our models: the same meaning, or one line."""

from __future__ import annotations

import pytest
import torch

import hooks
from hooks.errors import PhaselensError, SiteError

Z = "blocks.0.attn.hook_z"


@pytest.fixture(scope="module")
def model():
    return hooks.load("tiny")


@pytest.fixture
def tokens(model):
    return torch.arange(20)[None] % model.cfg.d_vocab


def test_caches_by_stock_words(model, tokens):
    _, whole = model.run_with_cache(tokens, Z)
    _, last = model.run_with_cache(tokens, Z, pos_slice=-1)
    assert torch.equal(last[Z], whole[Z][:, -1:])
    _, flat = model.run_with_cache(tokens, Z, remove_batch_dim=True, device="cpu")
    assert torch.equal(flat[Z], whole[Z][0])
    with pytest.raises(PhaselensError, match="one prompt"):
        model.run_with_cache(tokens.expand(2, -1), Z, remove_batch_dim=True)
    with pytest.raises(PhaselensError, match="bwd_hooks"):
        model.run_with_cache(tokens, Z, incl_bwd=True)


def test_hooks_can_stay(model, tokens):
    seen = []
    try:
        model.run_with_hooks(tokens, fwd_hooks=[(Z, lambda z, hook: seen.append(1))], reset_hooks_end=False)
        model(tokens)
    finally:
        model.reset_hooks(including_permanent=True)
    model(tokens)
    assert len(seen) == 2


def test_permanent_hooks_are_checked_by_name(model):
    with pytest.raises(SiteError, match=r"blocks\.0\.attn\.hook_z"):
        model.add_hook("blocks.0.attn.hook_zz", print)
    with pytest.raises(SiteError, match="matches no site"):
        model.add_hook(lambda name: False, print)


def test_backward_hooks_must_fire(model, tokens):
    seen = []
    hook = (Z, lambda gradient, hook: seen.append(float(gradient.abs().sum())))
    with model.hooks(bwd_hooks=[hook]):
        model(tokens)[0, -1, 0].backward()
    assert len(seen) == 1
    assert seen[0] > 0
    model.zero_grad()
    with pytest.raises(SiteError, match="never fired"):
        model.run_with_hooks(tokens, bwd_hooks=[hook])
