"""Figures to PDF, SVG and PNG through one headless browser session, offline, within a time limit.

Kaleido drives a Chromium-like browser. Starting it is the slow part, so all figures go through one
session. The browser gets the plotly.js of the installed plotly package from disk, no MathJax, and a proxy
that does not exist: nothing it tries can reach a network.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly
import plotly.graph_objects as go

from interp.figures.base import FigureError, layout_of
from interp.figures.fonts import embed_fonts
from interp.figures.vector import finish_pdf, finish_png, finish_svg

__all__ = ["INSTALL_HINT", "RENDERED", "browser_path", "render", "render_many"]

RENDERED = ("pdf", "svg", "png")
INSTALL_HINT = "install one with 'apt-get install chromium', or set BROWSER_PATH to a Chromium or Chrome"
PNG_DPI = 300

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_PLACES = (
    "/usr/bin/chromium",
    "/usr/bin/google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_NO_PROXY_THERE = "http://127.0.0.1:9"  # the discard port: every request of the browser fails at once
_CLOSE_S = 5.0


def browser_path() -> str | None:
    """Path of the browser that renders figures: BROWSER_PATH if set, else the first installed, or None."""
    chosen = os.environ.get("BROWSER_PATH")
    if chosen:
        return chosen if _runs(chosen) else None
    found = (shutil.which(name) for name in _NAMES)
    return next((p for p in (*found, *_PLACES) if p and _runs(p)), None)


def render(figure: go.Figure, format: str, *, timeout_s: float = 60.0) -> bytes:
    """Return one figure as the bytes of a PDF, SVG or PNG; see :func:`render_many`."""
    return render_many([figure], (format,), timeout_s=timeout_s)[0][format]


def render_many(
    figures: Sequence[go.Figure],
    formats: Sequence[str] = RENDERED,
    *,
    timeout_s: float = 60.0,
) -> list[dict[str, bytes]]:
    """Render figures in one browser session.

    PDF and SVG have the figure's true size in millimetres and hold the fonts of their text, as far as it uses
    them; a raster inside of either is an error. The same figure gives the same SVG and PDF bytes, with one
    version of the browser and of the fonts.

    Parameters
    ----------
    figures : sequence of Figure
        With ``layout.width`` and ``layout.height`` in CSS pixels, as all builders set them.
    formats : sequence of str
        Of ``pdf svg png``; PNG has 300 dots per inch.
    timeout_s : float
        Limit for the whole session. A browser that hangs is killed.

    Returns
    -------
    list of dict
        Bytes by format, one dict a figure.

    Raises
    ------
    FigureError
        If there is no browser, it fails or takes too long, or a PDF or SVG holds a raster.
    """
    wrong = [f for f in formats if f not in RENDERED]
    if wrong:
        raise FigureError(f"format {wrong[0]!r} cannot be rendered; valid: {', '.join(RENDERED)}")
    if not figures or not formats:
        return [{} for _ in figures]
    browser = browser_path()
    if browser is None:
        chosen = os.environ.get("BROWSER_PATH")
        where = (
            f"BROWSER_PATH={chosen} is not an executable file" if chosen else "no Chromium or Chrome found"
        )
        raise FigureError(f"{where}, which PDF, SVG and PNG need; {INSTALL_HINT}")
    return _in_session(browser, list(figures), tuple(dict.fromkeys(formats)), timeout_s)


def _in_session(
    browser: str, figures: list[go.Figure], formats: tuple[str, ...], timeout_s: float
) -> list[dict[str, bytes]]:
    """Run the session in a thread of its own, since the caller may be in an event loop (notebooks)."""
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["value"] = asyncio.run(_session(browser, figures, formats, timeout_s))
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, name="figure-export", daemon=True)
    thread.start()
    thread.join(timeout_s + 3 * _CLOSE_S)
    error = outcome.get("error")
    if isinstance(error, FigureError):
        raise error
    if thread.is_alive() or isinstance(error, TimeoutError):
        raise FigureError(f"{browser} did not render within {timeout_s:g} s and was stopped; {INSTALL_HINT}")
    if error is not None:
        raise FigureError(
            f"{browser} failed to render ({type(error).__name__}: {error}); {INSTALL_HINT}"
        ) from error
    return outcome["value"]


async def _session(
    browser: str, figures: list[go.Figure], formats: tuple[str, ...], timeout_s: float
) -> list[dict[str, bytes]]:
    import kaleido  # half a second, and only exports need it

    for name in ("kaleido", "choreographer", "browser_proc"):
        logging.getLogger(name).setLevel(logging.ERROR)
    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    session = kaleido.Kaleido(
        path=browser, n=1, timeout=timeout_s, plotlyjs=script, mathjax=False, proxy_server=_NO_PROXY_THERE
    )
    failed = True
    try:
        async with asyncio.timeout(timeout_s):
            await session.open()
            page = await session.create_tab()
            rendered = [await _all_formats(session, page, figure, formats) for figure in figures]
        failed = False
        return rendered
    finally:
        await _close(session, kill=failed)


async def _all_formats(
    session: Any, page: Any, figure: go.Figure, formats: tuple[str, ...]
) -> dict[str, bytes]:
    """Have plotly.js draw the SVG once, and print and photograph that.

    Kaleido's own PDFs have a margin of 0.1 inch that crops the figure, and it draws anew for each format.
    """
    spec = json.loads(str(figure.to_json()))
    for i, trace in enumerate(spec["data"]):
        trace["uid"] = f"{i:06d}"  # else random, and part of the SVG
    svg = finish_svg(await session.calc_fig(spec, opts={"format": "svg"}), figure)
    result: dict[str, bytes] = {}
    if "svg" in formats:
        # The page below needs none: it has the fonts themselves, and would have to wait for embedded ones.
        result["svg"] = embed_fonts(svg)
    layout = layout_of(figure)
    width, height = float(layout["width"]), float(layout["height"])
    if set(formats) - {"svg"}:
        await _show(page, svg.decode(), title=layout["meta"].get("alt", ""))
    if "pdf" in formats:
        paper = {
            "paperWidth": width / 96,
            "paperHeight": height / 96,
            "printBackground": True,
            "pageRanges": "1",
        }
        margins = {f"margin{side}": 0 for side in ("Top", "Bottom", "Left", "Right")}
        result["pdf"] = finish_pdf(
            base64.b64decode((await _send(page, "Page.printToPDF", paper | margins))["data"])
        )
    if "png" in formats:
        screen = {"width": math.ceil(width), "height": math.ceil(height), "mobile": False}
        await _send(page, "Emulation.setDeviceMetricsOverride", screen | {"deviceScaleFactor": PNG_DPI / 96})
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = await _send(page, "Page.captureScreenshot", {"format": "png", "clip": clip})
        await _send(page, "Emulation.clearDeviceMetricsOverride", {})
        result["png"] = finish_png(base64.b64decode(shot["data"]), dpi=PNG_DPI)
    return {format: result[format] for format in formats}


async def _show(page: Any, svg: str, *, title: str) -> None:
    """Replace the page's document by the SVG, without any margin."""
    frame = (await _send(page, "Page.getFrameTree", {}))["frameTree"]["frame"]["id"]
    style = "@page{margin:0}html,body{margin:0;padding:0;overflow:hidden}svg{display:block}"
    document = (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{style}</style></head><body>{svg}</body></html>"
    )
    await _send(page, "Page.setDocumentContent", {"frameId": frame, "html": document})


async def _send(page: Any, command: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Send a command of the browser's DevTools protocol and return its result."""
    answer = await page.send_command(command, params=parameters)
    if "error" in answer:
        raise RuntimeError(f"{command}: {answer['error'].get('message', answer['error'])}")
    return answer["result"]


async def _close(session: Any, *, kill: bool) -> None:
    """Close the browser; its process group is killed if it does not go, so that nothing outlives the call."""
    process = getattr(session, "subprocess", None)
    if kill:
        _kill(process)
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_CLOSE_S):
            await session.close()
    _kill(process)


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # the browser was started as the leader of its group
        process.wait(_CLOSE_S)


def _runs(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
