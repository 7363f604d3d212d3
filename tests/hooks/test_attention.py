"""What a query reads, and how exact tokens, entries and the sink share one softmax."""

import itertools

import pytest
import torch

import hooks.attention
from hooks.numerics import RMSNorm, masked_softmax, rope_tables, rotate
from hooks.softmax import Segment, attend
from tests.hooks import reference
from tests.hooks.own_models import (
    AXES,
    STACKS,
    build,
    difference,
    layer_fields,
    layers_with_every_pair,
    pairs_of,
    prompt,
    random_layers,
    shapes_unchecked,
    stacked,
)

pytestmark = pytest.mark.filterwarnings("ignore::hooks.transformer.BlindGapWarning")

EXACT = 1e-10


def held_to_loops(model, tokens):
    expected = reference.run(model, tokens[0].tolist())
    plain = model(tokens)
    assert difference(plain[0], expected["logits"]) <= EXACT
    logits, seen = model.run_with_cache(tokens)  # the path that forms attention maps
    assert difference(logits[0], expected.pop("logits")) <= EXACT
    assert set(seen) - set(expected) == {name for name in seen if not seen[name].numel()}
    for name, value in expected.items():
        assert difference(seen[name][0], value) <= EXACT, name


@pytest.mark.parametrize("fields", STACKS.values(), ids=STACKS)
def test_every_hook_value_equals_loops_over_positions(fields):
    held_to_loops(build(fields), prompt(14))


EVERY_PAIR = layers_with_every_pair()
PER_MODEL = 4


def test_any_two_variants_meet_in_some_layer():
    wanted = sum(
        len(set(values)) * len(set(others)) for values, others in itertools.combinations(AXES.values(), 2)
    )
    assert len(set().union(*map(pairs_of, EVERY_PAIR))) == wanted


@pytest.mark.parametrize("first", range(0, len(EVERY_PAIR), PER_MODEL))
def test_any_mix_of_variants_equals_loops_over_positions(first):
    layers = [layer_fields(choice) for choice in EVERY_PAIR[first : first + PER_MODEL]]
    with shapes_unchecked():
        held_to_loops(build(stacked(*layers, d_mlp=0 if first % 8 else 10)), prompt(9, seed=first))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_mixes_of_variants_equal_loops_over_positions(seed):
    every = random_layers(60, seed)
    for first in range(0, len(every), PER_MODEL):
        layers = [layer_fields(choice) for choice in every[first : first + PER_MODEL]]
        held_to_loops(build(stacked(*layers, n_kv_heads=(1, 2, 4)[seed % 3])), prompt(11, seed=first))


# --------------------------------------------------------------------------- what is read


def read_by(model, layer, tokens, cache=None):
    """Columns each query reads, by row of the attention map (the same in every head)."""
    name = f"blocks.{layer}.attn.hook_pattern"
    _, seen = model.run_with_cache(tokens, name, **({} if cache is None else {"cache": cache}))
    read = seen[name][0] > 0
    assert (read == read[:1]).all()
    return [row.nonzero()[:, 0].tolist() for row in read[0]]


