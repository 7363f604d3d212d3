from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.errors import StatisticsError
from interp.published import load_published, published_names
from interp.stats import discover_confirm, placebo_strides


@pytest.mark.parametrize(
    ("stride", "modulus", "expected"),
    [(8, 24, [3]), (4, 24, [3]), (6, 24, []), (12, 24, []), (4, 48, [3]), (2, 24, [3]), (8, 120, [3, 5, 15])],
)
def test_placebo_strides_by_hand(stride, modulus, expected):
    assert placebo_strides(stride, modulus) == expected


@given(st.integers(1, 16), st.integers(1, 12))
def test_placebo_strides_are_exactly_the_jointly_balanced_ones(stride, cycles):
    modulus = stride * cycles
    balanced = []
    for placebo in range(2, modulus + 1):
        pairs = Counter((t % stride, t % placebo) for t in range(modulus))
        if len(pairs) == stride * placebo and len(set(pairs.values())) == 1:
            balanced.append(placebo)
    assert placebo_strides(stride, modulus) == balanced


def test_placebo_strides_refuse_a_stride_outside_the_axis():
    with pytest.raises(StatisticsError, match="stride 5 does not divide"):
        placebo_strides(5, 24)


@given(st.integers(2, 200), st.integers(0, 50))
def test_discover_and_confirm_are_disjoint_and_complete(n, seed):
    discover, confirm = discover_confirm(n, seed=seed)
    assert sorted([*discover, *confirm]) == list(range(n))
    assert abs(len(discover) - len(confirm)) <= 1
    again = discover_confirm(n, seed=seed)
    assert np.array_equal(discover, again[0])


def test_discover_confirm_needs_prompts_on_both_sides():
    with pytest.raises(StatisticsError, match="leaves one side"):
        discover_confirm(10, share=0.01)


def test_published_tables_carry_their_source():
    assert published_names() == [
        "completion_fp8",
        "controlled_runs",
        "knockout_w8s8_1kv_seed42",
        "needle_128k",
    ]
    assert all("arXiv 2609.36322" in load_published(name)["source"] for name in published_names())
    with pytest.raises(StatisticsError, match=r"'needle'.*needle_128k"):
        load_published("needle")
