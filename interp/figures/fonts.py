"""The fonts that an SVG's text is drawn with, embedded: just the characters that it uses.

A PDF holds its fonts, since the browser puts them there; an SVG only names them. Without them a reader that lacks
the family sets the text in another one, whose letters are of other widths.
"""

from __future__ import annotations

import base64
import io
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

__all__ = ["embed_fonts"]

_STEMS = {
    "liberation sans": (
        ("liberationsansregular",),
        ("liberationsansbold",),
        ("liberationsansitalic",),
        ("liberationsansbolditalic",),
    ),
    "arial": (
        ("arial",),
        ("arialbold", "arialbd"),
        ("arialitalic", "ariali"),
        ("arialbolditalic", "arialbi"),
    ),
    "helvetica": ((), (), (), ()),  # comes as a collection or a Type 1 font; the two above have its widths
    "dejavu sans": (("dejavusans",), ("dejavusansbold",), ("dejavusansoblique",), ("dejavusansboldoblique",)),
}
"""Names of files by family, for upright, bold, italic, bold italic; small letters only, nothing between words."""
_LAST = "dejavu sans"
"""Has the characters that the other families lack."""
_SUFFIXES = (".ttf", ".otf")
_BOLD = ("bold", "bolder")


class _Style(NamedTuple):
    """What CSS asks for; families with the most wanted first."""

    families: tuple[str, ...] = ()
    bold: bool = False
    italic: bool = False


def embed_fonts(svg: bytes) -> bytes:
    """Put the fonts of an SVG's text into it, as WOFF subsets in a ``<style>`` behind its title.

    One ``@font-face`` for every weight and style in use, and one more with a ``unicode-range`` for characters
    that the family lacks. Text stays as it is. Where no file of a known family is found, or its licence forbids
    embedding, the text keeps the family's name alone. The same SVG and font files give the same bytes.

    Parameters
    ----------
    svg : bytes
        Of :func:`interp.figures.vector.finish_svg`, with a ``<title>``.
    """
    rules = [
        rule
        for style, characters in sorted(_used(ElementTree.fromstring(svg)).items())
        for rule in _rules(style, characters)
    ]
    if not rules:
        return svg
    return svg.replace(b"</title>", f"</title><defs><style>{''.join(rules)}</style></defs>".encode(), 1)


def _used(root: ElementTree.Element) -> dict[_Style, set[str]]:
    """Characters of the text nodes, by the style that they are set in."""
    used: dict[_Style, set[str]] = {}

    def visit(element: ElementTree.Element, outer: _Style, inside: bool) -> None:
        style = _style(element, outer)
        inside = inside or element.tag.endswith("}text")
        if inside and element.text:
            used.setdefault(style, set()).update(element.text)
        for child in element:
            visit(child, style, inside)
            if inside and child.tail:
                used.setdefault(style, set()).update(child.tail)

    visit(root, _Style(), False)
    printed = {style: {c for c in found if c >= " "} for style, found in used.items()}
    return {style: found for style, found in printed.items() if found}


def _style(element: ElementTree.Element, outer: _Style) -> _Style:
    """Style of an element: its ``style``, else its attributes, else what its parent has."""
    declared = dict(element.attrib)
    for declaration in element.get("style", "").split(";"):
        name, _, value = declaration.partition(":")
        declared[name.strip()] = value.strip()
    families, weight, slant = (declared.get(f"font-{name}") for name in ("family", "weight", "style"))
    return _Style(
        outer.families if families is None else tuple(n.strip(" \"'") for n in families.split(",")),
        outer.bold if weight is None else weight in _BOLD or (weight.isdecimal() and int(weight) > 500),
        outer.italic if slant is None else slant.startswith(("italic", "oblique")),
    )


def _rules(style: _Style, characters: set[str]) -> Iterator[str]:
    """One ``@font-face`` a file, all of the name of the first family, until every character is there."""
    known = [name.lower() for name in style.families if name.lower() in _STEMS]
    if not known or known[0] != style.families[0].lower():
        return  # a family of the user's choice: another in its place would be wrong
    left = set(characters)
    for file in _files(dict.fromkeys([*known, _LAST]), style.bold, style.italic):
        here = left & _characters(file)
        if not here:
            continue
        some = (
            "" if left == characters else f"unicode-range:{','.join(f'U+{ord(c):X}' for c in sorted(here))};"
        )
        yield (
            f"@font-face{{font-family:'{style.families[0]}';font-weight:{'bold' if style.bold else 'normal'};"
            f"font-style:{'italic' if style.italic else 'normal'};{some}"
            f'src:url(data:font/woff;base64,{_subset(file, "".join(sorted(here)))}) format("woff")}}'
        )
        left -= here


def _files(families: Iterable[str], bold: bool, italic: bool) -> Iterator[Path]:
    there = _installed(_folders())
    for family in families:
        yield from (there[stem] for stem in _STEMS[family][bold + 2 * italic] if stem in there)


def _folders() -> tuple[Path, ...]:
    """Where this system keeps fonts, the user's own first."""
    home = Path.home()
    if sys.platform == "win32":
        local, windows = os.environ.get("LOCALAPPDATA", home), os.environ.get("WINDIR", "C:/Windows")
        return Path(local, "Microsoft/Windows/Fonts"), Path(windows, "Fonts")
    if sys.platform == "darwin":
        return home / "Library/Fonts", Path("/Library/Fonts"), Path("/System/Library/Fonts")
    return (
        home / ".local/share/fonts",
        home / ".fonts",
        Path("/usr/local/share/fonts"),
        Path("/usr/share/fonts"),
    )


@cache
def _installed(folders: tuple[Path, ...]) -> dict[str, Path]:
    """Files of the known families in these folders and below them, the first of each name."""
    wanted = {stem for styles in _STEMS.values() for stems in styles for stem in stems}
    found: dict[str, Path] = {}
    for folder in folders:
        for place, below, names in os.walk(folder):
            below.sort()
            for name in sorted(names):
                stem, suffix = os.path.splitext(name.lower())
                stem = stem.translate({ord(c): None for c in " -_"})
                if suffix in _SUFFIXES and stem in wanted:
                    found.setdefault(stem, Path(place, name))
    return found


@cache
def _characters(file: Path) -> frozenset[str]:
    """Characters of a font that may be embedded; none if it may not be, or is no font."""
    from fontTools.ttLib import TTFont, TTLibError

    try:
        with TTFont(file, lazy=True) as font:
            # OS/2 fsType: 2 alone is a restricted licence; 0x100 forbids subsets, 0x200 all but bitmaps.
            permissions = getattr(font["OS/2"], "fsType", 0) if "OS/2" in font else 0
            if permissions & 0xE == 0x2 or permissions & 0x300:
                return frozenset()
            return frozenset(map(chr, font.getBestCmap() or {}))
    except (OSError, TTLibError):
        return frozenset()


@lru_cache(maxsize=256)
def _subset(file: Path, characters: str) -> str:
    """A font of these characters alone, as WOFF in base64."""
    from fontTools import subset

    logging.getLogger("fontTools.subset").setLevel(logging.ERROR)  # it tells of every table that it drops
    options = subset.Options(hinting=False, flavor="woff", recalc_timestamp=False, bidi_closure=False)
    font = subset.load_font(os.fspath(file), options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(text=characters)
    subsetter.subset(font)
    out = io.BytesIO()
    subset.save_font(font, out, options)
    return base64.b64encode(out.getvalue()).decode()
