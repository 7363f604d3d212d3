"""The hooked Hugging Face class: parity, names, shapes, edits, decoding, refusals."""

from __future__ import annotations

import copy

import pytest
import torch

from hooks.errors import ConfigError, ModelCheckError, PhaselensError, SiteError
from hooks.geometry import ChunkGeometry
from tests.hooks.deepseek_models import CSA, HCA, SLIDING, hooked, tokens, v4

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


# ---------------------------------------------------------------------- parity, names, shapes


@pytest.mark.parametrize(("csa", "hca"), [(2, 16), (4, 8), (8, 2), (16, 4)])
def test_logits_are_bit_equal_to_the_plain_model(csa, hca):
    plain, model = hooked(csa, hca)
    ids = tokens(2, 37)
    expected = plain(ids).logits
    assert torch.equal(model(ids), expected)
    assert torch.equal(model.run_with_cache(ids)[0], expected)
    assert torch.equal(model.bridge(ids), expected)
    assert torch.equal(plain(ids).logits, expected)


def test_every_site_has_the_promised_shape():
    _, model = hooked()
    _, seen = model.run_with_cache(tokens(2, 19))
    assert list(seen) == model.site_names()
    b, t, h, d, m, hc = 2, 19, 4, 12, 24, 2
    stream = {
        "hook_resid_pre": (b, t, hc, m),
        "hook_resid_mid": (b, t, hc, m),
        "hook_resid_post": (b, t, hc, m),
    }
    both = {
        "hook_attn_out": (b, t, m), "hook_mlp_out": (b, t, m),
        "attn.hook_q": (b, t, h, d), "attn.hook_rot_q": (b, t, h, d), "attn.hook_z": (b, t, h, d),
        "attn.hook_k": (b, t, 1, d), "attn.hook_rot_k": (b, t, 1, d), "attn.hook_v": (b, t, 1, d),
        "attn.hook_result": (b, t, h, m),
    }  # fmt: skip
    expected = {"hook_embed": (b, t, m)}
    for layer, (entries, width) in enumerate([(0, 0), (4, 8), (2, 8), (4, 8)]):
        sites = {**stream, **both}
        for name in ("hook_attn_scores", "hook_pattern"):
            sites[f"attn.{name}"] = (b, h, t, t + entries + 1)
        if entries:
            for name in ("attn.hook_entry_k", "attn.hook_entry_v", "attn.compressor.key.hook_pooled",
                         "attn.compressor.key.hook_entry"):  # fmt: skip
                sites[name] = (b, entries, 1, d)
            for name in ("hook_gate_logits", "hook_gate", "hook_payload"):
                sites[f"attn.compressor.key.{name}"] = (b, entries, width, 1, d)
        if layer in (1, 3):
            sites["attn.indexer.hook_scores"] = (b, t, entries)
            sites["attn.indexer.hook_picks"] = (b, t, entries)
            for name in ("hook_gate_logits", "hook_gate", "hook_payload"):
                sites[f"attn.indexer.compressor.{name}"] = (b, entries, width, 1, 8)
            for name in ("hook_pooled", "hook_entry"):
                sites[f"attn.indexer.compressor.{name}"] = (b, entries, 1, 8)
        expected |= {f"blocks.{layer}.{name}": shape for name, shape in sites.items()}
    assert {name: tuple(tensor.shape) for name, tensor in seen.items()} == expected


def test_geometry_and_slot_labels():
    _, model = hooked()
    assert [model.geometry(i) for i in range(4)] == [
        None, ChunkGeometry(8, 4), ChunkGeometry(8, 8), ChunkGeometry(8, 4)
    ]  # fmt: skip
    csa = model.slot_labels(1, entry=0)
    assert [(s.offset, s.series, s.phase, s.token) for s in csa] == [
        (0, "a", 0, None), (1, "a", 1, None), (2, "a", 2, None), (3, "a", 3, None),
        (4, "b", 0, 0), (5, "b", 1, 1), (6, "b", 2, 2), (7, "b", 3, 3),
    ]  # fmt: skip
    assert [s.token for s in model.slot_labels(1, entry=2)] == list(range(4, 12))
    assert [(s.series, s.phase, s.token) for s in model.slot_labels(2)] == [("b", p, 8 + p) for p in range(8)]
    with pytest.raises(ConfigError, match="layer 0 has no compressor; valid: 1, 2, 3"):
        model.slot_labels(0)
    for entry in (-1, -8):
        with pytest.raises(ConfigError, match=f"entry {entry}"):
            model.slot_labels(1, entry)


