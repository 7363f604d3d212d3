"""How long until the first useful picture: python -m tests.apps.load_times [REPORTS] [--runs N] [--write FILE].

Cold: a new server process and a new browser profile, nothing loaded or kept. Warm: the same server, a new
session. Measured until the heatmap's cells are drawn and can be clicked. Without REPORTS a small report of the
bundled model `tiny` is made first. With --write the table between the two marks of FILE is replaced.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.apps.conftest import make_folder
from tests.apps.server import browser, explorer

PICTURES = {
    "Heads": ("", '[data-testid="stPlotlyChart"] .shapelayer path'),
    "Compressor (runs the model)": (
        "compressor?model=zoo:tiny", '[data-testid="stPlotlyChart"] .shapelayer path'
    ),
}  # fmt: skip
TARGETS = {"cold": 6.0, "warm": 3.0}
MARKS = ("<!-- load times: begin -->", "<!-- load times: end -->")


def seconds(started: Any, address: str, query: str, selector: str) -> float:
    """Time from asking for the page until its first chart is drawn, in a new browser profile."""
    context = started.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    begin = time.monotonic()
    page.goto(f"{address}/{query}", wait_until="commit")
    page.wait_for_selector(selector, timeout=300_000, state="attached")
    taken = time.monotonic() - begin
    context.close()
    return taken


def measure(folder: Path, runs: int) -> dict[tuple[str, str], list[float]]:
    """Seconds by (picture, "cold" or "warm"); each cold one has a server of its own."""
    found: dict[tuple[str, str], list[float]] = {}
    with browser() as started:
        for name, (query, selector) in PICTURES.items():
            for _ in range(runs):
                with explorer(folder) as address:
                    for state in ("cold", "warm"):
                        taken = seconds(started, address, query, selector)
                        found.setdefault((name, state), []).append(taken)
    return found


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
