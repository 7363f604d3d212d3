"""Shared entries: who owns, who reads, what a hook reaches, caches and forks, prefill without the decoder."""

from __future__ import annotations

import warnings

import pytest
import torch

from hooks.accounting import bytes_per_token, cache_spec, from_config
from hooks.config import ModelConfig, full_size_names, preset, scaled_down
from hooks.errors import ConfigError, PhaselensError, SiteError
from hooks.quantize import FORMATS
from hooks.stored import store
from hooks.transformer import BlindGapWarning, CompressedTransformer
from tests.hooks.shared_models import MIXES, build, small, tokens

READ = "blocks.{}.attn.hook_entry_{}"


def kept(model, ids, names, **kwargs):
    with torch.no_grad():
        return model.run_with_cache(ids, names, **kwargs)


# --------------------------------------------------------------------------- who owns what


def test_owners_and_picks_of_the_encoder_decoder():
    cfg = small("encoder-decoder")
    assert [cfg.layer(i).owner for i in range(8)] == [0] * 4 + [4] * 4
    assert [cfg.layer(i).index_from for i in range(8)] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert cfg.layer(0).readers == (1, 2, 3)
    assert [cfg.layer(i).index_topk for i in (1, 5)] == [2, 3]
    assert cfg.strides == (1, 2)


def test_a_sliding_layer_between_owner_and_reader_changes_nothing():
    cfg = small("picks shared over a sliding layer")
    assert [cfg.layer(i).owner for i in range(4)] == [0, None, 0, 0]
    assert [cfg.layer(i).index_from for i in range(4)] == [0, None, 2, 2]


def test_sites_of_each_role():
    model = build(small("encoder-decoder"))
    owned = {
        layer: {
            name.split(".attn.")[1] for name in model.site_names() if name.startswith(f"blocks.{layer}.attn.")
        }
        for layer in range(8)
    }
    assert {"compressor.key.hook_entry", "indexer.hook_key", "indexer.hook_picks", "hook_entry_k"} <= owned[0]
    assert {name for name in owned[2] if name.startswith("indexer")} == {
        f"indexer.hook_{name}" for name in ("q", "weight", "scores", "picks")
    }
    assert not [name for name in owned[1] | owned[2] if name.startswith("compressor")]
    assert not [name for name in owned[1] if name.startswith("indexer")]
    assert "indexer.hook_pool" in owned[4]
    assert "indexer.hook_pool" not in owned[0]


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        (
            "blocks.3.attn.compressor.key.hook_gate",
            "layer 0 owns; hook 'blocks.0.attn.compressor.key.hook_gate'",
        ),
        ("blocks.6.attn.compressor.key.hook_entry", "layer 4 owns"),
        ("blocks.3.attn.indexer.hook_picks", "layer 2 owns"),
        ("blocks.6.attn.indexer.hook_key", "layer 4 owns"),
        ("blocks.1.attn.indexer.hook_scores", "layer 0 owns"),
    ],
)
def test_hooking_what_a_layer_only_reads_names_the_owner(name, owner):
    model = build(small("encoder-decoder"))
    layer = name.split(".")[1]
    with pytest.raises(
        SiteError, match=f"never fires.*layer {layer} reads what {owner}.*{READ.format(layer, 'k')}"
    ):
        model.run_with_hooks(tokens(1, 9), fwd_hooks=[(name, lambda x, hook: x)])


def test_other_wrong_names_stay_as_they_were():
    model = build(small("encoder-decoder"))
    with pytest.raises(SiteError, match="layer 1 lacks it"):
        model.run_with_cache(tokens(1, 9), ["blocks.1.attn.compressor.value.hook_gate"])
    with pytest.raises(SiteError, match="never fires"):
        model.run_with_cache(tokens(1, 9), ["blocks.1.attn.hook_zz"])


# --------------------------------------------------------------------------- what a hook reaches


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("branch", ["k", "v"])
def test_a_read_is_patched_without_touching_owner_or_siblings(branch, in_place):
    model = build(small("encoder-decoder"))
    ids = tokens(2, 13)
    sites = [READ.format(i, b) for i in range(4) for b in "kv"] + ["blocks.0.attn.compressor.key.hook_entry"]
    sites += [f"blocks.{i}.attn.hook_z" for i in range(4)]
    _, clean = kept(model, ids, sites)

    def patch(entries, hook):
        if in_place:
            entries.zero_()
            return None
        return torch.zeros_like(entries)

    patched = READ.format(1, branch)
    with model.hooks(fwd_hooks=[(patched, patch)]):
        _, seen = kept(model, ids, sites)
    moved = {name for name in sites if not torch.equal(seen[name], clean[name])}
    # Layers 2 and 3 read the same entries; their own queries see the patched stream.
    assert moved == {patched, *(f"blocks.{i}.attn.hook_z" for i in (1, 2, 3))}


@pytest.mark.parametrize(
    ("stem", "reached"), [("attn.compressor.key.hook_entry", {0, 1, 2, 3}), ("attn.hook_entry_k", {0})]
)
def test_an_edit_of_what_is_stored_reaches_every_reader(stem, reached):
    model = build(small("encoder-decoder"))
    ids, sites = tokens(1, 13), [READ.format(i, "k") for i in range(4)]
    _, clean = kept(model, ids, sites)
    with model.hooks(fwd_hooks=[(f"blocks.0.{stem}", lambda e, hook: e + 1)]):
        _, seen = kept(model, ids, sites)
    assert {i for i in range(4) if not torch.equal(seen[sites[i]], clean[sites[i]])} == reached


