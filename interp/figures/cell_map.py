"""Values in cells, drawn as rectangles: a token strip, a patching map, any small table with colours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures.base import FigureError, Margins, blank, describe, finite, number, room_below, tick_step
from interp.figures.text import LINE, text_width, wrapped
from interp.figures.theme import Theme, mix, mm

__all__ = ["cell_map"]

_SHARE = {False: "#0072B2", True: "#56B4E9"}


def cell_map(
    values: np.ndarray,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    x_title: str,
    y_title: str,
    value_name: str,
    alt: str,
    caption: str,
    limit: float,
    signed: bool = True,
    texts: Sequence[Sequence[str]] | None = None,
    outlined: Collection[tuple[int, int]] = (),
    keys: Sequence[Sequence[Any]] | None = None,
    theme: Theme | None = None,
    row_mm: float = 7.0,
) -> go.Figure:
    """Draw a table of cells coloured by value, with a text in each where it has room.

    One invisible scatter trace ``cells`` carries hover and selection; its ``customdata`` rows begin with the
    row's and the column's label. Undefined cells are left empty, never drawn as 0.

    Parameters
    ----------
    values : array [row, column]
        NaN is undefined.
    rows, columns : sequence of str
        Labels.
    x_title, y_title, value_name, alt, caption : str
        Words.
    limit : float
        Colours run from −limit to +limit, or from 0 to limit where `signed` is False.
    signed : bool
        Diverging colours about zero, or one colour that deepens.
    texts : nested sequence, optional
        What stands in the cells; the numbers if left out.
    outlined : collection of (row, column)
        Cells with a heavy outline.
    keys : nested sequence, optional
        Values put at the end of a cell's ``customdata``, by row and column.
    theme : Theme
        Size, fonts, light or dark.
    row_mm : float
        Height of a row.

    Raises
    ------
    FigureError
        If shapes disagree or there is nothing to draw.
    """
    theme = theme or Theme()
    values = np.asarray(values, dtype=float)
    if not values.size or values.shape != (len(rows), len(columns)):
        raise FigureError(f"values of shape {values.shape} for {len(rows)} rows and {len(columns)} columns")
    f = theme.font
    longest = max(text_width(word, f) for word in y_title.split(" "))
    row_height = max(mm(row_mm), LINE * f, longest / len(rows))
    y_name = wrapped(y_title, f, row_height * len(rows))
    left = f * 2.2 + max(text_width(r, f) for r in rows) + LINE * f * y_name.count("<br>")
    right = f * 0.5
    plot = theme.width - left - right
    x_name = wrapped(x_title, f, plot + 2 * right)
    # A long title ends below the letter that a panel has at its upper left.
    top = max(0.6 * f, 1.6 * f - (row_height * len(rows) - text_width(y_name, f)) / 2) if y_title else 0.6 * f
    margins = Margins(left=left, right=right, top=top, bottom=room_below(f, x_name))
    figure = blank(theme=theme, height=row_height * len(rows) + margins.top + margins.bottom, margins=margins)
    grounds = [[_ground(v, limit, signed, theme) for v in row] for row in values]
    figure.layout.shapes = _cells(grounds, theme) + _outlines(outlined, theme)
    figure.add_trace(_hover(values, rows, columns, value_name, keys, plot / len(columns), row_height))
    words = texts or [
        [number(v, 0 if limit >= 10 else 2) if np.isfinite(v) else "" for v in row] for row in values
    ]
    widest = max((text_width(t, theme.small) for row in words for t in row), default=0)
    tallest = max((t.count("<br>") + 1 for row in words for t in row), default=1) * LINE * theme.small
    if widest + 2 <= plot / len(columns) and tallest <= row_height + 1:
        figure.add_trace(_words(words, grounds, theme))
    step = tick_step(len(columns), plot / len(columns), max(text_width(c, f) for c in columns) + f * 0.6)
    common = {"fixedrange": True, "showline": False, "ticks": "", "tickmode": "array"}
    figure.update_layout(
        xaxis=theme.axis(
            title=x_name, range=[-0.5, len(columns) - 0.5], tickvals=list(range(0, len(columns), step)),
            ticktext=list(columns)[::step], **common,
        ),
        yaxis=theme.axis(
            title=y_name, standoff=3, range=[len(rows) - 0.5, -0.5], tickvals=list(range(len(rows))),
            ticktext=list(rows), **common,
        ),
    )  # fmt: skip
    return describe(figure, alt=alt, caption=caption)


def _ground(value: float, limit: float, signed: bool, theme: Theme) -> str:
    if not np.isfinite(value):
        return theme.paper
    if signed:
        return theme.diverging(value / limit)
    return mix(theme.shade, _SHARE[theme.dark], float(np.clip(value / limit, 0, 1)))


def _cells(grounds: list[list[str]], theme: Theme) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "type": "rect", "x0": c - 0.5, "x1": c + 0.5, "y0": r - 0.5, "y1": r + 0.5, "fillcolor": colour,
            "line": {"width": 0.5, "color": theme.grid}, "layer": "below",
        }
        for r, row in enumerate(grounds) for c, colour in enumerate(row)
    )  # fmt: skip


def _outlines(outlined: Collection[tuple[int, int]], theme: Theme) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "type": "rect", "x0": c - 0.46, "x1": c + 0.46, "y0": r - 0.44, "y1": r + 0.44,
            "line": {"width": 1.8, "color": theme.ink}, "fillcolor": "rgba(0,0,0,0)", "layer": "above",
        }
        for r, c in sorted(outlined)
    )  # fmt: skip


def _hover(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], name: str,
    keys: Sequence[Sequence[Any]] | None, width: float, height: float,
) -> go.Scatter:  # fmt: skip
    places = [(r, c) for r in range(len(rows)) for c in range(len(columns))]
    return go.Scatter(
        x=[c for _, c in places],
        y=[r for r, _ in places],
        name="cells",
        mode="markers",
        marker={"size": max(2.0, min(width, height) - 1), "symbol": "square", "opacity": 0},
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        customdata=[
            [rows[r], columns[c], finite(values[r, c]), *([keys[r][c]] if keys is not None else [])]
            for r, c in places
        ],
        meta={"columns": ["row", "column", name, *(["key"] if keys is not None else [])]},
        hovertext=[
            f"<b>{rows[r]}</b> · {columns[c]}<br>{name} "
            + (number(values[r, c], 3) if np.isfinite(values[r, c]) else "undefined")
            for r, c in places
        ],
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )


def _words(words: Sequence[Sequence[str]], grounds: list[list[str]], theme: Theme) -> go.Scatter:
    places = [(r, c) for r, row in enumerate(words) for c, text in enumerate(row) if text]
    return go.Scatter(
        x=[c for _, c in places],
        y=[r for r, _ in places],
        mode="text",
        text=[words[r][c] for r, c in places],
        textfont={"size": theme.small, "color": [theme.text_on(grounds[r][c]) for r, c in places]},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )
