"""How long until the first useful picture: python -m tests.apps.load_times [REPORTS] [--runs N] [--write FILE].

Cold: a new server process and a new browser profile, nothing loaded or kept. Warm: the same server and profile, a
new session. Measured in the page, until a picture is painted: the table of effects that stands in the heat map's
place, and the charts' cells, which can be clicked. Without REPORTS a small report of the bundled model `tiny` is
made first. With --write the table between the two marks of FILE is replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.apps.conftest import make_folder
from tests.apps.server import browser, explorer

CELLS = '[data-testid="stPlotlyChart"] .shapelayer path'
PAGES = {
    "": {"Heads, effects as a table": "table.still td", "Heads, the heat map": CELLS},
    "compressor?model=zoo:tiny": {"Compressor (runs the model)": CELLS},
}
# Of each selector, when the browser had painted the first element that it fits.
WATCH = """(wanted) => {
    window.painted = {};
    const look = () => {
        for (const [name, selector] of Object.entries(wanted)) {
            if (name in window.painted || !document.querySelector(selector)) continue;
            window.painted[name] = null;
            requestAnimationFrame(() => setTimeout(() => { window.painted[name] = performance.now() / 1000; }));
        }
    };
    new MutationObserver(look).observe(document, {childList: true, subtree: true});
}"""
TARGETS = {"cold": 6.0, "warm": 3.0}
MARKS = ("<!-- load times: begin -->", "<!-- load times: end -->")


def seconds(context: Any, address: str, query: str, wanted: dict[str, str]) -> dict[str, float]:
    """Time from asking for the page until each picture is painted, in a new tab."""
    page = context.new_page()
    page.add_init_script(f"({WATCH})({json.dumps(wanted)})")
    page.goto(f"{address}/{query}", wait_until="commit")
    done = "(count) => Object.values(window.painted ?? {}).filter(Boolean).length === count"
    page.wait_for_function(done, arg=len(wanted), timeout=300_000)
    found = page.evaluate("window.painted")
    page.close()
    return found


def measure(folder: Path, runs: int) -> dict[tuple[str, str], list[float]]:
    """Seconds by (picture, "cold" or "warm"); each cold one has a server and a browser profile of its own."""
    found: dict[tuple[str, str], list[float]] = {}
    with browser() as started:
        for query, wanted in PAGES.items():
            for _ in range(runs):
                context = started.new_context(viewport={"width": 1280, "height": 900})
                with explorer(folder) as address:
                    for state in ("cold", "warm"):
                        for name, taken in seconds(context, address, query, wanted).items():
                            found.setdefault((name, state), []).append(taken)
                context.close()
    return dict(
        sorted(found.items(), key=lambda one: [n for w in PAGES.values() for n in w].index(one[0][0]))
    )


def table(found: dict[tuple[str, str], list[float]], load: float) -> str:
    """The times as Markdown, with what they were measured on."""
    rows = ["| picture | cache | median (s) | slowest (s) | target (s) |", "|---|---|---|---|---|"]
    for (name, state), times in found.items():
        rows.append(
            f"| {name} | {state} | {statistics.median(times):.1f} | {max(times):.1f} | {TARGETS[state]:.0f} |"
        )
    runs = len(next(iter(found.values())))
    rows.append(
        f"\nRuns: {runs}, on {os.cpu_count()} cores that {load:.1f} other processes wanted when it began."
    )
    return "\n".join(rows)


def written(text: str, times: str) -> str:
    """`text` with the table between the marks replaced."""
    begin, end = MARKS
    assert text.count(begin) == text.count(end) == 1, f"the file needs the marks {begin} and {end}, once each"
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{times}\n{end}", text, flags=re.DOTALL)


def main() -> None:
    """Measure, print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description="Time until the explorer's first useful picture.")
    parser.add_argument("reports", type=Path, nargs="?")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", type=Path, help="a Markdown file with the two marks")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        times = table(measure(given.reports or make_folder(Path(temporary)), given.runs), load)
    print(times)
    if given.write:
        given.write.write_text(written(given.write.read_text(encoding="utf-8"), times), encoding="utf-8")


if __name__ == "__main__":
    main()
