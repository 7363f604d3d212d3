from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from hooks.errors import StatisticsError
from interp.published import load_published
from interp.specialization import arcs_text, served_arcs, served_text, specialization, unserved
from tests.interp.simulated_recall import ablated_rows, clean_rows

PUBLISHED = Path(__file__).parents[1] / "data" / "published" / "knockout_w8s8_1kv_seed42.json"
STRIDE = 8


@pytest.fixture(scope="module")
def published() -> dict:
    return json.loads(PUBLISHED.read_text())


def served(result: xr.Dataset) -> dict[int, set[int]]:
    return {unit: set(np.flatnonzero(row)) for unit, row in enumerate(result.serves.values) if row.any()}


@pytest.mark.parametrize("weighted", [False, True])
def test_published_knockouts(published, weighted):
    effects = np.array(published["relative_change_percent"])
    result = specialization(
        effects, stride=8, clean_accuracy=published["clean_accuracy_percent"] if weighted else None
    )
    assert served(result) == {0: set(range(8)), 9: {5, 6}, 10: {3, 4}, 11: {0, 7}, 14: {1, 2}, 15: {4, 5}}
    # Layer 18 loses 37.5% of a 6% base at phase 7 and serves nothing; layer 14 loses 39.4% at phase 3.
    assert result.loss.values[18, 7] == pytest.approx(37.5, abs=0.2)
    assert result.loss.values[14, 3] == pytest.approx(39.4, abs=0.2)
    assert np.isnan(result.p_effect).all()
    assert np.isnan(result.p_selective).all()
    assert np.isfinite(result.selectivity.values).tolist() == [
        u in served(result) for u in range(len(effects))
    ]
    assert not result.uncovered.any()
    assert arcs_text(result.serves[11]) == "7–0"
    assert published == load_published(PUBLISHED.stem)


def test_published_knockouts_without_layer_0_leave_nothing_to_phase_7_but_layer_11(published):
    effects = np.array(published["relative_change_percent"])
    without = specialization(np.delete(effects, [0, 11], axis=0), stride=8)
    assert np.flatnonzero(without.uncovered).tolist() == [0, 7]


def test_losses_and_selectivity_by_hand():
    effects = np.array(
        [[-80.0, 0, 0, 0], [-50, -50, 10, 0], [-60, -60, -60, -60], [-39.9, 5, 0, 0], [-40, 0, 0, 0]]
    )
    result = specialization(effects, 4)
    assert served(result) == {0: {0}, 1: {0, 1}, 2: {0, 1, 2, 3}, 4: {0}}
    # One phase 1; two equal ones of four 1 − log 2/log 4; all alike 0; gains count as no loss.
    expected = [1, 0.5, 0, np.nan, 1]
    assert result.selectivity.values == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert result.uncovered.values.tolist() == [False] * 4
    assert specialization(effects[:2], 4).uncovered.values.tolist() == [False, False, True, True]
    assert specialization(effects, 4, min_loss=39).serves.values[3].tolist() == [True, False, False, False]
    assert result.attrs["stride"] == 4
    assert result.attrs["min_loss"] == 40


def test_selectivity_of_one_phase_does_not_exist():
    result = specialization([[-90.0, -90.0]], 1)
    assert result.serves.values.tolist() == [[True]]
    assert np.isnan(result.selectivity).all()


def test_columns_are_pooled_by_clean_accuracy():
    effects = np.array([[-90.0, 0, -10, 0]])
    assert specialization(effects, 2).loss.values[0] == pytest.approx([50, 0])
    weighted = specialization(effects, 2, clean_accuracy=[1, 50, 9, 50])
    assert weighted.loss.values[0] == pytest.approx([18, 0])  # (90·1 + 10·9) / 10
    assert not weighted.serves.any()


def test_undefined_effects_are_shown_and_serve_nothing():
    effects = np.array([[np.nan, -90, -90, 0], [np.nan, np.nan, -90, 0]])
    pooled = specialization(effects, 2)
    assert pooled.loss.values == pytest.approx(np.array([[90, 45], [90, 0]]))
    alone = specialization(effects, 4)
    assert np.isnan(alone.loss.values[:, 0]).all()
    assert alone.uncovered.values.tolist() == [True, False, False, True]
    nothing_to_lose = specialization(effects, 4, clean_accuracy=[5, 5, 0, 5])
    assert np.isnan(nothing_to_lose.loss.values[:, 2]).all()


