"""Identities of own models without an indexer, in float64, against loops that share no code with them."""

import itertools

import pytest
import torch

from hooks import CompressedTransformer, ModelConfig, SiteError
from hooks.sites import SITE_AXES, site
from tests.hooks import reference

BASE = {
    "n_layers": 2, "d_model": 12, "n_heads": 4, "n_kv_heads": 2, "d_head": 6, "d_mlp": 10, "d_vocab": 11,
    "window": 4, "stride": 4, "exact_window": 4, "seed": 3,
}  # fmt: skip
VARIANTS = {
    "plain": {},
    "vector": {"gate": "vector"},
    "uniform": {"gate": "uniform", "window": 6},
    "overlap W6/S4": {"window": 6},
    "shared, no bias": {"payload": "shared", "gate_bias": False},
    "two series, tied": {
        "payload": "two_series", "window": 8, "tied_kv": True, "gate": "vector", "rope_dims": 4,
        "inverse_rope": True, "sink": True,
    },
    "open tail": {"tail": "open", "window": 5},
    "no exact branch": {"exact_window": 0},
    "no norm, no rope": {"qk_norm": False, "rope_dims": 0},
    "mixed": {
        "n_layers": 3, "attention": ("full", "sliding", "chunked"), "window": (4, 4, 5), "stride": (4, 4, 3),
        "exact_window": (4, 3, 2),
    },
}  # fmt: skip


def build(**changes):
    model = CompressedTransformer(ModelConfig(**{**BASE, **changes})).double().eval()
    with torch.no_grad():  # gates and sinks away from their near-zero start
        for name, p in model.named_parameters():
            if name.endswith(("W_gate", "b_gate", "sink", "weight")):
                p.add_(
                    torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name)), dtype=p.dtype)
                    * 0.3
                )
    return model


def prompt(length, batch=1, seed=0):
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.filterwarnings("ignore::hooks.transformer.BlindGapWarning")
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_loops_over_positions(changes):
    model, tokens = build(**changes), prompt(10)
    expected = reference.logits(model, tokens[0].tolist())
    assert torch.allclose(model(tokens)[0], expected, atol=1e-10, rtol=0)
    watched, _ = model.run_with_cache(tokens)  # the path that forms attention maps
    assert torch.allclose(watched[0], expected, atol=1e-10, rtol=0)


def pieces(model, tokens, cuts, rewind):
    """Logits and hook values of a prompt given in pieces, joined along positions or entries."""
    cache, parts, kept = model.start_cache(tokens.shape[0], rewind=rewind), [], {}
    for a, b in itertools.pairwise((0, *cuts, tokens.shape[1])):
        if a == b:
            continue
        logits, seen = model.run_with_cache(tokens[:, a:b], cache=cache)
        parts.append(logits)
        for name, value in seen.items():
            kept.setdefault(name, []).append(value)
    joined = {}
    for name, values in kept.items():
        axes = site(name).axes
        if "key" not in axes:
            joined[name] = torch.cat(values, axes.index("pos" if "pos" in axes else "entry"))
    return torch.cat(parts, 1), joined


@pytest.mark.filterwarnings("ignore::hooks.transformer.BlindGapWarning")
@pytest.mark.parametrize("w", [1, 3, 4, 5])
@pytest.mark.parametrize("window", [4, 6])
def test_identity_1_every_split_equals_one_prefill(w, window):
    model = build(exact_window=w, window=window)
    for length in (1, 4, 13):
        tokens = prompt(length, batch=2, seed=length)
        whole, values = model.run_with_cache(tokens)
        splits = [(cut,) for cut in range(1, length)] + [tuple(range(1, length))]
        for i, cuts in enumerate(splits):
            logits, seen = pieces(model, tokens, cuts, rewind=i % 2 == 0)
            assert torch.allclose(logits, whole, atol=1e-10, rtol=0), (length, cuts)
            for name, value in seen.items():
                assert torch.allclose(value, values[name], atol=1e-10, rtol=0), (name, length, cuts)


def test_identity_1_attention_maps_token_by_token_are_rows_of_the_prefill():
    model, tokens = build(window=6, sink=True), prompt(9)
    name = "blocks.1.attn.hook_pattern"
    _, whole = model.run_with_cache(tokens, name)
    cache = model.start_cache(1, rewind=False)
    for t in range(9):
        _, seen = model.run_with_cache(tokens[:, t : t + 1], name, cache=cache)
        entries = (t + 1) // 4
        row = whole[name][0, :, t]
        expected = torch.cat((row[:, : t + 1], row[:, 9 : 9 + entries], row[:, -1:]), -1)
        assert torch.allclose(seen[name][0, :, 0], expected, atol=1e-10)


