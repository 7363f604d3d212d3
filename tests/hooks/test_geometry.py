"""Window, stride and phase arithmetic against sets of tokens, listed one by one."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks import ChunkGeometry, PhaselensError
from hooks.errors import ConfigError
from hooks.geometry import common_residue_modulus

SIZES = st.tuples(st.integers(1, 12), st.integers(0, 12)).map(lambda sizes: (sizes[0] + sizes[1], sizes[0]))


def windows(window, stride, entries):
    """Tokens of every entry: an entry ends every `stride` tokens and reaches `window` tokens back."""
    found = []
    for j in range(entries):
        last = stride * (j + 1) - 1
        found.append([t for t in range(last - window + 1, last + 1) if t >= 0])
    return found


@settings(max_examples=150, deadline=None)
@given(SIZES, st.integers(0, 40))
def test_tokens_and_entries_find_each_other(sizes, token):
    geometry, pooled = ChunkGeometry(*sizes), windows(*sizes, entries=70)
    assert [list(geometry.covered(j)) for j in range(70)] == pooled
    holding = [j for j in range(70) if token in pooled[j]]
    assert list(geometry.entries_of(token)) == holding
    assert holding, "every token is in an entry"
    assert geometry.closes_at(token) == min(pooled[j][-1] for j in holding)


@settings(max_examples=150, deadline=None)
@given(SIZES, st.integers(0, 60), st.integers(0, 14))
def test_what_a_query_may_read(sizes, query, exact_window):
    geometry, pooled = ChunkGeometry(*sizes), windows(*sizes, entries=70)
    closed = [tokens for tokens in pooled if tokens[-1] <= query]
    assert geometry.visible(query) == len(closed) == geometry.n_entries(query + 1)
    after_the_last_end = [t for t in range(query + 1) if all(t > tokens[-1] for tokens in closed)]
    assert geometry.query_phase(query) == len(after_the_last_end)
    in_entries = {t for tokens in closed for t in tokens}
    exact = {t for t in range(query + 1) if query - t < exact_window}
    assert list(geometry.unreachable(query, exact_window)) == [
        t for t in range(query + 1) if t not in in_entries | exact
    ]


@settings(max_examples=100, deadline=None)
@given(SIZES)
def test_offsets_and_phases(sizes):
    geometry = ChunkGeometry(*sizes)
    window, stride = sizes
    whole = next(tokens for tokens in windows(*sizes, entries=40) if len(tokens) == window)
    phases = [token % stride for token in whole]
    assert [geometry.offset_phase(i) for i in range(window)] == phases
    assert [geometry.phase(token) for token in whole] == phases
    for phase in range(stride):
        assert geometry.phase_offsets(phase) == [i for i in range(window) if phases[i] == phase]
        # Away from the first window a token is in as many entries as its phase has offsets.
        assert len(geometry.phase_offsets(phase)) == len(geometry.entries_of(phase + stride * window))
    assert geometry.boundary_phase == phases[-1] == stride - 1
    # Windows that start at multiples of S instead differ by a relabelling of phases.
    assert [(i % stride) for i in range(window)] == [(p - (stride - window)) % stride for p in phases]


def test_the_worked_example():
    geometry = ChunkGeometry(8, 6)
    assert [geometry.offset_phase(i) for i in range(8)] == [4, 5, 0, 1, 2, 3, 4, 5]
    assert [len(geometry.entries_of(t)) for t in range(6, 12)] == [1, 1, 1, 1, 2, 2]
    assert geometry.covered(0) == range(0, 6)
    assert geometry.covered(1) == range(4, 12)
    assert [geometry.visible(q) for q in (0, 4, 5, 10, 11)] == [0, 0, 1, 1, 2]
    assert [geometry.closes_at(t) for t in (0, 5, 6, 11)] == [5, 5, 11, 11]
    assert [geometry.query_phase(q) for q in (0, 4, 5, 6)] == [1, 5, 0, 1]


def test_stride_one_pools_every_token_by_itself():
    geometry = ChunkGeometry(1, 1)
    assert [list(geometry.entries_of(t)) for t in range(3)] == [[0], [1], [2]]
    assert [geometry.visible(q) for q in range(3)] == [1, 2, 3]
    assert geometry.boundary_phase == geometry.query_phase(5) == 0


@pytest.mark.parametrize(
    ("window", "stride"),
    [(3, 4), (0, 0), (4, 0), (4, -1), (-4, -4), (4.0, 4), (4, 4.0), (True, 1), ("8", 8), (None, 8)],
)
def test_sizes_that_cannot_be(window, stride):
    with pytest.raises(ConfigError) as caught:
        ChunkGeometry(window, stride)
    assert "window" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, PhaselensError)


@pytest.mark.parametrize("method", ["phase", "query_phase", "covered", "entries_of", "visible", "closes_at"])
def test_positions_before_the_first(method):
    with pytest.raises(ConfigError, match="-1 is negative"):
        getattr(ChunkGeometry(8, 6), method)(-1)


def test_offsets_and_phases_that_do_not_exist():
    geometry = ChunkGeometry(8, 6)
    for offset in (-1, 8):
        with pytest.raises(ConfigError, match="valid: 0 to 7"):
            geometry.offset_phase(offset)
    for phase in (-1, 6):
        with pytest.raises(ConfigError, match="valid: 0 to 5"):
            geometry.phase_offsets(phase)
    with pytest.raises(ConfigError, match="length -1"):
        geometry.n_entries(-1)


def test_a_geometry_is_a_value():
    geometry = ChunkGeometry(window=8, stride=6)
    assert geometry == ChunkGeometry(8, 6)
    assert len({geometry, ChunkGeometry(8, 6), ChunkGeometry(8, 8)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        geometry.stride = 4


@pytest.mark.parametrize(
    ("strides", "modulus"),
    [([], 24), ([8], 24), ([4, 8, 6, 12], 24), ([16], 48), ([4, 16], 48), ([5], 24), ([128], 24)],
)
def test_the_common_axis_of_residues(strides, modulus):
    assert common_residue_modulus(strides) == modulus