@pytest.mark.parametrize(
    ("effects", "options", "message"),
    [
        (np.zeros((2, 8)), {}, "no stride"),
        (np.zeros((2, 8)), {"stride": 3}, "whole cycles of stride 3"),
        (np.zeros(8), {"stride": 8}, r"shape \(8,\)"),
        (np.full((2, 8), np.inf), {"stride": 8}, "finite or NaN"),
        (np.zeros((2, 8)), {"stride": 8, "clean_accuracy": [1, 2]}, "8 numbers"),
        (np.zeros((2, 8)), {"stride": 8, "clean_accuracy": [-1] * 8}, "8 numbers"),
        (xr.Dataset({"gate": ("unit", [1.0])}, attrs={"stride": 8}), {}, r"holds \['gate'\]"),
    ],
)
def test_refusals(effects, options, message):
    with pytest.raises(StatisticsError, match=message):
        specialization(effects, **options)


# With prompts.


def knocked_out(accuracy, broken, *, n_prompts=24, seed=0, jitter=0.3, keep=("correct", "logprob", "margin")):
    rng = np.random.default_rng(seed)
    clean = clean_rows(accuracy, n_prompts, rng)
    after = ablated_rows(clean, broken, rng, jitter=jitter)
    units = [f"{u // 2}.{u % 2}" for u in range(len(broken))]
    return xr.Dataset(
        {name: (("unit", "prompt", "residue"), getattr(after, name)) for name in keep}
        | {f"clean_{name}": (("prompt", "residue"), getattr(clean, name)) for name in keep},
        coords={
            "unit": units,
            "residue": np.arange(24),
            "layer": ("unit", [u // 2 for u in range(len(broken))]),
            "head": ("unit", [u % 2 for u in range(len(broken))]),
        },
        attrs={"stride": STRIDE, "unit_kind": "kv_head", "model": "simulated", "seed": 5},
    )


BROKEN = np.array(
    [
        [0.9, 0.9, 0, 0, 0, 0, 0, 0],
        [0, 0, 0.9, 0.9, 0.9, 0, 0, 0],
        [0.3] * 8,
        [0.0] * 8,
    ]
)
WEAK_BOUNDARY = [100, 100, 100, 100, 100, 100, 100, 40]


@pytest.mark.parametrize("keep", [("correct",), ("correct", "margin"), ("correct", "logprob", "margin")])
def test_knockouts_with_prompts(keep):
    effects = knocked_out(WEAK_BOUNDARY, BROKEN, keep=keep)
    result = specialization(effects)
    assert served(result) == {0: {0, 1}, 1: {2, 3, 4}}
    assert np.flatnonzero(result.uncovered).tolist() == [5, 6, 7]
    assert (result.p_effect.values[2] < 0.05)[:7].all()
    assert (result.p_selective.values < 0.05).tolist() == [True, True, False, False]
    assert result.attrs["tested_on"] == next(
        name for name in ("logprob", "margin", "correct") if name in keep
    )
    clean, after = effects.clean_correct.values, effects.correct.values
    by_hand = [
        100 * (1 - after[u, :, phase::8].sum() / clean[:, phase::8].sum())
        for u in range(4)
        for phase in range(8)
    ]
    assert result.loss.values.reshape(-1) == pytest.approx(by_hand)


def test_labels_and_provenance_are_kept():
    result = specialization(knocked_out(WEAK_BOUNDARY, BROKEN))
    assert result.unit.values.tolist() == ["0.0", "0.1", "1.0", "1.1"]
    assert result["layer"].values.tolist() == [0, 0, 1, 1]
    assert result["head"].dims == ("unit",)
    assert result.phase.values.tolist() == list(range(8))
    assert result.attrs["model"] == "simulated"
    assert result.attrs["unit_kind"] == "kv_head"
    assert all(
        isinstance(value, str | int | float) and not isinstance(value, bool)
        for value in result.attrs.values()
    )


def test_a_large_loss_without_significance_is_no_service():
    # A handful of prompt_ids, of which only one is hurt: 60% of the count is lost, but it is one observation.
    effects = knocked_out([100] * 8, np.zeros((1, 8)), n_prompts=8, jitter=0.0)
    margin = np.full((1, 8, 24), 6.0)
    margin[0, 0] = -6.0
    clean = np.full((8, 24), 6.0)
    clean[3:] = -6.0
    margin[0, 3:] = -6.0
    effects = effects.drop_vars(["logprob", "clean_logprob"]).assign(
        margin=(("unit", "prompt", "residue"), margin),
        clean_margin=(("prompt", "residue"), clean),
        correct=(("unit", "prompt", "residue"), margin > 0),
        clean_correct=(("prompt", "residue"), clean > 0),
    )
    result = specialization(effects, stride=1, min_loss=30)
    assert result.loss.values[0, 0] == pytest.approx(100 / 3)
    assert result.p_effect.values[0, 0] == 1
    assert not result.serves.any()


def test_too_few_clean_correct_prompts_are_undefined():
    effects = knocked_out([100] * 7 + [10], np.full((2, 8), 0.9), n_prompts=30)
    assert effects.clean_correct.values[:, 7::8].sum() < 20
    result = specialization(effects)
    assert np.isnan(result.loss.values[:, 7]).all()
    assert not result.serves.values[:, 7].any()
    assert result.serves.values[:, :7].all()
    assert bool(result.uncovered[7])


def test_too_few_prompt_ids_have_no_p_and_no_service():
    result = specialization(knocked_out([100] * 8, np.ones((1, 8)), n_prompts=5), 1)
    assert result.loss.values[0, 0] > 90
    assert np.isnan(result.p_effect).all()
    assert np.isnan(result.p_selective).all()
    assert not result.serves.any()


def test_another_stride_relabels_and_finds_nothing_selective():
    result = specialization(knocked_out(WEAK_BOUNDARY, BROKEN), 3)
    assert result.sizes["phase"] == 3
    assert result.attrs["stride"] == 3
    assert not result.serves.any()
    assert (result.p_selective.values > 0.05).all()


def test_order_of_axes_and_columns_does_not_matter():
    effects = knocked_out(WEAK_BOUNDARY, BROKEN)
    rolled = effects.roll(residue=5, roll_coords=True).transpose("residue", "prompt", "unit")
    xr.testing.assert_identical(specialization(rolled), specialization(effects))


def test_a_dataset_of_effects_alone_is_decided_by_loss():
    effects = xr.Dataset(
        {"effect": (("phase", "unit"), [[-90.0, 0], [0, -45]])},
        coords={"unit": ["0.0", "0.1"]},
        attrs={"stride": 2},
    )
    for given_effects in (effects, effects["effect"].assign_attrs(stride=2)):
        result = specialization(given_effects)
        assert result.serves.values.tolist() == [[True, False], [False, True]]
        assert result.unit.values.tolist() == ["0.0", "0.1"]
        assert result.attrs["tested_on"] == "none"


# Cyclic runs.


@pytest.mark.parametrize(
    ("phases", "size", "arcs", "text"),
    [
        ([7, 0, 1], 8, [(7, 1)], "7–1"),
        ([0, 7], 8, [(7, 0)], "7–0"),
        ([1, 2, 4], 8, [(1, 2), (4, 4)], "1–2, 4"),
        ([0, 3, 7], 8, [(3, 3), (7, 0)], "3, 7–0"),
        (range(8), 8, [(0, 7)], "all"),
        ([], 8, [], "none"),
        ([0], 1, [(0, 0)], "all"),
        ([0], 2, [(0, 0)], "0"),
    ],
)
def test_served_arcs_by_hand(phases, size, arcs, text):
    row = np.isin(np.arange(size), list(phases))
    assert served_arcs(row) == arcs
    assert arcs_text(row) == text


@given(st.lists(st.booleans(), min_size=1, max_size=16))
def test_served_arcs_rebuild_the_row_and_never_touch(row):
    size = len(row)
    covered = [
        phase
        for first, last in served_arcs(row)
        for phase in [(first + step) % size for step in range((last - first) % size + 1)]
    ]
    assert sorted(covered) == [phase for phase in range(size) if row[phase]]
    if not all(row):
        assert all(not row[first - 1] and not row[(last + 1) % size] for first, last in served_arcs(row))


def test_a_phase_with_too_few_right_answers_is_undefined_not_unserved():
    """Four phases, 30 prompts each: phase 3 is right 5 times only, so nothing can be said of it."""
    clean = np.ones((30, 4), bool)
    clean[5:, 3] = False
    after = clean[None].repeat(2, 0)
    after[0, :, :2] = False  # unit 0 costs phases 0 and 1 everything; nobody touches 2
    found = specialization(
        xr.Dataset(
            {
                "correct": (("unit", "prompt", "residue"), after),
                "clean_correct": (("prompt", "residue"), clean),
            },
            coords={"unit": ["0.0", "0.1"]},
        ),
        4,
    )
    bare, unknown = unserved(found)
    assert bare.tolist() == [False, False, True, False]
    assert unknown.tolist() == [False, False, False, True]
    assert (
        served_text(found.serves.values[0], found.loss.values[0]) == "0–1; undefined at 3 (accuracy too low)"
    )
