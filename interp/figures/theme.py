"""The paper theme: sizes in millimetres and points, colour-blind safe colours, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["COLUMN_MM", "DOUBLE_COLUMN_MM", "Theme", "contrast", "mix", "mm", "pt"]

COLUMN_MM = 85.0
DOUBLE_COLUMN_MM = 180.0

# Okabe & Ito (2008), told apart under all common kinds of colour blindness; no yellow (invisible on paper).
_LIGHT_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F", "#56B4E9", "#E69F00", "#000000")
_DARK_PALETTE = ("#56B4E9", "#FF8C42", "#2BD4A4", "#E8A0C8", "#B0B0B0", "#9AD4F5", "#F2C14E", "#FFFFFF")

# ColorBrewer RdBu without its darkest ends, so that ink outlines stay visible on every cell.
_LIGHT_DIVERGING = ("#B2182B", "#EF8A62", "#FDDBC7", "#F7F7F7", "#D1E5F0", "#67A9CF", "#2166AC")
_DARK_DIVERGING = ("#FF7A66", "#C44A3D", "#6B2F2C", "#2A2E35", "#284A63", "#3F83B5", "#73BDF0")

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "pentagon", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")


def mm(length: float) -> float:
    """Millimetres in CSS pixels (96 per inch); a PDF printed from them has the true size."""
    return length * 96.0 / 25.4


def pt(size: float) -> float:
    """Points in CSS pixels."""
    return size * 96.0 / 72.0


@dataclass(frozen=True, kw_only=True)
class Theme:
    """How a figure looks; every builder takes one.

    Parameters
    ----------
    width_mm : float
        Width of the figure: 85 for one column of a paper, 180 for two.
    font_pt : float
        Size of labels; smaller text is derived from it.
    font_family : str
        CSS font family, most wanted first.
    dark : bool
        Light ink on a dark ground, for screens.
    """

    width_mm: float = COLUMN_MM
    font_pt: float = 7.0
    font_family: str = "Liberation Sans, Arial, Helvetica, sans-serif"
    dark: bool = False

    @property
    def width(self) -> float:
        """Width in pixels."""
        return mm(self.width_mm)

    @property
    def font(self) -> float:
        """Size of labels in pixels."""
        return pt(self.font_pt)

    @property
    def small(self) -> float:
        """Size of secondary text in pixels, never under 5 pt."""
        return pt(max(5.0, 0.86 * self.font_pt))

    @property
    def paper(self) -> str:
        """Ground."""
        return "#14171C" if self.dark else "#FFFFFF"

    @property
    def ink(self) -> str:
        """Text, axes and outlines."""
        return "#F1F3F5" if self.dark else "#1A1A1A"

    @property
    def muted(self) -> str:
        """Secondary text; at least 4.5:1 against the ground."""
        return "#A9B0B8" if self.dark else "#595959"

    @property
    def grid(self) -> str:
        """Grid and reference lines."""
        return "#3A4049" if self.dark else "#D9D9D9"

    @property
    def shade(self) -> str:
        """Ground of every other cycle of phases."""
        return "#1D2128" if self.dark else "#F4F4F4"

    @property
    def shade_boundary(self) -> str:
        """Ground of boundary phases."""
        return "#343B46" if self.dark else "#DEDEDE"

    @property
    def palette(self) -> tuple[str, ...]:
        """Eight colours for series; symbols and dashes go along, so that colour is never the only cue."""
        return _DARK_PALETTE if self.dark else _LIGHT_PALETTE

    def diverging(self, value: float) -> str:
        """Colour of a signed number in −1 … 1 (clipped): red for losses, blue for gains, neutral at 0."""
        stops = _DARK_DIVERGING if self.dark else _LIGHT_DIVERGING
        place = (min(1.0, max(-1.0, value)) + 1.0) / 2.0 * (len(stops) - 1)
        low = min(int(place), len(stops) - 2)
        return mix(stops[low], stops[low + 1], place - low)

    def text_on(self, ground: str) -> str:
        """Black or white, whichever stands out more on a cell of this colour."""
        return max(("#000000", "#FFFFFF"), key=lambda ink: contrast(ink, ground))

    def series(self, index: int) -> tuple[str, str, str]:
        """Colour, marker symbol and dash of the series number `index`."""
        i = index % len(self.palette)
        return self.palette[i], SYMBOLS[i], DASHES[i]

    def axis(self, **options: Any) -> dict[str, Any]:
        """Return plotly settings of an axis in this theme; `options` are added or replace them.

        Margins are fixed by the builders (no automargin), so that figures can be composed exactly.
        """
        base: dict[str, Any] = {
            "automargin": False,
            "showgrid": False,
            "zeroline": False,
            "showline": True,
            "linecolor": self.ink,
            "linewidth": 0.75,
            "ticks": "outside",
            "ticklen": 3,
            "tickwidth": 0.75,
            "tickcolor": self.ink,
            "tickfont": {"size": self.font, "color": self.ink},
            "gridcolor": self.grid,
            "gridwidth": 0.5,
        }
        title, standoff = options.pop("title", None), options.pop("standoff", 4)
        if title is not None:
            base["title"] = {
                "text": title,
                "standoff": standoff,
                "font": {"size": self.font, "color": self.ink},
            }
        return base | options


def mix(a: str, b: str, share: float) -> str:
    """Colour `share` of the way from `a` to `b`, both ``"#RRGGBB"``."""
    return "#" + "".join(f"{round(x + (y - x) * share):02X}" for x, y in zip(_rgb(a), _rgb(b), strict=True))


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio of two colours, 1 to 21."""
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _rgb(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
