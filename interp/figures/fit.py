"""Whether all text of a figure has its place: inside of the figure, and not over other text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from interp.figures.base import LEGEND_KEY, layout_of, legend_row
from interp.figures.text import LINE, text_width

__all__ = ["crowded"]

_LEGEND_PAD = 5.0
"""Pixels around a legend's rows."""
_SLACK = 1.0
"""Pixels by which estimates may be wrong."""


@dataclass(frozen=True)
class _Text:
    """A text and its box in pixels from the upper left."""

    text: str
    left: float
    top: float
    right: float
    bottom: float

    @property
    def words(self) -> str:
        """In one line, as it was before it was broken."""
        return re.sub(r"(?<=[-/_])<br>", "", self.text).replace("<br>", " ")

    def over(self, other: _Text) -> bool:
        return (
            self.left + _SLACK < other.right and other.left + _SLACK < self.right
            and self.top + _SLACK < other.bottom and other.top + _SLACK < self.bottom
        )  # fmt: skip


def crowded(figure: go.Figure, width: float | None = None, *, letter: float = 0.0) -> str | None:
    """Return the first text that leaves the figure, or lies over another text; None if there is none.

    Axis titles, tick labels, notes and legends are looked at, by widths of the type they are set in; texts of
    traces are placed by their builders.

    Parameters
    ----------
    figure : Figure
        Of a builder of this package: fixed margins, ticks given by their values.
    width : float, optional
        Pixels of the slot that the figure is put into; its own width if left out.
    letter : float
        Size in pixels of a bold letter at the upper left; 0 for none.
    """
    layout = layout_of(figure)
    frame = _Frame.of(layout, layout["width"] if width is None else width)
    texts = [*frame.axes(layout), *frame.notes(layout), *frame.legends(layout, figure)]
    if letter:
        texts.append(_Text("the panel's letter", 0, 0, text_width("<b>m</b>", letter), letter))
    for text in texts:
        if min(text.left, text.top, frame.width - text.right, frame.height - text.bottom) < -_SLACK:
            return text.words
    for i, text in enumerate(texts):
        if any(text.over(other) for other in texts[:i]):
            return text.words
    return None


@dataclass(frozen=True)
class _Frame:
    """A figure's size and its plot area, in pixels."""

    width: float
    height: float
    left: float
    top: float
    plot_width: float
    plot_height: float

    @classmethod
    def of(cls, layout: dict[str, Any], width: float) -> _Frame:
        m, height = layout["margin"], layout["height"]
        return cls(width, height, m["l"], m["t"], width - m["l"] - m["r"], height - m["t"] - m["b"])

    def x(self, share: float) -> float:
        return self.left + share * self.plot_width

    def y(self, share: float) -> float:
        return self.top + (1 - share) * self.plot_height

    def domain(self, layout: dict[str, Any], reference: str) -> tuple[float, float]:
        """Both ends of an axis ("x2") in pixels, the lower values first."""
        low, high = _axis(layout, reference).get("domain", [0, 1])
        place = self.x if reference[0] == "x" else self.y
        return place(low), place(high)

    # ---- axes ----------------------------------------------------------------------------------------------

    def axes(self, layout: dict[str, Any]) -> Iterator[_Text]:
        for key in (k for k in layout if re.fullmatch(r"[xy]axis\d*", k)):
            axis = layout[key]
            if not axis.get("visible", True):
                continue
            name = key[0] + key[5:]
            other = axis.get("anchor", ("y" if key[0] == "x" else "x") + key[5:])
            across = self.domain(layout, other if other != "free" else name)
            yield from (
                self._x(layout, axis, name, across) if key[0] == "x" else self._y(layout, axis, name, across)
            )

    def _ticks(self, layout: dict[str, Any], axis: dict[str, Any], name: str) -> list[tuple[str, float]]:
        if not axis.get("showticklabels", True):
            return []
        low, high = axis.get("range", [0, 1])
        start, end = self.domain(layout, name)
        values = axis.get("tickvals")
        if values is None:
            step = axis.get("dtick") or (high - low)
            values = [step * i for i in range(round(low / step), round(high / step) + 1)]
        labels = axis.get("ticktext") or [f"{value:g}" for value in values]
        places = [start + (value - low) / (high - low) * (end - start) for value in values]
        return list(zip(map(str, labels), places, strict=True))

    def _x(
        self, layout: dict[str, Any], axis: dict[str, Any], name: str, across: tuple[float, float]
    ) -> Iterator[_Text]:
        size, below = axis["tickfont"]["size"], across[0] + (axis["ticklen"] if axis.get("ticks") else 0) + 2
        ticks = self._ticks(layout, axis, name)
        for label, at in ticks:
            half = text_width(label, size) / 2
            yield _Text(label, at - half, below, at + half, below + size)
        if title := axis.get("title", {}).get("text"):
            size, lines = axis["title"]["font"]["size"], title.count("<br>") + 1
            start, end = self.domain(layout, name)
            half, middle = text_width(title, size) / 2, (start + end) / 2
            top = below + (1.2 * size if ticks else 0) + axis["title"].get("standoff", 0) - 1
            yield _Text(title, middle - half, top, middle + half, top + size * (1 + LINE * (lines - 1)))

    def _y(
        self, layout: dict[str, Any], axis: dict[str, Any], name: str, across: tuple[float, float]
    ) -> Iterator[_Text]:
        size, right = axis["tickfont"]["size"], axis.get("side") == "right"
        gap = (axis["ticklen"] if axis.get("ticks") else 0) + 2
        ticks = self._ticks(layout, axis, name)
        widest = max((text_width(label, size) for label, _ in ticks), default=0.0)
        for label, at in ticks:
            wide = text_width(label, size)
            left = across[1] + gap if right else across[0] - gap - wide
            yield _Text(label, left, at - 0.4 * size, left + wide, at + 0.4 * size)
        if title := axis.get("title", {}).get("text"):
            size, lines = axis["title"]["font"]["size"], title.count("<br>") + 1
            start, end = self.domain(layout, name)
            half, middle = text_width(title, size) / 2, (start + end) / 2
            edge = across[0] - gap - widest - axis["title"].get("standoff", 0) - 1
            deep = size * (1.05 + LINE * (lines - 1))
            yield _Text(title, edge - deep, middle - half, edge, middle + half)

    # ---- notes and legends ---------------------------------------------------------------------------------

    def notes(self, layout: dict[str, Any]) -> Iterator[_Text]:
        for note in layout.get("annotations", ()):
            size = note["font"]["size"]
            wide = text_width(note["text"], size)
            high = size * (1 + LINE * note["text"].count("<br>"))
            x, y = (self._at(layout, note, letter) for letter in "xy")
            x += note.get("xshift", 0)
            y -= note.get("yshift", 0)
            left = x - {"left": 0.0, "right": 1.0}.get(note.get("xanchor", ""), 0.5) * wide
            top = y - {"top": 0.0, "bottom": 1.0}.get(note.get("yanchor", ""), 0.5) * high
            yield _Text(note["text"], left, top, left + wide, top + high)

    def _at(self, layout: dict[str, Any], note: dict[str, Any], letter: str) -> float:
        reference, value = note.get(f"{letter}ref", letter), note[letter]
        place = self.x if letter == "x" else self.y
        if reference == "paper":
            return place(value)
        start, end = self.domain(layout, reference.split()[0])
        if reference.endswith(" domain"):
            return start + value * (end - start)
        low, high = _axis(layout, reference).get("range", [0, 1])
        return start + (value - low) / (high - low) * (end - start)

    def legends(self, layout: dict[str, Any], figure: go.Figure) -> Iterator[_Text]:
        if not layout.get("showlegend"):
            return
        names: dict[str, list[str]] = {}
        traces: Any = figure.data
        for trace in traces:
            if trace.name and trace.showlegend is not False:
                names.setdefault(trace.legend or "legend", []).append(str(trace.name))
        for key, entries in names.items():
            legend = layout.get(key, {})
            size = legend.get("font", layout["font"])["size"]
            widths = [text_width(name, size) + LEGEND_KEY for name in entries]
            rows = [legend_row(name.count("<br>") + 1, size) for name in entries]
            wide, high = (
                (sum(widths), max(rows)) if legend.get("orientation") == "h" else (max(widths), sum(rows))
            )
            left, bottom = self.x(legend.get("x", 0)), self.y(legend.get("y", 1)) - _LEGEND_PAD
            yield _Text(" and ".join(entries), left, bottom - high, left + wide, bottom)


def _axis(layout: dict[str, Any], reference: str) -> dict[str, Any]:
    return layout.get(f"{reference[0]}axis{reference[1:]}", {})
