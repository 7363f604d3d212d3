"""Maps of cells, lines, and the views of one prompt: what is drawn is what was given."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from interp.figures.base import FigureError
from interp.figures.cell_map import cell_map
from interp.figures.completion import completion_by_length
from interp.figures.export import figure_rows
from interp.figures.prompt_views import attention_over_entries, target_by_shift, token_windows
from interp.figures.series import Series, lines
from interp.figures.theme import Theme, contrast

NAN = float("nan")
WORDS = {
    "rows": ["r0", "r1"], "columns": ["c0", "c1", "c2"], "x_title": "x", "y_title": "y", "value_name": "v",
    "alt": "a", "caption": "c",
}  # fmt: skip


def texts(drawn) -> list[str]:
    return [text for trace in drawn.data if trace.mode == "text" for text in trace.text]


# ---- cells


def test_each_cell_is_a_rectangle_at_its_place_in_its_colour():
    theme = Theme()
    drawn = cell_map(np.array([[-2.0, 0.0, 2.0], [NAN, 9.0, 1.0]]), limit=2.0, theme=theme, **WORDS)
    assert len(drawn.layout.shapes) == 6
    assert all(shape.type == "rect" for shape in drawn.layout.shapes)
    at = {((s.x0 + s.x1) / 2, (s.y0 + s.y1) / 2): s.fillcolor for s in drawn.layout.shapes}
    assert at[0, 0] == theme.diverging(-1)
    assert at[2, 0] == theme.diverging(1)
    assert at[1, 1] == theme.diverging(1)  # beyond the limit: clipped
    assert at[0, 1] == theme.paper  # undefined is empty, not zero
    assert at[1, 0] == theme.diverging(0) != theme.paper
    assert {trace.type for trace in drawn.data} == {"scatter"}  # a heatmap trace would be a raster


def test_the_hidden_scatter_tells_row_column_value_and_key():
    drawn = cell_map(
        np.array([[1.0, NAN, 2.0], [0.0, 0.5, 0.0]]), limit=2.0, keys=[[10, 11, 12], [None, 14, 15]], **WORDS
    )
    columns, rows = figure_rows(drawn)
    assert columns == ["row", "column", "v", "key"]
    assert rows[0] == ["r0", "c0", 1.0, 10]
    assert rows[1] == ["r0", "c1", None, 11]
    assert rows[3] == ["r1", "c0", 0.0, None]
    cells = next(trace for trace in drawn.data if trace.name == "cells")
    assert cells.marker.opacity == 0
    assert "undefined" in cells.hovertext[1]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("colours", ["okabe-ito", "tol"])
def test_numbers_stand_in_cells_that_have_room_and_can_be_read(dark, colours):
    theme = Theme(width_mm=120, dark=dark, colours=colours)
    values = np.linspace(-1, 1, 6).reshape(2, 3)
    drawn = cell_map(values, limit=1.0, theme=theme, **WORDS)
    assert texts(drawn) == ["−1.00", "−0.60", "−0.20", "0.20", "0.60", "1.00"]
    written = next(trace for trace in drawn.data if trace.mode == "text")
    for value, ink in zip(values.flat, written.textfont.color, strict=True):
        assert contrast(ink, theme.diverging(value)) >= 4.5
    names = [f"c{i}" for i in range(90)]
    narrow = cell_map(np.zeros((2, 90)), limit=1.0, theme=Theme(width_mm=60), **WORDS | {"columns": names})
    assert texts(narrow) == []
    assert len(narrow.layout.xaxis.ticktext) < 30  # labels thin out before they collide


def test_an_outline_marks_a_cell_besides_its_colour():
    plain = cell_map(np.ones((2, 3)), limit=1.0, **WORDS)
    marked = cell_map(np.ones((2, 3)), limit=1.0, outlined=[(1, 2)], **WORDS)
    (extra,) = marked.layout.shapes[len(plain.layout.shapes) :]
    assert 1.5 < extra.x0 < extra.x1 < 2.5
    assert 0.5 < extra.y0 < extra.y1 < 1.5
    assert extra.line.width > 1


def test_unsigned_colours_deepen_from_the_ground():
    drawn = cell_map(np.array([[0.0, 0.5, 1.0]] * 2), limit=1.0, signed=False, **WORDS)
    seen = [contrast(shape.fillcolor, "#FFFFFF") for shape in drawn.layout.shapes[:3]]
    assert seen == sorted(seen)
    assert seen[0] < seen[1] < seen[2]


@pytest.mark.parametrize("shape", [(2, 2), (0, 0), (3, 2)])
def test_labels_must_fit_the_values(shape):
    with pytest.raises(FigureError, match="2 rows and 3 columns"):
        cell_map(np.zeros(shape), limit=1.0, **WORDS)


# ---- lines


def test_lines_carry_values_intervals_and_holes():
    drawn = lines(
        {"one": Series([1.0, NAN, 3.0], [0.5, NAN, 2.0], [1.25, NAN, 5.0]), "two": Series([0.0, 0.0, 0.0])},
        [4, 5, 6], x_title="shift", y_title="weight", caption="c", chosen=5,
    )  # fmt: skip
    one, two = drawn.data
    assert list(one.y) == [1.0, None, 3.0]
    assert list(one.x) == [4, 5, 6]
    assert list(one.error_y.array) == [0.25, 0.0, 2.0]
    assert list(one.error_y.arrayminus) == [0.5, 0.0, 1.0]
    assert two.error_y.array is None
    assert (one.line.color, one.marker.symbol, one.line.dash) != (
        two.line.color,
        two.marker.symbol,
        two.line.dash,
    )
    assert one.marker.symbol != two.marker.symbol  # colour is never the only cue
    (mark,) = drawn.layout.shapes
    assert mark.x0 == mark.x1 == 5
    assert drawn.layout.meta["alt"].startswith(
        "Line chart of weight by shift. one: lowest 1.00 at 4, highest 3.00 at 6"
    )
    _, rows = figure_rows(drawn)
    assert rows[0] == ["one", 4, 1.0, 0.5, 1.25]
    assert rows[1] == ["one", 5, None, None, None]


def test_an_undefined_series_is_said_to_be_undefined():
    drawn = lines({"gone": Series([NAN, NAN])}, [0, 1], x_title="x", y_title="y", caption="c")
    assert "gone: undefined" in drawn.layout.meta["alt"]
    assert not drawn.layout.showlegend


@pytest.mark.parametrize(
    ("named", "x"), [({}, [0]), ({"a": Series([1.0])}, []), ({"a": Series([1.0])}, [0, 1])]
)
def test_lines_need_as_many_values_as_places(named, x):
    with pytest.raises(FigureError, match="series"):
        lines(named, x, x_title="x", y_title="y", caption="c")


def test_completion_draws_both_numbers_and_marks_the_length():
    drawn = completion_by_length({"p_8": [0.9, 0.1], "p_32": [0.0, 0.8]}, [10, 11], chosen=11, caption="c")
    assert {trace.name: list(trace.y) for trace in drawn.data} == {"P(8)": [0.9, 0.1], "P(32)": [0.0, 0.8]}
    assert drawn.layout.shapes[0].x0 == 11
    with pytest.raises(FigureError, match="p_32 missing"):
        completion_by_length({"p_8": [0.9]}, [10])


# ---- one prompt: W = 4, S = 2, seven tokens, so entries 0 (tokens −2…1), 1 (0…3), 2 (2…5)


@pytest.fixture
def followed() -> xr.Dataset:
    gate = np.full((1, 2, 3, 4), NAN)
    gate[0, :, 0] = [0.0, 0.0, 0.5, 0.5]
    gate[0, :, 1] = [0.1, 0.2, 0.3, 0.4]
    gate[0, :, 2] = [0.7, 0.1, 0.1, 0.1]
    words = np.array([["·", "k1", "v1", "k2", "v2", "·", "?"], ["·", "·", "k2", "v2", "·", "·", "?"]])
    tied = np.full_like(gate, NAN)
    axes = ("unit", "residue", "entry", "offset")
    entry = np.array([[[0.1, 0.2, 0.3]] * 2, [[0.0, 0.9, 0.0]] * 2])
    return xr.Dataset(
        {
            "gate_key": (axes, gate), "gate_value": (axes, tied),
            "target_key": (("unit", "residue"), [[1.1, 0.9]]),
            "target_value": (("unit", "residue"), [[NAN, NAN]]),
            "word": (("residue", "pos"), words),
            "target_position": ("residue", [3, 2]),
            "probability": ("residue", [0.8, 0.3]),
            "on_entry": (("reader", "residue", "entry"), entry),
            "on_exact": (("reader", "residue", "pos"), np.full((2, 2, 7), 0.05)),
            "on_target": (("reader", "residue"), [[0.5, 0.5], [0.9, 0.9]]),
        },
        {
            "unit": ["0.0"], "window": ("unit", [4]), "stride": ("unit", [2]), "reader": ["0.0", "0.1"],
            "residue": [0, 1], "pos": np.arange(7),
        },
        {"phase_stride": 2, "heads_per_kv": 2},
    )  # fmt: skip


def test_windows_hold_their_tokens_and_outline_the_target_in_each(followed):
    drawn = token_windows(followed, "0.0", residue=0, theme=Theme(width_mm=120))
    _, rows = figure_rows(drawn)
    by_cell = {(row[0], row[1]): (row[2], row[3]) for row in rows}
    assert by_cell["entry 0", "0"] == (None, None)  # before the first token
    assert by_cell["entry 0", "3"] == (0.5, 1)
    assert by_cell["entry 1", "3"] == (0.4, 3)
    assert by_cell["entry 2", "0"] == (0.7, 2)
    assert {"k1<br>0.50", "k2<br>0.40", "v1<br>0.70"} <= set(texts(drawn))
    outlined = [s for s in drawn.layout.shapes if s.layer == "above"]
    assert [(round((s.y0 + s.y1) / 2), round((s.x0 + s.x1) / 2)) for s in outlined] == [(1, 3), (2, 1)]
    assert "has key gate weight 0.40 and 0.10" in drawn.layout.meta["alt"]
    other = token_windows(followed, "0.0", residue=0, token=6)
    assert "has key gate weight no closed window" in other.layout.meta["alt"]


def test_windows_need_gates_and_a_unit_that_is_there(followed):
    with pytest.raises(FigureError, match="no value gates"):
        token_windows(followed, "0.0", residue=0, branch="value")
    with pytest.raises(FigureError, match=r"0\.0"):
        token_windows(followed, "7.0", residue=0)


def test_attention_has_a_column_an_entry_and_one_for_exact_tokens(followed):
    drawn = attention_over_entries(followed, "0.0", residue=0)
    _, rows = figure_rows(drawn)
    assert [row[1] for row in rows[:4]] == ["0", "1", "2", "exact"]
    assert [row[2] for row in rows[:4]] == pytest.approx([0.1, 0.2, 0.3, 0.35])
    outlined = {round((s.x0 + s.x1) / 2) for s in drawn.layout.shapes if s.layer == "above"}
    assert outlined == {1, 2}  # token 3 is in windows 1 and 2
    assert "gets at most 0.90" in drawn.layout.meta["alt"]


def test_by_shift_the_earliest_target_comes_first(followed):
    drawn = target_by_shift(followed, "0.0", chosen=1)
    assert {trace.name: list(trace.y) for trace in drawn.data} == {
        "p(answer)": [0.3, 0.8], "key gate on its key": [0.9, 1.1],
    }  # fmt: skip
