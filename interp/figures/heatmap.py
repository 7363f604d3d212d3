"""Unit × phase heatmap of knockout effects, drawn as shapes so that it stays vector in every format."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import (
    blank,
    describe,
    finite,
    number,
    room_below,
    tick_step,
)
from interp.figures.heatmap_data import Grid, alt_text, caption, grid_of
from interp.figures.heatmap_shapes import Size, bar_shapes, cells, outlines
from interp.figures.text import text_width
from interp.figures.theme import Theme, mm
from interp.stats import SIGNIFICANCE

__all__ = ["axis_titles", "effect_heatmap"]

_COLUMNS = ["unit", "phase", "residue", "effect_percent", "effect_pp", "p_effect", "serves"]
_NAMES = {"kv_head": "KV head (layer.head)", "head": "query head (layer.head)", "layer": "layer"}
_BAR_MM = 40.0


def effect_heatmap(
    knockout: xr.Dataset,
    specialization: xr.Dataset | None = None,
    *,
    axis: Literal["phase", "residue"] = "phase",
    theme: Theme | None = None,
    limit: float = 100.0,
    max_height_mm: float = 220.0,
) -> go.Figure:
    """Draw the effect of each unit's ablation at each phase (or residue), in percent of clean accuracy.

    Every cell is a rectangle shape. One invisible scatter trace, named ``cells``, carries hover and
    selection: its ``customdata`` rows begin with (unit, phase). With a specialization result, served cells
    are outlined and cells whose effect is significant without being served have a dot; phases served by no
    unit are flagged at the axis. Undefined cells are hatched, never drawn as 0.

    Parameters
    ----------
    knockout : Dataset
        Result of `knockout`, or any Dataset with ``effect(unit, phase)`` or ``effect(unit, residue)`` in
        percent and the attr ``stride``.
    specialization : Dataset, optional
        Result of `specialization` for the same units.
    axis : "phase" or "residue"
        What runs across. By residue, effects come from the pooled counts of the knockout result.
    theme : Theme
        Size, fonts, light or dark.
    limit : float
        The colours' range is −limit … +limit percent, the same in every figure unless told otherwise.
    max_height_mm : float
        Rows shrink, and their labels thin out, to stay under this height.

    Raises
    ------
    FigureError
        If variables are missing, units of the two results differ, or `axis` is neither.
    """
    theme = theme or Theme()
    grid = grid_of(knockout, specialization, axis)
    rows, columns = grid.effect.shape
    size = Size.of(grid, theme, max_height_mm, titles=axis_titles(grid, knockout))
    figure = blank(theme=theme, height=size.height, margins=size.margins)
    bar_gap, bar_width = theme.font * 0.9, theme.font * 0.9
    right = 1 - (bar_gap + bar_width) / size.plot_width
    # set at once: adding shapes one by one validates all the earlier ones again
    figure.layout.shapes = (
        *cells(grid, theme, limit, size),
        *bar_shapes(theme, limit),
        *outlines(grid, theme, size),
    )
    figure.add_trace(_hover(grid, size))
    figure.add_traces(_texts(grid, theme, limit, size))
    plot_height = size.height - size.margins.top - size.margins.bottom
    _colour_bar(
        figure,
        theme,
        limit,
        x=[right + bar_gap / size.plot_width, 1.0],
        y=[max(0.0, 1 - mm(_BAR_MM) / plot_height), 1.0],
    )
    x_step = tick_step(columns, size.cell_width, theme.font * 1.5, cycle=grid.stride)
    y_step = tick_step(rows, size.cell_height, theme.font * 1.05)
    uncovered = {c for c in range(columns) if grid.uncovered[c]}
    figure.update_layout(
        xaxis=theme.axis(
            title=size.x_title,
            domain=[0, right],
            range=[-0.5, columns - 0.5],
            fixedrange=True,
            showline=False,
            ticks="",
            tickmode="array",
            tickvals=list(range(0, columns, x_step)),
            ticktext=[f"<b>{c}</b>" if c in uncovered else str(c) for c in range(0, columns, x_step)],
        ),
        yaxis=theme.axis(
            title=size.y_title,
            range=[rows - 0.5, -0.5 - size.flag_rows],
            fixedrange=True,
            showline=False,
            ticks="",
            standoff=3,
            tickmode="array",
            tickvals=list(range(0, rows, y_step)),
            ticktext=grid.units[::y_step],
        ),
    )
    _key(figure, size, theme)
    return describe(figure, alt=alt_text(grid), caption=caption(grid, knockout))


# ---- the drawing -------------------------------------------------------------------------------------------


def _hover(grid: Grid, size: Size) -> go.Scatter:
    """Invisible markers, one a cell: what is hovered and selected."""
    rows, columns = grid.effect.shape
    data = [
        [
            grid.units[r],
            grid.phase(c),
            c if grid.axis == "residue" else None,
            finite(grid.effect[r, c]),
            finite(grid.effect_pp[r, c]),
            None if grid.p_effect is None else finite(grid.p_effect[r, c]),
            None if grid.serves is None else bool(grid.serves[r, c]),
        ]
        for r in range(rows)
        for c in range(columns)
    ]
    return go.Scatter(
        x=[c for _ in range(rows) for c in range(columns)],
        y=[r for r in range(rows) for _ in range(columns)],
        name="cells",
        mode="markers",
        marker={
            "size": max(2.0, min(size.cell_width, size.cell_height) - 1),
            "symbol": "square",
            "opacity": 0,
            "color": "rgba(0,0,0,0)",
            "line": {"width": 0},
        },
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        customdata=data,
        meta={"columns": _COLUMNS},
        hovertext=[_hover_text(grid, r, c) for r in range(rows) for c in range(columns)],
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )


def _hover_text(grid: Grid, row: int, column: int) -> str:
    where = f"residue {column}, phase {grid.phase(column)}" if grid.axis == "residue" else f"phase {column}"
    value = grid.effect[row, column]
    lines = [f"<b>{grid.units[row]}</b> · {where}"]
    lines.append(
        f"effect {number(value, 1, sign=True)}%"
        if np.isfinite(value)
        else "effect undefined (too few clean answers)"
    )
    if np.isfinite(grid.effect_pp[row, column]):
        lines[-1] += f" ({number(grid.effect_pp[row, column], 1, sign=True)} pp)"
    if grid.p_effect is not None and np.isfinite(grid.p_effect[row, column]):
        lines.append(f"adjusted p = {grid.p_effect[row, column]:.3g}")
    if grid.serves is not None:
        lines.append("serves this phase" if grid.serves[row, column] else "does not serve this phase")
    return "<br>".join(lines)


def _texts(grid: Grid, theme: Theme, limit: float, size: Size) -> list[go.Scatter]:
    """Values where cells have room, dots where an effect is significant but not served, flags for no unit."""
    rows, columns = grid.effect.shape
    traces = []
    labels = [[number(v) if np.isfinite(v) else "" for v in row] for row in grid.effect]
    widest = max((text_width(t, theme.small) for row in labels for t in row), default=0)
    if widest + 3 <= size.cell_width and theme.small * 1.15 <= size.cell_height:
        cells = [(r, c) for r in range(rows) for c in range(columns) if labels[r][c]]
        traces.append(
            _marks(
                x=[c for _, c in cells],
                y=[r for r, _ in cells],
                mode="text",
                text=[labels[r][c] for r, c in cells],
                textfont={
                    "size": theme.small,
                    "color": [theme.text_on(theme.diverging(grid.effect[r, c] / limit)) for r, c in cells],
                },
            )
        )
    if grid.p_effect is not None and grid.serves is not None:
        dots = [
            (r, c) for r, c in zip(*np.nonzero((grid.p_effect < SIGNIFICANCE) & ~grid.serves), strict=True)
        ]
        shift_x, shift_y = 0.5 - 2.6 / size.cell_width, 0.5 - 2.6 / size.cell_height
        traces.append(
            _marks(
                x=[float(c + shift_x) for _, c in dots],
                y=[float(r - shift_y) for r, _ in dots],
                mode="markers",
                marker={
                    "size": 2.6,
                    "color": [
                        theme.text_on(theme.diverging(float(grid.effect[r, c]) / limit))
                        if np.isfinite(grid.effect[r, c])
                        else theme.ink
                        for r, c in dots
                    ],
                },
            )
        )
    if grid.uncovered.any():
        flagged = [int(c) for c in np.flatnonzero(grid.uncovered)]
        traces.append(
            _marks(
                x=flagged,
                y=[-0.5 - size.flag_rows / 2] * len(flagged),
                mode="markers",
                marker={
                    "size": min(5.0, size.cell_width * 0.7),
                    "symbol": "triangle-down",
                    "color": theme.ink,
                },
            )
        )
    return traces


def _marks(**options: Any) -> go.Scatter:
    return go.Scatter(hoverinfo="skip", showlegend=False, cliponaxis=False, **options)


def _colour_bar(figure: go.Figure, theme: Theme, limit: float, *, x: list[float], y: list[float]) -> None:
    """Axes and title of the colour bar."""
    figure.add_trace(
        go.Scatter(x=[None], y=[None], xaxis="x2", yaxis="y2", hoverinfo="skip", showlegend=False)
    )
    figure.update_layout(
        xaxis2=theme.axis(domain=x, anchor="y2", range=[0, 1], visible=False, fixedrange=True),
        yaxis2=theme.axis(
            domain=y,
            anchor="x2",
            side="right",
            range=[-limit, limit],
            fixedrange=True,
            linewidth=0.5,
            mirror=True,
            ticklen=2,
            tickvals=[-limit, -limit / 2, 0, limit / 2, limit],
            ticktext=[number(v) for v in (-limit, -limit / 2, 0, limit / 2, limit)],
            tickfont={"size": theme.small, "color": theme.ink},
        ),
    )
    figure.add_annotation(
        text="effect (%)",
        x=1,
        xref="x2 domain",
        xanchor="right",
        y=1,
        yref="y2 domain",
        yanchor="bottom",
        xshift=theme.font * 2.4,
        yshift=theme.font * 0.45,
        showarrow=False,
        font={"size": theme.small, "color": theme.ink},
    )


def axis_titles(grid: Grid, knockout: xr.Dataset) -> tuple[str, str]:
    """Of the columns and of the rows."""
    columns = grid.effect.shape[1]
    return (
        "phase of the target" if grid.axis == "phase" else f"target position mod {columns} (residue)",
        _NAMES.get(str(knockout.attrs.get("unit_kind", "")), "unit"),
    )


def _key(figure: go.Figure, size: Size, theme: Theme) -> None:
    lines = size.key
    if lines:
        figure.add_annotation(
            text="<br>".join(lines),
            x=0,
            xref="x domain",
            xanchor="left",
            y=0,
            yref="y domain",
            yanchor="top",
            yshift=-room_below(theme.font, size.x_title, 3.0) + 0.1 * theme.font,
            align="left",
            showarrow=False,
            font={"size": theme.small, "color": theme.ink},
        )
