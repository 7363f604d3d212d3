"""Long prompts: attention in blocks, picked entries gathered, selection instead of sorting; all the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hooks.attention
import hooks.indexer
import hooks.softmax
from hooks.config import ModelConfig
from hooks.indexer import top_picks
from hooks.transformer import CompressedTransformer

SHAPE = dict(
    n_layers=2, d_model=24, n_heads=4, n_kv_heads=1, d_head=8, d_mlp=16, d_vocab=11, seed=3, gate="vector",
    tied_kv=True, inverse_rope=True, sink=True, exact_window=6,
)  # fmt: skip


def csa_and_hca(**changes) -> CompressedTransformer:
    config = dict(
        SHAPE, window=(4, 8), stride=(2, 8), payload=("two_series", "shared"), index_topk=(5, None),
        index_heads=(2, None), index_dim=(8, None),
    )  # fmt: skip
    return CompressedTransformer(ModelConfig(**{**config, **changes})).double()


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(11, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def long_path(monkeypatch):
    """Small sizes take the way of long prompts."""
    monkeypatch.setattr(hooks.attention, "WINDOW_BLOCK", 4)
    monkeypatch.setattr(hooks.attention, "GATHER_FROM", 1)
    monkeypatch.setattr(hooks.indexer, "SORTED", 0)


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 2, "tied_kv": False}, {"sink": False}], ids=str)
def test_the_way_of_long_prompts_gives_the_same_numbers(changes, monkeypatch):
    model, prompt = csa_and_hca(**changes), tokens(2, 61)
    with torch.no_grad():
        expected = model(prompt)
        monkeypatch.setattr(hooks.attention, "WINDOW_BLOCK", 4)
        monkeypatch.setattr(hooks.attention, "GATHER_FROM", 1)
        monkeypatch.setattr(hooks.indexer, "SORTED", 0)
        monkeypatch.setattr(hooks.attention, "MAX_SCORES", 300)
        torch.testing.assert_close(model(prompt), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cut", [40, 41, 42, 47])
def test_a_cached_prompt_goes_the_same_way(cut, long_path):
    model, prompt = csa_and_hca(), tokens(2, 61)
    with torch.no_grad():
        expected = model(prompt)
        cache = model.start_cache(2, rewind=False)
        pieces = [model(prompt[:, :cut], cache), model(prompt[:, cut:], cache)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, rtol=0, atol=1e-12)


def test_variants_share_a_gathered_past(long_path):
    """Forked rows read their sequence's own entries: row b·U + u has past b."""
    model, prompt = csa_and_hca(), tokens(2, 60)
    with torch.no_grad():
        expected = model(prompt)[:, -1]
        cache = model.start_cache(2, rewind=False)
        model(prompt[:, :-1], cache)
        rows = prompt[:, -1:].repeat_interleave(3, dim=0)
        got = model(rows, cache.fork())[:, -1].unflatten(0, (2, 3))
    torch.testing.assert_close(got, expected[:, None].expand(2, 3, -1), rtol=0, atol=1e-12)