@pytest.mark.parametrize("mix", ["encoder-decoder", "picks shared over a sliding layer"])
@pytest.mark.parametrize("layer", [0, 3])
def test_a_patched_read_is_kept_by_the_cache_of_that_layer_alone(mix, layer):
    model = build(small(mix))
    ids = tokens(2, 13)

    def patch(entries, hook):
        return entries * 0.5

    with torch.no_grad(), model.hooks(fwd_hooks=[(READ.format(layer, "k"), patch)]):
        whole = model(ids)
        cache = model.start_cache(2)
        parts = [model(ids[:, a:b], cache) for a, b in ((0, 5), (5, 6), (6, 13))]
        assert torch.allclose(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
    other = next(i for i in range(1, 4) if (i != layer and model.cfg.layer(i).role == "reuse") or i == 2)
    owner = cache.layers[0]
    assert owner.stored_key is not None
    assert torch.allclose(cache.layers[layer].entry_key, owner.stored_key * 0.5)
    assert cache.layers[other].entry_key is owner.stored_key


def test_a_gradient_reaches_the_owner_through_a_reader():
    model = build(small("encoder-decoder", index_topk=13, index_pool=None))
    ids = tokens(1, 9)
    grads = {}

    def keep(grad, hook):
        grads[hook.name] = grad.clone()

    names = [READ.format(3, "k"), "blocks.0.attn.compressor.key.hook_entry"]
    with model.hooks(bwd_hooks=[(name, keep) for name in names]):
        model(ids)[0, -1, 0].backward()
    assert set(grads) == set(names)
    assert all(bool(g.abs().sum() > 0) for g in grads.values())


# --------------------------------------------------------------------------- caches


def test_shared_entries_are_kept_once():
    model = build(small("encoder-decoder"))
    cache = model.start_cache(2)
    ids = tokens(2, 13)
    with torch.no_grad():
        model(ids[:, :6], cache)
        model(ids[:, 6:], cache)
    for state in (cache, cache.clone()):
        for owner, readers in ((0, (1, 2, 3)), (4, (5, 6, 7))):
            stored = state.layers[owner].stored_key
            for layer in (owner, *readers):
                assert state.layers[layer].entry_key is stored
                assert state.layers[layer].entry_value is stored
    assert cache.clone().layers[0].stored_key is not cache.layers[0].stored_key
    assert cache.layers[0].stored_key.shape[1] == 6
    assert cache.layers[4].stored_key.shape[1] == 13
    assert cache.layers[1].x is None
    cache.crop(7)
    assert cache.layers[3].entry_key is cache.layers[0].stored_key
    assert cache.layers[0].stored_key.shape[1] == 3
    assert cache.layers[0].index_key.shape[1] == 3


@pytest.mark.parametrize("mix", MIXES)
def test_crop_and_clone_equal_a_fresh_run(mix):
    model = build(small(mix))
    ids, other = tokens(2, 13), tokens(2, 9, seed=5)
    with torch.no_grad():
        cache = model.start_cache(2)
        model(ids, cache)
        copy = cache.clone()
        for n in (8, 3, 0):
            cache.crop(n)
            got = model(other, cache)
            assert torch.allclose(got, model(torch.cat((ids[:, :n], other), 1))[:, n:], rtol=0, atol=1e-10)
            cache = copy.clone()
        assert torch.allclose(
            model(other, copy), model(torch.cat((ids, other), 1))[:, 13:], rtol=0, atol=1e-10
        )


@pytest.mark.parametrize(("mix", "length"), [*((mix, 8) for mix in MIXES), ("encoder-decoder", 9)])
def test_a_fork_run_layer_by_layer_while_variants_join(mix, length):
    """Each layer a call of its own; a variant that joins at layer l edits that layer and is clean before."""
    model = build(small(mix))
    ids = tokens(2, length)
    layers = model.cfg.n_layers

    def shift(x, rows):
        out = x.unflatten(0, (2, -1)).clone()
        out[:, rows] += 0.7
        return out.flatten(0, 1)

    with torch.no_grad():
        past = model.start_cache(2, rewind=False)
        model(ids[:, :-1], past, last_only=True)
        fork = past.fork()
        stream = model(ids[:, -1:], fork, stop_at_layer=0)
        for layer in range(layers):
            split = stream.unflatten(0, (2, -1))
            stream = torch.cat((split, split[:, :1]), 1).flatten(0, 1)
            edit = (f"blocks.{layer}.attn.hook_q", lambda x, hook, row=layer + 1: shift(x, row))
            stop = {"stop_at_layer": layer + 1} if layer + 1 < layers else {}
            with model.hooks(fwd_hooks=[edit]):
                stream = model(stream, fork, start_at_layer=layer, **stop)
        got = stream.unflatten(0, (2, -1))[:, :, 0]
        expected = [model(ids)[:, -1]]
        for layer in range(layers):
            edit = (f"blocks.{layer}.attn.hook_q", lambda x, hook: torch.cat((x[:, :-1], x[:, -1:] + 0.7), 1))
            expected.append(model.run_with_hooks(ids, fwd_hooks=[edit])[:, -1])
        assert torch.allclose(got, torch.stack(expected, 1), rtol=0, atol=1e-10)
        assert past.length == length - 1


def test_a_reader_without_its_owner_raises():
    model = build(small("encoder-decoder"))
    stream = torch.randn(1, 9, 24, dtype=torch.float64)
    with pytest.raises(PhaselensError, match="layer 5 reads the entries of layer 4, which has not run"):
        model(stream, start_at_layer=5)
    cache = model.start_cache(1)
    with torch.no_grad():
        stream = model(tokens(1, 9), cache, stop_at_layer=5)
        model(stream, cache, start_at_layer=5)
        with pytest.raises(PhaselensError, match="layer 5 reads the entries of layer 4, which has not run"):
            model(stream, cache, start_at_layer=5)


# --------------------------------------------------------------------------- prefill by encoder and replay


@pytest.mark.parametrize("stored", [False, True])
def test_a_long_enough_replay_is_exact_and_a_short_one_is_measured(stored):
    model = build(small("encoder-decoder", stored=stored))
    ids = tokens(2, 24)
    enough = 3 * (3 - 1) + 1  # decoder layers behind the first, exact window 3
    assert model.prefill_error(ids, enough).max_logit < 1e-10
    short = model.prefill_error(ids, 1)
    assert short.max_logit > 1e-3
    assert short.kl > 0
    assert short.replay == 1
    assert 0 <= short.agreement <= 1
    assert model.prefill_error(ids).replay == 3
    assert model.prefill_error(ids, 999).replay == 24
    cache = model.start_cache(2, rewind=False)
    with torch.no_grad():
        got = model.prefill_encoder(ids, cache, 1)
        full = model(ids)[:, -1:]
        assert got.shape == full.shape
        assert float((got - full).abs().max()) == pytest.approx(short.max_logit, abs=1e-12)


def test_decoding_goes_on_from_the_replay():
    model = build(small("encoder-decoder"))
    ids = tokens(2, 20)
    with torch.no_grad():
        cache = model.start_cache(2)
        model.prefill_encoder(ids[:, :14], cache, 12)
        got = torch.cat([model(ids[:, t : t + 1], cache) for t in range(14, 20)], 1)
        assert torch.allclose(got, model(ids)[:, 14:], rtol=0, atol=1e-10)
    assert cache.length == 20
    with pytest.raises(PhaselensError, match="crop needs a cache that keeps its past"):
        cache.crop(3)


def test_the_decoder_runs_over_the_replay_alone():
    model = build(small("encoder-decoder"))
    seen: dict[str, int] = {}
    names = [f"blocks.{i}.{site}" for i in (3, 4, 5) for site in ("hook_resid_mid", "attn.hook_entry_k")]

    def note(x, hook):
        seen[hook.name] = x.shape[1]

    with torch.no_grad(), model.hooks(fwd_hooks=[(name, note) for name in names]):
        model.prefill_encoder(tokens(1, 20), model.start_cache(1), 5)
    assert [seen[name] for name in names] == [20, 10, 5, 20, 5, 20]


def test_what_cannot_be_prefilled_so():
    model = build(small("encoder-decoder"))
    with pytest.raises(PhaselensError, match="replay=0; valid: a whole number, 1 or more"):
        model.prefill_encoder(tokens(1, 9), model.start_cache(1), 0)
    used = model.start_cache(1)
    model(tokens(1, 3), used)
    with pytest.raises(PhaselensError, match="needs a fresh cache"):
        model.prefill_encoder(tokens(1, 9), used)
    fresh = model.start_cache(1)

    def fail(x, hook):
        raise RuntimeError("stopped")

    with (
        pytest.raises(RuntimeError, match="stopped"),
        model.hooks(fwd_hooks=[("blocks.6.attn.hook_q", fail)]),
    ):
        model.prefill_encoder(tokens(1, 9), fresh)
    assert fresh.rewind
    assert [state.length for state in fresh.layers] == [0] * 8
    plain = build(small("all entries, stride 1"))
    with pytest.raises(PhaselensError, match="decoder_start=None"):
        plain.prefill_encoder(tokens(1, 9), plain.start_cache(1))


# --------------------------------------------------------------------------- configurations that cannot be


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(roles=("full",) * 7), "roles has 7 values for 8 layers"),
        (dict(roles="owner", decoder_start=None), "roles='owner' in layer 0; valid: full, reindex, reuse"),
        (dict(roles="reuse", decoder_start=None), "layer 0 is 'reuse', but no layer before it owns entries"),
        (dict(attention=("sliding",) + ("chunked",) * 7, roles=("full",) + ("reindex",) * 7), "layer 1 is 'reindex', but no"),
        (dict(attention=("chunked", "sliding") + ("chunked",) * 6), "layer 1 is 'reuse', but attention='sliding' has no"),
        (dict(roles=("full",) + ("reuse",) * 7, index_pool=None), "window=1 in layer 4.*reads the entries of layer 0 with window=2"),
        (dict(stride=(2, 1, 2, 2) + (1,) * 4), "stride=1 in layer 1, which is 'reuse' and reads .* layer 0 with stride=2; valid: 2"),
        (dict(index_topk=(None,) * 4 + (3,) * 4), "layer 2 is 'reindex'.*layer 2 has no index_topk"),
        (dict(index_dim=(6, 6, 4, 6) + (6,) * 4), "index_dim=4 in layer 2.*index_dim=6; valid: 6"),
        (dict(index_pool=2), "index_pool=2 in layer 1: only a full layer"),
        (dict(decoder_start=5), "decoder_start=5: that layer must be chunked and 'full'.* 'reuse'"),
        (dict(decoder_start=8), "decoder_start=8; valid: 1 to 7, or None"),
        (dict(decoder_start=0), "decoder_start=0; valid: 1 to 7"),
        (dict(roles=("full", "reuse", "reindex", "reuse") + ("full",) * 4, index_pool=None), "layer 5 keeps a cache of its own"),
        (dict(entry_precision="fp4"), "entry_precision in layer 0: d_head=8 is not a multiple of 16"),
        (dict(exact_precision="fp8"), "exact_precision in layer 0: d_head=8 is not a multiple of 32"),
        (dict(entry_precision="fp8+bf16"), "cannot be stored as fp8\\+bf16"),
        (dict(q_norm="yes"), "q_norm='yes' in layer 0; valid: True, False, None"),
    ],
)  # fmt: skip
def test_impossible_configurations(changes, message):
    with pytest.raises(ConfigError, match=message):
        small("encoder-decoder", **changes)


