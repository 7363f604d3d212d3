"""Figures to PDF, SVG and PNG through one headless browser session, offline, within a time limit.

Kaleido drives a Chromium-like browser. Starting it is the slow part, so all figures go through one
session. The browser gets the plotly.js of the installed plotly package from disk, no MathJax, and a proxy
that does not exist: nothing it tries can reach a network.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import plotly
import plotly.graph_objects as go

from interp.figures.base import FigureError
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
_CLOSE_S = 8.0


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

    PDF and SVG have the figure's true size in millimetres; a raster inside of either is an error. The same
    figure gives the same SVG and PDF bytes, with one version of the browser.

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
    specs = [json.loads(str(figure.to_json())) for figure in figures]
    jobs = [(i, format) for i in range(len(figures)) for format in formats]
    raw = _in_session(browser, [(specs[i], format) for i, format in jobs], timeout_s)
    result: list[dict[str, bytes]] = [{} for _ in figures]
    for (i, format), data in zip(jobs, raw, strict=True):
        finish: Callable[[bytes, go.Figure], bytes] = {
            "pdf": finish_pdf,
            "svg": finish_svg,
            "png": finish_png,
        }[format]
        result[i][format] = finish(data, figures[i])
    return result


def _in_session(browser: str, jobs: list[tuple[dict[str, Any], str]], timeout_s: float) -> list[bytes]:
    """Run the session in a thread of its own, since the caller may be in an event loop (notebooks)."""
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["value"] = asyncio.run(_session(browser, jobs, timeout_s))
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, name="figure-export", daemon=True)
    thread.start()
    thread.join(timeout_s + 3 * _CLOSE_S)
    error = outcome.get("error")
    if thread.is_alive() or isinstance(error, TimeoutError):
        raise FigureError(
            f"{browser} rendered no figure within {timeout_s:g} s and was stopped; {INSTALL_HINT}"
        )
    if error is not None:
        raise FigureError(
            f"{browser} failed to render ({type(error).__name__}: {error}); {INSTALL_HINT}"
        ) from error
    return outcome["value"]


async def _session(browser: str, jobs: list[tuple[dict[str, Any], str]], timeout_s: float) -> list[bytes]:
    import kaleido  # half a second, and only exports need it

    for name in ("kaleido", "choreographer", "browser_proc"):
        logging.getLogger(name).setLevel(logging.ERROR)
    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    session = kaleido.Kaleido(
        path=browser, n=1, timeout=timeout_s, plotlyjs=script, mathjax=False, proxy_server=_NO_PROXY_THERE
    )
    try:
        async with asyncio.timeout(timeout_s):
            await session.open()
            return [await session.calc_fig(spec, opts=_options(format)) for spec, format in jobs]
    finally:
        await _close(session)


def _options(format: str) -> Any:
    return {"format": format, "scale": PNG_DPI / 96 if format == "png" else 1}


async def _close(session: Any) -> None:
    """Close the browser; kill its process group if it does not go, so that nothing outlives the call."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_CLOSE_S):
            await session.close()
    process = getattr(session, "subprocess", None)
    if process is not None and process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_CLOSE_S)


def _runs(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
