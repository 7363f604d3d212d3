"""The indexer of own models: public cases about picks, ties, pools of blocks, and what trains it."""

from __future__ import annotations

import pytest
import torch

from hooks.config import ModelConfig
from hooks.errors import ConfigError, SiteError
from hooks.indexer import block_pool, imitation_loss, pick_mask, pool_mask, top_picks
from tests.hooks.shared_models import build, small, tokens

PICKS, PATTERN = "blocks.{}.attn.indexer.hook_picks", "blocks.{}.attn.hook_pattern"
STYLES = ["compressor", "latent"]


def v4(k: int | None = 2, **changes) -> ModelConfig:
    """One layer of stride 4 with an exact window of 4."""
    fields = dict(n_layers=1, window=8, stride=4, exact_window=4, index_topk=k)
    return small("own indexers, overlap", **{**fields, **changes})


def run(model, ids, *names):
    with torch.no_grad():
        logits, seen = model.run_with_cache(ids, list(names))
    return logits, [seen[name] for name in names]


# --------------------------------------------------------------------------- public cases


@pytest.mark.parametrize("style", STYLES)
def test_no_pick_lies_in_the_future(style):
    """transformers#45820: an indexer without a causal mask picked entries pooled from the future."""
    model = build(v4(index_style=style, n_layers=2))
    ids = tokens(1, 16)
    changed = ids.clone()
    changed[0, 15] = (ids[0, 15] + 1) % 19
    clean, (scores, picks) = run(model, ids, "blocks.0.attn.indexer.hook_scores", PICKS.format(0))
    other, (_, picks_after) = run(model, changed, "blocks.0.attn.indexer.hook_scores", PICKS.format(0))
    assert torch.equal(clean[:, :15], other[:, :15])
    assert torch.equal(picks[:, :15], picks_after[:, :15])
    assert torch.isfinite(scores).sum(-1)[0, :9].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert (picks >= 0).sum(-1)[0, :9].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert int(picks[0, 15].max()) < 4


def test_each_query_reads_its_own_picks():
    """transformers#45758: picks of all queries shared one key axis."""
    model = build(v4(k=1))
    ids = tokens(1, 12)

    def force(picks, hook):
        picks[:, 9], picks[:, 11] = 0, 1
        return picks

    with model.hooks(fwd_hooks=[(PICKS.format(0), force)]):
        _, (pattern,) = run(model, ids, PATTERN.format(0))
    entries = pattern[0, :, :, 12:15]
    assert (entries[:, 9, 0] > 0).all()
    assert (entries[:, 11, 1] > 0).all()
    assert float(entries[:, 9, 1:].abs().max()) == 0
    assert float(entries[:, 11, [0, 2]].abs().max()) == 0
    logits, (picks,) = run(model, ids, PICKS.format(0))
    cache = model.start_cache(1)
    for t in range(12):
        with torch.no_grad():
            one, seen = model.run_with_cache(ids[:, t : t + 1], [PICKS.format(0)], cache=cache)
        assert seen[PICKS.format(0)].shape == (1, 1, 1)
        assert torch.equal(seen[PICKS.format(0)][:, 0], picks[:, t])
        assert torch.allclose(one[:, 0], logits[:, t], rtol=0, atol=1e-10)


@pytest.mark.parametrize("style", STYLES)
def test_logits_and_picks_do_not_depend_on_the_split(style):
    """llama.cpp#26471: output broke when a prompt was split."""
    model = build(v4(index_style=style, n_layers=2))
    ids = tokens(2, 37)
    logits, (picks,) = run(model, ids, PICKS.format(1))
    for size in (1, 3, 4, 5, 16):
        cache, parts = model.start_cache(2, rewind=False), []
        for i in range(0, 37, size):
            with torch.no_grad():
                parts.append(model.run_with_cache(ids[:, i : i + size], [PICKS.format(1)], cache=cache))
        assert torch.allclose(torch.cat([p[0] for p in parts], 1), logits, rtol=0, atol=1e-10)
        assert torch.equal(torch.cat([p[1][PICKS.format(1)] for p in parts], 1), picks)