def test_identity_2_stride_one_without_compression_is_full_attention():
    changes = {"window": 1, "stride": 1, "gate": "uniform", "exact_window": 0}
    ours = build(**changes)
    plain = CompressedTransformer(ModelConfig(**{**BASE, "attention": "full"})).double().eval()
    weights = ours.state_dict()
    with torch.no_grad():
        for name, p in plain.named_parameters():
            if name in weights:
                p.copy_(weights[name])
        for block, other in zip(plain.blocks, ours.blocks, strict=True):
            block.attn.W_K.copy_(other.attn.compressor.key.W_payload[0].permute(1, 0, 2))
            block.attn.W_V.copy_(other.attn.compressor.value.W_payload[0].permute(1, 0, 2))
            block.attn.k_norm.weight.copy_(other.attn.compressor.key.norm.weight)
    tokens = prompt(10)
    assert torch.allclose(ours(tokens), plain(tokens), atol=1e-12, rtol=0)
    both = build(**{**changes, "exact_window": 4})
    assert not torch.allclose(both(tokens), plain(tokens), atol=1e-3)


@pytest.mark.filterwarnings("ignore::hooks.transformer.BlindGapWarning")
def test_identity_3_exactly_the_readers_of_a_token_move():
    model, tokens = build(n_layers=1, exact_window=1), prompt(12)
    before = model(tokens)
    for j in range(12):
        changed = tokens.clone()
        changed[0, j] = (changed[0, j] + 1) % 11
        moved = ((model(changed) - before).abs().amax(-1)[0] > 1e-12).nonzero()[:, 0].tolist()
        closes = model.geometry(0).closes_at(j)
        assert moved == sorted({j} | set(range(closes, 12))), j


def test_identity_4_whole_strides_shift_nothing_without_positions():
    model = build(n_layers=1, rope_dims=0)
    tokens = prompt(12)
    name = "blocks.0.attn.hook_z"
    _, alone = model.run_with_cache(tokens, name)
    for m, equal in ((4, True), (8, True), (3, False)):
        longer = torch.cat((prompt(m, seed=9), tokens), 1)
        hidden = m // 4 if m % 4 == 0 else 1

        def hide(scores, hook, t=m + 12, hidden=hidden):
            scores[..., t : t + hidden] = -torch.inf
            return scores

        kept = {}
        model.run_with_hooks(
            longer,
            fwd_hooks=[
                ("blocks.0.attn.hook_attn_scores", hide),
                (name, lambda z, hook, k=kept: k.update(z=z)),
            ],
        )
        same = torch.allclose(kept["z"][:, m + 3 :], alone[name][:, 3:], atol=1e-10)
        assert same is equal, m


@pytest.mark.parametrize("changes", [{}, VARIANTS["two series, tied"]])
def test_identities_5_and_6_heads_add_up_and_nothing_is_left_without_them(changes):
    model, tokens = build(**changes), prompt(13, batch=2)
    _, seen = model.run_with_cache(tokens)
    for layer in range(2):
        at = f"blocks.{layer}.attn."
        out = seen[f"blocks.{layer}.hook_attn_out"]
        assert torch.allclose(seen[at + "hook_result"].sum(2), out, atol=1e-10)
        none = {}
        model.run_with_hooks(
            tokens,
            fwd_hooks=[
                (at + "hook_z", lambda z, hook: torch.zeros_like(z)),
                (f"blocks.{layer}.hook_attn_out", lambda o, hook, n=none: n.update(o=o)),
            ],
        )
        assert none["o"].abs().max() == 0
        pattern = seen[at + "hook_pattern"]
        assert torch.allclose(pattern.sum(-1), torch.ones_like(pattern.sum(-1)), atol=1e-12)


