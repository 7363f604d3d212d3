"""Charts drawn as SVG within the page: they follow its light or dark colours and need no browser to make."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "Line", "intervals_chart", "line_chart"]

_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 12, 42
_FONT = 13
_Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """Values in percent at x, with bounds where they are known; NaN where undefined."""

    name: str
    x: Sequence[int]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Interval:
    """One row of a chart of gaps; `emphasis` for what was measured here."""

    name: str
    value: float
    low: float
    high: float
    emphasis: bool = False


def line_chart(
    lines: Sequence[Line], *, cycle: int, x_title: str, y_title: str, label: str, shade_last: bool = True
) -> str:
    """Draw lines over residues, every other cycle shaded and, if asked for, the last place of each darker.

    Parameters
    ----------
    lines : sequence of Line
        On the same x.
    cycle : int
        Stride or period; 0 shades nothing.
    x_title, y_title : str
        Of the axes.
    label : str
        The chart in words.
    shade_last : bool
        Mark boundary phases.
    """
    first, last = min(lines[0].x), max(lines[0].x)
    width = (_WIDTH - _LEFT - _RIGHT) / (last - first + 1)

    def across(x: float) -> float:
        return _LEFT + (x - first + 0.5) * width

    def down(y: float) -> float:
        return _TOP + (100 - y) / 100 * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_shading(first, last, cycle, width, shade_last)] if cycle else []
    for tick in range(0, 101, 25):
        y = down(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>')
    for x in _ticks(first, last, cycle, width):
        at = f'x="{across(x):.1f}" y="{_HEIGHT - _BOTTOM + 16}"'
        parts.append(f'<text {at} text-anchor="middle">{x}</text>')
    parts += [_line(line, number, across, down) for number, line in enumerate(lines)]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{html.escape(x_title)}</text>')
    centre = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f'transform="translate(12 {centre}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {turned}>{html.escape(y_title)}</text>")
    legend = "" if len(lines) == 1 else _legend(lines)
    return legend + _svg("".join(parts), _HEIGHT, label, "lines")


def _line(line: Line, number: int, across: _Scale, down: _Scale) -> str:
    known = [i for i, y in enumerate(line.y) if math.isfinite(y)]
    points = " ".join(f"{across(line.x[i]):.1f},{down(line.y[i]):.1f}" for i in known)
    parts = [f'<polyline class="line s{number}" points="{points}"/>']
    for i in known:
        x, y = across(line.x[i]), down(line.y[i])
        told = f"{line.x[i]}: {line.y[i]:.1f}%"
        if line.low is not None and line.high is not None and math.isfinite(line.low[i]):
            low, high = down(line.low[i]), down(line.high[i])
            parts.append(
                f'<line class="whisker s{number}" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
            )
            told += f" ({line.low[i]:.1f} to {line.high[i]:.1f})"
        parts.append(_marker(number, x, y, told))
    return "".join(parts)


def _marker(number: int, x: float, y: float, told: str) -> str:
    title = f"<title>{html.escape(told)}</title>"
    if number == 0:
        return f'<circle class="dot s0" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{title}</circle>'
    corner = f'x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"'
    return f'<rect class="dot s{number}" {corner}>{title}</rect>'


def _shading(first: int, last: int, cycle: int, width: float, shade_last: bool) -> str:
    top, height = _TOP, _HEIGHT - _TOP - _BOTTOM
    parts = []
    for x in range(first, last + 1):
        left = _LEFT + (x - first) * width
        if shade_last and cycle > 1 and x % cycle == cycle - 1:
            kind = "boundary"
        elif x // cycle % 2:
            kind = "cycle"
        else:
            continue
        parts.append(
            f'<rect class="{kind}" x="{left:.2f}" y="{top}" width="{width + 0.3:.2f}" height="{height}"/>'
        )
    return "".join(parts)


def _ticks(first: int, last: int, cycle: int, width: float) -> list[int]:
    step = next((s for s in (1, 2, cycle, 2 * cycle, 4 * cycle, 8 * cycle) if s and s * width >= 22), last)
    return [x for x in range(first, last + 1) if (x - first) % max(1, step) == 0]


def _legend(lines: Sequence[Line]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 14 14" aria-hidden="true">{_marker(i, 7, 7, line.name)}</svg>'
        f"{html.escape(line.name)}</li>"
        for i, line in enumerate(lines)
    )
    return f'<ul class="legend">{items}</ul>'


def intervals_chart(rows: Sequence[Interval], *, x_title: str, label: str) -> str:
    """Draw values with intervals, one row each, on an axis from 0."""
    left = 12 + max(len(row.name) for row in rows) * _FONT * 0.62
    left = min(left, _WIDTH * 0.45)
    top, step = 8, 26
    height = top + step * len(rows) + 38
    ends = [x for row in rows for x in (row.value, row.high) if math.isfinite(x)]
    unit = next(u for u in (1, 2, 5, 10, 20) if max([*ends, 1]) / u <= 6)
    most = unit * math.ceil(max([*ends, 1]) / unit)

    def across(value: float) -> float:
        return left + value / most * (_WIDTH - left - _RIGHT - 8)

    bottom = top + step * len(rows)
    parts = []
    for tick in np.arange(0, most + unit / 2, unit):
        x = across(float(tick))
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for i, row in enumerate(rows):
        y = top + step * (i + 0.5)
        kind = "s0" if row.emphasis else "s1"
        weight = ' font-weight="700"' if row.emphasis else ""
        parts.append(f'<text x="0" y="{y + 4:.1f}"{weight}>{html.escape(_short(row.name))}</text>')
        if math.isfinite(row.low):
            low, high = across(max(0.0, row.low)), across(row.high)
            parts.append(f'<line class="whisker {kind}" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        if math.isfinite(row.value):
            told = f"{row.name}: {row.value:.1f} pp ({row.low:.1f} to {row.high:.1f})"
            parts.append(_marker(0 if row.emphasis else 1, across(row.value), y, told))
    at = f'x="{(left + _WIDTH) / 2:.1f}" y="{height - 4}" text-anchor="middle"'
    parts.append(f"<text {at}>{html.escape(x_title)}</text>")
    return _svg("".join(parts), height, label, "rows")


def _short(name: str, most: int = 34) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _svg(content: str, height: float, label: str, kind: str) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{html.escape(label)}"'
    return f'<svg class="chart {kind}" {size}>{content}</svg>'
