"""Identity 1 and everything else a decode cache promises: splits, clones, crops, forks."""

import itertools

import pytest
import torch

from hooks import PhaselensError
from hooks.cache import LayerState
from tests.hooks.own_models import STACKS, VOCAB, axis_of, build, difference, prompt, shapes_unchecked

pytestmark = pytest.mark.filterwarnings("ignore::hooks.transformer.BlindGapWarning")

EXACT = 1e-10


@pytest.fixture(autouse=True)
def _fast_sweeps():
    with shapes_unchecked(), torch.no_grad():
        yield


def lengths(model):
    """T = 1 … 3s+1 for the largest stride."""
    return range(1, 3 * max(model.cfg.strides) + 2)


def call(model, tokens, cache=None):
    """Logits and the value of every hook site."""
    with torch.no_grad():
        return model.run_with_cache(tokens, **({} if cache is None else {"cache": cache}))


def close(got, expected):
    assert got.shape == expected.shape
    return torch.allclose(got, expected, rtol=0, atol=EXACT)


def same(parts, whole, start):
    """Hold several calls in a row, from position `start` on, to one prefill."""
    logits, seen = whole
    assert close(torch.cat([part[0] for part in parts], dim=1), logits[:, start:])
    for name, values in seen.items():
        axis = axis_of(name)
        if axis is None:  # an attention map: rows of the prefill, and as many columns as there were by then
            rows = parts[-1][1][name]
            assert close(rows, values[:, :, values.shape[2] - rows.shape[2] :]), name
            continue
        got = torch.cat([part[1][name] for part in parts], dim=axis)
        first = values.shape[axis] - got.shape[axis]
        assert close(got, values.narrow(axis, first, got.shape[axis])), name
        assert start or not first, name


def every_split(model, *, totals=None, rewind_of=lambda cut: cut % 2 == 0):
    """Two calls at every cut, and token by token; the first calls are made once, then cloned.

    `totals` are the lengths that are cut; None: T = 1 … 3s+1.
    """
    longest = prompt(lengths(model)[-1], batch=2)
    wholes = {length: call(model, longest[:, :length]) for length in lengths(model)}
    for length, (logits, _) in wholes.items():  # a prompt begins like a longer one
        assert close(logits, wholes[lengths(model)[-1]][0][:, :length])
    for cut in lengths(model)[:-1]:
        cache = model.start_cache(2, rewind=rewind_of(cut))
        first = call(model, longest[:, :cut], cache)
        same([first], wholes[cut], 0)
        for length in totals or range(cut + 1, lengths(model)[-1] + 1):
            if length > cut:
                second = call(model, longest[:, cut:length], cache.clone())
                same([first, second], wholes[length], 0)
    for rewind in (True, False):
        cache, parts = model.start_cache(2, rewind=rewind), []
        for length in lengths(model):
            parts.append(call(model, longest[:, length - 1 : length], cache))
            assert cache.length == length
            if not totals or length in totals:
                same(parts, wholes[length], 0)


@pytest.mark.parametrize("stack", [name for name in STACKS if "S6" not in name])
def test_every_split_gives_the_same_logits_entries_and_hook_values(stack):
    every_split(build(STACKS[stack]))


def test_every_split_of_some_lengths_at_stride_six():
    every_split(build(STACKS["full, sliding and W8/S6"]), totals=(12, 13, 19))


@pytest.mark.slow
@pytest.mark.parametrize("w", [1, 3, 4, 5])
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("odd", [0, 1])
def test_every_split_at_stride_four_and_the_other_way_to_keep_the_past(stack, w, odd):
    fields = STACKS[stack]
    if "S6" not in stack:
        windows = tuple(8 if window == 6 else window + 1 for window in fields["window"])  # two series: W = 2S
        fields = {**fields, "stride": 4, "window": windows}
    if "no exact" not in stack:
        fields = {**fields, "exact_window": w}
    every_split(build(fields), rewind_of=lambda cut: cut % 2 == odd)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("rewind", [True, False])
def test_splits_in_many_uneven_pieces(stack, rewind):
    model, tokens = build(STACKS[stack]), prompt(22, batch=2)
    whole = call(model, tokens)
    for size in (2, 5, 7):
        cache = model.start_cache(2, rewind=rewind)
        parts = [call(model, tokens[:, a : a + size], cache) for a in range(0, 22, size)]
        same(parts, whole, 0)


