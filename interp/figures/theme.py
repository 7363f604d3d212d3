"""The paper theme: sizes in millimetres and points, colour-blind safe colours, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hooks.errors import PhaselensError

__all__ = ["COLOURS", "COLUMN_MM", "DOUBLE_COLUMN_MM", "Theme", "contrast", "mix", "mm", "pt"]

COLUMN_MM = 85.0
DOUBLE_COLUMN_MM = 180.0


@dataclass(frozen=True)
class _Colours:
    """Eight series and seven steps from losses over zero to gains, on paper and on a dark ground."""

    light: tuple[str, ...]
    dark: tuple[str, ...]
    diverging: tuple[str, ...]
    diverging_dark: tuple[str, ...]


# Series: Okabe & Ito (2008) without its yellow, invisible on paper; Tol's "vibrant" and "muted" (2021). All are
# told apart under every common kind of colour blindness. Signed: ColorBrewer RdBu, PuOr and Tol's sunset
# without their darkest ends, so that ink outlines stay visible on every cell.
_SETS = {
    "okabe-ito": _Colours(
        ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F", "#56B4E9", "#E69F00", "#000000"),
        ("#56B4E9", "#FF8C42", "#2BD4A4", "#E8A0C8", "#B0B0B0", "#9AD4F5", "#F2C14E", "#FFFFFF"),
        ("#B2182B", "#EF8A62", "#FDDBC7", "#F7F7F7", "#D1E5F0", "#67A9CF", "#2166AC"),
        ("#FF7A66", "#C44A3D", "#6B2F2C", "#2A2E35", "#284A63", "#3F83B5", "#73BDF0"),
    ),
    "tol": _Colours(
        ("#0077BB", "#EE7733", "#009988", "#CC3311", "#7F7F7F", "#33BBEE", "#EE3377", "#000000"),
        ("#4FB0F0", "#FFA066", "#3FD0BC", "#FF7A5C", "#B0B0B0", "#8FDCFA", "#FF86B4", "#FFFFFF"),
        ("#B35806", "#F1A340", "#FEE0B6", "#F7F7F7", "#D8DAEB", "#998EC3", "#542788"),
        ("#FFB05C", "#C77B22", "#6B4418", "#2A2E35", "#44406B", "#8479C0", "#BDB2F5"),
    ),
}
COLOURS = tuple(_SETS)

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
    colours : str
        Of :data:`COLOURS`: "okabe-ito" with red losses and blue gains, or "tol" with orange and purple ones.

    Raises
    ------
    PhaselensError
        For unknown colours.
    """

    width_mm: float = COLUMN_MM
    font_pt: float = 7.0
    font_family: str = "Liberation Sans, Arial, Helvetica, sans-serif"
    dark: bool = False
    colours: str = COLOURS[0]

    def __post_init__(self) -> None:
        if self.colours not in _SETS:
            raise PhaselensError(f"no colours {self.colours!r}; valid: {', '.join(COLOURS)}")

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
        return _SETS[self.colours].dark if self.dark else _SETS[self.colours].light

    def diverging(self, value: float) -> str:
        """Colour of a signed number in −1 … 1 (clipped): warm for losses, cold for gains, neutral at 0."""
        stops = _SETS[self.colours].diverging_dark if self.dark else _SETS[self.colours].diverging
        place = (min(1.0, max(-1.0, value)) + 1.0) / 2.0 * (len(stops) - 1)
        low = min(int(place), len(stops) - 2)
        return mix(stops[low], stops[low + 1], place - low)

    @property
    def signs(self) -> tuple[str, str]:
        """The words for the colours of losses and gains."""
        return {"okabe-ito": ("red", "blue"), "tol": ("orange", "purple")}[self.colours]

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
