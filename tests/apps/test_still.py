"""The table that stands in the heat map's place: its words are the effects, its colours those of the chart."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from apps.explorer.still import heat_table
from interp.figures import effect_heatmap
from interp.figures.theme import Theme


def results(units: int = 2, phases: int = 3) -> tuple[xr.Dataset, xr.Dataset]:
    labels = [f"{i // 2}.{i % 2}" for i in range(units)]
    effect = np.zeros((units, phases))
    effect[0, :3] = [-99.6, np.nan, 12.4]
    dims = ("unit", "phase")
    knockout = xr.Dataset(
        {"effect": (dims, effect), "effect_pp": (dims, effect)}, {"unit": labels}, {"stride": phases}
    )
    serves = effect < -40
    tested = {"serves": (dims, serves), "p_effect": (dims, np.ones_like(effect)), "loss": (dims, -effect)}
    uncovered = ("phase", ~serves.any(0))
    return knockout, xr.Dataset({**tested, "uncovered": uncovered}, {"unit": labels}, {"min_loss": 40.0})


def test_the_table_holds_every_effect_and_what_is_served():
    text = heat_table(*results(), axis="phase", theme=Theme(), max_height_mm=170)
    rows = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', text)
    cells = {
        unit: re.findall(r"<td(.*?)>(.*?)</td>", row)[:-1] for unit, row in rows
    }  # the last is the bar's
    assert {unit: [value for _, value in row] for unit, row in cells.items()} == {
        "0.0": ["−100", "", "12"],
        "0.1": ["0", "0", "0"],
    }
    assert ["serves" in looks for looks, _ in cells["0.0"]] == [True, False, False]
    assert 'title="undefined"' in cells["0.0"][1][0]
    assert re.findall(r'<th scope="col">(.*?)</th>', text) == ["0", "<b>1 ▼</b>", "<b>2 ▼</b>"]


@pytest.mark.parametrize("dark", [False, True])
def test_colours_are_those_of_the_chart(dark):
    theme = Theme(dark=dark)
    knockout, served = results()
    text = heat_table(knockout, served, axis="phase", theme=theme, max_height_mm=170)
    drawn = effect_heatmap(knockout, served, theme=theme)
    filled = [shape.fillcolor for shape in drawn.layout.shapes if shape.type == "rect" and shape.yref == "y"]
    told = re.findall(r"background:(#\w+)", text)
    assert told == [colour for i, colour in enumerate(filled[:6]) if i != 1]  # the undefined cell is hatched


def test_a_map_of_very_many_cells_has_no_table():
    assert heat_table(*results(700, 3), axis="phase", theme=Theme(), max_height_mm=170) == ""


def test_pages_of_saved_results_load_no_torch():
    code = (
        "import sys, apps.explorer.views.heads, apps.explorer.views.deepseek;"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
