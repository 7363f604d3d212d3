"""Several figures as the panels of one."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from interp.figures.base import FigureError, Margins, TooNarrow, blank, describe, layout_of
from interp.figures.fit import crowded
from interp.figures.theme import DOUBLE_COLUMN_MM, Theme, mm

__all__ = ["GAP_MM", "most_columns", "panels", "slot_mm"]

GAP_MM = 4.0
_STRETCH = 1.5
_AXIS_REFERENCE = re.compile(r"([xy])(\d*)( domain)?")


def slot_mm(width_mm: float, columns: int) -> float:
    """Width of a panel where so many stand side by side."""
    return (width_mm - GAP_MM * (columns - 1)) / columns


def most_columns(draw: Callable[[int], go.Figure], most: int) -> tuple[go.Figure, int]:
    """Draw with as many columns as all text has room in, and say how many.

    Raises
    ------
    TooNarrow
        If a single column is too narrow.
    """
    for columns in range(most, 1, -1):
        with contextlib.suppress(TooNarrow):
            return draw(columns), columns
    return draw(1), 1


def panels(
    figures: Sequence[go.Figure],
    *,
    labels: str | Sequence[str] | None = "abcdefghijklmnopqrstuvwxyz",
    columns: int = 2,
    width_mm: float = DOUBLE_COLUMN_MM,
    theme: Theme | None = None,
) -> go.Figure:
    """Place figures in a grid, row by row, each with a bold letter at its upper left.

    Sizes of text and margins stay as they are: a panel's plot area is what its slot leaves. Axes, shapes,
    annotations, legends and their references are renumbered and moved. Panels of a row are stretched to the
    height of its highest one, by half at most.

    Parameters
    ----------
    figures : sequence of Figure
        From the builders of this package (fixed margins, Cartesian axes).
    labels : str or sequence of str, optional
        One letter per panel; None for a figure without letters, which may be a panel of another one itself.
    columns : int
        Panels side by side.
    width_mm : float
        Width of the whole figure.
    theme : Theme
        Fonts and ground; its width is ignored.

    Raises
    ------
    FigureError
        If there are no figures, fewer labels than figures, panels too narrow for their text
        (:class:`~interp.figures.base.TooNarrow`), or a figure that has lettered panels already.
    """
    if not figures or columns < 1:
        raise FigureError(
            f"{len(figures)} figures in {columns} columns cannot be composed; give at least one of each"
        )
    letters = [""] * len(figures) if labels is None else list(labels)
    if len(letters) < len(figures):
        raise FigureError(f"{len(figures)} panels need as many labels; got {len(letters)}: {labels!r}")
    base = theme or Theme()
    theme = replace(base, width_mm=width_mm)
    columns = min(columns, len(figures))
    slots = _slots([layout_of(f)["height"] for f in figures], columns, theme.width)
    total = max(s.top + s.height for s in slots)
    whole = blank(theme=theme, height=total, margins=Margins(0, 0, 0, 0))
    parts = _Parts({}, [], [], [], itertools.count(1), itertools.count(len(figures) + 1))
    for number, (figure, slot, label) in enumerate(zip(figures, slots, letters, strict=False)):
        _place(parts, figure, slot, str(label), number, theme, total)
    whole.add_traces(parts.traces)
    whole.update_layout(**parts.layout, shapes=parts.shapes, annotations=parts.annotations, bargap=0.3)
    metas = [layout_of(figure)["meta"] for figure in figures]
    return describe(
        whole,
        alt=_joined("Panel {}: ", letters, [m.get("alt", "") for m in metas]),
        caption=_joined("({}) ", letters, [m.get("caption", "") for m in metas]),
    )


def _joined(mark: str, letters: Sequence[str], texts: Sequence[str]) -> str:
    """Texts one after the other, each behind its letter if it has one."""
    return " ".join(
        (mark.format(letter) if letter else "") + text for letter, text in zip(letters, texts, strict=False)
    )


@dataclass(frozen=True)
class _Slot:
    """A panel's rectangle in pixels from the upper left."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class _Parts:
    """What the whole figure is made of so far."""

    layout: dict[str, Any]
    shapes: list[dict[str, Any]]
    annotations: list[dict[str, Any]]
    traces: list[dict[str, Any]]
    counter: itertools.count[int]
    legends: itertools.count[int]  # for legends beyond a panel's first


def _slots(heights: Sequence[float], columns: int, width: float) -> list[_Slot]:
    gap = mm(GAP_MM)
    slot_width = (width - gap * (columns - 1)) / columns
    slots, top = [], 0.0
    for row in range(math.ceil(len(heights) / columns)):
        members = heights[row * columns : (row + 1) * columns]
        height = max(members)
        slots += [
            _Slot(column * (slot_width + gap), top, slot_width, min(height, _STRETCH * own))
            for column, own in enumerate(members)
        ]
        top += height + gap
    return slots


