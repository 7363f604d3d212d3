"""The explorer in a real browser: clicks, links, the slider, files, errors in the console, accessibility.

Every walk is slow-marked; its quick form, without a browser, is in test_explorer.py.
"""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interp.figures.vector import has_raster
from tests.apps.screenshots import VIEWS
from tests.apps.server import browser, explorer, settle

pytestmark = pytest.mark.slow

AXE = "axe-core@4.10.3"
TYPES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")
# Below a page's path Streamlit's script first asks there, then at the root: its way of finding its base.
PROBE = re.compile(r"404.*/\w+/_stcore/(health|host-config)$")
# Streamlit's own markup, which an app cannot change: the frame it draws, not what a page puts in it.
STREAMLIT_OWN = [
    '[data-testid="stToolbar"]',
    '[data-testid="stMainMenu"]',
    '[data-testid="stHeader"]',
    '[data-testid="stExpandSidebarButton"]',
]


@pytest.fixture(scope="module")
def address(reports: Path) -> Iterator[str]:
    with explorer(reports) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page that must not put any error on the console."""
    context = chromium.new_context(viewport={"width": 1280, "height": 1000}, accept_downloads=True)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(_told(message)) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert [error for error in errors if not PROBE.search(error)] == []


def _told(message: Any) -> str:
    return f"{message.text} {message.location.get('url', '')}"


def cell(page: Any, row: int, column: int, *, tap: bool = False) -> None:
    """Click, or tap, near the edge of one cell of the page's first chart, by its place in data coordinates."""
    place = page.evaluate(
        """([row, column]) => {
            const plot = document.querySelector('.js-plotly-plot'), layout = plot._fullLayout;
            const box = plot.getBoundingClientRect();
            return [box.left + layout.margin.l + layout.xaxis.d2p(column - 0.4),
                    box.top + layout.margin.t + layout.yaxis.d2p(row + 0.3)];
        }""",
        [row, column],
    )
    if tap:
        page.touchscreen.tap(*place)
        return
    page.mouse.move(*place)
    page.mouse.click(*place)


def test_a_click_on_a_cell_opens_its_unit_and_its_link_opens_it_again(page, address):
    page.goto(f"{address}/?unit=1.0")
    settle(page)
    page.get_by_role("heading", name="Unit 1.0").wait_for()
    cell(page, 1, 0)  # rows are 0.0, 0.1, 1.0, 1.1
    page.get_by_role("heading", name="Unit 0.1").wait_for(timeout=60_000)
    settle(page)
    assert "unit=0.1" in page.url
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    settle(page)
    assert page.get_by_role("heading", name="Unit 0.1").is_visible()


def test_a_tap_opens_the_cell_it_is_on(chromium, address):
    context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(f"{address}/?unit=1.0")
    settle(page)
    for row, unit in ((1, "0.1"), (3, "1.1"), (0, "0.0")):
        page.locator(".js-plotly-plot").first.scroll_into_view_if_needed()
        cell(page, row, 0, tap=True)
        page.get_by_role("heading", name=f"Unit {unit}").wait_for(timeout=60_000)
        settle(page)
    context.close()


def test_a_table_stands_in_for_the_heat_map_until_that_is_drawn(page, address):
    page.route("**/PlotlyChart*.js", lambda route: None)  # the chart's program never comes
    page.goto(f"{address}/")
    table = page.get_by_role("table", name="Effect in percent, unit by phase")
    table.wait_for(timeout=60_000)
    assert table.get_by_role("rowheader").all_inner_texts() == ["0.0", "0.1", "1.0", "1.1"]
    assert table.bounding_box()["width"] > 600
    page.unroute("**/PlotlyChart*.js")
    page.reload()
    settle(page)
    assert page.locator(".js-plotly-plot").first.bounding_box()["width"] > 600
    assert (
        table.evaluate("one => getComputedStyle(one).clipPath") == "inset(50%)"
    )  # still there, to be read out


def test_a_page_elsewhere_cannot_open_a_session(address):
    port = int(address.rsplit(":", 1)[1])

    def answer(host: str) -> bytes:
        lines = (
            "GET /_stcore/stream HTTP/1.1", f"Host: {host}:{port}", f"Origin: http://{host}:{port}",
            "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==", "", "",
        )  # fmt: skip
        with socket.create_connection(("127.0.0.1", port), timeout=20) as asked:
            asked.sendall("\r\n".join(lines).encode())
            return asked.recv(64).split()[1]

    # The name of a page elsewhere can be made to mean this machine; the browser then thinks they are one.
    assert [answer(name) for name in ("127.0.0.1", "localhost", "evil.example")] == [b"101", b"101", b"403"]


