"""Pictures of every page at both widths, light and dark: python -m tests.apps.screenshots FOLDER [REPORTS].

Without REPORTS a small report of the bundled model `tiny` is made first.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.apps.conftest import make_folder
from tests.apps.server import browser, explorer, settle

WIDTHS = (1280, 390)
VIEWS = {
    "heads": "",
    "models": "models",
    "compressor": "compressor?model=zoo:tiny&shift=1",
    "interventions": "interventions?model=zoo:tiny&n=10",
    "deepseek": "deepseek?filler=27",
    "figures": "figures",
}


def take(address: str, out: Path) -> list[Path]:
    """Write one picture a page, width and colour scheme."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with browser() as started:
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                page = started.new_page(
                    viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
                )
                for name, query in VIEWS.items():
                    page.goto(f"{address}/{query}")
                    settle(page)
                    if name == "interventions":
                        page.get_by_role("button", name="Run", exact=True).click()
                        settle(page)
                        page.wait_for_selector("h3", timeout=120_000)
                        settle(page)
                    written.append(out / f"{name}-{width}{'-dark' if scheme == 'dark' else ''}.png")
                    _whole(page, written[-1])
                page.close()
    return written


def _whole(page: Any, path: Path) -> None:
    """The whole page, not only what its scrolling container shows."""
    size = page.viewport_size
    height = page.evaluate(
        "() => Math.max(...[...document.querySelectorAll('[data-testid=\"stMain\"]')].map(e => e.scrollHeight))"
    )
    page.set_viewport_size({"width": size["width"], "height": int(height) + 60})
    page.wait_for_timeout(600)
    page.screenshot(path=str(path))
    page.set_viewport_size(size)


def main(arguments: list[str]) -> None:
    """Take the pictures and print where they are."""
    out = Path(arguments[0] if arguments else "screenshots")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments[1]) if len(arguments) > 1 else make_folder(Path(temporary))
        with explorer(folder) as address:
            for path in take(address, out):
                print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
