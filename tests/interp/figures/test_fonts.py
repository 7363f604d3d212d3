"""An SVG's fonts: each character of its text, in the weight it is set in, from files with the licence for it."""

from __future__ import annotations

import base64
import html.parser
import io
import re
from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTFont

from interp.figures import fonts
from interp.figures.browser import browser_path
from interp.figures.vector import has_raster

_FAMILY = "font-family: 'Liberation Sans', Arial, Helvetica, sans-serif"
_TEXT = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="900" height="90"><title>Qq</title>'
    f'<text y="30" style="{_FAMILY}; font-size: 20px;">ab&amp;<tspan style="font-weight:bold">cd</tspan>★'
    '<tspan style="font-style:italic">e</tspan></text><text y="60" style="font-family: Own, Arial">z</text></svg>'
).encode()


def make_font(path: Path, characters: str, *, advance: int = 3000, permissions: int = 0) -> None:
    """Write a font of 1000 units to the em that has these characters, all of one width."""
    names = [".notdef", *(f"u{ord(c):04X}" for c in characters)]
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 500), (500, 500), (500, 0)):
        pen.lineTo(corner)
    pen.closePath()
    box = pen.glyph()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(c): name for c, name in zip(characters, names[1:], strict=True)})
    builder.setupGlyf(dict.fromkeys(names, box))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (advance, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": path.stem, "styleName": "Regular"})
    builder.setupOS2(fsType=permissions)
    builder.setupPost()
    builder.save(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The only folder of fonts, with three weights in it and one font more for what they lack."""
    monkeypatch.setattr(fonts, "_folders", lambda: (tmp_path,))
    (tmp_path / "truetype").mkdir()
    for style, advance in {"Regular": 3000, "Bold": 3100, "Italic": 3200}.items():
        make_font(tmp_path / "truetype" / f"LiberationSans-{style}.ttf", "abcdez&", advance=advance)
    make_font(tmp_path / "DejaVuSans.ttf", "abcde★", advance=7000)
    return tmp_path


def faces(svg: bytes) -> dict[tuple[str, str], dict[str, int]]:
    """Advance in thousandths of the em of each character that is embedded, by weight and slant."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    rule = r"@font-face\{font-family:'Liberation Sans';font-weight:(\w+);font-style:(\w+);(?:unicode-range:([^;]+);)?"
    rule += r'src:url\(data:font/woff;base64,([^)]+)\) format\("woff"\)\}'
    for weight, slant, some, data in re.findall(rule, svg.decode()):
        font = TTFont(io.BytesIO(base64.b64decode(data)))
        assert font.flavor == "woff"
        assert "fpgm" not in font  # hints
        glyphs = font.getBestCmap() or {}
        assert not some or [int(c[2:], 16) for c in some.split(",")] == sorted(glyphs)
        em = vars(font["head"])["unitsPerEm"]
        widths = {chr(c): round(1000 * font["hmtx"][name][0] / em) for c, name in glyphs.items()}
        here = found.setdefault((weight, slant), {})
        assert not here.keys() & widths.keys()
        here |= widths
    assert sum(svg.decode().count(word) for word in ("@font-face", "base64,")) == 2 * svg.count(
        b"woff;base64"
    )
    return found


class Letters(html.parser.HTMLParser):
    """Collects the characters of text nodes by weight and slant."""

    def __init__(self, svg: bytes) -> None:
        super().__init__()
        self.open: list[tuple[str, str, str]] = []
        self.found: dict[tuple[str, str], set[str]] = {}
        self.feed(svg.decode())

    def handle_starttag(self, tag, attrs):
        style = dict(attrs).get("style") or ""
        outer = self.open[-1][1:] if self.open else ("normal", "normal")
        weight, slant = (re.search(rf"font-{name}: ?(\w+)", style) for name in ("weight", "style"))
        self.open.append((tag, weight[1] if weight else outer[0], slant[1] if slant else outer[1]))

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        if any(tag == "text" for tag, *_ in self.open):
            self.found.setdefault(self.open[-1][1:], set()).update(data)


@pytest.mark.usefixtures("folder")
def test_each_weight_holds_the_characters_set_in_it_and_no_others():
    svg = fonts.embed_fonts(_TEXT)
    assert faces(svg) == {
        ("normal", "normal"): {"a": 3000, "b": 3000, "&": 3000, "★": 7000},
        ("bold", "normal"): {"c": 3100, "d": 3100},
        ("normal", "italic"): {"e": 3200},
    }
    assert re.sub(rb"<defs><style>.*?</style></defs>", b"", svg) == _TEXT
    assert b"</title><defs><style>@font-face" in svg
    assert not has_raster(svg)
    fonts._subset.cache_clear()
    assert fonts.embed_fonts(_TEXT) == svg


@pytest.mark.parametrize("permissions", [0x0002, 0x0100, 0x0200])
def test_a_font_that_may_not_be_embedded_is_passed_over(folder, permissions):
    make_font(folder / "truetype" / "LiberationSans-Regular.ttf", "ab&★", permissions=permissions)
    make_font(folder / "arial.ttf", "ab", advance=4000, permissions=0x0008)  # editable embedding: allowed
    fonts._characters.cache_clear()
    assert faces(fonts.embed_fonts(_TEXT))["normal", "normal"] == {"a": 4000, "b": 4000, "★": 7000}


def test_without_font_files_the_svg_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(fonts, "_folders", lambda: (tmp_path / "none",))
    assert fonts.embed_fonts(_TEXT) == _TEXT
    monkeypatch.setattr(fonts, "_folders", lambda: (tmp_path,))
    (tmp_path / "LiberationSans-Regular.ttf").write_bytes(b"no font")
    assert fonts.embed_fonts(_TEXT) == _TEXT


def test_only_fonts_pass_for_data_that_is_no_raster():
    assert not has_raster(
        b'<svg><style>@font-face{src:url(data:font/woff;base64,AA) format("woff")}</style></svg>'
    )
    for data in (
        b"data:image/png;base64,AA",
        b"data:;base64,AA",
        b"data:font/svg,AA",
        b"'data:text/html,AA'",
    ):
        assert has_raster(b"<svg><style>*{fill:url(" + data + b")}</style></svg>"), data


@pytest.mark.usefixtures("folder")
def test_a_browser_sets_the_text_in_the_embedded_fonts(tmp_path):
    """The fonts made here are far wider than those of any system."""
    if browser_path() is None:  # set-up could not install one
        return
    from playwright.sync_api import sync_playwright

    (tmp_path / "with.svg").write_bytes(fonts.embed_fonts(_TEXT))
    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        page = chrome.new_page()
        page.goto((tmp_path / "with.svg").as_uri())
        page.evaluate("document.fonts.ready.then(() => 0)")
        states = page.evaluate("[...document.fonts].map(f => f.status)")
        width = page.evaluate("document.querySelector('text').getComputedTextLength()")
        chrome.close()
    assert states == ["loaded"] * 4
    assert width == pytest.approx(20 * (3 * 3 + 2 * 3.1 + 3.2 + 7), abs=0.1)