def test_entry_sites_fire_on_every_call_with_the_entries_that_close_in_it():
    model, tokens = build(window=6), prompt(13)
    cache, closing = model.start_cache(1), []
    for t in range(13):
        _, seen = call(model, tokens[:, t : t + 1], cache)
        counts = {value.shape[1] for name, value in seen.items() if "compressor" in name or "entry" in name}
        assert len(counts) == 1
        closing.append(counts.pop())
    assert closing == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("stack", STACKS)
def test_maps_have_all_positions_then_all_entries_then_the_sink(stack):
    model, tokens = build(STACKS[stack]), prompt(15)
    cache = model.start_cache(1, rewind=False)
    for a, b in ((0, 6), (6, 7), (7, 15)):
        _, seen = call(model, tokens[:, a:b], cache)
        for layer in range(model.cfg.n_layers):
            geometry, sink = model.geometry(layer), model.cfg.layer(layer).sink
            entries = geometry.n_entries(b) if geometry else 0
            for site in ("hook_pattern", "hook_attn_scores"):
                shape = seen[f"blocks.{layer}.attn.{site}"].shape
                assert shape == (1, 4, b - a, b + entries + sink), (layer, site)


def test_without_rewind_only_what_later_tokens_can_read_is_kept():
    model = build(STACKS["open tails, no exact branch"])
    sliding = build(attention=("sliding", "chunked"), exact_window=5, window=6)
    tokens = prompt(30)
    for one in (model, sliding):
        kept = one.start_cache(1)
        one(tokens, kept)
        for state in kept.layers:
            for name, tensor in state.tensors().items():
                assert name.startswith("entry") or tensor.shape[1] == 30, name
    cache = sliding.start_cache(1, rewind=False)
    for t in range(30):
        sliding(tokens[:, t : t + 1], cache)
        first, second = (state.tensors() for state in cache.layers)
        assert set(first) == {"key", "value"}
        # A window of 5 includes the query: 4 past tokens can still be read.
        assert first["key"].shape[1] == second["key"].shape[1] == min(t + 1, 4)
        # Windows of 6 every 4 tokens: at most 5 tokens belong to windows that have not closed.
        assert second["x"].shape[1] <= 5
        assert second["entry_key"].shape[1] == (t + 1) // 4
    # Nothing kept is a view that holds a larger tensor alive.
    for tensor in (*first.values(), *second.values()):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * 8


def test_what_is_cached_is_not_what_hooks_hold():
    """A tensor that a hook kept and edits later does not reach the cache, nor the other way round."""
    model, tokens = build(), prompt(9)
    sites = ["hook_rot_k", "hook_v", "hook_entry_k", "hook_entry_v", "compressor.key.hook_entry"]
    cache = model.start_cache(1)
    _, seen = model.run_with_cache(tokens[:, :6], cache=cache)
    for value in seen.values():
        value.fill_(7.0)
    assert difference(model(tokens[:, 6:], cache), model(tokens)[:, 6:]) <= EXACT
    assert all(f"blocks.0.attn.{site}" in seen for site in sites)


def test_an_edit_during_one_call_is_remembered_by_later_ones():
    model, tokens = build(), prompt(12)

    def zero_first(entry, hook):
        return torch.cat((torch.zeros_like(entry[:, :1]), entry[:, 1:]), dim=1) if first else entry

    first = True
    name = "blocks.0.attn.hook_entry_v"
    whole = model.run_with_hooks(tokens, fwd_hooks=[(name, zero_first)])
    cache = model.start_cache(1)
    model.run_with_hooks(tokens[:, :5], fwd_hooks=[(name, zero_first)], cache=cache)
    assert difference(model(tokens[:, 5:], cache), whole[:, 5:]) <= EXACT
    assert difference(model(tokens), whole) > 1e-3


# --------------------------------------------------------------------------- clone


@pytest.mark.parametrize("rewind", [True, False])
@pytest.mark.parametrize("stack", STACKS)
def test_a_clone_and_its_original_go_their_own_ways(stack, rewind):
    model, tokens, other = build(STACKS[stack]), prompt(14), prompt(14, seed=5)
    cache = model.start_cache(1, rewind=rewind)
    call(model, tokens[:, :7], cache)
    twin = cache.clone()
    branched = torch.cat((tokens[:, :7], other[:, 7:]), dim=1)
    same([call(model, other[:, 7:], twin)], call(model, branched), 7)
    assert (cache.length, twin.length) == (7, 14)
    same([call(model, tokens[:, 7:], cache)], call(model, tokens), 7)
    for mine, its in zip(cache.layers, twin.layers, strict=True):
        shared = {id(t) for t in mine.tensors().values()} & {id(t) for t in its.tensors().values()}
        assert not shared


