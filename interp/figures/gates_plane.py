"""How static, and how sharp, every gate is: static against per-window effective number of offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import FigureError, Margins, blank, describe, require, text_width, unit_order
from interp.figures.theme import Theme, mm

__all__ = ["effective_offsets"]

_COLUMNS = ["unit", "branch", "static", "per_window"]


def effective_offsets(gates: xr.Dataset, *, theme: Theme | None = None) -> go.Figure:
    """Draw each gate at its static, exp H(E[α]), and per-window, E[exp H(α)], effective number of offsets.

    Both run from 1 (one offset takes all) to W (uniform). A gate on the diagonal weighs offsets alike in
    every window; far below it, each window has its own favourite. Units are named where there is room; all
    are named on hover.

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
    margins = Margins(left=f * 3.4, right=f * 0.8, top=f * 2.3, bottom=f * 3.2)
    side = theme.width - margins.left - margins.right
    height = margins.top + margins.bottom + min(side, mm(62))
    figure = blank(theme=theme, height=height, margins=margins)
    pad = 0.07 * max(1, window - 1)
    low, high = 1 - pad, window + pad
    for number, branch in enumerate(("key", "value")):
        figure.add_trace(_cloud([p for p in points if p[1] == branch], branch, number, theme))
    figure.add_trace(_labels(points, theme, scale=((high - low) / side, (high - low) / min(side, mm(62)))))
    ticks = _ticks(window)
    figure.update_layout(
        xaxis=theme.axis(title="static effective number of offsets", range=[low, high], tickvals=ticks),
        yaxis=theme.axis(title="per-window effective number", range=[low, high], tickvals=ticks, standoff=2),
        shapes=[_diagonal(window, theme)],
        annotations=[
            _note("one-hot", 1, 1, "left", "top", theme),
            _note("uniform", window, window, "right", "bottom", theme),
        ],
        showlegend=True,
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "bottom",
            "font": {"size": f},
            "bgcolor": "rgba(0,0,0,0)",
            "itemwidth": 30,
        },
    )
    return describe(figure, alt=_alt(points, window), caption=_caption(gates, window))


def _cloud(points: list[tuple[str, str, float, float]], branch: str, number: int, theme: Theme) -> go.Scatter:
    colour = theme.palette[number]
    return go.Scatter(
        x=[p[2] for p in points],
        y=[p[3] for p in points],
        name=f"{branch} gate",
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


def _labels(
    points: list[tuple[str, str, float, float]], theme: Theme, *, scale: tuple[float, float]
) -> go.Scatter:
    """Name units beside their points, first come first served; a name that would cover something is left out.

    `scale` is data units per pixel along x and y.
    """
    taken = [
        (x / scale[0] - 4, y / scale[1] - 4, x / scale[0] + 4, y / scale[1] + 4) for _, _, x, y in points
    ]
    chosen: list[tuple[float, float, str, str]] = []
    for unit, _, x, y in points:
        width, height = text_width(unit, theme.small) + 1, theme.small
        cx, cy = x / scale[0], y / scale[1]
        for place, (left, bottom) in {
            "middle right": (cx + 4.5, cy - height / 2),
            "middle left": (cx - 4.5 - width, cy - height / 2),
            "top center": (cx - width / 2, cy + 4.5),
            "bottom center": (cx - width / 2, cy - 4.5 - height),
        }.items():
            box = (left, bottom, left + width, bottom + height)
            if not any(_overlap(box, other) for other in taken):
                taken.append(box)
                chosen.append((x, y, unit, place))
                break
    return go.Scatter(
        x=[c[0] for c in chosen],
        y=[c[1] for c in chosen],
        text=[c[2] for c in chosen],
        textposition=[c[3] for c in chosen],
        mode="markers+text",
        marker={"size": 7.5, "opacity": 0},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
        textfont={"size": theme.small, "color": theme.muted},
    )


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


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


def _note(text: str, x: float, y: float, xanchor: str, yanchor: str, theme: Theme) -> dict[str, Any]:
    return {
        "text": text,
        "xref": "x",
        "yref": "y",
        "x": x,
        "y": y,
        "xanchor": xanchor,
        "yanchor": yanchor,
        "showarrow": False,
        "font": {"size": theme.small, "color": theme.muted},
        "yshift": -2 if yanchor == "top" else 2,
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


def _caption(gates: xr.Dataset, window: int) -> str:
    who = gates.attrs.get("model", "")
    return (
        f"Static, exp H(E[α]), against per-window, E[exp H(α)], effective number of offsets of each gate"
        f"{f' of {who}' if who else ''} (W = {window}); on the dashed line a gate weighs offsets alike in "
        "all windows."
    )
