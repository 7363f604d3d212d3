"""The legend of a chart as a list of words that wraps on narrow screens and can be read out."""

from __future__ import annotations

import base64
import html
from typing import Any

import plotly.graph_objects as go

__all__ = ["legend"]

_DASHES = {
    "dash": "6 3",
    "dot": "1.5 2.5",
    "dashdot": "6 3 1.5 3",
    "longdash": "9 3",
    "longdashdot": "9 3 1.5 3",
}
_SHAPES = {
    "circle": '<circle cx="14" cy="7" r="3.6"/>',
    "diamond": '<path d="M14 2.4 18.6 7 14 11.6 9.4 7Z"/>',
    "square": '<path d="M10.6 3.6h6.8v6.8h-6.8Z"/>',
    "triangle-up": '<path d="M14 2.6 18.4 10.6H9.6Z"/>',
    "x": '<path d="M10.8 3.8l6.4 6.4m0-6.4l-6.4 6.4" stroke-width="2.4"/>',
}


def legend(drawn: go.Figure) -> str:
    """Return an HTML list with one item a name."""
    items: dict[str, str] = {}
    traces: Any = drawn.data
    for trace in traces:
        name = getattr(trace, "name", None)
        if name and trace.showlegend is not False and name not in items:
            sign = _bar(trace) if trace.type == "bar" else _line(trace)
            items[name] = f"<li>{_image(sign)}{html.escape(str(name))}</li>"
    return f'<ul class="legend" aria-label="Legend">{"".join(items.values())}</ul>'


def _image(sign: str) -> str:
    """An image element: Streamlit takes drawings out of the HTML it is given, but leaves images in."""
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="28" height="14" viewBox="0 0 28 14">{sign}</svg>'
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="" width="28" height="14" src="data:image/svg+xml;base64,{data}">'


def _bar(trace: Any) -> str:
    return f'<rect x="8" y="2" width="12" height="10" fill="{_one(trace.marker.color)}"/>'


def _line(trace: Any) -> str:
    colour = _one(trace.line.color or trace.marker.line.color or trace.marker.color)
    dash = _DASHES.get(str(trace.line.dash), "")
    line = (
        f'<path d="M0 7H28" stroke="{colour}" stroke-width="1.6" fill="none" stroke-dasharray="{dash}"/>'
        if "lines" in str(trace.mode)
        else ""
    )
    shape = _SHAPES.get(str(_one(trace.marker.symbol) or "circle"), _SHAPES["circle"])
    fill = _one(trace.marker.color) or colour
    return f'{line}<g fill="{fill}" stroke="{colour}" stroke-width="1.4">{shape}</g>'


def _one(value: Any) -> str:
    """Return a colour or symbol; of a list the first, which stands for the others."""
    return html.escape(str(value[0] if isinstance(value, (list, tuple)) else value or ""))
