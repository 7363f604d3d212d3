"""What all figure builders share: the error, the empty figure, labels, ticks and text sizes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from hooks.errors import PhaselensError
from interp.figures.theme import Theme

__all__ = [
    "FigureError",
    "Margins",
    "blank",
    "describe",
    "finite",
    "layout_of",
    "legend_above",
    "number",
    "require",
    "text_width",
    "tick_step",
    "unit_order",
]

_LEGEND_KEY = 48.0
"""Pixels that a legend's line and gaps take beside a name."""
_LEGEND_ROW = 19.0
"""Pixels of a legend's row, however small its type."""


class FigureError(PhaselensError):
    """Data that a figure cannot be drawn from, or an export that failed."""


@dataclass(frozen=True)
class Margins:
    """Space around the plot area, in pixels."""

    left: float
    right: float
    top: float
    bottom: float


def blank(*, theme: Theme, height: float, margins: Margins) -> go.Figure:
    """Return an empty figure of the theme's width and of `height` pixels, with fixed margins."""
    return go.Figure(
        layout={
            "template": "none",
            "width": round(theme.width, 3),
            "height": round(height, 3),
            "autosize": False,
            "margin": {
                "l": margins.left,
                "r": margins.right,
                "t": margins.top,
                "b": margins.bottom,
                "pad": 0,
                "autoexpand": False,
            },
            "font": {"family": theme.font_family, "size": theme.font, "color": theme.ink},
            "paper_bgcolor": theme.paper,
            "plot_bgcolor": theme.paper,
            "hovermode": "closest",
            "hoverlabel": {"font": {"family": theme.font_family, "size": theme.font * 1.3}},
            "showlegend": False,
            "dragmode": False,
        }
    )


def describe(figure: go.Figure, *, alt: str, caption: str) -> go.Figure:
    """Attach alternative text and a caption as ``figure.layout.meta``."""
    return figure.update_layout(meta={"alt": alt, "caption": caption})


def layout_of(figure: go.Figure) -> dict[str, Any]:
    """Return a figure's layout as plain values; it always has ``width``, ``height`` and ``meta``.

    Raises
    ------
    FigureError
        If it has no size, as figures from elsewhere may.
    """
    layout = json.loads(str(figure.to_json()))["layout"]
    if not {"width", "height"} <= set(layout):
        raise FigureError("the figure has no width and height; set layout.width and layout.height in pixels")
    return {"meta": {}} | layout


def require(dataset: xr.Dataset, names: Iterable[str], *, kind: str) -> None:
    """Raise unless a result has these variables.

    Raises
    ------
    FigureError
        Naming what is missing and what is there.
    """
    missing = [name for name in names if name not in dataset.variables]
    if missing:
        there = ", ".join(str(v) for v in dataset.data_vars) or "nothing"
        raise FigureError(f"not a {kind} result: {', '.join(missing)} missing; it holds {there}")


def unit_order(labels: Sequence[str]) -> list[int]:
    """Positions of unit labels ("1.0", "layer 12" as "12") in order of layer, then head."""

    def key(i: int) -> tuple[list[int], str]:
        parts = str(labels[i]).split(".")
        return ([int(p) for p in parts] if all(p.isdecimal() for p in parts) else [2**31], str(labels[i]))

    return sorted(range(len(labels)), key=key)


def number(value: float, digits: int = 0, sign: bool = False) -> str:
    """Format a number with a true minus sign, no "−0", and "–" where it is undefined."""
    if not np.isfinite(value):
        return "–"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def text_width(text: str, size: float) -> float:
    """Width of a label in pixels, estimated for a sans-serif face (digits are 0.556 em in Arial)."""
    return 0.56 * size * max((len(line) for line in text.split("<br>")), default=0)


def legend_above(names: Sequence[str], width: float, font: float) -> tuple[str, float]:
    """Orientation and height (pixels) of a legend above a plot of this width; none for a single name.

    Names that do not fit into one row stand below each other: a second row would be laid out by the width of the
    whole figure, and so run into the next one where the figure is a panel.
    """
    if len(names) < 2:
        return "h", 0.0
    row = max(_LEGEND_ROW, 1.5 * font)
    fits = sum(text_width(name, font) + _LEGEND_KEY for name in names) <= width
    return ("h", row) if fits else ("v", row * len(names))


def tick_step(count: int, spacing: float, label: float, *, cycle: int | None = None) -> int:
    """Smallest step between tick labels that do not collide.

    Parameters
    ----------
    count : int
        Number of positions.
    spacing : float
        Pixels between neighbours.
    label : float
        Pixels that one label needs along the axis.
    cycle : int, optional
        Prefer steps that divide it, or are its multiples, so that every cycle is labelled alike.
    """
    steps = [s for s in range(1, max(1, count) + 1) if cycle is None or cycle % s == 0 or s % cycle == 0]
    return next((s for s in steps if s * spacing >= label), max(1, count))


def finite(value: float) -> float | None:
    """Return a float for JSON, None where it is undefined."""
    return float(value) if np.isfinite(value) else None
