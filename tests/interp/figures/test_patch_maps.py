"""Maps of patching results, from values written out here."""

import numpy as np
import pytest
import xarray as xr

from interp.figures import FigureError
from interp.figures.export import figure_rows
from interp.figures.patch_maps import patch_by_phase, patch_by_place, patching_map


def patched(kind, labels, effect, p):
    return xr.Dataset(
        {"effect_logprob": (("unit", "phase"), effect), "effect_logprob_p": (("unit", "phase"), p)},
        coords={"unit": labels, "phase": np.arange(np.shape(effect)[1])},
        attrs={"unit_kind": kind, "shift": 1, "stride": 2, "model": "m"},
    )


LABELS = ["0.-1", "0.+0", "0.query", "2.-1", "2.query"]
EFFECT = [[0.0, 0.5], [-1.0, -3.0], [0.25, 0.25], [0.0, 0.0], [4.0, -2.0]]
P = [[1.0, 1.0], [0.2, 0.01], [1.0, 1.0], [1.0, 1.0], [0.04, 0.3]]


def cells(figure):
    columns, rows = figure_rows(figure)
    assert columns == ["row", "column", "change (nats)"]
    return {(row, column): value for row, column, value in rows}


def test_places_are_columns_and_a_missing_place_is_left_empty():
    found = cells(patch_by_place(patched("position", LABELS, EFFECT, P)))
    assert found == {
        ("0", "-1"): 0.25, ("0", "+0"): -2.0, ("0", "query"): 0.25,
        ("2", "-1"): 0.0, ("2", "+0"): None, ("2", "query"): 1.0,
    }  # fmt: skip


def test_one_phase_shows_its_own_values_and_outlines_its_own_significance():
    figure = patch_by_place(patched("position", LABELS, EFFECT, P), phase=1)
    assert cells(figure)["0", "+0"] == -3.0
    heavy = [s for s in figure.layout.shapes if s.layer == "above"]
    assert [(round(s.x0 + s.x1) / 2, round(s.y0 + s.y1) / 2) for s in heavy] == [(1, 0)]
    assert "layer 0 at position +0" in figure.layout.meta["alt"]


def test_over_all_phases_a_place_is_outlined_that_is_significant_at_any():
    heavy = [
        s for s in patch_by_place(patched("position", LABELS, EFFECT, P)).layout.shapes if s.layer == "above"
    ]
    assert len(heavy) == 2


def test_units_by_phase():
    figure = patch_by_phase(patched("head", ["0.0", "0.1"], [[0.0, -0.5], [0.0, 0.0]], np.ones((2, 2))))
    assert cells(figure)["0.0", "1"] == -0.5
    assert "−0.50 nats, unit 0.0 at phase 1" in figure.layout.meta["alt"]


@pytest.mark.parametrize(
    ("kind", "phase", "match"),
    [("head", None, "needs position or entry"), ("position", 7, "no phase 7; valid: 0 to 1")],
)
def test_what_cannot_be_drawn_is_refused(kind, phase, match):
    with pytest.raises(FigureError, match=match):
        patch_by_place(patched(kind, LABELS, EFFECT, P), phase=phase)


def told(kind, labels, **attrs):
    found = patched(kind, labels, np.zeros((len(labels), 2)), np.ones((len(labels), 2)))
    return patching_map(found.assign_attrs(attrs)).layout.meta["caption"]


@pytest.mark.parametrize(
    ("attrs", "said", "never"),
    [
        ({"pairs": "shift", "shift": 3}, "from the same prompt with its target shifted by 3,", "value"),
        (
            {"pairs": "shift", "shift": 2, "direction": "denoising"},
            "from the clean prompt and goes into the same prompt with its target shifted by 2 (denoising)",
            "value",
        ),
        ({"pairs": "value", "shift": 1}, "another value behind the target key", "shifted"),
        (
            {"pairs": "value", "shift": 1, "direction": "denoising"},
            "from the clean prompt and goes into the same prompt with another value",
            "shifted",
        ),
    ],
)
def test_the_caption_says_where_it_comes_from_and_where_it_goes(attrs, said, never):
    caption = told("position", ["0.-1", "0.+0"], **attrs)
    assert said in caption
    assert never not in caption
    assert ("source prompt's answer" in caption) == (attrs["pairs"] == "value")


@pytest.mark.parametrize(
    ("kind", "label", "attrs", "said"),
    [
        ("position", "0.+0", {"site": ""}, "residual stream before a layer at one position"),
        ("position", "0.+0", {"site": "hook_mlp_out", "at": "all"}, "hook_mlp_out at one position comes"),
        ("entry", "0.+0", {}, "key and value of one entry"),
        ("entry", "0.+0", {"site": "attn.hook_entry_k"}, "attn.hook_entry_k of one entry"),
        ("head", "0.1", {"at": "final"}, "output of one query head, final position, comes"),
        ("head", "0.1", {"at": "all"}, "output of one query head, all positions, comes"),
        ("mlp", "0", {"at": "final"}, "output of a layer's MLP"),
        ("offset", "0.3", {"at": "all"}, "key and value gates of a layer at one offset comes"),
        ("layer", "0", {"site": "attn.hook_pattern", "at": "final"}, "attn.hook_pattern of one layer"),
    ],
)
def test_the_caption_names_what_is_patched(kind, label, attrs, said):
    caption = told(kind, [label], **attrs)
    assert said in caption
    assert ("residual stream" in caption) == (kind == "position" and not attrs["site"])


def test_under_denoising_the_phase_is_the_patched_prompts():
    found = patched("head", ["0.0"], np.zeros((1, 2)), np.ones((1, 2)))
    titles = [
        patch_by_phase(found.assign_attrs(direction=one)).layout.xaxis.title.text
        for one in ("noising", "denoising")
    ]
    assert titles == ["phase of the target", "phase of the target in the patched prompt"]
