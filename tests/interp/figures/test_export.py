"""Figures as files: vector without rasters, text as text, true sizes, no network, nothing half written."""

from __future__ import annotations

import csv
import html.parser
import os
import re
import stat
import struct
import time
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from hooks.errors import CheckpointError
from interp.figures import FigureError, accuracy_by_residue, effect_heatmap, gate_profiles, panels
from interp.figures import browser as rendering
from interp.figures.export import export, export_many, figure_csv, figure_rows, to_html
from interp.figures.text import text_width
from interp.figures.vector import finish_pdf, finish_svg, has_raster
from tests.interp.figures import data
from tests.interp.figures.test_fonts import Letters, faces


@pytest.fixture(scope="module")
def heatmap() -> go.Figure:
    return effect_heatmap(data.knockout(), data.specialization())


# ---- without a browser -------------------------------------------------------------------------------------


class _References(html.parser.HTMLParser):
    """Collects every attribute that makes a browser fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]


def test_html_holds_everything_and_may_fetch_nothing(heatmap):
    page = to_html(heatmap)
    references = _References()
    references.feed(page)
    assert references.found == []
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'")
    assert "http" not in policy[1]
    assert "Heat map of knockout effects, 4 units by 4 phases." in page  # alternative text
    assert page == to_html(heatmap)  # no random ids


def test_booleans_and_undefined_values_are_written_alike_everywhere(heatmap, tmp_path):
    export(heatmap, tmp_path / "drawn", ("csv",))
    text = (tmp_path / "drawn.csv").read_text(encoding="utf-8")
    assert text == figure_csv(heatmap)
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["serves"] for row in rows} == {"0", "1"}
    assert [row["effect_percent"] for row in rows if row["unit"] == "1.1"][-1] == ""  # undefined
    given = pd.DataFrame({"yes": [True, False], "x": [0.5, None]})
    export(heatmap, tmp_path / "given", ("csv",), data=given)
    assert (tmp_path / "given.csv").read_text(encoding="utf-8") == "yes,x\n1,0.5\n0,\n"


def test_the_explorer_writes_the_same_csv(heatmap):
    from apps.explorer import parts

    assert parts._content(heatmap, "csv") == figure_csv(heatmap)


def test_csv_is_what_the_figure_shows(heatmap, tmp_path):
    export(heatmap, tmp_path / "h1.0", ("html",))
    assert sorted(os.listdir(tmp_path)) == ["h1.0.csv", "h1.0.html"]  # the dot in the name is kept
    with (tmp_path / "h1.0.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 16
    assert rows[0] | {"effect_pp": "", "p_effect": ""} == {
        "unit": "0.0", "phase": "0", "residue": "", "effect_percent": "-88.0", "effect_pp": "",
        "p_effect": "", "serves": "1",
    }  # fmt: skip
    assert rows[15]["effect_percent"] == ""  # undefined


def test_csv_names_panels_and_takes_other_data(heatmap, tmp_path):
    both = panels([accuracy_by_residue(data.sweep()), heatmap])
    columns, rows = figure_rows(both)
    assert columns[:2] == ["panel", "series"]
    assert [r[0] for r in rows] == ["a"] * 8 + ["b"] * 16
    export(heatmap, tmp_path / "f", ("html",), data=pd.DataFrame({"x": [1]}))
    assert (tmp_path / "f.csv").read_text() == "x\n1\n"
    export(heatmap, tmp_path / "f", ("html",), data=data.sweep())
    assert (tmp_path / "f.csv").read_text().startswith("variable,phase,residue,value\naccuracy,0,,1.0\n")


def test_without_a_browser_the_rest_is_written_and_the_fix_named(heatmap, tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    done = export(heatmap, tmp_path / "f")
    assert sorted(f.name for f in done.files) == ["f.csv", "f.html"] == sorted(os.listdir(tmp_path))
    assert "apt-get install chromium" in done.notice
    assert "BROWSER_PATH" in done.notice
    assert "\n" not in done.notice
    monkeypatch.delenv("BROWSER_PATH")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(rendering, "_PLACES", ())
    assert rendering.browser_path() is None
    with pytest.raises(FigureError, match="no Chromium or Chrome found"):
        rendering.render(heatmap, "pdf")


@pytest.mark.parametrize("body", ["exec sleep 600", "exit 3"])
def test_a_browser_that_hangs_or_dies_is_ended_in_time(heatmap, tmp_path, monkeypatch, body):
    fake = tmp_path / "browser"
    fake.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{body}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("BROWSER_PATH", str(fake))
    (tmp_path / "out").mkdir()
    start = time.monotonic()
    done = export(heatmap, tmp_path / "out" / "f", ("pdf", "html"), timeout_s=1.0)
    assert time.monotonic() - start < 20
    assert sorted(os.listdir(tmp_path / "out")) == ["f.csv", "f.html"]
    assert "apt-get install chromium" in done.notice
    command = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/cmdline")
    assert not command.exists() or "sleep" not in command.read_text()


def test_bad_requests_are_one_line(heatmap, tmp_path):
    with pytest.raises(FigureError, match="'gif' is not known; valid: pdf, svg, png, html"):
        export(heatmap, tmp_path / "f", ("gif",))
    with pytest.raises(FigureError, match="'html' cannot be rendered"):
        rendering.render(heatmap, "html")
    with pytest.raises(CheckpointError, match="cannot be written"):
        export(heatmap, tmp_path / "missing" / "f", ("html",))
    with pytest.raises(FigureError, match="no width and height"):
        to_html(go.Figure())
    assert os.listdir(tmp_path) == []


def test_rasters_are_refused(heatmap):
    image = b'<svg><image xlink:href="data:image/png;base64,AA=="/></svg>'
    assert has_raster(image)
    with pytest.raises(FigureError, match="SVG would hold a raster"):
        finish_svg(image, heatmap)
    pdf = b"%PDF-1.4\n4 0 obj\n<</Type /XObject\n/Subtype /Image\n/Width 3>>"
    with pytest.raises(FigureError, match="PDF would hold a raster"):
        finish_pdf(pdf)
    assert not has_raster(b"%PDF-1.4\n<</Subtype /CIDFontType2>>")


# ---- with one ----------------------------------------------------------------------------------------------


def test_pdf_svg_and_png_of_the_true_size_from_one_session(heatmap, tmp_path):
    if rendering.browser_path() is None:  # set-up could not install one; what users get then
        assert "install chromium" in export(heatmap, tmp_path / "f").notice
        return
    both = panels([heatmap, accuracy_by_residue(data.sweep())])
    done = export_many({tmp_path / "one": heatmap, tmp_path / "two": heatmap, tmp_path / "both": both})
    assert done.notice == ""
    assert sorted(os.listdir(tmp_path)) == sorted(
        f"{stem}.{end}" for stem in ("one", "two", "both") for end in ("csv", "html", "pdf", "png", "svg")
    )
    pdf, svg, png = ((tmp_path / f"one.{end}").read_bytes() for end in ("pdf", "svg", "png"))
    for end in ("pdf", "svg", "png", "html"):
        assert (tmp_path / f"one.{end}").read_bytes() == (tmp_path / f"two.{end}").read_bytes(), end
    width, height = (float(heatmap.to_dict()["layout"][k]) for k in ("width", "height"))
    assert not re.search(rb"/Subtype\s*/Image", pdf)
    assert pdf.count(b"/Type /Page\n") == 1
    assert b"/FontFile2" in pdf  # fonts are embedded, so text is text
    box = re.search(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert box is not None
    assert [float(v) for v in box.groups()] == pytest.approx([width * 0.75, height * 0.75], abs=1.0)
    text = svg.decode()
    assert "<image" not in text
    assert re.findall(r"<text[^>]*>(?:<tspan[^>]*>)?−99<", text)
    assert 'width="85.000mm"' in text
    assert 'aria-label="Heat map of knockout effects' in text
    written = (tmp_path / "both.svg").read_bytes()
    set_in, embedded = Letters(written).found, faces(written)
    if list(Path("/usr/share/fonts").rglob("LiberationSans-*.ttf")):
        assert set_in.keys() == embedded.keys() == {("normal", "normal"), ("bold", "normal")}
        for style, characters in set_in.items():
            assert characters == embedded[style].keys()
        for character in "0%−□":
            advance = embedded["normal", "normal"][character]
            assert advance == pytest.approx(text_width(character, 1000), abs=1), character
    assert struct.unpack(">II", png[16:24]) == pytest.approx((width * 300 / 96, height * 300 / 96), abs=4)
    assert png[png.index(b"pHYs") + 4 :][:9] == struct.pack(">IIB", 11811, 11811, 1)  # 300 dots per inch


@pytest.mark.slow
def test_the_page_opens_offline_and_a_click_names_unit_and_phase(tmp_path):
    from playwright.sync_api import sync_playwright

    figure = effect_heatmap(data.knockout(), data.specialization())
    for stem, drawn in {"heat": figure, "gates": gate_profiles(data.gates(), data.knockout())}.items():
        export(drawn, tmp_path / stem, ("html",))
    requests: list[str] = []
    problems: list[str] = []
    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=rendering.browser_path(), args=["--no-sandbox"])
        page = chrome.new_page(viewport={"width": 1280, "height": 800})
        page.on("request", lambda r: requests.append(r.url))
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: problems.append(str(e)))
        page.goto((tmp_path / "gates.html").as_uri())
        page.wait_for_selector(".bars")
        page.goto((tmp_path / "heat.html").as_uri())
        page.wait_for_selector(".shapelayer path")
        page.evaluate(
            "document.querySelector('.js-plotly-plot').on('plotly_click',"
            " e => { window.clicked = e.points[0].customdata })"
        )
        plot = page.locator(".nsewdrag").first.bounding_box()
        assert plot is not None
        # phase 2 of 4 across; row "1.0" is the third of four
        page.mouse.click(plot["x"] + plot["width"] * 2.5 / 4, plot["y"] + plot["height"] * 2.5 / 4)
        page.wait_for_function("window.clicked")
        assert page.evaluate("window.clicked")[:2] == ["1.0", 2]
        chrome.close()
    assert problems == []
    assert [r for r in requests if not r.startswith("file://") and not r.startswith(("data:", "blob:"))] == []