def test_a_blind_gap_is_named():
    cfg = small(
        "picks shared over a sliding layer",
        window=4,
        stride=4,
        exact_window=1,
        attention="chunked",
        roles="full",
    )
    with pytest.warns(
        BlindGapWarning, match=r"layer 0: exact_window=1 is smaller than stride-1=3.*positions 4 to 5"
    ):
        CompressedTransformer(cfg)


def test_a_configuration_survives_json():
    for name in [*full_size_names(), "v41-ced", "v41-ced-bf", "dsv4-csa"]:
        cfg = preset(name)
        assert ModelConfig.from_dict(cfg.to_dict()) == cfg


# --------------------------------------------------------------------------- published configurations, bytes


@pytest.mark.parametrize(("name", "size"), [
    ("deepseek-v4-flash", 21 * (584 + 68) / 4 + 20 * 584 / 128),
    ("deepseek-v4-pro", 29 * (584 + 68) / 4 + 32 * 584 / 128),
    ("deepseek-v4.1-flash", (3 * 0.5 + 1) * (512 / 2 + 512 / 16 + 128 / 2 + 128 / 32)),
])  # fmt: skip
def test_full_size_configurations_give_the_published_caches(name, size):
    cfg = preset(name)
    assert cfg.cache_bytes_per_token() == size
    assert from_config(cfg, name=name) == cache_spec(name)


