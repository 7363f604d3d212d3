"""Accuracy by residue, gate profiles, the gates plane and composed panels."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest

from interp.figures import (
    FigureError,
    Theme,
    accuracy_by_residue,
    effect_heatmap,
    effective_offsets,
    gate_profiles,
    panels,
)
from tests.interp.figures import data


def plain(figure):
    return json.loads(figure.to_json())


def values(array):
    """A list, whether plotly stored one or packed bytes."""
    if isinstance(array, dict):
        return np.frombuffer(base64.b64decode(array["bdata"]), array["dtype"]).tolist()
    return array


# ---- accuracy by residue -----------------------------------------------------------------------------------


def test_accuracy_lines_and_whiskers_are_the_results():
    (line,) = plain(accuracy_by_residue(data.sweep()))["data"]
    assert values(line["y"]) == pytest.approx([100, 90, 80, 10] * 2)
    assert values(line["error_y"]["array"]) == pytest.approx([0, 10, 10, 10] * 2)  # capped at 100%
    assert values(line["error_y"]["arrayminus"]) == pytest.approx([10] * 8)
    assert line["customdata"][5][:4] == ["toy", 5, 1, pytest.approx(90)]


def test_boundary_phases_are_shaded_open_and_named():
    figure = plain(accuracy_by_residue(data.sweep()))
    dark = [s for s in figure["layout"]["shapes"] if s["fillcolor"] == Theme().shade_boundary]
    assert [(s["x0"], s["x1"]) for s in dark] == [(2.5, 3.5), (6.5, 7.5)]
    colours = figure["data"][0]["marker"]["color"]
    assert [c == Theme().paper for c in colours] == [False, False, False, True] * 2
    assert figure["layout"]["annotations"][0]["text"] == "boundary phase 3 (S = 4)"


def test_several_strides_share_the_residue_axis_without_one_shading():
    both = {"four": data.sweep(), "two": data.sweep((1.0, 0.5))}
    figure = plain(accuracy_by_residue(both))
    assert not figure["layout"].get("shapes")
    assert [t["name"] for t in figure["data"]] == ["four", "two"]
    assert [c == Theme().paper for c in figure["data"][1]["marker"]["color"]] == [False, True] * 4
    looks = [(t["line"]["color"], t["line"]["dash"], t["marker"]["symbol"][0]) for t in figure["data"]]
    assert all(a != b for a, b in zip(*looks, strict=True))  # never told apart by colour alone


def test_accuracy_needs_a_sweep():
    with pytest.raises(FigureError, match="no sweep"):
        accuracy_by_residue({})
    with pytest.raises(FigureError, match="accuracy_residue missing"):
        accuracy_by_residue(data.sweep().drop_vars("accuracy_residue"))


def query_sweep():
    """As interp.query_phase returns it: residue and phase are both (q+1) mod S; intervals are over prompts."""
    return data.sweep(modulus=4, axis="query", period=0, period_p=float("nan"))


def test_a_query_sweep_is_drawn_by_query_phase_and_marks_no_boundary():
    figure = plain(accuracy_by_residue(query_sweep()))
    layout = figure["layout"]
    assert layout["xaxis"]["title"]["text"] == "query phase (q + 1) mod 4"
    assert not layout.get("shapes")
    assert not layout.get("annotations")
    (line,) = figure["data"]
    assert Theme().paper not in line["marker"]["color"]  # no open markers
    assert line["meta"]["columns"][:2] == ["series", "query_phase"]
    assert [row[1] for row in line["customdata"]] == [0, 1, 2, 3]
    assert "query phase %{customdata[1]}" in line["hovertemplate"]
    words = layout["meta"]["caption"] + layout["meta"]["alt"]
    assert "BCa" in words
    assert "worst query phase 3" in words
    assert not re.search("Wilson|boundary|residue", words)


def test_target_and_query_sweeps_never_share_an_axis():
    with pytest.raises(FigureError, match="a by target, b by query; draw each"):
        accuracy_by_residue({"a": data.sweep(), "b": query_sweep()})
    both = plain(accuracy_by_residue({"a": query_sweep(), "b": query_sweep()}))
    assert both["layout"]["xaxis"]["title"]["text"] == "query phase (q + 1) mod 4"


def test_a_legend_too_wide_for_its_panel_stands_in_rows_and_the_figure_grows():
    few, many = ({f"DeepSeek-V4-{i}": data.sweep() for i in range(n)} for n in (2, 5))
    one, five = (accuracy_by_residue(sweeps, theme=Theme(width_mm=85)) for sweeps in (few, many))
    assert (one.layout.legend.orientation, five.layout.legend.orientation) == ("h", "v")
    grown = five.layout.height - one.layout.height
    assert grown >= 5 * 16  # plotly's least height of a row
    room = five.layout.height - five.layout.margin.t - five.layout.margin.b
    assert room >= one.layout.height - one.layout.margin.t - one.layout.margin.b  # not taken from the plot
    assert accuracy_by_residue(many, theme=Theme(width_mm=250)).layout.legend.orientation == "h"


def test_the_caption_says_what_is_marked_and_no_more():
    strides = accuracy_by_residue({"four": data.sweep(), "two": data.sweep((1.0, 0.5))})
    assert "Open markers are boundary phases." in strides.layout.meta["caption"]
    assert "shaded" not in strides.layout.meta["caption"]
    without = accuracy_by_residue(data.sweep(placebo=1))
    assert "boundary" not in without.layout.meta["caption"]


# ---- gate profiles -----------------------------------------------------------------------------------------


def test_profiles_pair_each_gate_with_its_knockout():
    figure = plain(gate_profiles(data.gates(), data.knockout()))
    titles = [a["text"] for a in figure["layout"]["annotations"]]
    assert titles == ["<b>0.0</b>", "<b>0.1</b>", "<b>1.0</b>", "<b>1.1</b>"]
    of = {(t["name"], t["customdata"][0][0]): t for t in figure["data"] if t.get("customdata")}
    assert of["key gate", "1.0"]["y"] == pytest.approx([0.4, 1.6, 1.6, 0.4])
    assert of["value gate", "1.0"]["line"]["dash"] == "dash"
    assert of["knockout effect", "1.0"]["y"] == [-1.0, -97.0, -99.0, 2.0]
    assert ("value gate", "1.1") not in of  # tied: absent, not zero
    assert of["knockout effect", "1.1"]["y"][3] is None
    undefined = next(t for t in figure["data"] if t["name"] == "undefined")
    assert (undefined["x"], undefined["text"]) == ([3], ["n/a"])
    assert sum(t["showlegend"] for t in figure["data"]) == 3


def test_profiles_of_chosen_units_of_layers_and_without_knockout():
    chosen = plain(gate_profiles(data.gates(), data.knockout(), ["1.0", "0.0"]))
    assert [a["text"] for a in chosen["layout"]["annotations"]] == ["<b>1.0</b>", "<b>0.0</b>"]
    layers = data.knockout(unit_kind="layer").isel(unit=[0, 1]).assign_coords(unit=["1", "0"])
    bars = [t for t in plain(gate_profiles(data.gates(), layers))["data"] if t["type"] == "bar"]
    assert [b["customdata"][0][0] for b in bars] == ["0.0", "0.1", "1.0", "1.1"]
    assert bars[2]["y"] == bars[3]["y"] == [-1.0, -97.0, -99.0, 2.0]
    alone = plain(gate_profiles(data.gates()))
    assert not [t for t in alone["data"] if t["type"] == "bar"]
    assert "knockout" not in alone["layout"]["meta"]["caption"]


def test_profiles_name_the_valid_units():
    with pytest.raises(FigureError, match=r"unit '1\.7'.*valid: .*1\.0"):
        gate_profiles(data.gates(), data.knockout(), ["1.7"])
    queries = data.knockout().assign_coords(unit=["9.0", "9.1", "9.2", "9.3"])
    with pytest.raises(FigureError, match="share none"):
        gate_profiles(data.gates(), queries)


# ---- gates plane -------------------------------------------------------------------------------------------


def test_the_plane_has_one_point_a_gate_and_none_for_absent_ones():
    figure = plain(effective_offsets(data.gates()))
    key, value = (next(t for t in figure["data"] if t.get("name") == f"{b} gate") for b in ("key", "value"))
    assert [row[0] for row in key["customdata"]] == ["0.0", "0.1", "1.0", "1.1"]
    assert [row[0] for row in value["customdata"]] == ["0.0", "0.1", "1.0"]
    assert key["x"][1] == pytest.approx(4)  # uniform over four offsets
    assert key["y"][1] == pytest.approx(3.6)
    lone = data.gates()
    for name in ("static_key", "static_value"):
        lone[name] = lone[name] * np.nan
    with pytest.raises(FigureError, match="no gate"):
        effective_offsets(lone)


# ---- panels ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts():
    return [
        accuracy_by_residue({"a": data.sweep(), "b": data.sweep((1.0, 0.5))}),
        effect_heatmap(data.knockout(), data.specialization()),
        gate_profiles(data.gates(), data.knockout(), ["1.0"]),
    ]


def test_panels_renumber_every_reference(parts):
    whole = plain(panels(parts))
    layout = whole["layout"]
    axes = {k for k in layout if re.fullmatch(r"[xy]axis\d*", k)}
    assert len(axes) == 2 * (1 + 2 + 2)

    def known(reference):
        letter, number = re.fullmatch(r"([xy])(\d*)( domain)?", reference).groups()[:2]
        return f"{letter}axis{number}" in axes

    assert all(known(t["xaxis"]) and known(t["yaxis"]) for t in whole["data"])
    for item in layout["shapes"] + layout["annotations"]:
        assert item["xref"] == "paper" or known(item["xref"])
        assert item["yref"] == "paper" or known(item["yref"])
    assert all(known(layout[a]["anchor"]) for a in axes)
    assert len(layout["shapes"]) == sum(len(plain(p)["layout"].get("shapes", [])) for p in parts)
    assert (
        len({tuple(layout[a]["domain"]) for a in axes if a[0] == "x"}) == 4
    )  # gates and effect share theirs


def test_panels_keep_each_shape_on_its_own_data(parts):
    whole = plain(panels(parts))
    cells = next(t for t in whole["data"] if t.get("name") == "cells")
    below = [s for s in whole["layout"]["shapes"] if s["xref"] == cells["xaxis"] and s["layer"] == "below"]
    assert len([s for s in below if s["type"] == "rect"]) == 16
    assert all(s["yref"] == cells["yaxis"] for s in below)


def test_panels_have_letters_legends_and_true_plot_widths(parts):
    whole = plain(panels(parts, labels=["A", "B", "C"], width_mm=180))
    letters = [a for a in whole["layout"]["annotations"] if a["text"] in ("<b>A</b>", "<b>B</b>", "<b>C</b>")]
    assert [a["x"] for a in letters] == pytest.approx([0, 92 / 180, 0])  # two slots of 88 mm, 4 mm apart
    first = plain(parts[0])["layout"]
    area = 88 / 25.4 * 96 - first["margin"]["l"] - first["margin"]["r"]
    low, high = whole["layout"]["xaxis"]["domain"]
    assert (high - low) * whole["layout"]["width"] == pytest.approx(area, abs=0.01)
    used = {t["legend"] for t in whole["data"] if t["showlegend"]}
    assert used == {"legend", "legend3"}
    assert used <= set(whole["layout"])
    assert whole["layout"]["meta"]["alt"].startswith("Panel A: Line chart")


def test_a_figure_without_letters_can_be_a_panel_and_keeps_its_legends_apart(parts):
    two = panels([parts[0], parts[2]], labels=None, columns=1, width_mm=85)
    assert not [a for a in two.layout.annotations if a.text in ("<b>a</b>", "<b>b</b>", "<b></b>")]
    assert "Panel" not in two.layout.meta["alt"]
    assert {t.legend for t in two.data if t.showlegend} == {"legend", "legend2"}
    whole = plain(panels([parts[1], two]))
    letters = [a["text"] for a in whole["layout"]["annotations"] if re.fullmatch("<b>[a-z]</b>", a["text"])]
    assert letters == ["<b>a</b>", "<b>b</b>"]
    assert {t["meta"]["panel"] for t in whole["data"]} == {"a", "b"}
    used = [t["legend"] for t in whole["data"] if t["showlegend"]]
    assert len(set(used)) == 2
    assert set(used) <= set(whole["layout"])
    first, second = (whole["layout"][name]["y"] for name in dict.fromkeys(used))
    assert first > second  # each above its own plots
    groups = [{t["legendgroup"] for t in whole["data"] if t.get("legend") == name and t.get("legendgroup")}
              for name in dict.fromkeys(used)]  # fmt: skip
    assert not groups[0] & groups[1]


def test_lettered_panels_are_no_panel(parts):
    with pytest.raises(FigureError, match="panel 'b' has lettered panels itself"):
        panels([parts[1], panels(parts[:2])])


def test_panels_are_the_same_for_the_same_input_and_leave_parts_alone(parts):
    before = [p.to_json() for p in parts]
    assert panels(parts).to_json() == panels(parts).to_json()
    assert [p.to_json() for p in parts] == before


def test_panels_say_what_does_not_fit(parts):
    with pytest.raises(FigureError, match="too narrow"):
        panels(parts, columns=3, width_mm=60)
    with pytest.raises(FigureError, match="3 panels need as many labels"):
        panels(parts, labels="ab")
    with pytest.raises(FigureError, match="0 figures"):
        panels([])


@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_says_what_it_shows(dark):
    theme = Theme(dark=dark)
    figures = [
        accuracy_by_residue(data.sweep(), theme=theme),
        effect_heatmap(data.knockout(), data.specialization(), theme=theme),
        gate_profiles(data.gates(), data.knockout(), theme=theme),
        effective_offsets(data.gates(), theme=theme),
    ]
    for figure in [*figures, panels(figures, theme=theme)]:
        meta = plain(figure)["layout"]["meta"]
        assert meta["alt"].endswith(".")
        assert meta["caption"].endswith(".")
        assert plain(figure)["layout"]["paper_bgcolor"] == theme.paper


def test_a_narrow_legend_of_profiles_names_all_below_each_other():
    """A second row would be cut off."""
    drawn = [
        gate_profiles(data.gates(), data.knockout(), theme=Theme(width_mm=width_mm)) for width_mm in (85, 57)
    ]
    for figure in drawn:
        names = {trace.name for trace in figure.data if trace.showlegend}
        assert names == {"key gate", "value gate", "knockout effect"}
    assert [figure.layout.legend.orientation for figure in drawn] == ["h", "v"]


def test_a_stretched_panel_keeps_its_legend_as_near_as_it_was():
    profiles = gate_profiles(data.gates(), data.knockout(), theme=Theme(width_mm=85))
    alone = profiles.layout
    lift = (alone.legend.y - 1) * (alone.height - alone.margin.t - alone.margin.b)
    high = accuracy_by_residue(data.sweep(), theme=Theme(width_mm=85), height_mm=200)
    both = panels([high, profiles], columns=2)
    top = max(axis.domain[1] for axis in list(both.select_yaxes())[1:])
    assert (both.layout.legend2.y - top) * both.layout.height == pytest.approx(lift, abs=0.5)
