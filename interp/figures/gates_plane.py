"""How static, and how sharp, every gate is: static against per-window effective number of offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import (
    FigureError,
    Legend,
    Margins,
    blank,
    describe,
    require,
    room_below,
    room_beside,
    unit_order,
)
from interp.figures.point_names import named_points
from interp.figures.text import text_width, wrapped
from interp.figures.theme import Theme, mm

__all__ = ["effective_offsets"]

_NOTE = 1.6
"""Height of the notes in the corners, and their distance from it, as a multiple of their type."""
_COLUMNS = ["unit", "branch", "static", "per_window"]


def effective_offsets(gates: xr.Dataset, *, theme: Theme | None = None) -> go.Figure:
    """Draw each gate at its static, exp H(E[α]), and per-window, E[exp H(α)], effective number of offsets.

    Both run from 1 (one offset takes all) to W (uniform). A gate on the diagonal weighs offsets alike in
    every window; far below it, each window has its own favourite. Units are named beside their points, or at
    the end of a line where those stand close together; the caption says so if some find no place.

    Parameters
    ----------
    gates : Dataset
        Result of `gate_profile`.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        If variables are missing, or no gate is defined.
    """
    theme = theme or Theme()
    names = [f"{kind}_{branch}" for kind in ("static", "per_window") for branch in ("key", "value")]
    require(gates, names, kind="gate_profile")
    window = int(gates.attrs.get("window", 0) or gates.sizes.get("offset", 0))
    labels = [str(u) for u in gates["unit"].values]
    points = [
        (
            labels[i],
            branch,
            float(gates[f"static_{branch}"].values[i]),
            float(gates[f"per_window_{branch}"].values[i]),
        )
        for branch in ("key", "value")
        for i in unit_order(labels)
    ]
    points = [p for p in points if np.isfinite(p[2]) and np.isfinite(p[3])]
    if not points or window < 1:
        raise FigureError(
            "no gate has an effective number of offsets; models with uniform gates have none to show"
        )
    f = theme.font
    branches = [branch for branch in ("key", "value") if any(p[1] == branch for p in points)]
    y_title = "per-window effective number"
    side = theme.width - f * 4.2
    y_title = wrapped(y_title, f, min(side, mm(62)))
    left, right = max(3.4 * f, room_beside(f, text_width(str(window), f), y_title)), 0.8 * f
    side = theme.width - left - right
    legend = Legend.above([f"{branch} gate" for branch in branches], side, f, left=left)
    x_title = wrapped("static effective number of offsets", f, side + 2 * right)
    margins = Margins(
        left=left, right=right, top=f * 0.6 + max(f * 1.7, legend.height),
        bottom=room_below(f, x_title),
    )  # fmt: skip
    height = margins.top + margins.bottom + min(side, mm(62))
    figure = blank(theme=theme, height=height, margins=margins)
    pad = 0.07 * max(1, window - 1)
    low, high = 1 - pad, window + pad
    for name, branch in zip(legend.names, branches, strict=True):
        figure.add_trace(_cloud([p for p in points if p[1] == branch], branch, name, theme))
    area = (side, min(side, mm(62)))
    scale = ((high - low) / area[0], (high - low) / area[1])
    names, lines, unnamed = _names(points, theme, low=low, scale=scale, area=area)
    figure.add_traces(names)
    ticks = _ticks(window)
    figure.update_layout(
        xaxis=theme.axis(title=x_title, range=[low, high], tickvals=ticks),
        yaxis=theme.axis(title=y_title, range=[low, high], tickvals=ticks, standoff=2),
        shapes=[_diagonal(window, theme), *lines],
        annotations=[
            _note("one-hot", 0, "left", "bottom", theme),
            _note("uniform", 1, "right", "top", theme),
        ],
        showlegend=len(branches) > 1,
        legend=legend.layout(theme),
    )
    return describe(figure, alt=_alt(points, window), caption=_caption(gates, window, unnamed))


def _cloud(points: list[tuple[str, str, float, float]], branch: str, name: str, theme: Theme) -> go.Scatter:
    number = ("key", "value").index(branch)
    colour = theme.palette[number]
    return go.Scatter(
        x=[p[2] for p in points],
        y=[p[3] for p in points],
        name=name,
        mode="markers",
        marker={
            "size": 5.5,
            "symbol": ("circle", "diamond")[number],
            "color": colour if number == 0 else theme.paper,
            "line": {"color": colour, "width": 1.2},
        },
        customdata=[list(p) for p in points],
        meta={"columns": _COLUMNS},
        hovertemplate=(
            "<b>%{customdata[0]}</b> %{customdata[1]} gate<br>"
            "static %{x:.2f}, per window %{y:.2f}<extra></extra>"
        ),
    )


def _names(
    points: list[tuple[str, str, float, float]], theme: Theme, *, low: float, scale: tuple[float, float],
    area: tuple[float, float],
) -> tuple[list[go.Scatter], list[dict[str, Any]], int]:  # fmt: skip
    """Names of the units, lines to their points, and how many points have no name.

    `scale` is data units per pixel along x and y, `low` the lower end of both axes, `area` the plot in pixels.
    """
    note, width = theme.small * _NOTE, text_width("uniform", theme.small) + 4
    notes = [
        (note, 0.0, note + width, note),
        (area[0] - note - width, area[1] - note, area[0] - note, area[1]),
    ]
    placed, lost = named_points(
        [(unit, (x - low) / scale[0], (y - low) / scale[1]) for unit, _, x, y in points],
        theme.small, area, notes,
    )  # fmt: skip

    def data(at: tuple[float, float]) -> tuple[float, float]:
        return low + at[0] * scale[0], low + at[1] * scale[1]

    traces = []
    for by_line in (False, True):
        some = [name for name in placed if name.line == by_line]
        places = [data(name.at) for name in some]
        traces.append(
            go.Scatter(
                x=[x for x, _ in places],
                y=[y for _, y in places],
                text=[name.text for name in some],
                textposition=[name.place for name in some],
                mode="markers+text",
                marker={"size": 1 if by_line else 7.5, "opacity": 0},
                hoverinfo="skip",
                showlegend=False,
                cliponaxis=False,
                textfont={"size": theme.small, "color": theme.muted},
            )
        )
    ends = [(data(name.point), data(name.at)) for name in placed if name.line]
    style = {"type": "line", "layer": "below", "line": {"color": theme.muted, "width": 0.5}}
    lines = [style | {"x0": a, "y0": b, "x1": c, "y1": d} for (a, b), (c, d) in ends]
    return traces, lines, lost


def _ticks(window: int) -> list[int]:
    """Return 1, W and even steps between."""
    step = max(1, round((window - 1) / 7))
    return [*range(1, window - step + 1, step), window] if window > 1 else [1]


def _diagonal(window: int, theme: Theme) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": 1,
        "y0": 1,
        "x1": window,
        "y1": window,
        "layer": "below",
        "line": {"color": theme.muted, "width": 0.75, "dash": "dot"},
    }


def _note(text: str, corner: int, xanchor: str, yanchor: str, theme: Theme) -> dict[str, Any]:
    """A word in a corner, beside the end of the diagonal."""
    shift = theme.small * _NOTE
    return {
        "text": text,
        "xref": "x domain",
        "yref": "y domain",
        "x": corner,
        "y": corner,
        "xanchor": xanchor,
        "yanchor": yanchor,
        "showarrow": False,
        "font": {"size": theme.small, "color": theme.muted},
        "xshift": shift if xanchor == "left" else -shift,
    }


def _alt(points: list[tuple[str, str, float, float]], window: int) -> str:
    keys = sorted((p for p in points if p[1] == "key"), key=lambda p: p[3])
    sharp = (
        f" The sharpest key gate is {keys[0][0]} with {keys[0][3]:.1f} offsets per window." if keys else ""
    )
    return (
        f"Scatter of {len(points)} gates, static against per-window effective number of offsets (1–{window})."
        + sharp
    )


def _caption(gates: xr.Dataset, window: int, unnamed: int) -> str:
    who = gates.attrs.get("model", "")
    return (
        f"Static, exp H(E[α]), against per-window, E[exp H(α)], effective number of offsets of each gate"
        f"{f' of {who}' if who else ''} (W = {window}); on the dashed line a gate weighs offsets alike in "
        "all windows."
        + (f" {unnamed} of the points have no room for their names; the data name them." if unnamed else "")
    )
