"""The heat map as a table: there before the chart's program is loaded, and for good for those who cannot see it."""

from __future__ import annotations

import html

import numpy as np
import xarray as xr

from interp.figures.base import number
from interp.figures.heatmap import axis_titles
from interp.figures.heatmap_data import Grid, grid_of
from interp.figures.heatmap_shapes import Size
from interp.figures.theme import Theme

__all__ = ["heat_table"]

_MOST_CELLS = 2000  # a larger table takes a browser as long as the chart does


def heat_table(
    knockout: xr.Dataset,
    specialization: xr.Dataset | None,
    *,
    axis: str,
    theme: Theme,
    max_height_mm: float,
    limit: float = 100.0,
) -> str:
    """Return an HTML table in the colours and the places of :func:`interp.figures.effect_heatmap`'s cells.

    Takes the arguments of that figure; "" where there are too many cells for a table to be quick.
    """
    grid = grid_of(knockout, specialization, axis)
    if grid.effect.size > _MOST_CELLS:
        return ""
    size = Size.of(grid, theme, max_height_mm, titles=axis_titles(grid, knockout))
    bar = theme.font * 1.8 + size.margins.right
    columns = range(grid.effect.shape[1])
    head = "".join(f'<th scope="col">{_flagged(grid, c)}</th>' for c in columns)
    rows = "".join(
        f'<tr style="height:{size.cell_height - 1:.1f}px"><th scope="row">{html.escape(unit)}</th>'
        + "".join(_cell(grid, r, c, theme, limit) for c in columns)
        + "<td></td></tr>"
        for r, unit in enumerate(grid.units)
    )
    above = size.margins.top + size.flag_rows * size.cell_height
    return (
        f'<table class="still" aria-label="Effect in percent, unit by {grid.axis}" style="'
        f'padding:{above:.0f}px 0 {size.margins.bottom - 1.5 * theme.font:.0f}px;font-size:{theme.small:.1f}px;color:{theme.ink};">'
        f'<colgroup><col style="width:{size.margins.left:.0f}px">{"<col>" * len(columns)}'
        f'<col style="width:{bar:.0f}px"></colgroup>'
        f'<tbody>{rows}</tbody><tfoot><tr style="height:{1.5 * theme.font:.0f}px"><td></td>'
        f"{head}<td></td></tr></tfoot></table>"
    )


def _flagged(grid: Grid, column: int) -> str:
    return f"<b>{column} ▼</b>" if grid.uncovered[column] else str(column)


def _cell(grid: Grid, row: int, column: int, theme: Theme, limit: float) -> str:
    value = float(grid.effect[row, column])
    if not np.isfinite(value):
        lines = f"repeating-linear-gradient(45deg,{theme.muted} 0 1px,{theme.paper} 1px 4px)"
        return f'<td style="background:{lines}" title="undefined"></td>'
    fill = theme.diverging(value / limit)
    serves = grid.serves is not None and bool(grid.serves[row, column])
    mark = f' class="serves" title="serves phase {grid.phase(column)}"' if serves else ""
    return f'<td{mark} style="background:{fill};color:{theme.text_on(fill)}">{number(value)}</td>'