def test_gathered_picks_are_those_that_a_mask_leaves(long_path):
    """Brute force: softmax over window, picked entries and sink, query by query, from the sites' own values."""
    model, prompt = csa_and_hca(), tokens(1, 61)
    names = [
        f"blocks.0.attn.{n}"
        for n in ("hook_rot_q", "hook_rot_k", "hook_v", "hook_entry_k", "indexer.hook_picks")
    ]
    with torch.no_grad():
        torch.nn.init.normal_(model.blocks[0].attn.sink, generator=torch.Generator().manual_seed(2))
        wanted = "blocks.0.attn.hook_z"
        _, seen = model.run_with_cache(prompt, [*names, wanted])
    q, k, v, entry, picks = (seen[name][0].numpy() for name in names)
    for t in (0, 7, 30, 60):
        exact = range(max(0, t - 5), t + 1)
        chosen = [e for e in picks[t] if e >= 0]
        assert len(chosen) == min(5, (t + 1) // 2)
        keys = np.concatenate([k[list(exact), 0], entry[chosen, 0]])
        values = np.concatenate([v[list(exact), 0], entry[chosen, 0]])
        sink = model.blocks[0].attn.sink.detach().numpy()
        for head in range(4):
            logits = np.append(keys @ q[t, head] / np.sqrt(8), sink[head])
            weights = np.exp(logits - logits.max())
            weights /= weights.sum()
            z = weights[:-1] @ values
            got = seen[wanted][0, t, head].numpy()
            np.testing.assert_allclose(got, unrotate(model, z, t), atol=1e-10)


def unrotate(model, z: np.ndarray, position: int) -> np.ndarray:
    """Turn channel pairs (2i, 2i+1) back by position·base^(−2i/8)."""
    pairs = z.reshape(-1, 2)
    angle = -position * float(model.cfg.layer(0).rope_base) ** (-np.arange(0, 8, 2) / 8)
    even = pairs[:, 0] * np.cos(angle) - pairs[:, 1] * np.sin(angle)
    odd = pairs[:, 1] * np.cos(angle) + pairs[:, 0] * np.sin(angle)
    return np.stack((even, odd), axis=1).reshape(-1)


def test_an_entry_picked_twice_by_a_hook_is_read_once(long_path):
    model, prompt = csa_and_hca(), tokens(1, 61)
    site = "blocks.0.attn.indexer.hook_picks"

    def run(picks: list[int]) -> torch.Tensor:
        def edit(tensor, hook):
            tensor[:, -1] = torch.tensor(picks)
            return tensor

        with torch.no_grad():
            return model.run_with_hooks(prompt, [(site, edit)])[:, -1]

    torch.testing.assert_close(run([3, 3, 9, 3, -1]), run([9, 3, -1, -1, -1]), rtol=0, atol=1e-12)
    assert not torch.allclose(run([3, 9, -1, -1, -1]), run([3, 8, -1, -1, -1]))


def test_the_largest_tensor_grows_linearly_with_the_prompt(long_path, monkeypatch):
    """Nothing that has both a query and an entry axis outgrows the budget of scores."""
    monkeypatch.setattr(hooks.attention, "MAX_SCORES", 4000)
    model = csa_and_hca()
    largest = {}
    for length in (128, 256):
        shapes: list[int] = []
        with torch.no_grad(), Largest(shapes):
            model(tokens(1, length), last_only=True)
        largest[length] = max(shapes)
    assert largest[256] <= 2.1 * largest[128]


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Collects the number of elements of every result."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.sizes += [
            each.numel() for each in (out if isinstance(out, tuple) else (out,)) if hasattr(each, "numel")
        ]
        return out


@pytest.mark.parametrize("values", [3, 50, 10_000], ids=["many ties", "some", "few"])
def test_selection_is_a_stable_sort(values, monkeypatch):
    monkeypatch.setattr(hooks.indexer, "SORTED", 0)
    scores = torch.randint(values, (4, 7, 90), generator=torch.Generator().manual_seed(0)).float()
    scores[0, :, 5:] = -torch.inf
    for k in (1, 12, 89):
        got = top_picks(scores, k)
        for row, picks in zip(scores.reshape(-1, 90).tolist(), got.reshape(-1, k).tolist(), strict=True):
            order = sorted(range(90), key=lambda i: (-row[i], i))[:k]
            assert picks == [i if row[i] > float("-inf") else -1 for i in order]


def test_patterns_are_not_formed_when_nothing_reads_them(monkeypatch):
    """Without a hook on them no softmax over scores runs; with one it does, and the logits agree."""
    model, prompt = csa_and_hca(index_topk=None, index_heads=None, index_dim=None).float(), tokens(2, 24)
    formed = []
    real = hooks.softmax.masked_softmax
    monkeypatch.setattr(
        hooks.softmax, "masked_softmax", lambda *given: formed.append(given[0].shape) or real(*given)
    )
    with torch.no_grad():
        fused = model(prompt)
        assert formed == []
        hooked = model.run_with_hooks(prompt, [("blocks.1.attn.hook_pattern", lambda tensor, hook: None)])
    assert formed == [(2, 4, 24, 24 + 3 + 1)]
    torch.testing.assert_close(hooked, fused, rtol=0, atol=1e-5)
