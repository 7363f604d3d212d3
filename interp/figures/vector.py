"""Last touches on rendered bytes: true sizes, stable ids, alternative text; rasters are refused."""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from xml.sax.saxutils import escape, quoteattr

import plotly.graph_objects as go

from interp.figures.base import FigureError, layout_of

__all__ = ["finish_pdf", "finish_png", "finish_svg", "has_raster"]

# Of all that an SVG may hold as data, only embedded fonts are no image.
_RASTER_IN_SVG = (
    rb"<(image|foreignObject|canvas)\b|data:image/|url\(\s*(?:[\"']|&quot;)?data:(?!font/woff;base64,)"
)
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def has_raster(data: bytes) -> bool:
    """Whether the bytes of a PDF or SVG hold an image."""
    if data.startswith(b"%PDF"):
        return re.search(rb"/Subtype\s*/Image\b", data) is not None
    return re.search(_RASTER_IN_SVG, data) is not None


def finish_svg(data: bytes, figure: go.Figure) -> bytes:
    """Size in mm, ids that depend on the figure alone, alternative text.

    plotly.js draws six random hexadecimal digits and puts them into every id.

    Raises
    ------
    FigureError
        If a raster is inside.
    """
    _refuse_raster(data, "SVG")
    text = data.decode()
    stable = hashlib.sha256((figure.to_json() or "").encode()).hexdigest()[:6]
    for random in set(re.findall(r'id="(?:top)?defs-([0-9a-f]{6})"', text)):
        # A second legend is "legend2", and so on: its number stands between the word and the digits.
        text = re.sub(rf"(clip|defs-|legend\d*|\bg){random}", rf"\g<1>{stable}", text)
    layout = layout_of(figure)
    width, height, meta = layout["width"], layout["height"], layout["meta"]
    head = (
        '<svg class="main-svg" xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width * 25.4 / 96:.3f}mm" height="{height * 25.4 / 96:.3f}mm" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label={quoteattr(meta.get("alt", ""))} '
    )
    style = re.search(r'<svg\b[^>]*?(style="[^"]*")', text)
    text = re.sub(
        r"<svg\b[^>]*>",
        lambda _: f"{head}{style[1] if style else ''}><title>{escape(meta.get('caption', ''))}</title>",
        text,
        count=1,
    )
    return text.encode()


def finish_pdf(data: bytes) -> bytes:
    """Set times to a constant of the same length, so that the same figure gives the same bytes.

    Raises
    ------
    FigureError
        If a raster is inside.
    """
    _refuse_raster(data, "PDF")
    return re.sub(rb"/(CreationDate|ModDate) \(D:\d{14}", rb"/\1 (D:20000101000000", data)


def finish_png(data: bytes, *, dpi: int) -> bytes:
    """Add the resolution, so that the image has the figure's size when placed in a document."""
    per_metre = round(dpi / 0.0254)
    body = b"pHYs" + struct.pack(">IIB", per_metre, per_metre, 1)
    chunk = struct.pack(">I", 9) + body + struct.pack(">I", zlib.crc32(body))
    end_of_header = len(_PNG_MAGIC) + 25
    return data[:end_of_header] + chunk + data[end_of_header:]


def _refuse_raster(data: bytes, kind: str) -> None:
    if has_raster(data):
        raise FigureError(f"the {kind} would hold a raster image; draw with shapes, lines and text only")