@pytest.mark.parametrize("style", STYLES)
def test_short_prompts_and_more_picks_than_entries(style):
    """native-sparse-attention-pytorch#1: first closed window, no window, k above the number of entries."""
    model = build(v4(k=512, index_style=style))
    sliding = build(v4(k=512, index_style=style).replace(attention="sliding"))
    theirs = model.state_dict()
    with torch.no_grad():
        for name, p in sliding.named_parameters():
            p.copy_(theirs[name])
    for length in (1, 2, 3, 4):
        ids = tokens(1, length)
        logits, (picks,) = run(model, ids, PICKS.format(0))
        assert bool(torch.isfinite(logits).all())
        assert picks.shape == (1, length, 512)
        assert int((picks >= 0).sum()) == length // 4
        same = torch.allclose(logits, run(sliding, ids)[0], rtol=0, atol=1e-12)
        assert same == (length < 4)


# --------------------------------------------------------------------------- picks and pools


def test_ties_go_to_the_lowest_index_whatever_the_length():
    """``torch.topk`` breaks ties by length; here every path picks alike."""
    scores = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, -torch.inf])
    assert top_picks(scores, 3).tolist() == [1, 3, 0]
    assert top_picks(scores, 7).tolist() == [1, 3, 0, 2, 4, -1, -1]
    for length in (1, 5, 17, 1000):
        assert top_picks(torch.zeros(length), 3).tolist() == [
            *range(min(3, length)),
            *[-1] * (3 - min(3, length)),
        ]


@pytest.mark.parametrize("style", STYLES)
def test_all_scores_tied_picks_the_oldest_entries_in_prefill_and_decode(style):
    model = build(v4(index_style=style))
    with torch.no_grad():
        model.blocks[0].attn.indexer.W_weight.zero_()
    ids = tokens(1, 30)
    _, (picks,) = run(model, ids, PICKS.format(0))
    cache, one_by_one = model.start_cache(1), []
    for t in range(30):
        with torch.no_grad():
            one_by_one.append(model.run_with_cache(ids[:, t : t + 1], [PICKS.format(0)], cache=cache)[1])
    assert torch.equal(torch.cat([p[PICKS.format(0)] for p in one_by_one], 1), picks)
    assert picks[0, 3:7].tolist() == [[0, -1]] * 4
    assert picks[0, 7:].tolist() == [[0, 1]] * 23


def test_masks():
    picks = torch.tensor([[[2, -1], [0, 2]]])
    assert pick_mask(picks, 4).tolist() == [[[False, False, True, False], [True, False, True, False]]]
    assert pool_mask(picks, 5, 2)[0].tolist() == [[False] * 4 + [True], [True, True, False, False, True]]


def test_the_pool_holds_the_best_blocks_and_always_the_newest():
    inf = torch.inf
    scores = torch.tensor([
        [5.0, 0, 1, 9, 2, 2, -1, -inf],  # visible 7: maxima 5, 9, 2, -1
        [5.0, 5, 5, 1, -inf, -inf, -inf, -inf],  # visible 4: maxima 5, 5
        [-inf] * 8,
    ])  # fmt: skip
    visible = torch.tensor([7, 4, 0])
    assert block_pool(scores, visible, 2, 2).tolist() == [[3, 1], [1, 0], [-1, -1]]
    assert block_pool(scores, visible, 1, 2).tolist() == [[3], [1], [-1]]
    assert block_pool(scores, visible, 5, 3).tolist() == [[2, 1, 0, -1, -1], [1, 0, -1, -1, -1], [-1] * 5]