def test_the_keyboard_alone_chooses_a_unit(page, address):
    page.goto(f"{address}/?unit=1.0")
    settle(page)
    page.get_by_role("combobox", name="Unit (layer.head)").focus()
    page.keyboard.type("1.1")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Unit 1.1").wait_for(timeout=60_000)


def test_the_shift_slider_moves_the_target(page, address):
    page.goto(f"{address}/compressor?model=zoo:tiny&unit=1.0")
    settle(page)
    metric = page.locator('[data-testid="stMetric"]', has_text="Target").locator(
        '[data-testid="stMetricValue"]'
    )
    before = int(metric.inner_text().split()[-1])
    page.get_by_role("slider", name="Shift of the target (tokens)").press("ArrowRight")
    page.wait_for_url("**shift=1**", timeout=60_000)
    settle(page)
    assert int(metric.inner_text().split()[-1]) == before + 1


def test_a_pdf_is_downloaded_and_is_vector(page, address, tmp_path):
    page.goto(f"{address}/figures?panels=accuracy,knockout&format=pdf")
    settle(page)
    page.get_by_role("button", name="Make the file").click()
    download = page.get_by_role("button", name="Download figure.pdf")
    download.wait_for(timeout=120_000)
    with page.expect_download() as started:
        download.click()
    started.value.save_as(tmp_path / "figure.pdf")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert not has_raster(content)
    text = subprocess.run(["pdftotext", tmp_path / "figure.pdf", "-"], capture_output=True, text=True)
    assert "accuracy (%)" in text.stdout


def test_a_live_chart_is_a_png_of_its_size_and_leads_to_its_paper_figure(page, address, tmp_path):
    page.goto(f"{address}/interventions?model=zoo:tiny&n=2&remove=0.1,0.0&run=remove")
    settle(page)
    page.get_by_text("Before and after: in words, and as files").click()
    with page.expect_download() as started:
        page.get_by_role("button", name="PNG").click()
    started.value.save_as(tmp_path / "chart.png")
    width = struct.unpack(">I", (tmp_path / "chart.png").read_bytes()[16:20])[0]
    assert width == pytest.approx(190 / 25.4 * 300, abs=4)  # 190 mm at 300 dots per inch
    page.get_by_role("link", name="Size, type and colours for a paper").click()
    page.wait_for_url("**/figures?*removed.units=0.1%2C0.0*")
    settle(page)
    line = page.locator("code").inner_text()
    assert "--panels removed:units=0.1+0.0:n=2 " in line
    assert "--live tiny " in line
    assert page.locator(".js-plotly-plot").count() == 1


def test_a_removal_in_one_session_is_not_seen_in_another(chromium, address):
    pages = [chromium.new_context().new_page() for _ in range(2)]
    for page in pages:
        page.goto(f"{address}/interventions?model=zoo:tiny&n=2")
        settle(page)
    pages[0].get_by_role("button", name="Run", exact=True).click()
    pages[0].get_by_text("The right answer is").wait_for(timeout=60_000)
    pages[1].reload()
    settle(pages[1])
    assert not pages[1].get_by_text("The right answer is").is_visible()
    for page in pages:
        page.context.close()


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_is_wider_than_a_phone(name, page, address):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}/{VIEWS[name]}")
    settle(page)
    wide = page.evaluate("() => document.querySelector('[data-testid=\"stMain\"]').scrollWidth")
    assert wide <= 390


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, fetched from the npm registry: it is no part of what phaselens needs."""
    folder = tmp_path_factory.mktemp("axe")
    subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, check=True, timeout=120, capture_output=True)
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_axe_finds_no_serious_violation(name, scheme, page, address, axe):
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{address}/{VIEWS[name]}")
    settle(page)
    page.evaluate(axe)
    serious = []
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)
        found = page.evaluate(
            "([types, own]) => axe.run({exclude: own.map(s => [s])}, {runOnly: {type: 'tag', values: types}})",
            [list(TYPES), STREAMLIT_OWN],
        )
        serious += [
            f"{width}: {one['id']}: {node['target']} {node.get('failureSummary', '')[:200]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]
    assert serious == []


def own_stop(page):
    """The page's own button; Streamlit's, in the header, is there until the page's style hides it."""
    return page.get_by_test_id("stMain").get_by_role("button", name="Stop", exact=True)


@pytest.mark.parametrize(
    "view",
    ["models?models=zoo:w8s8-4kv", "interventions?model=zoo:w8s8-4kv&n=16&run=patch&tab=Patch&part=position"],
)
def test_stop_stops(view, page, address):
    page.goto(f"{address}/{view}")
    own_stop(page).click(timeout=120_000)
    again = page.get_by_role("button", name="Run it again")
    again.wait_for(timeout=60_000)
    settle(page)
    assert page.get_by_text("Stopped. Not measured: ").is_visible()
    assert own_stop(page).count() == 0
    again.click()
    own_stop(page).wait_for(timeout=60_000)