def test_sizes_and_hash():
    _, model = hooked()
    cfg = model.cfg
    sizes = (cfg.n_layers, cfg.d_model, cfg.n_heads, cfg.n_kv_heads, cfg.d_head, cfg.d_vocab)
    assert sizes == (4, 24, 4, 1, 12, 50)
    assert cfg.strides == (4, 8)
    from hooks import hook_deepseek_v4

    other = v4()
    assert hook_deepseek_v4(other).content_hash() == model.content_hash()
    other.lm_head.weight[0, 0] += 1
    assert hook_deepseek_v4(other).content_hash() != model.content_hash()
    wider = v4(rms_norm_eps=1e-3)
    assert hook_deepseek_v4(wider, check=False).content_hash() != model.content_hash()


# ---------------------------------------------------------------------- what the sites hold


def _attention_inputs(plain, ids):
    """Inputs of every layer's attention in the plain model."""
    seen = []
    handles = [
        layer.input_layernorm.register_forward_hook(lambda m, a, out: seen.append(out))
        for layer in plain.model.layers
    ]
    plain(ids)
    for handle in handles:
        handle.remove()
    return seen


def _rotate(vector, position, base, sign=1):
    """Rotate the last 4 of 12 channels, pair by pair."""
    out = vector.clone()
    for pair in range(2):
        angle = torch.tensor(sign * position * base ** (-pair / 2))
        even, odd = vector[8 + 2 * pair].clone(), vector[9 + 2 * pair].clone()
        out[8 + 2 * pair] = even * angle.cos() - odd * angle.sin()
        out[9 + 2 * pair] = even * angle.sin() + odd * angle.cos()
    return out