# --------------------------------------------------------------------------- crop


@pytest.mark.parametrize("stack", STACKS)
def test_a_cropped_cache_equals_a_fresh_run(stack):
    model = build(STACKS[stack])
    last = lengths(model)[-1]
    tokens = prompt(last)
    full = model.start_cache(1)
    call(model, tokens, full)
    for n in (*range(max(model.cfg.strides) + 2), last - 1, last):
        cache = full.clone()
        cache.crop(n)
        assert cache.length == n
        fresh = model.start_cache(1)
        if n:
            call(model, tokens[:, :n], fresh)
        other = prompt(5, seed=n + 1)
        expected, got = call(model, other, fresh), call(model, other, cache)
        same([got], expected, 0)
        for mine, its in zip(cache.layers, fresh.layers, strict=True):
            assert set(mine.tensors()) == set(its.tensors())
            assert mine.length == its.length
            for name, tensor in mine.tensors().items():
                assert difference(tensor, its.tensors()[name]) <= EXACT
    assert full.length == last


def test_crops_can_follow_one_another_and_decoding():
    model, tokens = build(window=6), prompt(17)
    cache = model.start_cache(1)
    model(tokens, cache)
    for n in (11, 6, 6, 1):
        cache.crop(n)
        model(tokens[:, n : n + 1], cache)
        cache.crop(n)
    assert difference(model(tokens[:, 1:], cache), model(tokens)[:, 1:]) <= EXACT


def test_crops_that_cannot_be():
    model, tokens = build(), prompt(6)
    cache = model.start_cache(1, rewind=False)
    model(tokens, cache)
    with pytest.raises(PhaselensError, match="rewind=True"):
        cache.crop(3)
    cache = model.start_cache(1)
    model(tokens, cache)
    for n in (-1, 7):
        with pytest.raises(PhaselensError, match="valid: 0 to 6"):
            cache.crop(n)
    assert cache.length == 6


# --------------------------------------------------------------------------- fork


def frozen(cache):
    return [
        (state.length, {name: tensor.clone() for name, tensor in state.tensors().items()})
        for state in cache.layers
    ]


