"""The unit × phase heatmap: every mark means what the results say, and nothing is a raster."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

from interp.figures import FigureError, Theme, effect_heatmap
from tests.interp.figures import data


def plain(figure):
    return json.loads(figure.to_json())


def cells_of(figure):
    return next(t for t in plain(figure)["data"] if t.get("name") == "cells")


def shapes(figure, **wanted):
    return [s for s in plain(figure)["layout"]["shapes"] if all(s.get(k) == v for k, v in wanted.items())]


def box(shape):
    return tuple(shape[k] for k in ("x0", "x1", "y0", "y1"))


def test_one_rectangle_a_cell_in_order_of_layer_and_head():
    theme = Theme()
    figure = effect_heatmap(data.knockout(), theme=theme)
    assert {t["type"] for t in plain(figure)["data"]} == {"scatter"}  # a Heatmap trace would embed a raster
    by_box = {box(s): s for s in shapes(figure, type="rect", xref="x", layer="below")}
    assert len(by_box) == 16
    row_of_1_0 = 2  # 0.0, 0.1, 1.0, 1.1
    assert by_box[0.5, 1.5, 1.5, 2.5]["fillcolor"] == theme.diverging(-0.97)
    assert plain(figure)["layout"]["yaxis"]["ticktext"][row_of_1_0] == "1.0"


def test_hover_and_selection_carry_unit_and_phase():
    cells = cells_of(effect_heatmap(data.knockout(), data.specialization()))
    assert [row[:2] for row in cells["customdata"][:5]] == [
        ["0.0", 0],
        ["0.0", 1],
        ["0.0", 2],
        ["0.0", 3],
        ["0.1", 0],
    ]
    at = cells["customdata"].index(next(r for r in cells["customdata"] if r[:2] == ["1.0", 2]))
    assert (cells["x"][at], cells["y"][at]) == (2, 2)
    assert cells["customdata"][at][3] == -99.0
    assert "−99.0%" in cells["hovertext"][at]
    assert "serves this phase" in cells["hovertext"][at]
    assert cells["marker"]["opacity"] == 0


def test_served_runs_are_outlined():
    outlines = shapes(effect_heatmap(data.knockout(), data.specialization()), layer="above")
    spans = sorted((round(s["y0"] + 0.5), round(s["x0"] + 0.5), round(s["x1"] + 0.5)) for s in outlines)
    # 0.0 serves the cyclic run 3, 0: two pieces; 1.0 serves 1 and 2: one piece
    assert spans == [(0, 0, 1), (0, 3, 4), (2, 1, 3)]


def test_significant_but_not_served_cells_have_a_dot():
    figure = effect_heatmap(data.knockout(), data.specialization())
    dots = [
        t
        for t in plain(figure)["data"]
        if t.get("mode") == "markers" and t.get("marker", {}).get("size") == 2.6
    ]
    assert [(round(x), round(y)) for x, y in zip(dots[0]["x"], dots[0]["y"], strict=True)] == [(0, 1), (3, 1)]


def test_undefined_is_hatched_and_never_zero():
    theme = Theme()
    figure = effect_heatmap(data.knockout(), theme=theme)
    hatches = shapes(figure, type="path")
    assert len(hatches) == 1
    assert all(
        2.5 <= float(p.split(",")[0]) <= 3.5
        for p in hatches[0]["path"].replace("L", "M").split("M")
        if p.strip()
    )
    assert (
        next(s for s in shapes(figure, type="rect") if box(s) == (2.5, 3.5, 2.5, 3.5))["fillcolor"]
        == theme.paper
    )
    texts = next(t for t in plain(figure)["data"] if t.get("mode") == "text")
    assert (3, 3) not in list(zip(texts["x"], texts["y"], strict=True))
    assert "undefined" in cells_of(figure)["hovertext"][-1]
    assert any("/// undefined" in a["text"] for a in plain(figure)["layout"]["annotations"])


def test_uncovered_phases_are_flagged_at_the_axis():
    special = data.specialization()
    special["serves"][:, 2] = False
    special["uncovered"] = ~special["serves"].any("unit")
    figure = effect_heatmap(data.knockout(), special)
    flags = [t for t in plain(figure)["data"] if t.get("marker", {}).get("symbol") == "triangle-down"]
    assert flags[0]["x"] == [2]
    assert plain(figure)["layout"]["xaxis"]["ticktext"][2] == "<b>2</b>"
    assert "Served by no unit: 2." in plain(figure)["layout"]["meta"]["alt"]


def test_effects_by_residue_are_pooled_counts():
    knocked = data.knockout()
    cells = cells_of(effect_heatmap(knocked, axis="residue"))
    by_cell = {(r[0], r[2]): r[3] for r in cells["customdata"]}
    for u, unit in enumerate(data.UNITS):
        for residue in range(8):
            clean = sum(bool(knocked.clean_correct[p, residue]) for p in range(30))
            under = sum(bool(knocked.correct[u, p, residue]) for p in range(30))
            want = 100 * (under - clean) / clean if clean >= 20 else None
            assert by_cell[unit, residue] == (None if want is None else pytest.approx(want))
    assert by_cell["1.0", 3] is None  # 19 clean answers


def test_the_same_results_give_the_same_figure():
    one, two = (effect_heatmap(data.knockout(), data.specialization()).to_json() for _ in range(2))
    assert one == two


def test_the_colour_bar_is_made_of_shapes_and_centred():
    bar = shapes(effect_heatmap(data.knockout()), xref="x2")
    assert min(s["y0"] for s in bar) == -100
    assert max(s["y1"] for s in bar) == 100
    axis = plain(effect_heatmap(data.knockout(), limit=50))["layout"]["yaxis2"]
    assert axis["range"] == [-50, 50]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: effect_heatmap(data.knockout(), axis="offset"), "valid: phase, residue"),
        (lambda: effect_heatmap(data.sweep()), "effect missing"),
        (lambda: effect_heatmap(data.knockout(), data.specialization().isel(unit=[0])), "same run"),
        (
            lambda: effect_heatmap(data.knockout().drop_vars(["correct"]), axis="residue"),
            "no effect by residue",
        ),
        (
            lambda: effect_heatmap(xr.Dataset({"effect": (("unit", "residue"), [[1.0]])}, {"unit": ["0"]})),
            "no stride",
        ),
    ],
)
def test_what_cannot_be_drawn_is_one_line(call, says):
    with pytest.raises(FigureError, match=says):
        call()


def test_28_layers_by_residue_fit_a_page():
    rng = np.random.default_rng(1)
    effect = xr.Dataset(
        {"effect": (("unit", "residue"), rng.normal(0, 30, (28, 24)))},
        {"unit": [str(i) for i in range(28)]},
        {"stride": 8, "unit_kind": "layer"},
    )
    for limit in (220.0, 80.0):
        figure = effect_heatmap(effect, axis="residue", max_height_mm=limit)
        layout = plain(figure)["layout"]
        assert layout["height"] <= limit * 96 / 25.4 + 1
        area = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
        font = layout["yaxis"]["tickfont"]["size"]
        assert area / len(layout["yaxis"]["ticktext"]) >= font  # labels do not collide
