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
from interp.figures.text import LINE, text_width, wrapped
from interp.figures.theme import Theme, mm

__all__ = [
    "LEGEND_KEY",
    "FigureError",
    "Legend",
    "Margins",
    "TooNarrow",
    "blank",
    "describe",
    "finite",
    "layout_of",
    "legend_row",
    "nice_ticks",
    "number",
    "require",
    "room_below",
    "room_beside",
    "tick_step",
    "unit_order",
    "weight",
]

LEGEND_KEY = 46.0
"""Pixels that a legend's line and gaps take beside a name."""
_LEGEND_ROW = 19.0
"""Pixels of a legend's row, however small its type."""


class FigureError(PhaselensError):
    """Data that a figure cannot be drawn from, or an export that failed."""


class TooNarrow(FigureError):
    """A figure, or a panel, whose text does not fit into its width."""


@dataclass(frozen=True)
class Margins:
    """Space around the plot area, in pixels."""

    left: float
    right: float
    top: float
    bottom: float


def blank(*, theme: Theme, height: float, margins: Margins) -> go.Figure:
    """Return an empty figure of the theme's width and of `height` pixels, with fixed margins.

    Raises
    ------
    TooNarrow
        If margins, which hold the labels, leave less than 10 mm by 5 mm.
    """
    if theme.width - margins.left - margins.right < mm(10) or height - margins.top - margins.bottom < mm(5):
        raise TooNarrow(
            f"{theme.width_mm:.3g} mm are too narrow for labels of {theme.font_pt:g} pt; use a larger width_mm, "
            "fewer columns or a smaller font_pt"
        )
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


@dataclass(frozen=True)
class Legend:
    """A legend above a plot.

    Attributes
    ----------
    names : tuple of str
        As they are written: broken into lines where one is wider than the plot.
    orientation : str
        "h" for one row, "v" for names below each other: a second row would be laid out by the width of the
        whole figure, and so run into the next one where the figure is a panel.
    height : float
        In pixels; 0 where there is none.
    x : float
        Its left end in shares of the plot's width; negative where it begins over the tick labels.
    """

    names: tuple[str, ...]
    orientation: str
    height: float
    x: float = 0.0

    @classmethod
    def above(cls, names: Sequence[str], width: float, font: float, *, left: float) -> Legend:
        """Lay out a legend over a plot of `width` pixels with so much room at its `left`; none for a single name."""
        if len(names) < 2:
            return cls(tuple(names), "h", 0.0)
        row = sum(text_width(name, font) + LEGEND_KEY for name in names)
        spare = max(0.0, left - 1.5 * font)  # beside the letter of a panel
        if row <= width + spare:
            return cls(tuple(names), "h", legend_row(1, font), -max(0.0, row - width) / width)
        broken = tuple(wrapped(name, font, width - LEGEND_KEY) for name in names)
        height = sum(legend_row(name.count("<br>") + 1, font) for name in broken)
        return cls(broken, "v", height)

    def layout(self, theme: Theme, *, lift: float = 0.0) -> dict[str, Any]:
        """Settings of plotly; it stands `lift`, a share of the plot's height, clear of the plot."""
        return {
            "orientation": self.orientation,
            "x": round(self.x, 4),
            "xanchor": "left",
            "y": 1 + lift,
            "yanchor": "bottom",
            "font": {"size": theme.font},
            "bgcolor": "rgba(0,0,0,0)",
            "itemwidth": 30,
            "tracegroupgap": 0,
        }


def legend_row(lines: int, font: float) -> float:
    """Height in pixels of a legend's entry of so many lines."""
    return max(_LEGEND_ROW, LINE * font * lines + 3)


def room_below(font: float, title: str, least: float = 3.2) -> float:
    """Pixels that tick labels and an axis title of one or several lines take below a plot.

    At least `least` times the type's size; small type has the same ticks and gaps as large type.
    """
    return max(least * font, 2.25 * font + 8.5) + LINE * font * title.count("<br>")


def room_beside(font: float, ticks: float, title: str) -> float:
    """Pixels that tick labels as wide as `ticks` and an axis title of one or several lines take beside a plot."""
    return ticks + 1.15 * font + 7.3 + LINE * font * title.count("<br>")


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within a range, at most so many."""
    span = max(high - low, 1e-12)
    power = 10.0 ** np.floor(np.log10(span / most))
    step = next(
        s for m in (1, 2, 5, 10, 20) if np.floor(high / (s := m * power)) - np.ceil(low / s) + 1 <= most
    )
    return [
        float(round(i * step, 12)) for i in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)
    ]


def weight(value: float) -> str:
    """Format a weight between 0 and 1 with three significant digits, from two to four of them behind the point."""
    digits = (
        2 if not np.isfinite(value) or value == 0 else min(4, max(2, 2 - int(np.floor(np.log10(abs(value))))))
    )
    text = number(value, digits)
    while len(text.partition(".")[2]) > 2 and text.endswith("0"):
        text = text[:-1]
    return text


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
