"""Identities 2–10 of own models without an indexer, in float64 (identity 1 is in ``test_cache.py``)."""

import pytest
import torch

from hooks import CompressedTransformer, ModelConfig
from tests.hooks import reference
from tests.hooks.own_models import (
    STACKS,
    VOCAB,
    build,
    difference,
    layer_fields,
    layers_with_every_pair,
    prompt,
    shapes_unchecked,
    stacked,
)

pytestmark = pytest.mark.filterwarnings("ignore::hooks.transformer.BlindGapWarning")

EXACT = 1e-10


@pytest.fixture(autouse=True)
def _fast_sweeps():
    with shapes_unchecked(), torch.no_grad():
        yield


# --------------------------------------------------------------------------- 2: nothing compressed


@pytest.mark.parametrize("fields", [{}, {"n_kv_heads": 1}, {"qk_norm": False}, {"rope_dims": 4}], ids=str)
def test_2_stride_one_and_windows_of_one_token_are_full_attention(fields):
    ours = build({"window": 1, "stride": 1, "gate": "uniform", "exact_window": 0, **fields})
    plain = build({"attention": "full", **fields})
    weights = ours.state_dict()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
        for block, other in zip(plain.blocks, ours.blocks, strict=True):
            pooled = other.attn.compressor
            block.attn.W_K.copy_(pooled.key.W_payload[0].permute(1, 0, 2))
            block.attn.W_V.copy_(pooled.value.W_payload[0].permute(1, 0, 2))
            if pooled.key.norm is not None:
                block.attn.k_norm.weight.copy_(pooled.key.norm.weight)
    tokens = prompt(12, batch=2)
    assert difference(ours(tokens), plain(tokens)) <= EXACT
    assert difference(plain(tokens)[0], reference.logits(plain, tokens[0].tolist())) <= EXACT
    # With the exact branch on, every token is read twice.
    both = build({"window": 1, "stride": 1, "gate": "uniform", "exact_window": 4, **fields})
    with torch.no_grad():
        for name, parameter in both.named_parameters():
            parameter.copy_(weights[name] if name in weights else plain.state_dict()[name])
    assert difference(both(tokens), plain(tokens)) > 1e-3


# --------------------------------------------------------------------------- 3: causality


def positions_moved(model, tokens):
    """For every token j, the positions whose logits change when it does; one prompt a row."""
    length = tokens.shape[1]
    changed = (tokens + torch.eye(length, dtype=torch.long)) % VOCAB
    with torch.no_grad():
        moved = (model(changed) - model(tokens.expand(length, -1))).abs().amax(-1) > 1e-9
    return [set(row.nonzero()[:, 0].tolist()) for row in moved]