@pytest.mark.parametrize("stack", STACKS)
def test_forked_rows_equal_their_own_run_at_every_query_phase(stack):
    model = build(STACKS[stack])
    stride = max(model.cfg.strides)
    batch, variants = 2, 3
    for past in (0, *range(stride - 1, 2 * stride + 1)):  # every phase, closing a window or not
        tokens = prompt(past, batch=batch, seed=past) if past else torch.zeros(batch, 0, dtype=torch.long)
        cache = model.start_cache(batch, rewind=past % 2 == 0)
        if past:
            call(model, tokens, cache)
        before = frozen(cache)
        for n in (1, 3) if past % stride == 1 else (1,):
            new = prompt(n, batch=batch * variants, seed=99)
            forked = call(model, new, cache.fork())
            own = [torch.cat((tokens[row // variants], new[row])) for row in range(batch * variants)]
            same([forked], call(model, torch.stack(own)), past)
        for (length, tensors), state in zip(before, cache.layers, strict=True):
            assert state.length == length
            assert set(state.tensors()) == set(tensors)
            assert all(torch.equal(state.tensors()[name], tensor) for name, tensor in tensors.items())


def test_forks_can_be_taken_again_and_the_parent_goes_on():
    model, tokens = build(window=6), prompt(8, batch=2)
    cache = model.start_cache(2, rewind=False)
    model(tokens[:, :7], cache)
    fork = cache.fork()
    first = model(prompt(1, batch=4, seed=1), fork)
    again = model(prompt(1, batch=4, seed=1), fork)
    nested = model(prompt(1, batch=4, seed=1), fork.fork())
    assert torch.equal(first, again)
    assert torch.equal(first, nested)
    assert fork.length == cache.length == 7
    assert difference(model(tokens[:, 7:], cache), model(tokens)[:, 7:]) <= EXACT
    assert cache.length == 8


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("past", [5, 7])
def test_a_forked_call_may_go_layer_by_layer_while_variants_join(stack, past):
    model = build(STACKS[stack])
    tokens, last = prompt(past, batch=2), prompt(1, batch=2, seed=3)
    cache = model.start_cache(2, rewind=False)
    call(model, tokens, cache)
    fork = cache.fork()
    with torch.no_grad():
        stream = model(last, fork, stop_at_layer=1)  # [2, 1, d_model], one row a sequence
        stream = torch.stack((stream, 2 * stream, -stream), dim=1).flatten(0, 1)  # row = b·3 + u
        got = model(stream, fork, start_at_layer=1)
        for b, factor in itertools.product(range(2), range(3)):
            ids = torch.cat((tokens[b], last[b]))[None]

            def scaled(x, hook, factor=factor):
                return torch.cat((x[:, :-1], x[:, -1:] * (1.0, 2.0, -1.0)[factor]), dim=1)

            expected = model.run_with_hooks(ids, fwd_hooks=[("blocks.1.hook_resid_pre", scaled)])
            assert difference(got[b * 3 + factor], expected[0, -1:]) <= EXACT


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_fit_no_sequence(rows):
    model = build()
    cache = model.start_cache(2)
    model(prompt(5, batch=2), cache)
    with pytest.raises(PhaselensError, match=f"{rows} rows do not fit a cache of 2 sequences"):
        model(prompt(1, batch=rows), cache)
    with pytest.raises(PhaselensError, match=f"{rows} rows do not fit a cache of 2 sequences"):
        model(prompt(1, batch=rows), cache.fork())
    with pytest.raises(PhaselensError, match="4 rows"):
        model(prompt(1, batch=4), cache)  # only a fork takes variants
    assert cache.length == 5


def test_input_that_is_refused_leaves_the_cache_alone():
    model, tokens = build(), prompt(9)
    cache = model.start_cache(1)
    model(tokens[:, :5], cache)
    for wrong in ([[VOCAB]], [[]], [[1], [2, 3]], [[0.5]]):
        with pytest.raises(PhaselensError):
            model(wrong, cache)
    assert cache.length == 5
    assert difference(model(tokens[:, 5:], cache), model(tokens)[:, 5:]) <= EXACT


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("value", [None, torch.nan])
def test_a_call_that_fails_half_way_leaves_the_cache_alone(layer, value):
    model, tokens = build(), prompt(9)
    cache = model.start_cache(1)
    model(tokens[:, :5], cache)
    before = frozen(cache)

    def fail(x, hook):
        if value is None:
            raise RuntimeError("inside")
        return x * value

    with pytest.raises((RuntimeError, PhaselensError)):
        model.run_with_hooks(tokens[:, 5:], fwd_hooks=[(f"blocks.{layer}.attn.hook_z", fail)], cache=cache)
    assert [state.length for state in cache.layers] == [5, 5]
    for (_, tensors), state in zip(before, cache.layers, strict=True):
        assert all(torch.equal(state.tensors()[name], tensor) for name, tensor in tensors.items())
    assert difference(model(tokens[:, 5:], cache), model(tokens)[:, 5:]) <= EXACT


def test_layers_that_stand_at_different_lengths_are_refused():
    model, tokens = build(), prompt(9)
    cache = model.start_cache(1)
    stream = model(tokens[:, :5], cache, stop_at_layer=1)
    with pytest.raises(PhaselensError, match="hold 0 to 5 tokens"):
        model(tokens[:, 5:], cache)
    model(stream, cache, start_at_layer=1)
    assert difference(model(tokens[:, 5:], cache), model(tokens)[:, 5:]) <= EXACT


@pytest.mark.parametrize("fields", [{"stride": 2}, {"exact_window": 3}, {"rope_base": 1e3}, {"n_layers": 3}])
def test_the_cache_of_another_model_is_refused(fields):
    model, other = build(), build(**fields)
    cache = other.start_cache(1)
    other(prompt(5), cache)
    with pytest.raises(PhaselensError, match="another configuration"):
        model(prompt(1), cache)
    assert cache.length == 5


@pytest.mark.parametrize("batch", [0, -1, 2.5, True, None])
def test_a_batch_that_cannot_be(batch):
    with pytest.raises(PhaselensError, match="valid: a whole number, 1 or more"):
        build().start_cache(batch)


def test_an_empty_state_has_nothing():
    assert LayerState().tensors() == {}
    model = build()
    assert model.start_cache(3).length == 0
    assert model.start_cache(3).batch == 3