def test_only_reindex_layers_are_held_to_the_pool():
    cfg = small("encoder-decoder", index_topk=4, index_pool=(None,) * 4 + (1,) + (None,) * 3)
    model = build(cfg)
    _, (pool, full, reindex, encoder) = run(
        model, tokens(1, 13), "blocks.4.attn.indexer.hook_pool", *(PICKS.format(i) for i in (4, 6, 2))
    )
    newest = torch.arange(13) // 2  # stride 1, blocks of 2
    assert torch.equal(pool[0, :, 0], newest)
    inside = reindex[0] // 2 == newest[:, None]
    assert bool((inside | (reindex[0] < 0)).all())
    assert bool((full[0] // 2 != newest[:, None])[full[0] >= 0].any())
    assert int((encoder[0, 12] >= 0).sum()) == 4


def test_a_pick_that_does_not_exist_raises():
    model = build(v4())
    for bad in (3, -2):
        with pytest.raises(SiteError, match=rf"pick {bad} does not exist; valid: -1 \(empty\) to 2"):
            model.run_with_hooks(
                tokens(1, 12), fwd_hooks=[(PICKS.format(0), lambda p, hook, b=bad: p * 0 + b)]
            )


def test_a_block_that_does_not_exist_raises():
    model = build(small("encoder-decoder", index_topk=4, index_pool=(None,) * 4 + (1,) + (None,) * 3))
    name = "blocks.4.attn.indexer.hook_pool"  # 13 entries of one token, blocks of 2
    for bad in (7, -2):
        with pytest.raises(SiteError, match=rf"{name}: block {bad} does not exist; valid: -1 \(empty\) to 6"):
            model.run_with_hooks(tokens(1, 13), fwd_hooks=[(name, lambda pool, hook, b=bad: pool * 0 + b)])


def test_a_pick_from_the_future_reads_nothing():
    model = build(v4(k=1))
    with model.hooks(fwd_hooks=[(PICKS.format(0), lambda picks, hook: picks * 0 + 2)]):
        _, (pattern,) = run(model, tokens(1, 12), PATTERN.format(0))
    assert float(pattern[0, :, :11, 12:15].abs().max()) == 0
    assert bool((pattern[0, :, 11, 14] > 0).all())


# --------------------------------------------------------------------------- training


def test_the_loss_is_the_divergence_over_visible_entries():
    scores = torch.tensor([[[1.0, 0.0, -torch.inf], [-torch.inf] * 3]])
    mass = torch.tensor([[[0.6, 0.2, 0.0], [0.0] * 3]])  # shares ¾, ¼
    total, count = imitation_loss(scores, mass)
    e = torch.tensor(1.0).exp()
    expected = 0.75 * torch.log(0.75 * (e + 1) / e) + 0.25 * torch.log(0.25 * (e + 1))
    assert float(total) == pytest.approx(float(expected), abs=1e-6)
    assert int(count) == 1


def _trained(cfg: ModelConfig):
    model = build(cfg)
    model.train()
    model(tokens(2, 21))
    return model


@pytest.mark.parametrize(
    "mix", ["encoder-decoder", "own indexers, overlap", "dense indexer, strides 1 and 4"]
)
def test_the_loss_compares_scores_with_attention_to_everything(mix):
    """Against maps of the same model attending everything, layer by layer."""
    cfg = small(mix, index_topk=None if "dense" in mix else 3, index_pool=None)
    model = _trained(cfg)
    got = model.auxiliary_loss().detach()
    model.eval()
    ids, losses = tokens(2, 21), []
    for layer in range(cfg.n_layers):
        if cfg.layer(layer).index_heads is None:
            continue
        names = [f"blocks.{layer}.hook_resid_pre", f"blocks.{layer}.attn.indexer.hook_scores"]
        _, (stream, scores) = run(model, ids, *names)
        # Forced picks of everything, in this layer alone, on its own input.
        start = cfg.layer(layer).owner
        _, (own,) = run(model, ids, f"blocks.{start}.hook_resid_pre")
        every = torch.arange(scores.shape[-1]).expand(2, 21, -1)
        edits = [(f"blocks.{layer}.hook_resid_pre", lambda x, hook, s=stream: s)]
        if cfg.layer(layer).index_topk is not None:
            edits.append((PICKS.format(layer), lambda picks, hook, every=every: every.clone()))
        with torch.no_grad(), model.hooks(fwd_hooks=edits):
            _, seen = model.run_with_cache(own, [PATTERN.format(layer)], start_at_layer=start)
        mass = seen[PATTERN.format(layer)][..., 21 : 21 + scores.shape[-1]].sum(1)
        values = []
        for row in range(2):
            for t in range(21):
                visible = int(torch.isfinite(scores[row, t]).sum())
                if visible:
                    p = mass[row, t, :visible] / mass[row, t, :visible].sum()
                    log_q = scores[row, t, :visible].log_softmax(-1)
                    values.append((p * (p.log() - log_q)).sum())
        losses.append(torch.stack(values).mean())
    assert got.ndim == 0
    assert float(got) == pytest.approx(float(torch.stack(losses).mean()), abs=1e-9)


@pytest.mark.parametrize("mix", ["encoder-decoder", "own indexers, overlap"])
def test_each_loss_trains_its_own_part(mix):
    """The auxiliary loss reaches indexers alone, the logits everything else."""
    model = _trained(small(mix))
    model.auxiliary_loss().backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert reached == {name for name, _ in model.named_parameters() if ".indexer." in name}
    model.zero_grad()
    model(tokens(2, 21)).square().sum().backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert reached == {name for name, _ in model.named_parameters() if ".indexer." not in name}


def test_the_indexer_learns_what_it_should_imitate():
    model = build(small("own indexers, overlap", index_dim=8))
    model.train()
    optimiser = torch.optim.Adam([p for n, p in model.named_parameters() if ".indexer." in n], lr=2e-2)
    ids, losses = tokens(4, 24), []
    for _ in range(40):
        model(ids)
        loss = model.auxiliary_loss()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_there_is_a_loss_only_after_training_passes_of_models_with_an_indexer():
    model = build(small("own indexers, overlap"))
    model(tokens(1, 9))
    assert model.auxiliary_loss() is None
    model.train()
    model(tokens(1, 9))
    assert model.auxiliary_loss() is not None
    model.eval()
    assert model.auxiliary_loss() is None
    plain = build(small("all entries, stride 1")).train()
    plain(tokens(1, 9))
    assert plain.auxiliary_loss() is None


def test_a_long_prefill_in_blocks_of_queries_is_the_same(monkeypatch):
    model = build(small("encoder-decoder"))
    ids = tokens(2, 21)
    model.train()
    whole, loss = model(ids), model.auxiliary_loss()
    names = [name for name in model.site_names() if name.endswith(("hook_picks", "hook_pool"))]
    _, chosen = run(model.eval(), ids, *names)
    model.train()
    monkeypatch.setattr("hooks.attention.MAX_SCORES", 400)
    blocks = model(ids)
    assert torch.allclose(blocks, whole, rtol=0, atol=1e-12)
    assert float(model.auxiliary_loss().detach()) == pytest.approx(float(loss.detach()), abs=1e-12)
    logits, again = run(model.eval(), ids, *names)
    assert torch.allclose(logits, whole, rtol=0, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(again, chosen, strict=True))


# --------------------------------------------------------------------------- configuration


def test_defaults_and_dense_mode():
    layer = v4(index_heads=None, index_dim=None).layer(0)
    assert (layer.index_topk, layer.index_heads, layer.index_dim) == (2, 4, 8)
    assert v4(k=None, index_heads=None, index_dim=None).layer(0).index_heads is None
    dense = build(v4(k=None))
    assert "blocks.0.attn.indexer.hook_scores" in dense.site_names()
    assert PICKS.format(0) not in dense.site_names()
    ids = tokens(1, 21)
    cfg = v4(k=None, index_heads=None, index_dim=None)
    plain, theirs = build(cfg), dense.state_dict()
    with torch.no_grad():
        for name, p in plain.named_parameters():
            p.copy_(theirs[name])
    assert torch.equal(dense(ids), plain(ids))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(index_style="v5"), "index_style='v5' in layer 0; valid: compressor, latent"),
        (dict(index_block=0), "index_block=0 is not an integer of at least 1"),
        (dict(index_pool=4, k=None), "index_pool=4 in layer 0: only a full layer with index_topk"),
        (dict(index_precision="mxfp4", index_dim=24), "index_dim=24 is not a multiple of 32"),
        (dict(index_precision="int4"), "unknown precision 'int4'; valid: fp8, fp4, mxfp4"),
        (dict(index_precision="fp8+bf16"), "cannot be stored as fp8\\+bf16"),
    ],
)
def test_impossible_indexers(changes, message):
    with pytest.raises(ConfigError, match=message):
        v4(**changes)