@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("stride", [1, 2, 4, 5])
def test_3_with_w_1_and_no_overlap_exactly_the_readers_of_a_token_move(n_layers, stride):
    model = build(n_layers=n_layers, exact_window=1, window=stride, stride=stride)
    tokens = prompt(3 * stride + 2)
    for j, moved in enumerate(positions_moved(model, tokens)):
        closes = (j // stride + 1) * stride - 1
        assert moved == {j} | set(range(closes, tokens.shape[1]))


def reached(model, j, length):
    """Positions that can hear of token j, through any chain of layers."""
    cfg, heard = model.cfg, {j}
    for index in range(cfg.n_layers):
        stride, window = reference.field(cfg, "stride", index), reference.field(cfg, "window", index)
        now = set(heard)
        for query in range(length):
            exact = [p for p in range(query + 1) if reference.reads_exactly(cfg, index, query, p)]
            pooled = []
            if reference.field(cfg, "attention", index) == "chunked":
                for last in range(stride - 1, query + 1, stride):
                    pooled += range(max(0, last - window + 1), last + 1)
            if heard & {*exact, *pooled}:
                now.add(query)
        heard = now
    return heard


@pytest.mark.parametrize("stack", STACKS)
def test_3_exactly_the_positions_that_can_hear_of_a_token_move(stack):
    model, tokens = build(STACKS[stack]), prompt(14)
    for j, moved in enumerate(positions_moved(model, tokens)):
        assert min(moved) == j, "nothing before it"
        assert moved == reached(model, j, 14), j


EVERY_PAIR = layers_with_every_pair()


def test_3_no_variant_hears_of_the_future():
    for first in range(0, len(EVERY_PAIR), 3):
        layers = [layer_fields(choice) for choice in EVERY_PAIR[first : first + 3]]
        model, tokens = build(stacked(*layers)), prompt(11, seed=first)
        for j, moved in enumerate(positions_moved(model, tokens)):
            assert moved == reached(model, j, 11), (first, j)


# --------------------------------------------------------------------------- 4: shifts


def outputs_after(model, before, tokens, hidden):
    """Head outputs of `tokens` behind `before`, whose positions and `hidden` first entries nobody may read."""
    n, z = before.shape[1] + tokens.shape[1], {}

    def hide(scores, hook):
        scores = scores.clone()
        scores[..., n : n + hidden] = -torch.inf
        return scores

    name = "blocks.0.attn.hook_z"
    hooks = [("blocks.0.attn.hook_attn_scores", hide), (name, lambda x, hook: z.update(z=x.clone()))]
    with torch.no_grad():
        model.run_with_hooks(torch.cat((before, tokens), dim=1), fwd_hooks=hooks)
    return z["z"][:, before.shape[1] :]


@pytest.mark.parametrize("w", [1, 4, 6])
@pytest.mark.parametrize("gate", ["scalar", "vector", "uniform"])
def test_4_without_positions_prepending_whole_windows_changes_nothing(w, gate):
    model, tokens = build(n_layers=1, rope_dims=0, exact_window=w, gate=gate), prompt(15)
    alone = outputs_after(model, tokens[:, :0], tokens, 0)
    for m in (1, 2, 3):
        longer = outputs_after(model, prompt(4 * m, seed=9), tokens, m)
        assert difference(longer[:, w - 1 :], alone[:, w - 1 :]) <= EXACT
    for odd in (3, 5):
        shifted = outputs_after(model, prompt(odd, seed=9), tokens, odd // 4)
        assert difference(shifted[:, w - 1 :], alone[:, w - 1 :]) > 1e-3
    # Left visible, the entries of what was prepended are read.
    assert (
        difference(outputs_after(model, prompt(4, seed=9), tokens, 0)[:, w - 1 :], alone[:, w - 1 :]) > 1e-3
    )


# --------------------------------------------------------------------------- 5: removing


@pytest.mark.parametrize("stack", STACKS)
def test_5_without_heads_nothing_is_left_of_the_attention_output(stack):
    model, tokens = build(STACKS[stack]), prompt(13)
    kept = {}
    hooks = [
        (lambda name: name.endswith("hook_z"), lambda x, hook: torch.zeros_like(x)),
        (lambda name: name.endswith("hook_attn_out"), lambda x, hook: kept.__setitem__(hook.name, x)),
    ]
    model.run_with_hooks(tokens, fwd_hooks=hooks)
    assert len(kept) == model.cfg.n_layers
    assert all(value.abs().max() == 0 for value in kept.values())


@pytest.mark.parametrize("sink", [False, True])
def test_5_zeroed_entries_still_draw_mass_and_masked_ones_do_not(sink):
    model, tokens = build(n_layers=1, sink=sink), prompt(13)
    at, seen = "blocks.0.attn.", {}

    def run(*hooks):
        watch = [
            (at + kind, lambda x, hook: seen.__setitem__(hook.name, x.clone()))
            for kind in ("hook_pattern", "hook_z")
        ]
        model.run_with_hooks(tokens, fwd_hooks=[*hooks, *watch])
        return seen[at + "hook_pattern"][..., 13:16].sum(-1), seen[at + "hook_z"]

    zero = [(at + kind, lambda x, hook: torch.zeros_like(x)) for kind in ("hook_entry_k", "hook_entry_v")]
    mass, zeroed = run(*zero)
    assert (mass[..., 3:] > 0.01).all()

    def mask(scores, hook):
        scores[..., 13:16] = -torch.inf

    mass, masked = run((at + "hook_attn_scores", mask))
    assert mass.abs().max() == 0
    assert difference(zeroed, masked) > 1e-3
    # Masked, it is the same layer with a window alone.
    weights = {name: value for name, value in model.state_dict().items() if "compressor" not in name}
    window = CompressedTransformer(model.cfg.replace(attention="sliding"), weights=weights).eval()
    assert difference(window.run_with_cache(tokens, at + "hook_z")[1][at + "hook_z"], masked) <= EXACT


# --------------------------------------------------------------------------- 6: sums


@pytest.mark.parametrize("stack", STACKS)
def test_6_heads_add_up_to_the_output_and_both_parts_to_each_head(stack):
    model, tokens = build(STACKS[stack]), prompt(13, batch=2)
    _, seen = model.run_with_cache(tokens)
    for layer in range(model.cfg.n_layers):
        at, kind = f"blocks.{layer}.attn.", model.cfg.layer(layer)
        out = seen[f"blocks.{layer}.hook_attn_out"]
        assert difference(seen[at + "hook_result"].sum(2), out) <= EXACT
        pattern = seen[at + "hook_pattern"]
        readable = (pattern.sum(-1) > 0).double()
        assert difference(pattern.sum(-1), readable) <= 1e-12
        if kind.has_exact_branch or kind.sink:
            assert readable.min() == 1
        whole = torch.zeros_like(seen[at + "hook_z"])
        for values, first in ((at + "hook_v", 0), (at + "hook_entry_v", 13)):
            if values in seen:
                read = seen[values].repeat_interleave(2, dim=2)  # query heads share
                whole += torch.einsum("bhtn,bnhd->bthd", pattern[..., first : first + read.shape[1]], read)
        if kind.inverse_rope:
            for b in range(2):
                for t in range(13):
                    for h in range(4):
                        whole[b, t, h] = reference.turned(whole[b, t, h], -t, kind.rope_dims, kind.rope_base)
        assert difference(whole, seen[at + "hook_z"]) <= EXACT
        by_head = torch.einsum("bthd,hdm->bthm", seen[at + "hook_z"], model.blocks[layer].attn.W_O)
        assert difference(by_head, seen[at + "hook_result"]) <= EXACT


# --------------------------------------------------------------------------- 7, 8: replacing


@pytest.mark.parametrize("stack", STACKS)
def test_7_and_8_a_prompts_own_values_their_mean_and_its_twins_change_nothing_at_any_site(stack):
    model, tokens = build(STACKS[stack]), prompt(13).expand(5, -1)
    with torch.no_grad():
        clean, seen = model.run_with_cache(tokens)
        for name in model.site_names():
            own, shape = seen[name], seen[name].shape[1:]
            other = 0.5 + torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=own.dtype)
            # Clean into clean; the mean over one repeated prompt; two rows each other's; and something else.
            value = torch.stack((own[0], own.mean(0), own[3], own[2], own[4] * other))
            edited = model.run_with_hooks(tokens, fwd_hooks=[(name, lambda x, hook, v=value: v)])
            assert difference(edited[:4], clean[:4]) <= EXACT, name
            assert difference(edited[4], clean[4]) > 1e-6, name  # the edit is heard


@pytest.mark.parametrize("stack", STACKS)
def test_8_patching_the_whole_stream_gives_the_other_run(stack):
    model, clean, corrupt = build(STACKS[stack]), prompt(13), prompt(13, seed=4)
    for name in (
        "hook_embed",
        "blocks.0.hook_resid_pre",
        "blocks.1.hook_resid_mid",
        "blocks.2.hook_resid_post",
    ):
        logits, seen = model.run_with_cache(clean, name)
        patched = model.run_with_hooks(corrupt, fwd_hooks=[(name, lambda x, hook, s=seen[name]: s)])
        assert difference(patched, logits) <= EXACT
        assert difference(patched, model(corrupt)) > 1e-2
    # Half of the stream is not the whole of it.
    half = model.run_with_hooks(
        corrupt, fwd_hooks=[("hook_embed", lambda x, hook: torch.cat((x[:, :6], model.W_E[clean[:, 6:]]), 1))]
    )
    assert difference(half, model(clean)) > 1e-6


# --------------------------------------------------------------------------- 9 without an indexer


@pytest.mark.parametrize("k", [1, 2, 3, 512])
def test_9_picking_as_many_as_are_visible_is_attending_all(k):
    fields = {"index_heads": 2, "index_dim": 4, "n_layers": 1}
    model, tokens = build(index_topk=k, **fields), prompt(15)
    weights = {name: value for name, value in model.state_dict().items() if "indexer" not in name}
    plain = CompressedTransformer(
        model.cfg.replace(index_topk=None, index_heads=None, index_dim=None), weights=weights
    )
    gap = (model(tokens) - plain.eval()(tokens)).abs().amax(-1)[0]
    visible = torch.tensor([(t + 1) // 4 for t in range(15)])
    assert gap[visible <= k].max() <= EXACT
    if (visible > k).any():
        assert gap[visible > k].min() > 1e-9


# --------------------------------------------------------------------------- 10 is in test_compressor.py


def test_10_gates_hold_at_any_size():
    for window, stride in ((1, 1), (5, 1), (5, 5), (7, 3), (8, 6), (8, 4)):
        cfg = ModelConfig(
            **{**build().cfg.to_dict(), "window": window, "stride": stride, "gate": "vector", "n_layers": 1}
        )
        model = CompressedTransformer(cfg).double().eval()
        _, seen = model.run_with_cache(prompt(17), lambda name: name.endswith("hook_gate"))
        for gate in seen.values():
            assert gate.shape[1:3] == (17 // stride, window)
            assert difference(gate.sum(2), torch.ones_like(gate.sum(2))) <= 1e-12