def test_what_an_eighth_of_the_cache_could_mean():
    """The ratios that docs/scope.md states beside the press's unsourced "1/8"."""
    flash, v41 = cache_spec("deepseek-v4-flash"), cache_spec("deepseek-v4.1-flash")
    assert round(bytes_per_token(flash) / bytes_per_token(v41), 1) == 3.9
    in_bf16 = 2 * (21 * (512 + 128) / 4 + 20 * 512 / 128)
    assert (in_bf16, round(in_bf16 / bytes_per_token(v41), 1)) == (6880, 7.7)


def test_small_models_count_their_caches():
    def model_bytes(**changes) -> float:
        return build(small("encoder-decoder", **changes)).cache_bytes_per_token()

    # Two owners, strides 2 and 1: entries of 8 and index keys of 6 numbers.
    assert model_bytes() == (0.5 + 1) * 4 * (8 + 6)
    assert preset("v41-ced").cache_bytes_per_token() == (0.5 + 1) * (16 + 2 + 16 + 1)
    assert preset("v41-ced-bf").cache_bytes_per_token() == (0.5 + 1) * 4 * (32 + 32)
    mixed = small("encoder-decoder", stored=True, entry_precision=("fp4",) * 4 + (None,) * 4)
    with pytest.raises(ConfigError, match="entry_precision differs between layers"):
        from_config(mixed, name="mixed")
    assert bytes_per_token(from_config(small("encoder-decoder"), name="half", stored="fp16")) == 1.5 * 2 * 14


