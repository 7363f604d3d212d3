"""Lines over one integer axis: quantities by phase, by shift or by filler length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from interp.figures.base import (
    FigureError,
    Legend,
    Margins,
    blank,
    describe,
    finite,
    nice_ticks,
    number,
    room_below,
    room_beside,
    tick_step,
)
from interp.figures.text import LINE, text_width, wrapped
from interp.figures.theme import Theme, mm

__all__ = ["Series", "lines"]

_COLUMNS = ["series", "x", "value", "low", "high"]


@dataclass(frozen=True)
class Series:
    """Values with an interval where one is known; NaN is undefined and leaves a hole."""

    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def lines(
    named: Mapping[str, Series],
    x: Sequence[int],
    *,
    x_title: str,
    y_title: str,
    caption: str,
    y_range: tuple[float, float] | None = None,
    chosen: int | None = None,
    cycle: int = 0,
    theme: Theme | None = None,
    height_mm: float = 55.0,
) -> go.Figure:
    """Draw one line a series, told apart by colour, symbol and dash.

    Parameters
    ----------
    named : mapping of str to Series
        All as long as `x`.
    x : sequence of int
        Places along the axis.
    x_title, y_title, caption : str
        Words; units belong in the titles.
    y_range : pair, optional
        From the data if left out.
    chosen : int, optional
        A place that is marked by a vertical line.
    cycle : int
        Stride or period; prefers ticks that divide it. 0 for none.
    theme : Theme
        Size, fonts, light or dark.
    height_mm : float
        Height of the figure.

    Raises
    ------
    FigureError
        If there is nothing to draw, or a series is not as long as `x`.
    """
    theme = theme or Theme()
    if not named or not len(x):
        raise FigureError("no series to draw; give at least one with at least one value")
    for name, one in named.items():
        if len(one.values) != len(x):
            raise FigureError(f"series {name!r} has {len(one.values)} values for {len(x)} places")
    f = theme.font
    low, high = y_range or _span(named.values())
    ticks = nice_ticks(low, high)
    labels = [f"{tick:g}".replace("-", "−") for tick in ticks]
    y_name = wrapped(y_title, f, mm(height_mm) - f * 5)
    left = max(f * 4.2, room_beside(f, max(text_width(t, f) for t in labels), y_name))
    right = f * 0.8
    width = theme.width - left - right
    legend = Legend.above(list(named), width, f, left=left)
    x_name = wrapped(x_title, f, width + 2 * right)
    margins = Margins(left=left, right=right, top=f * 0.8 + legend.height, bottom=room_below(f, x_name))
    height = (
        mm(height_mm)
        + LINE * f * x_name.count("<br>")
        + (legend.height if legend.orientation == "v" else 0.0)
    )
    figure = blank(theme=theme, height=height, margins=margins)
    figure.add_traces(
        [
            _trace(name, one, x, i, theme).update(name=legend.names[i])
            for i, (name, one) in enumerate(named.items())
        ]
    )
    spacing = (theme.width - margins.left - margins.right) / max(1, len(x))
    step = tick_step(len(x), spacing, f * 1.8, cycle=cycle or None)
    figure.update_layout(
        xaxis=theme.axis(
            title=x_name, range=[min(x) - 0.6, max(x) + 0.6], tickmode="array", tickvals=list(x)[::step]
        ),
        yaxis=theme.axis(
            title=y_name, standoff=3, showgrid=True, range=[low, high], tickvals=ticks, ticktext=labels,
            zeroline=y_range is None, zerolinecolor=theme.muted, zerolinewidth=0.75,
        ),
        showlegend=len(named) > 1,
        legend=legend.layout(theme),
        shapes=[] if chosen is None else [
            {
                "type": "line", "xref": "x", "yref": "y domain", "x0": chosen, "x1": chosen, "y0": 0, "y1": 1,
                "layer": "below", "line": {"color": theme.ink, "width": 1, "dash": "dot"},
            }
        ],
    )  # fmt: skip
    return describe(figure, alt=_alt(named, x, x_title, y_title), caption=caption)


def _span(series: Iterable[Series]) -> tuple[float, float]:
    """Range of all values and their intervals, and a little more; 0 and 1 where nothing is defined."""
    parts = [
        np.asarray(v, dtype=float) for one in series for v in (one.values, one.low, one.high) if v is not None
    ]
    every = np.concatenate(parts)
    if not np.isfinite(every).any():
        return 0.0, 1.0
    low, high = float(np.nanmin(every)), float(np.nanmax(every))
    pad = 0.06 * (high - low) or 0.05 * max(1.0, abs(high))
    return low - pad, high + pad


def _trace(name: str, one: Series, x: Sequence[int], index: int, theme: Theme) -> go.Scatter:
    colour, symbol, dash = theme.series(index)
    value = np.asarray(one.values, dtype=float)
    low = np.full(len(value), np.nan) if one.low is None else np.asarray(one.low, dtype=float)
    high = np.full(len(value), np.nan) if one.high is None else np.asarray(one.high, dtype=float)
    bars = np.isfinite(low).any()
    return go.Scatter(
        x=list(x),
        y=[finite(v) for v in value],
        name=name,
        mode="lines+markers",
        line={"color": colour, "width": 1.4, "dash": dash},
        marker={"size": 5, "symbol": symbol, "color": colour},
        error_y={
            "type": "data", "symmetric": False, "color": colour, "thickness": 0.8, "width": 1.5,
            "array": np.nan_to_num(high - value).tolist(), "arrayminus": np.nan_to_num(value - low).tolist(),
        } if bars else None,
        customdata=[
            [name, int(p), finite(v), finite(a), finite(b)]
            for p, v, a, b in zip(x, value, low, high, strict=True)
        ],
        meta={"columns": _COLUMNS},
        hovertemplate="%{customdata[0]}<br>%{x}: %{y:.3g}<extra></extra>",
    )  # fmt: skip


def _alt(named: Mapping[str, Series], x: Sequence[int], x_title: str, y_title: str) -> str:
    parts = []
    for name, one in named.items():
        values = np.asarray(one.values, dtype=float)
        if not np.isfinite(values).any():
            parts.append(f"{name}: undefined")
            continue
        low, high = int(np.nanargmin(values)), int(np.nanargmax(values))
        parts.append(
            f"{name}: lowest {number(values[low], 2)} at {x[low]}, highest {number(values[high], 2)} at {x[high]}"
        )
    return f"Line chart of {y_title} by {x_title}. " + "; ".join(parts) + "."