def test_gates_identity_10():
    model, tokens = build(window=6), prompt(13)
    _, seen = model.run_with_cache(tokens)
    at = "blocks.0.attn.compressor.key."
    gate = seen[at + "hook_gate"]
    assert torch.allclose(gate.sum(2), torch.ones_like(gate.sum(2)), atol=1e-12)
    assert gate[:, 0, :2].abs().max() == 0  # slots before position 0
    flat = {}

    def constant(logits, hook):
        return torch.full_like(logits, 0.7)

    model.run_with_hooks(
        tokens,
        fwd_hooks=[
            (at + "hook_gate_logits", constant),
            (at + "hook_pooled", lambda p, hook: flat.update(p=p)),
        ],
    )
    assert torch.allclose(flat["p"][:, 1], seen[at + "hook_payload"][:, 1].mean(1), atol=1e-12)

    def one_hot(logits, hook):
        logits = torch.full_like(logits, -torch.inf)
        logits[:, :, 5] = 0.0
        return logits

    model.run_with_hooks(
        tokens,
        fwd_hooks=[
            (at + "hook_gate_logits", one_hot),
            (at + "hook_pooled", lambda p, hook: flat.update(p=p)),
        ],
    )
    assert torch.equal(flat["p"], seen[at + "hook_payload"][:, :, 5])


@pytest.mark.parametrize("length", range(1, 10))
def test_forked_rows_equal_their_own_decoding_at_every_query_phase(length):
    model, tokens = build(window=6), prompt(length, batch=3)
    cache = model.start_cache(3, rewind=False)
    if length > 1:
        model(tokens[:, :-1], cache)
    last = torch.randint(11, (3 * 4, 1), generator=torch.Generator().manual_seed(1))
    forked = model(last, cache.fork())
    assert cache.length == length - 1
    for row in range(12):
        own = torch.cat((tokens[row // 4, :-1], last[row]))[None]
        assert torch.allclose(forked[row], model(own)[0, -1:], atol=1e-10), row


def test_crop_equals_a_fresh_run_and_refuses_without_rewind():
    model, tokens = build(window=6), prompt(13)
    for n in range(13):
        cache = model.start_cache(1)
        model(tokens, cache)
        cache.crop(n)
        again = model(tokens[:, n:], cache)
        assert torch.allclose(again, model(tokens)[:, n:], atol=1e-10), n
    cache = model.start_cache(1, rewind=False)
    model(tokens, cache)
    with pytest.raises(Exception, match="rewind=True"):
        cache.crop(3)


def test_sites_are_those_of_the_table_with_its_axes():
    sizes = {"batch": 2, "pos": 13, "d_model": 12, "head": 4, "kv_head": 2, "entry": 3, "offset": 6}
    model = build(window=6, gate="vector")
    _, seen = model.run_with_cache(prompt(13, batch=2))
    assert list(seen)  # fired
    assert set(seen) == set(model.site_names())
    for name, value in seen.items():
        axes = SITE_AXES[site(name).kind]
        assert value.ndim == len(axes), name
        for axis, size in zip(axes, value.shape, strict=True):
            if axis in sizes:
                assert size == sizes[axis], (name, axis)
    assert seen["blocks.0.attn.hook_pattern"].shape == (2, 4, 13, 16)


@pytest.mark.parametrize(
    "name", ["blocks.0.attn.hook_zz", "blocks.7.attn.hook_z", "blocks.0.attn.compressor.key.hook_gate"]
)
def test_names_that_do_not_exist_or_never_fire_raise(name):
    model = build(attention="sliding")
    with pytest.raises(SiteError):
        model.run_with_hooks(prompt(5), fwd_hooks=[(name, lambda t, hook: t)])
    with pytest.raises(SiteError, match="never fired"):
        model.run_with_hooks(
            model.run_with_cache(prompt(5), "blocks.0.hook_resid_post")[1]["blocks.0.hook_resid_post"],
            fwd_hooks=[("blocks.0.attn.hook_z", lambda t, hook: t)],
            start_at_layer=1,
        )


def test_no_hook_outlives_its_context_and_copies_stay_as_they_were():
    model, tokens = build(), prompt(6)
    clean = model(tokens)

    def fail(tensor, hook):
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", fail)])
    assert torch.equal(model(tokens), clean)
    name = "blocks.0.hook_resid_mid"
    kept = {}

    def edit(x, hook):
        kept["live"] = x
        return x

    with model.hooks(fwd_hooks=[(name, edit)]):
        _, seen = model.run_with_cache(tokens, name)
    before = seen[name].clone()
    kept["live"].zero_()
    assert torch.equal(seen[name], before)
