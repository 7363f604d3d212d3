"""Sizes, rectangles, hatches, outlines and the key of an effect heatmap."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from interp.figures.base import Margins, number, room_below
from interp.figures.heatmap_data import Grid
from interp.figures.text import LINE, text_width, wrapped
from interp.figures.theme import Theme, mm
from interp.stats import SIGNIFICANCE

__all__ = ["Size", "bar_shapes", "cells", "outlines"]

_BAR_STEPS = 100
_NOTE_PAD = 4.0
"""Pixels that a note is set off from its place."""


@dataclass(frozen=True)
class Size:
    """All lengths in pixels; `flag_rows` is the strip above the first row, in rows. Titles and key are in lines."""

    margins: Margins
    height: float
    plot_width: float
    cell_width: float
    cell_height: float
    flag_rows: float
    x_title: str
    y_title: str
    key: tuple[str, ...]

    @classmethod
    def of(cls, grid: Grid, theme: Theme, max_height_mm: float, *, titles: tuple[str, str]) -> Size:
        """Fit rows and columns into the theme's width and a height; titles and key are broken to fit."""
        rows, columns = grid.effect.shape
        f = theme.font
        labels = max(text_width(u, f) for u in grid.units) if grid.units else 0
        flags = f * 0.9 if grid.uncovered.any() else 0.0
        # A title may reach over the plot by what is above and below it anyway, but not up to a panel's letter.
        y_title = wrapped(titles[1], f, f * (1.75 * rows + 0.8) + flags)
        left, right = (
            labels + f * (2.3 + LINE * y_title.count("<br>")),
            max(f * 2.7, 2.25 * theme.small + 4.5),
        )
        plot_width = theme.width - left - right
        x_title = wrapped(titles[0], f, plot_width - 1.8 * f + 2 * min(left, right + 1.8 * f))
        key = _key_lines(grid, theme.small, theme.width - left - _NOTE_PAD)
        margins = Margins(
            left=left,
            right=right,
            top=f * 2.0,
            bottom=room_below(f, x_title, 3.0) + (f * (0.5 + 1.3 * len(key)) + 2 if key else 0),
        )
        room = mm(max_height_mm) - margins.top - margins.bottom
        longest = max(text_width(word, f) for word in y_title.split("<br>"))
        cell_height = min(
            max(f * 1.75, (longest - flags - 0.8 * f) / max(1, rows)), (room - flags) / max(1, rows)
        )
        return cls(
            margins=margins,
            height=margins.top + margins.bottom + flags + cell_height * max(rows, 1),
            plot_width=plot_width,
            cell_width=(plot_width - f * 1.8) / max(1, columns),
            cell_height=cell_height,
            flag_rows=flags / cell_height,
            x_title=x_title,
            y_title=y_title,
            key=key,
        )


def cells(grid: Grid, theme: Theme, limit: float, size: Size) -> list[dict[str, Any]]:
    """One rectangle a cell, and strokes over it where the effect is undefined."""
    gap = {"color": theme.paper, "width": 0.75 if min(size.cell_width, size.cell_height) > 6 else 0.25}
    shapes = []
    for row, column in np.ndindex(*grid.effect.shape):
        value = float(grid.effect[row, column])
        box = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
        fill = theme.diverging(value / limit) if np.isfinite(value) else theme.paper
        shapes.append(_shape(type="rect", **box, fillcolor=fill, line=gap))
        if not np.isfinite(value):
            shapes.append(
                _shape(type="path", path=_hatch(column, row, size), line={"color": theme.muted, "width": 0.6})
            )
    return shapes


def _hatch(column: int, row: int, size: Size) -> str:
    """Path of diagonal strokes, 45° and 4 pixels apart, inside of a cell: undefined, unlike any colour."""
    w, h = size.cell_width - 2, size.cell_height - 2
    left, top = column - 0.5 + 1 / size.cell_width, row - 0.5 + 1 / size.cell_height
    strokes = []
    for c in np.arange(2.0, w + h, 4.0):
        ends = ((max(0.0, c - h), min(c, h)), (min(c, w), max(0.0, c - w)))
        points = [f"{left + x / size.cell_width:.3f},{top + y / size.cell_height:.3f}" for x, y in ends]
        strokes.append(f"M{points[0]}L{points[1]}")
    return " ".join(strokes)


def outlines(grid: Grid, theme: Theme, size: Size) -> list[dict[str, Any]]:
    """One outline around each run of neighbouring cells that a unit serves."""
    if grid.serves is None:
        return []
    inset_x, inset_y = 1.1 / size.cell_width, 1.1 / size.cell_height
    shapes = []
    for row, served in enumerate(grid.serves):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], served, [False]]).astype(int)))
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            shapes.append(
                _shape(
                    type="rect",
                    layer="above",
                    line={"color": theme.ink, "width": 1.3},
                    x0=start - 0.5 + inset_x,
                    x1=stop - 0.5 - inset_x,
                    y0=row - 0.5 + inset_y,
                    y1=row + 0.5 - inset_y,
                )
            )
    return shapes


def _shape(**options: Any) -> dict[str, Any]:
    shape = {"xref": "x", "yref": "y", "layer": "below"} | options
    return {k: float(v) if k in ("x0", "x1", "y0", "y1") else v for k, v in shape.items()}


def bar_shapes(theme: Theme, limit: float) -> list[dict[str, Any]]:
    """Return the colour bar as rectangles; each reaches to the top, so that no seam shows between them."""
    edges = np.linspace(-limit, limit, _BAR_STEPS + 1)
    return [
        _shape(
            type="rect",
            xref="x2",
            yref="y2",
            x0=0,
            x1=1,
            y0=low,
            y1=limit,
            line={"width": 0},
            fillcolor=theme.diverging(float(low + high) / 2 / limit),
        )
        for low, high in itertools.pairwise(edges)
    ]


def _key_items(grid: Grid) -> list[str]:
    """Explain every mark that the figure contains, and no other."""
    items = []
    if grid.serves is not None and grid.serves.any():
        loss = f" (loss ≥ {number(grid.min_loss)}%)" if np.isfinite(grid.min_loss) else ""
        items.append(f"□ serves{loss}")
    if (
        grid.p_effect is not None
        and grid.serves is not None
        and ((grid.p_effect < SIGNIFICANCE) & ~grid.serves).any()
    ):
        items.append(f"• effect, p < {SIGNIFICANCE:g}")
    if grid.uncovered.any():
        items.append("▼ phase served by none")
    if not np.isfinite(grid.effect).all():
        items.append("/// undefined")
    return items


def _key_lines(grid: Grid, size: float, width: float) -> tuple[str, ...]:
    """The key in lines that are no wider than `width` pixels."""
    lines: list[str] = []
    for item in _key_items(grid):
        joined = f"{lines[-1]}    {item}" if lines else item
        if lines and text_width(joined, size) <= width:
            lines[-1] = joined
        else:
            lines += wrapped(item, size, width).split("<br>")
    return tuple(lines)
