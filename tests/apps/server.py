"""The explorer as `phaselens explore` starts it, and a browser that looks at it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def explorer(folder: Path) -> Iterator[str]:
    """Run the command on a folder; yields its address."""
    command = [sys.executable, "-c", "import sys; from interp.cli import main; sys.exit(main())"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "explore", str(folder)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert address, f"the explorer did not start: {line!r}"
            _wait(address[0])
            yield address[0]
        finally:
            process.terminate()
            process.wait(20)


def _wait(address: str) -> None:
    import time

    for _ in range(240):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/_stcore/health", timeout=2):
            return
        time.sleep(0.25)
    raise AssertionError("the explorer did not answer within a minute")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Debian's chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    path = next((found for name in _CHROMIUM if (found := shutil.which(name))), None)
    assert path, "no chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield started
        finally:
            started.close()


def settle(page: Any, timeout_s: float = 120.0) -> None:
    """Wait until the script has run and charts are drawn."""
    page.wait_for_selector("h1", timeout=timeout_s * 1000)
    busy = ("stStatusWidget", "stSpinner", "stSkeleton")
    selector = ", ".join([*(f'[data-testid="{name}"]' for name in busy), '[data-stale="true"]'])
    quiet = 0
    for _ in range(int(timeout_s * 4)):
        quiet = 0 if page.query_selector(selector) else quiet + 1
        if quiet == 5:
            return
        page.wait_for_timeout(250)
    raise AssertionError(f"{page.url} is still busy after {timeout_s} s")