KINDS = {
    "full": ({"attention": "full"}, lambda q: set(range(q + 1)), lambda q: 0),
    "sliding 3": (
        {"attention": "sliding", "exact_window": 3},
        lambda q: {t for t in range(q + 1) if t > q - 3},
        lambda q: 0,
    ),
    "chunked W6/S4, window 2": (
        {"window": 6, "exact_window": 2},
        lambda q: {t for t in range(q + 1) if t > q - 2},
        lambda q: (q + 1) // 4,
    ),
    "chunked, open tail": (
        {"tail": "open"},
        lambda q: {t for t in range(q + 1) if t // 4 == q // 4},
        lambda q: (q + 1) // 4,
    ),
    "chunked, entries only": ({"exact_window": 0}, lambda q: set(), lambda q: (q + 1) // 4),
}


@pytest.mark.parametrize(("fields", "exact", "entries"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("sink", [False, True])
def test_each_query_reads_exactly_its_tokens_and_its_entries(fields, exact, entries, sink):
    with shapes_unchecked(), torch.no_grad():
        reads_exactly(build(n_layers=1, sink=sink, **fields), exact, entries, sink)


def reads_exactly(model, exact, entries, sink):
    tokens = prompt(14)
    expected = [
        sorted({*exact(q), *(14 + j for j in range(entries(q))), *([14 + entries(13)] if sink else [])})
        for q in range(14)
    ]
    assert read_by(model, 0, tokens) == expected
    cache = model.start_cache(1, rewind=False)
    for q in range(14):
        total = q + 1
        now = sorted(
            {*exact(q), *(total + j for j in range(entries(q))), *([total + entries(q)] if sink else [])}
        )
        assert read_by(model, 0, tokens[:, q : q + 1], cache) == [now]


def test_an_open_tail_holds_the_query_and_empties_at_the_boundary():
    model = build(n_layers=1, tail="open")
    counts = [len([c for c in row if c < 9]) for row in read_by(model, 0, prompt(9))]
    assert counts == [1, 2, 3, 4, 1, 2, 3, 4, 1]


def test_scores_are_scaled_and_minus_infinity_where_unreadable():
    model, tokens = build(n_layers=1, window=6, sink=True), prompt(9)
    at = "blocks.0.attn."
    _, seen = model.run_with_cache(tokens)
    scores, pattern = seen[at + "hook_attn_scores"], seen[at + "hook_pattern"]
    assert torch.equal(scores == -torch.inf, pattern == 0)
    assert difference(scores.softmax(-1), pattern) <= 1e-12
    q, k = seen[at + "hook_rot_q"][0, 5, 3], seen[at + "hook_rot_k"][0, 4, 1]
    assert abs(float(scores[0, 3, 5, 4]) - float(q @ k) / 6**0.5) <= 1e-12
    entry = seen[at + "hook_entry_k"][0, 0, 1]
    assert abs(float(scores[0, 3, 5, 9]) - float(q @ entry) / 6**0.5) <= 1e-12
    assert difference(scores[0, :, :, -1], model.blocks[0].attn.sink[:, None].expand(4, 9)) == 0


@pytest.mark.parametrize("share", [1, 2, 4])
def test_query_head_h_reads_kv_head_h_over_the_share(share):
    model, tokens = build(n_layers=1, n_kv_heads=4 // share), prompt(9)
    z = "blocks.0.attn.hook_z"
    _, before = model.run_with_cache(tokens, z)
    for g in range(4 // share):

        def shift(key, hook, g=g):
            return torch.cat((key[:, :, :g], key[:, :, g : g + 1] * -2, key[:, :, g + 1 :]), dim=2)

        kept = {}
        hooks_ = [(f"blocks.0.attn.{name}", shift) for name in ("hook_v", "hook_entry_v")]
        model.run_with_hooks(tokens, fwd_hooks=[*hooks_, (z, lambda x, hook, k=kept: k.update(z=x.clone()))])
        moved = (kept["z"] - before[z]).abs().amax((0, 1, 3)) > 1e-9
        assert moved.tolist() == [h // share == g for h in range(4)]


# --------------------------------------------------------------------------- sites that cost


def test_results_are_formed_only_when_asked_for(monkeypatch):
    model, tokens = build(n_layers=1), prompt(9)
    formed = []
    einsum = torch.einsum
    monkeypatch.setattr(torch, "einsum", lambda equation, *a: formed.append(equation) or einsum(equation, *a))
    model(tokens)
    assert not [e for e in formed if e.endswith("->rthm")]
    _, seen = model.run_with_cache(tokens, "blocks.0.attn.hook_result")
    assert [e for e in formed if e.endswith("->rthm")]
    assert seen["blocks.0.attn.hook_result"].shape == (1, 9, 4, 12)


@pytest.mark.parametrize("site", ["hook_z", "hook_result", "hook_pattern", "hook_attn_scores"])
@pytest.mark.parametrize("stack", STACKS)
def test_logits_are_the_same_whatever_is_watched(stack, site):
    with shapes_unchecked():
        model, tokens = build(STACKS[stack]), prompt(11)
        watched, _ = model.run_with_cache(tokens, lambda name: name.endswith(site))
        assert difference(watched, model(tokens)) <= EXACT


@pytest.mark.parametrize("stack", STACKS)
def test_a_long_prefill_in_blocks_of_queries_is_the_same(stack, monkeypatch):
    model, tokens = build(STACKS[stack]), prompt(23, batch=2)
    whole = model(tokens)
    for limit in (1, 1000):  # one query at a time, then a few
        monkeypatch.setattr(hooks.attention, "MAX_SCORES", limit)
        with shapes_unchecked():
            assert difference(model(tokens), whole) <= EXACT
            cache = model.start_cache(2)
            model(tokens[:, :10], cache)
            assert difference(model(tokens[:, 10:], cache), whole[:, 10:]) <= EXACT


@pytest.mark.parametrize("stack", STACKS)
def test_gradients_do_not_depend_on_the_path(stack):
    """The fused kernel and the path that forms maps, against numerical differences of the loops."""
    model, tokens = build(STACKS[stack]), prompt(8)
    name, weight = "blocks.0.attn.W_Q", model.blocks[0].attn.W_Q

    def gradient(watch):
        model.zero_grad()
        loss = (
            (
                model.run_with_hooks(tokens, fwd_hooks=[(f"{name[:13]}.hook_pattern", lambda x, hook: x)])
                if watch
                else model(tokens)
            )[0, -1]
            .square()
            .sum()
        )
        loss.backward()
        return weight.grad.clone()

    fused, formed = gradient(False), gradient(True)
    assert difference(fused, formed) <= 1e-8 * max(1.0, float(fused.abs().max()))
    place, step = (1, 3, 2), 1e-5
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            weight[place] += sign * step
            sides.append(float(reference.logits(model, tokens[0].tolist())[-1].square().sum()))
            weight[place] -= sign * step
    slope = (sides[0] - sides[1]) / (2 * step)
    assert float(fused[place]) == pytest.approx(slope, rel=1e-4, abs=1e-5)


# --------------------------------------------------------------------------- attend


def by_hand(q, segments, sink, additive):
    """Softmax over all segments with additive masks, one query and head at a time."""
    rows, length, heads, width = q.shape
    out = torch.zeros_like(q)
    for r in range(rows):
        for t in range(length):
            for h in range(heads):
                scores, values = [], []
                for segment, mask in zip(segments, additive, strict=True):
                    shared = r // (rows // segment.key.shape[0])
                    g = h // (heads // segment.key.shape[2])
                    for n in range(segment.key.shape[1]):
                        scores.append(
                            float(q[r, t, h] @ segment.key[shared, n, g]) / width**0.5 + float(mask[t, n])
                        )
                        values.append(segment.value[shared, n, g])
                mass = reference.softmax([*scores, *([float(sink[h])] if sink is not None else [])])
                for m, value in zip(mass, values, strict=False):
                    out[r, t, h] += m * value
    return out


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("with_sink", [False, True])
def test_attend_equals_a_softmax_written_out(shared, with_sink):
    make = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(shape, generator=make, dtype=torch.float64)

    rows, sequences = 4, 2 if shared else 4
    q, sink = normal(rows, 3, 4, 6), normal(4) if with_sink else None
    segments, additive = [], []
    for n in (5, 2):
        mask = torch.rand((3, n), generator=make) > 0.4
        mask[1] = False  # a query that reads nothing
        segments.append(Segment(normal(sequences, n, 2, 6), normal(sequences, n, 2, 6), mask))
        additive.append(torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf))
    expected = by_hand(q, segments, sink, additive)
    assert difference(attend(q, segments, sink=sink, may_be_empty=True), expected) <= 1e-12
    assert expected[:, 1].abs().max() == 0
    if with_sink:  # never empty then: the fused path
        assert difference(attend(q, segments, sink=sink), expected) <= 1e-12


# --------------------------------------------------------------------------- numerics


def test_the_norm_and_the_rotation_are_those_of_the_loops():
    make = torch.Generator().manual_seed(0)
    x = torch.randn((1, 7, 3, 8), generator=make, dtype=torch.float64)
    norm = RMSNorm(8).double()
    with torch.no_grad():
        norm.weight.copy_(torch.rand(8, generator=make) + 0.5)
    weight, normed = norm.weight.detach(), norm(x).detach()
    for dims in (0, 2, 4, 8):
        positions = torch.tensor([0, 1, 5, 6, 7, 100, 131072])
        tables = rope_tables(positions, dims, 1e4, torch.float64)
        turned = rotate(x, tables)
        for i, position in enumerate(positions.tolist()):
            for h in range(3):
                assert difference(normed[0, i, h], reference.rms(x[0, i, h], weight)) <= 1e-12
                expected = reference.turned(x[0, i, h], position, dims, 1e4)
                assert difference(turned[0, i, h], expected) <= 1e-9
        assert difference(rotate(turned, tables, inverse=True), x) <= 1e-12


def test_rotations_keep_lengths_and_depend_on_distance_alone():
    x, y = torch.randn((2, 1, 1, 1, 8), generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def product(a, b):
        turned = [
            rotate(v, rope_tables(torch.tensor([p]), 8, 1e4, torch.float64)) for v, p in ((x, a), (y, b))
        ]
        assert float(turned[0].norm()) == pytest.approx(float(x.norm()), abs=1e-12)
        return float((turned[0] * turned[1]).sum())

    assert product(3, 10) == pytest.approx(product(67, 74), abs=1e-12)
    assert product(3, 10) != pytest.approx(product(3, 11), abs=1e-6)


def test_an_empty_row_of_the_softmax_is_zero_with_finite_gradients():
    scores = torch.tensor([[-torch.inf, -torch.inf], [0.0, -torch.inf], [1.0, 1.0]], requires_grad=True)
    pattern = masked_softmax(scores, True)
    assert pattern.tolist() == [[0.0, 0.0], [1.0, 0.0], [0.5, 0.5]]
    pattern[:, 0].sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert masked_softmax(torch.zeros(2, 0), True).shape == (2, 0)
