"""The figure of cycled gates: one panel a shift, observed over predicted, R² told."""

import re

import numpy as np
import pytest
import xarray as xr

from interp.figures import FigureError, Theme, accuracy_by_residue, cycling_figure, panels
from interp.figures.export import figure_rows
from tests.interp.figures import data


def result(shifts=(1, -1)):
    observed = np.linspace(0.1, 0.9, 4 * len(shifts)).reshape(len(shifts), 4)
    wide = ("shift", "phase")
    return xr.Dataset(
        {
            "observed": (wide, observed),
            "observed_low": (wide, observed - 0.05),
            "observed_high": (wide, observed + 0.1),
            "predicted": (wide, observed[:, ::-1]),
            "r2": ("shift", [-0.25, 0.5][: len(shifts)]),
            "r2_inner": ("shift", [0.75, np.nan][: len(shifts)]),
        },
        coords={"shift": list(shifts), "phase": range(4), "prompt": range(30)},
        attrs={"model": "toy", "n": 4, "n_inner": 3},
    )


def test_every_shift_is_a_panel_with_its_own_lines_in_percent():
    figure = cycling_figure(result())
    assert [t.name for t in figure.data] == [
        "gates cycled by +1",
        "predicted, δ = +1",
        "gates cycled by −1",
        "predicted, δ = −1",
    ]
    assert [round(v) for v in figure.data[0].y] == [10, 21, 33, 44]
    assert list(figure.data[1].y) == list(figure.data[0].y)[::-1]
    assert np.allclose(figure.data[2].error_y.array, 10)
    assert np.allclose(figure.data[2].error_y.arrayminus, 5)
    assert {t.xaxis for t in figure.data[:2]} != {t.xaxis for t in figure.data[2:]}


def test_the_caption_tells_r2_and_an_undefined_one():
    caption = cycling_figure(result()).layout.meta["caption"]
    assert "δ = +1: R² −0.25 over 4 phases, 0.75 over the 3 without" in caption
    assert "δ = −1: R² 0.50 over 4 phases, – over the 3 without" in caption
    assert "30 prompts" in caption


def test_other_results_are_refused():
    with pytest.raises(FigureError, match="r2_inner"):
        cycling_figure(result((1,)).drop_vars("r2_inner"))


@pytest.mark.parametrize("width", [85, 180])
def test_as_a_panel_it_has_no_letters_and_every_row_of_the_data_is_told_apart(width):
    theme = Theme(width_mm=width)
    cycled = cycling_figure(result(), theme=theme)
    assert cycled.layout.width == pytest.approx(theme.width, abs=0.01)
    lines_ = accuracy_by_residue(data.sweep(), theme=theme)
    whole = panels([lines_, cycled], columns=1, width_mm=width)
    letters = [a.text for a in whole.layout.annotations if re.fullmatch("<b>[a-z]</b>", a.text)]
    assert letters == ["<b>a</b>", "<b>b</b>"]
    columns, rows = figure_rows(whole)
    places = [(row[0], row[1], row[columns.index("x")]) for row in rows if row[0] == "b"]
    assert len(places) == len(set(places)) == 16  # two shifts, observed and predicted, four phases


def test_a_narrow_figure_puts_its_panels_below_each_other():
    wide, narrow = (cycling_figure(result(), theme=Theme(width_mm=w)) for w in (180, 85))
    assert [len({tuple(a.domain) for a in f.select_xaxes()}) for f in (wide, narrow)] == [2, 1]