def _place(
    parts: _Parts, figure: go.Figure, slot: _Slot, label: str, number: int, theme: Theme, total: float
) -> None:
    """Move one figure into its slot."""
    plain = copy.deepcopy(figure.to_plotly_json())
    layout = plain["layout"]
    margin = layout["margin"]
    width, height = slot.width - margin["l"] - margin["r"], slot.height - margin["t"] - margin["b"]
    if label and any("panel" in (trace.get("meta") or {}) for trace in plain["data"]):
        raise FigureError(
            f"panel {label!r} has lettered panels itself; compose all at once, or it with labels=None"
        )
    text = crowded(figure, slot.width, letter=theme.font * 1.3 if label else 0.0)
    if text is not None or width < mm(10) or height < mm(5):
        what = "its labels" if text is None else repr(text)
        raise TooNarrow(
            f"panel {label or number + 1!r} would be {slot.width * 25.4 / 96:.0f} mm wide, too narrow for {what}; "
            "use fewer columns, a larger width_mm or a smaller font_pt"
        )
    x = _Affine((slot.left + margin["l"]) / theme.width, width / theme.width)
    y = _Affine(1 - (slot.top + margin["t"] + height) / total, height / total)
    axes = sorted((k for k in layout if re.fullmatch(r"[xy]axis\d*", k)), key=lambda k: (int(k[5:] or 1), k))
    numbers = {n: next(parts.counter) for n in dict.fromkeys(int(k[5:] or 1) for k in axes)}

    def renamed(reference: str) -> str:
        return _AXIS_REFERENCE.sub(
            lambda m: f"{m[1]}{_suffix(numbers.get(int(m[2] or 1), 1))}{m[3] or ''}", reference, count=1
        )

    for key in axes:
        axis = layout[key]
        axis["domain"] = [(x if key[0] == "x" else y)(v) for v in axis.get("domain", [0, 1])]
        default = ("y" if key[0] == "x" else "x") + key[5:]
        axis["anchor"] = (
            axis["anchor"] if axis.get("anchor") == "free" else renamed(axis.get("anchor", default))
        )
        for reference in ("overlaying", "matches", "scaleanchor"):
            if _AXIS_REFERENCE.fullmatch(str(axis.get(reference, ""))):
                axis[reference] = renamed(axis[reference])
        parts.layout[f"{key[:5]}{_suffix(numbers[int(key[5:] or 1)])}"] = axis
    legends = _legends(parts, layout, number, x, y, total)
    for trace in plain["data"]:
        trace["xaxis"], trace["yaxis"] = renamed(trace.get("xaxis", "x")), renamed(trace.get("yaxis", "y"))
        trace["showlegend"] = bool(layout.get("showlegend")) and trace.get("showlegend", True)
        if trace["showlegend"]:
            trace["legend"] = legends[trace.get("legend", "legend")]
        if trace.get("legendgroup"):
            trace["legendgroup"] = f"{label or number}:{trace['legendgroup']}"
        if label:
            trace["meta"] = (trace.get("meta") or {}) | {"panel": label}
        parts.traces.append(trace)
    for target, kind in ((parts.shapes, "shapes"), (parts.annotations, "annotations")):
        target += [_moved(item, renamed, x, y) for item in layout.get(kind, ())]
    if not label:
        return
    parts.annotations.append(
        {
            "text": f"<b>{label}</b>",
            "xref": "paper",
            "yref": "paper",
            "x": slot.left / theme.width,
            "y": 1 - slot.top / total,
            "xanchor": "left",
            "yanchor": "top",
            "showarrow": False,
            "borderpad": 0,
            "font": {"size": theme.font * 1.3, "color": theme.ink},
        }
    )


def _legends(
    parts: _Parts, layout: dict[str, Any], number: int, x: _Affine, y: _Affine, total: float
) -> dict[str, str]:
    """Move every legend of a figure; return their new names by the old ones."""
    if not layout.get("showlegend"):
        return {}
    margin = layout["margin"]
    inside = layout["height"] - margin["t"] - margin["b"]
    renamed = {"legend": f"legend{_suffix(number + 1)}"}
    for key in sorted(k for k in layout if re.fullmatch(r"legend\d+", k)):
        renamed[key] = f"legend{next(parts.legends)}"
    for key, new in renamed.items():
        old = layout.get(key, {})
        # Above the plots a legend stays as many pixels away as it was, however much they are stretched.
        above = max(0.0, old.get("y", 1) - 1) * inside
        parts.layout[new] = old | {
            "x": x(old.get("x", 0)), "y": y(min(1, old.get("y", 1))) + above / total
        }  # fmt: skip
    parts.layout["showlegend"] = True
    return renamed


@dataclass(frozen=True)
class _Affine:
    """From a panel's paper coordinate to the whole figure's."""

    start: float
    scale: float

    def __call__(self, value: float) -> float:
        return (
            min(1.0, max(0.0, self.start + self.scale * value))
            if 0 <= value <= 1
            else self.start + self.scale * value
        )


def _moved(item: dict[str, Any], renamed: Any, x: _Affine, y: _Affine) -> dict[str, Any]:
    """Return a shape or annotation with references renamed, and paper coordinates mapped."""
    item = dict(item)
    for letter, affine in (("x", x), ("y", y)):
        reference = item.get(f"{letter}ref", letter)
        if reference != "paper":
            item[f"{letter}ref"] = renamed(reference)
            continue
        item[f"{letter}ref"] = "paper"
        for key in (letter, f"{letter}0", f"{letter}1"):
            if key in item:
                item[key] = affine(item[key])
    return item


def _suffix(number: int) -> str:
    return "" if number == 1 else str(number)