@pytest.mark.parametrize("layer", [1, 2])
def test_gates_payloads_and_entries_slot_by_slot(layer):
    plain, model = hooked()
    ids = tokens(1, 19)
    x = _attention_inputs(plain, ids)[layer][0]
    compressor = plain.model.layers[layer].self_attn.compressor
    _, seen = model.run_with_cache(ids, lambda name: f"{layer}.attn.compressor" in name)
    site = {name.rsplit(".", 1)[1]: tensor[0, :, ..., 0, :] for name, tensor in seen.items()}
    stride, gate_w, kv_w = compressor.compress_rate, compressor.gate_proj.weight, compressor.kv_proj.weight
    for entry in range(19 // stride):
        logits, payload = torch.full((8, 12), -torch.inf), torch.zeros(8, 12)
        for label in model.slot_labels(layer, entry):
            if label.token is None:
                continue
            # Series a is the first half of the projection; without overlap there is no other half.
            half = slice(0, 12) if label.series == "a" or layer == 2 else slice(12, 24)
            logits[label.offset] = (gate_w @ x[label.token] + compressor.position_bias[label.phase])[half]
            payload[label.offset] = (kv_w @ x[label.token])[half]
        gate = logits.exp() / logits.exp().sum(0)
        pooled = (gate * payload).sum(0)
        normed = pooled / (pooled.square().mean() + 1e-6).sqrt() * compressor.kv_norm.weight
        torch.testing.assert_close(site["hook_gate_logits"][entry], logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(site["hook_gate"][entry], gate, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(site["hook_payload"][entry], payload, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(site["hook_pooled"][entry], pooled, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(
            site["hook_entry"][entry], _rotate(normed, entry * stride, 160000.0), atol=1e-5, rtol=1e-5
        )
    if layer == 1:
        assert float(site["hook_gate"][0, :4].abs().max()) == 0.0


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_patterns_and_z_follow_from_the_reads(layer):
    plain, model = hooked()
    length, query = 19, 17
    _, seen = model.run_with_cache(tokens(1, length), lambda name: f"blocks.{layer}.attn.hook" in name)
    site = {name.rsplit(".", 1)[1]: tensor[0] for name, tensor in seen.items()}
    attention = plain.model.layers[layer].self_attn
    keys, values = list(site["hook_rot_k"][:, 0]), list(site["hook_v"][:, 0])
    readable = [max(0, query - 5) <= position <= query for position in range(length)]
    if layer:
        stride = attention.compressor.compress_rate
        keys += list(site["hook_entry_k"][:, 0])
        values += list(site["hook_entry_v"][:, 0])
        readable += [(entry + 1) * stride - 1 <= query for entry in range(length // stride)]
    base = 10000.0 if layer == 0 else 160000.0
    for head in range(4):
        q = site["hook_rot_q"][query, head]
        scores = [
            float(q @ k) * 12**-0.5 if seen_ else -torch.inf for k, seen_ in zip(keys, readable, strict=True)
        ]
        scores = torch.tensor([*scores, float(attention.sinks[head])])
        weights = scores.exp() / scores.exp().sum()
        torch.testing.assert_close(site["hook_attn_scores"][head, query], scores, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(site["hook_pattern"][head, query], weights, atol=1e-6, rtol=1e-5)
        mixed = sum(w * v for w, v in zip(weights[:-1], values, strict=True))
        z = _rotate(mixed, query, base, sign=-1)
        torch.testing.assert_close(site["hook_z"][query, head], z, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------- edits


KINDS = [
    "hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out",
    *(f"attn.{n}" for n in ("hook_q", "hook_k", "hook_v", "hook_rot_q", "hook_rot_k", "hook_entry_k",
                            "hook_entry_v", "hook_attn_scores", "hook_pattern", "hook_z", "hook_result")),
    *(f"attn.{branch}.{n}" for branch in ("compressor.key", "indexer.compressor")
      for n in ("hook_gate_logits", "hook_gate", "hook_payload", "hook_pooled", "hook_entry")),
    "attn.indexer.hook_scores", "attn.indexer.hook_picks",
]  # fmt: skip


def test_kinds_are_all_sites():
    _, model = hooked(topk=2)
    assert {f"blocks.1.{kind}" for kind in KINDS} == {
        n for n in model.site_names() if n.startswith("blocks.1.")
    }


@pytest.mark.parametrize("kind", [*KINDS, "hook_embed"])
@pytest.mark.parametrize("in_place", [False, True])
def test_an_edit_at_every_site_reaches_the_logits_and_is_gone_afterwards(kind, in_place):
    plain, model = hooked(topk=2)
    ids = tokens(2, 23)
    name = kind if kind == "hook_embed" else f"blocks.1.{kind}"
    generator = torch.Generator().manual_seed(3)

    def edit(tensor, hook):
        if kind.endswith("picks"):
            new = torch.where(tensor > 0, tensor - 1, tensor)
        else:
            new = tensor + torch.randn(tensor.shape, generator=generator)
        if not in_place:
            return new
        tensor.copy_(new)
        return None

    expected = plain(ids).logits
    edited = model.run_with_hooks(ids, fwd_hooks=[(name, edit)])
    assert float((edited - expected).abs().max()) > 1e-3
    # Position 2 closes no window: compressor sites cannot reach it, and nothing flows backwards.
    if ".compressor." in name or ".indexer." in name:
        torch.testing.assert_close(edited[:, :3], expected[:, :3], atol=1e-5, rtol=1e-5)
    assert torch.equal(model(ids), expected)
    assert not any(point.fwd_hooks for point in model.hook_points())


def test_key_and_value_reads_are_separate():
    _, model = hooked()
    ids = tokens(1, 19)
    watch = ["blocks.1.attn.hook_pattern", "blocks.1.attn.hook_v", "blocks.1.attn.hook_entry_v"]
    clean = model.run_with_cache(ids, watch)[1]
    for name, moves_pattern in [
        ("hook_rot_k", True), ("hook_entry_k", True), ("hook_v", False), ("hook_entry_v", False)
    ]:  # fmt: skip
        with model.hooks([(f"blocks.1.attn.{name}", lambda t, hook: t * 2)]):
            seen = model.run_with_cache(ids, watch)[1]
        assert torch.equal(seen[watch[0]], clean[watch[0]]) is not moves_pattern
        for value in watch[1:]:
            assert torch.equal(seen[value], clean[value]) is not value.endswith(name)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_zeroing_a_head_at_z_equals_zeroing_its_slice_of_the_output_map(layer):
    plain, model = hooked()
    ids = tokens(2, 19)
    for head in range(4):
        other = copy.deepcopy(plain)
        # Two groups of two heads; rows of a group read that group's heads side by side.
        weight = other.model.layers[layer].self_attn.o_a_proj.weight
        weight[(head // 2) * 8 : (head // 2 + 1) * 8, (head % 2) * 12 : (head % 2 + 1) * 12] = 0

        def zero(tensor, hook, head=head):
            tensor[:, :, head] = 0
            return tensor

        at_z = model.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", zero)])
        at_result = model.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_result", zero)])
        assert torch.equal(at_z, other(ids).logits)
        torch.testing.assert_close(at_result, at_z, atol=2e-5, rtol=1e-4)


def test_heads_sum_to_the_attention_output_and_all_ablated_is_zero():
    _, model = hooked()
    ids = tokens(2, 19)
    _, seen = model.run_with_cache(ids, lambda n: n.endswith(("hook_result", "hook_attn_out")))
    for layer in range(4):
        torch.testing.assert_close(
            seen[f"blocks.{layer}.attn.hook_result"].sum(2), seen[f"blocks.{layer}.hook_attn_out"],
            atol=1e-5, rtol=1e-4,
        )  # fmt: skip
    with model.hooks([("blocks.1.attn.hook_z", lambda t, hook: t * 0)]):
        _, ablated = model.run_with_cache(ids, ["blocks.1.hook_attn_out"])
    assert float(ablated["blocks.1.hook_attn_out"].abs().max()) == 0.0


def test_a_masked_branch_leaves_a_renormalised_softmax():
    _, model = hooked()
    ids = tokens(1, 19)

    def hide_entries(scores, hook):
        scores[..., 19:-1] = -torch.inf
        return scores

    name = "blocks.1.attn.hook_pattern"
    clean = model.run_with_cache(ids, [name])[1][name]
    with model.hooks([("blocks.1.attn.hook_attn_scores", hide_entries)]):
        masked = model.run_with_cache(ids, [name])[1][name]
    kept = torch.cat((clean[..., :19], clean[..., -1:]), -1)
    expected = kept / kept.sum(-1, keepdim=True)
    assert float(masked[..., 19:-1].abs().max()) == 0.0
    torch.testing.assert_close(
        torch.cat((masked[..., :19], masked[..., -1:]), -1), expected, atol=1e-6, rtol=1e-4
    )


def test_gradients_flow_to_sites():
    _, model = hooked()
    with torch.enable_grad():
        held = {}

        def hold(tensor, hook):
            tensor.retain_grad()
            held[hook.name] = tensor

        names = [
            "blocks.1.attn.hook_z",
            "blocks.1.attn.compressor.key.hook_gate",
            "blocks.1.attn.hook_pattern",
        ]
        with model.hooks([(name, hold) for name in names]):
            model(tokens(1, 19))[0, -1].sum().backward()
        assert all(float(held[name].grad.abs().max()) > 0 for name in names)
    model.plain.zero_grad(set_to_none=True)


def test_stock_patching_functions_work():
    import transformer_lens.patching as patching

    from hooks import hook_deepseek_v4

    model = hook_deepseek_v4(v4(layers=(CSA, HCA)))
    clean, corrupted = tokens(1, 11, seed=1), tokens(1, 11, seed=2)
    _, cache = model.run_with_cache(clean)
    got = patching.get_act_patch_attn_head_out_all_pos(
        model, corrupted, cache, lambda logits: logits[0, -1, 3]
    )
    for layer, head in [(0, 1), (1, 3)]:

        def put(z, hook, layer=layer, head=head):
            z[:, :, head] = cache[f"blocks.{layer}.attn.hook_z"][:, :, head]
            return z

        by_hand = model.run_with_hooks(corrupted, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", put)])[0, -1, 3]
        assert float(got[layer, head]) == float(by_hand)
    every = patching.get_act_patch_attn_head_all_pos_every(
        model, corrupted, cache, lambda logits: logits[0, -1, 3]
    )
    assert every.shape == (5, 2, 4)
    assert bool((every[3, :, 1:] == 0).all()), "one KV head: the others of v are padding"


# ---------------------------------------------------------------------- decoding, forks, partial runs


@pytest.mark.parametrize("topk", [64, 2])
def test_decoding_in_pieces_equals_one_prefill_logits_and_sites(topk):
    _, model = hooked(topk=topk)
    ids = tokens(2, 37)
    expected, whole = model.run_with_cache(ids)
    sizes, cache, pieces, logits = [1, 3, 4, 5, 16, 8], model.start_cache(2), [], []
    for end, size in zip(torch.tensor(sizes).cumsum(0).tolist(), sizes, strict=True):
        out, seen = model.run_with_cache(ids[:, end - size : end], cache=cache)
        logits.append(out)
        pieces.append(seen)
        assert cache.length == end
        for layer in (1, 3):
            name = f"blocks.{layer}.attn.indexer.hook_picks"
            picks = [[set(row.tolist()) - {-1} for row in rows] for rows in seen[name]]
            assert picks == [
                [set(row.tolist()) - {-1} for row in rows[end - size : end]] for rows in whole[name]
            ]
    torch.testing.assert_close(torch.cat(logits, 1), expected, atol=1e-4, rtol=1e-4)
    for name in model.site_names():
        if name.endswith("picks"):
            continue
        if name.endswith(("pattern", "attn_scores", "hook_scores")):
            # Maps of one call are rows of the whole map; at the last call all columns are there.
            whole_map = whole[name] if name.endswith("hook_scores") else whole[name].transpose(1, 2)
            last = pieces[-1][name] if name.endswith("hook_scores") else pieces[-1][name].transpose(1, 2)
            torch.testing.assert_close(last, whole_map[:, -8:], atol=1e-4, rtol=1e-4)
        else:
            joined = torch.cat([seen[name] for seen in pieces], 1)
            torch.testing.assert_close(joined, whole[name], atol=1e-4, rtol=1e-4)


def test_decoding_token_by_token_equals_one_prefill():
    for topk in (64, 2):
        _, model = hooked(topk=topk)
        ids, cache = tokens(1, 21), model.start_cache(1)
        logits = [model(ids[:, t : t + 1], cache) for t in range(21)]
        torch.testing.assert_close(torch.cat(logits, 1), model(ids), atol=1e-4, rtol=1e-4)


def test_edits_of_entries_and_keys_reach_later_calls_through_the_cache():
    _, model = hooked()
    ids = tokens(1, 20)
    for name in ("compressor.key.hook_gate", "compressor.key.hook_entry", "hook_k"):
        edit = (f"blocks.1.attn.{name}", lambda t, hook: t.flip(-1))
        expected = model.run_with_hooks(ids, fwd_hooks=[edit])[:, -1]
        cache = model.start_cache(1)
        with model.hooks([edit]):
            model(ids[:, :19], cache)
            got = model(ids[:, 19:], cache)[:, -1]
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
        assert float((got - model(ids)[:, -1]).abs().max()) > 1e-3


@pytest.mark.parametrize("past", [3, 15, 18])
def test_a_fork_runs_variants_of_the_next_token_and_leaves_its_parent_alone(past):
    _, model = hooked()
    ids, variants = tokens(2, past), tokens(6, 2, seed=5)
    cache = model.start_cache(2)
    model(ids, cache)
    fork = cache.fork()
    got = model(variants, fork)
    for b in range(2):
        for u in range(3):
            alone = model(torch.cat((ids[b], variants[3 * b + u]))[None])[:, -2:]
            torch.testing.assert_close(got[3 * b + u][None], alone, atol=1e-4, rtol=1e-4)
    assert fork.length == cache.length == past
    assert torch.equal(model(variants, cache.fork()), got)
    copy_ = cache.clone()
    after = model(variants[:2], cache)
    assert cache.length == past + 2
    assert copy_.length == past
    assert torch.equal(model(variants[:2], copy_), after)
    with pytest.raises(PhaselensError, match="5 rows do not fit a cache of 2 sequences"):
        model(tokens(5, 1), fork)
    with pytest.raises(PhaselensError, match="clone"):
        cache.crop(1)


def test_edits_of_index_keys_reach_later_picks_through_the_cache():
    _, model = hooked(topk=2)
    ids, picks = tokens(1, 20), "blocks.1.attn.indexer.hook_picks"
    edit = ("blocks.1.attn.indexer.compressor.hook_entry", lambda t, hook: -t)
    with model.hooks([edit]):
        expected = model.run_with_cache(ids, [picks])[1][picks][0, -1]
        cache = model.start_cache(1)
        model(ids[:, :19], cache)
        got = model.run_with_cache(ids[:, 19:], [picks], cache=cache)[1][picks][0, -1]
    assert set(got.tolist()) == set(expected.tolist())
    assert set(got.tolist()) != set(model.run_with_cache(ids, [picks])[1][picks][0, -1].tolist())


def test_a_fork_runs_layer_by_layer_while_variants_join():
    # How interventions at the final position are run; layer 0 routes by token id.
    _, model = hooked()
    ids, cache = tokens(2, 16), model.start_cache(2)
    model(ids[:, :-1], cache, last_only=True)
    fork = cache.fork()
    stream = model(ids[:, -1:], fork, stop_at_layer=0)
    stream = model(stream, fork, start_at_layer=0, stop_at_layer=1)
    stream = stream.repeat_interleave(3, 0)
    zero = (
        "blocks.1.attn.hook_z",
        lambda z, hook: z * torch.tensor([1.0, 0.0, 1.0]).repeat(2)[:, None, None, None],
    )
    with model.hooks([zero]):
        stream = model(stream, fork, start_at_layer=1, stop_at_layer=2)
    logits = model(stream, fork, start_at_layer=2, last_only=True)
    clean = model(ids)[:, -1]
    torch.testing.assert_close(logits[[0, 3], 0], clean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[[2, 5], 0], clean, atol=1e-4, rtol=1e-4)

    def final(z, hook):
        z[:, -1] = 0

    edited = model.run_with_hooks(ids, fwd_hooks=[("blocks.1.attn.hook_z", final)])[:, -1]
    torch.testing.assert_close(logits[[1, 4], 0], edited, atol=1e-4, rtol=1e-4)
    assert float((edited - clean).abs().max()) > 1e-3


def test_layers_can_be_run_in_two_halves_and_the_last_position_alone():
    _, model = hooked()
    ids = tokens(2, 19)
    expected = model(ids)
    for layer in (1, 2, 3):
        streams = model(ids, stop_at_layer=layer)
        kept = streams.clone()
        assert streams.shape == (2, 19, 2, 24)
        assert torch.equal(model(streams, start_at_layer=layer), expected)
        # An edit in place inside the run does not reach the caller's tensor.
        model.run_with_hooks(
            streams,
            fwd_hooks=[(f"blocks.{layer}.hook_resid_pre", lambda t, hook: t.zero_())],
            start_at_layer=layer,
        )
        assert torch.equal(streams, kept)
    torch.testing.assert_close(model(ids, last_only=True), expected[:, -1:], atol=1e-5, rtol=1e-5)
    with pytest.raises(PhaselensError, match="layer 0 routes by token id; give token_ids"):
        model(model(ids, stop_at_layer=0), start_at_layer=0)
    start = model(ids, stop_at_layer=0)
    assert torch.equal(model(start, start_at_layer=0, token_ids=ids), expected)
    with pytest.raises(PhaselensError, match=r"needs residual streams \[batch, pos, 2, 24\]"):
        model(start[:, :, 0], start_at_layer=1)
    with pytest.raises(PhaselensError, match="layers 0 to 5 do not exist"):
        model(ids, stop_at_layer=5)
    cache = model.start_cache(2)
    model(ids, cache, stop_at_layer=2)
    with pytest.raises(PhaselensError, match="run all layers, or fork"):
        model(ids, cache)


# ---------------------------------------------------------------------- strictness


def test_names_that_do_not_fire_raise_and_no_hook_outlives_its_context():
    plain, model = hooked()
    ids = tokens(1, 9)
    for name in ("blocks.0.attn.compressor.key.hook_gate", "blocks.2.attn.indexer.hook_picks",
                 "blocks.1.attn.compressor.value.hook_gate", "blocks.1.attn.hook_zz"):  # fmt: skip
        with pytest.raises(SiteError, match="never fires in this model"):
            model.run_with_hooks(ids, fwd_hooks=[(name, lambda t, hook: None)])
    with pytest.raises(SiteError, match="never fired"):
        model.run_with_hooks(ids, fwd_hooks=[("blocks.3.attn.hook_z", lambda t, hook: None)], stop_at_layer=2)

    def fail(tensor, hook):
        raise RuntimeError("inside")

    for name in (
        "blocks.1.attn.compressor.key.hook_gate",
        "blocks.1.attn.hook_z",
        "blocks.1.attn.indexer.hook_picks",
    ):
        with pytest.raises(RuntimeError, match="inside"):
            model.run_with_hooks(ids, fwd_hooks=[(name, fail)])
        assert not any(point.fwd_hooks for point in model.hook_points())
        assert torch.equal(model(ids), plain(ids).logits)


def test_cached_activations_are_copies():
    _, model = hooked()
    name = "blocks.1.attn.hook_z"
    with model.hooks([]):
        _, seen = model.run_with_cache(tokens(1, 9), [name])
    before = seen[name].clone()
    model.run_with_hooks(tokens(1, 9), fwd_hooks=[(name, lambda t, hook: t.zero_())])
    assert list(seen) == [name]
    assert torch.equal(seen[name], before)


def test_two_instances_are_independent_and_the_given_model_stays_plain():
    from hooks import hook_deepseek_v4

    plain = v4()
    first, second = hook_deepseek_v4(plain), hook_deepseek_v4(plain)
    ids = tokens(1, 9)
    expected = plain(ids).logits
    with first.hooks([("blocks.1.attn.hook_z", lambda t, hook: t * 0)]):
        assert not torch.equal(first(ids), expected)
        assert torch.equal(second(ids), expected)
        assert torch.equal(plain(ids).logits, expected)
        assert torch.equal(first.bridge(ids), expected), "sites fire in runs of the hooked model only"
    assert plain.config._attn_implementation == "eager"
    assert "bridge" not in type(plain.model.layers[0]).__module__
    plain.lm_head.weight.mul_(2)
    assert torch.equal(first(ids), plain(ids).logits), "weights are shared"
    plain.lm_head.weight = torch.nn.Parameter(plain.lm_head.weight + 1)
    plain.to(torch.bfloat16)
    assert torch.equal(first(ids), plain(ids).logits), "also those that were put in later, moved or cast"


def test_what_cannot_be_hooked_is_refused_with_the_way_out():
    from hooks import hook_deepseek_v4

    with pytest.raises(ConfigError, match="Linear is not a DeepseekV4ForCausalLM"):
        hook_deepseek_v4(torch.nn.Linear(2, 2))
    for attention in ("sdpa", "flash_attention_2", "flex_attention"):
        model = v4()
        model.config._attn_implementation = attention
        with pytest.raises(ConfigError, match=f"{attention}.*attn_implementation='eager'"):
            hook_deepseek_v4(model)
    model = v4()
    model.config.quantization_config = {"quant_method": "fp8"}
    with pytest.raises(ConfigError, match=r"quantized weights.*dequantize"):
        hook_deepseek_v4(model)
    model = v4()
    model.lm_head.weight = torch.nn.Parameter(
        model.lm_head.weight.to(torch.float8_e4m3fn), requires_grad=False
    )
    with pytest.raises(ConfigError, match="float8_e4m3fn"):
        hook_deepseek_v4(model)


def test_double_precision_is_refused_whenever_it_comes():
    from hooks import hook_deepseek_v4, trace_deepseek_v4

    model = v4(layers=(SLIDING,)).double()
    for wrap in (hook_deepseek_v4, trace_deepseek_v4):
        with pytest.raises(ConfigError, match=r"float64.*valid: float32, bfloat16, float16"):
            wrap(model)
    later = hook_deepseek_v4(model.float())
    model.double()
    with pytest.raises(ConfigError, match="float64"):
        later(tokens(1, 5))


def test_a_given_model_keeps_the_mode_of_every_module(monkeypatch):
    from hooks import hook_deepseek_v4, trace_deepseek_v4

    model = v4(layers=(SLIDING, CSA)).train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    hook_deepseek_v4(model)(tokens(1, 9))
    trace_deepseek_v4(model).run_with_edits(tokens(1, 9), {})
    assert [module.training for module in model.modules()] == before
    monkeypatch.setattr(type(model), "forward", lambda self, **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hook_deepseek_v4(model)
    assert [module.training for module in model.modules()] == before


def test_broken_numbers_are_refused():
    from hooks import hook_deepseek_v4

    plain = v4()
    plain.model.layers[1].self_attn.o_b_proj.weight[0, 0] = torch.nan
    with pytest.raises(ModelCheckError, match="NaN"):
        hook_deepseek_v4(plain)
    _, model = hooked()
    with pytest.raises(ModelCheckError, match="NaN or infinite"):
        model.run_with_hooks(tokens(1, 5), fwd_hooks=[("hook_embed", lambda t, hook: t * torch.inf)])


def test_the_self_check_names_what_broke(monkeypatch):
    import hooks.deepseek.pooling as pooling
    import hooks.deepseek.taps as taps
    from hooks import hook_deepseek_v4

    with monkeypatch.context() as patch:
        # As after an upgrade in which the compressor no longer calls softmax.
        patch.setattr(
            pooling.PoolWatch, "__torch_function__", lambda self, f, t, a=(), k=None: f(*a, **(k or {}))
        )
        with pytest.raises(ModelCheckError, match=r"promised sites do not fire.*hook_gate") as error:
            hook_deepseek_v4(v4())
        assert "blocks.1" in str(error.value)
    with monkeypatch.context() as patch:
        patch.setattr(taps.LayerTap, "_shares", lambda self, z: torch.ones(*z.shape[:3], 24))
        with pytest.raises(ModelCheckError, match="hook_result summed over heads"):
            hook_deepseek_v4(v4())
    with monkeypatch.context() as patch:
        patch.setattr("hooks.deepseek.model._expanded", lambda out, post, comb, x: x)
        with pytest.raises(ModelCheckError, match="must be bit-equal"):
            hook_deepseek_v4(v4())


def test_layer_kinds_alone():
    from hooks import hook_deepseek_v4

    for kind in (SLIDING, CSA, HCA):
        plain = v4(layers=(kind,))
        assert torch.equal(hook_deepseek_v4(plain)(tokens(1, 9)), plain(tokens(1, 9)).logits)