@pytest.mark.parametrize("name", full_size_names())
def test_scaled_down_copies_keep_the_pattern_and_run(name):
    cfg, full = scaled_down(name), preset(name)
    for field in ("attention", "roles", "payload", "gate", "index_style"):
        assert [cfg.value(field, i) for i in range(cfg.n_layers)] == [
            full.value(field, i) for i in range(cfg.n_layers)
        ]
    few = cfg if name == "deepseek-v4.1-flash" else _first_layers(cfg, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CompressedTransformer(few).eval()
    ids = torch.randint(273, (1, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(ids)
        cache = model.start_cache(1)
        parts = torch.cat([model(ids[:, a:b], cache) for a, b in ((0, 17), (17, 24))], 1)
    assert float((whole - parts).abs().max()) < (0.5 if cfg.value("entry_precision", 0) else 1e-4)


def _first_layers(cfg: ModelConfig, n: int) -> ModelConfig:
    changes = {
        f: v[:n] for f in cfg.to_dict() if isinstance(v := getattr(cfg, f), tuple) and len(v) == cfg.n_layers
    }
    return cfg.replace(n_layers=n, **changes)


# --------------------------------------------------------------------------- stored precision


@pytest.mark.parametrize("precision", [*FORMATS, "fp8+bf16"])
def test_stored_values_lie_on_the_grid_and_gradients_pass_straight_through(precision):
    x = torch.randn(3, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out = store(x, precision)
    assert not torch.equal(out, x)
    assert torch.equal(store(out.detach(), precision), out)  # storing again changes nothing
    (out * torch.arange(128)).sum().backward()
    assert torch.equal(x.grad, torch.arange(128).double().expand(3, -1))
    assert store(x, None) is x


def test_the_mixed_row_rounds_rotary_channels_to_bf16_and_others_to_fp8():
    x = torch.randn(5, 192, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    out = store(x, "fp8+bf16")
    assert torch.equal(out[:, 128:], x[:, 128:].to(torch.bfloat16).double())
    for row in range(5):
        for block in (0, 64):
            values = x[row, block : block + 64]
            scale = 2.0 ** torch.ceil(torch.log2(values.abs().max() / 448))
            by_torch = (values / scale).to(torch.float8_e4m3fn).double() * scale
            assert torch.equal(out[row, block : block + 64], by_torch)


@pytest.mark.parametrize(("field", "moved"), [
    ("exact_precision", {"attn.hook_rot_k", "attn.hook_v"}),
    ("entry_precision", {"attn.compressor.key.hook_entry", "attn.hook_entry_k", "attn.hook_entry_v"}),
    ("index_precision", {"attn.indexer.hook_key", "attn.indexer.hook_q", "attn.indexer.hook_scores"}),
])  # fmt: skip
def test_each_cache_has_its_own_switch(field, moved):
    """What one switch changes in layer 0, on the same input; picks and everything behind may follow."""
    stored = {"exact_precision": "fp8", "entry_precision": "fp4", "index_precision": "mxfp4"}
    plain = small(
        "encoder-decoder", stored=True, exact_precision=None, entry_precision=None, index_precision=None
    )
    ids = tokens(1, 13)
    _, clean = kept(build(plain), ids, None)
    _, seen = kept(build(plain.replace(**{field: stored[field]})), ids, None)
    before = {
        "attn.hook_q", "attn.hook_rot_q", "attn.hook_k", "attn.hook_rot_k", "attn.hook_v", "attn.hook_entry_k",
        "attn.hook_entry_v", "attn.compressor.key.hook_gate", "attn.compressor.key.hook_pooled",
        "attn.compressor.key.hook_entry", "attn.indexer.hook_key", "attn.indexer.hook_q", "attn.indexer.hook_weight",
        "attn.indexer.hook_scores",
    }  # fmt: skip
    changed = {s for s in before if not torch.equal(seen[f"blocks.0.{s}"], clean[f"blocks.0.{s}"])}
    assert changed == moved
