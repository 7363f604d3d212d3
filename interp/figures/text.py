"""Sizes of text as it is drawn, and lines broken to a width."""

from __future__ import annotations

import re

__all__ = ["LINE", "text_width", "wrapped"]

LINE = 1.3
"""Height of a line of type, as a multiple of its size."""
_BOLD = 1.08
_OTHER = 700
_THOUSANDTHS = {
    188: "′", 191: "'", 222: "ijl’", 260: "|", 278: " !,./:;I[\\]ft·", 333: "()-`r", 334: "{}", 350: "•", 355: '"',
    365: "✓", 389: "*", 400: "°", 469: "^", 500: "Jcksvxyzγ", 549: "÷≥≤±", 556: "#$0123456789?L_abdeghnopqu–δ",
    584: "+<=>~−×", 578: "α", 604: "□", 611: "FTZ", 667: "&ABEKPSVXYφΔ", 722: "CDHNRUw", 778: "GOQ", 833: "Mm",
    889: "%", 944: "W", 1000: "—→…▼", 1015: "@",
}  # fmt: skip
"""Advance widths of Liberation Sans, which are those of Arial and Helvetica, in thousandths of the type's size."""
_WIDTH = {character: width for width, characters in _THOUSANDTHS.items() for character in characters}


def text_width(text: str, size: float) -> float:
    """Width in pixels of a label set in the figures' sans-serif face; the longest line where it has several."""
    return max(_line_width(line, size) for line in text.split("<br>"))


def _line_width(line: str, size: float) -> float:
    plain = re.sub(r"<[^>]*>", "", line)
    width = sum(_WIDTH.get(character, _OTHER) for character in plain) * size / 1000
    return width * _BOLD if "<b>" in line else width


def wrapped(text: str, size: float, width: float) -> str:
    """`text` with ``<br>`` so that no line is wider than `width` pixels, where its words allow that.

    Lines are broken at spaces, and within a word behind "-", "/" or "_" where it is too wide by itself.
    """
    lines: list[str] = []
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(joined, size) <= width:
            lines[-1] = joined
        else:
            lines += _broken(word, size, width)
    return "<br>".join(lines)


def _broken(word: str, size: float, width: float) -> list[str]:
    if text_width(word, size) <= width:
        return [word]
    lines = [""]
    for part in re.findall(r"[^-/_]*[-/_]|[^-/_]+", word):
        if lines[-1] and text_width(lines[-1] + part, size) > width:
            lines.append(part)
        else:
            lines[-1] += part
    return lines
