"""A figure of several panels from one results folder, as the explorer's Figures page makes it.

Run: python -m interp.figures.paper reports/w8s8-2kv --panels accuracy,knockout,gates -o figure1
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import plotly.graph_objects as go
import xarray as xr

from hooks.errors import PhaselensError, did_you_mean
from interp.figures import (
    Theme,
    accuracy_by_residue,
    effect_heatmap,
    effective_offsets,
    gate_profiles,
    panels,
)
from interp.figures.base import FigureError
from interp.figures.theme import DOUBLE_COLUMN_MM

__all__ = ["PANELS", "available", "command", "main", "paper_figure"]

PANELS = {
    "accuracy": "Accuracy by residue",
    "knockout": "Knockout effect, unit × phase",
    "gates": "Gate profiles over knockout profiles",
    "offsets": "Static and per-window offsets",
}
_NEEDS = {"accuracy": "sweep", "knockout": "knockout", "gates": "gates", "offsets": "gates"}
_GAP_MM = 4.0


def available(found: Mapping[str, xr.Dataset]) -> list[str]:
    """Panels that these results can fill."""
    return [name for name, part in _NEEDS.items() if part in found and found[part].sizes.get("unit", 1)]


def paper_figure(
    found: Mapping[str, xr.Dataset],
    names: Sequence[str],
    *,
    width_mm: float = DOUBLE_COLUMN_MM,
    font_pt: float = 7.0,
    columns: int = 2,
    units: Sequence[str] | None = None,
    dark: bool = False,
) -> go.Figure:
    """Compose panels a, b, c … of one figure.

    Parameters
    ----------
    found : mapping of str to Dataset
        Of :func:`interp.report.load_results`.
    names : sequence of str
        Of :data:`PANELS`, in order; a single one has no letter.
    width_mm : float
        Of the whole figure.
    font_pt : float
        Of labels.
    columns : int
        Panels side by side.
    units : sequence of str, optional
        Those of the panel "gates"; the two with the largest loss if left out.
    dark : bool
        Light ink on a dark ground.

    Raises
    ------
    FigureError
        For a panel that is unknown or that the results cannot fill.
    """
    there = available(found)
    for name in names:
        if name not in there:
            raise FigureError(f"no panel {name!r} in these results; {did_you_mean(name, there)}")
    if not names:
        raise FigureError(f"no panel was chosen; valid: {', '.join(there)}")
    columns = max(1, min(columns, len(names)))
    slot = (width_mm - _GAP_MM * (columns - 1)) / columns
    theme = Theme(width_mm=slot, font_pt=font_pt, dark=dark)
    built = [_panel(name, found, theme, units) for name in names]
    return built[0] if len(built) == 1 else panels(built, columns=columns, width_mm=width_mm, theme=theme)


def _panel(
    name: str, found: Mapping[str, xr.Dataset], theme: Theme, units: Sequence[str] | None
) -> go.Figure:
    if name == "accuracy":
        return accuracy_by_residue(found["sweep"], theme=theme)
    if name == "knockout":
        return effect_heatmap(found["knockout"], found.get("specialization"), theme=theme)
    if name == "offsets":
        return effective_offsets(found["gates"], theme=theme)
    knockout, gates = found.get("knockout"), found["gates"]
    if knockout is not None and knockout.sizes["phase"] != gates.sizes["phase"]:
        knockout = None
    gated = [str(u) for u in gates["unit"].values]
    if units is None and knockout is not None and set(gated) & set(map(str, knockout["unit"].values)):
        loss = knockout["effect"].min("phase").fillna(0.0).to_series()
        units = [u for u in map(str, loss.sort_values(kind="stable").index) if u in gated][:2]
    return gate_profiles(gates, knockout, units or gated[:2], theme=theme)


def command(
    folder: str, names: Sequence[str], *, width_mm: float, font_pt: float, columns: int,
    units: Sequence[str] | None, dark: bool, formats: Sequence[str],
) -> str:  # fmt: skip
    """Return the command line that makes the same figure."""
    words = [
        "python", "-m", "interp.figures.paper", folder, "--panels", ",".join(names), "--width-mm",
        f"{width_mm:g}", "--font-pt", f"{font_pt:g}", "--columns", str(columns),
    ]  # fmt: skip
    words += ["--units", ",".join(units)] if units else []
    words += ["--dark"] if dark else []
    return shlex.join([*words, "--formats", ",".join(formats), "-o", "figure"])


def main(argv: Sequence[str] | None = None) -> int:
    """Write the figure; returns 0, or 2 after one line on stderr."""
    parser = argparse.ArgumentParser(description="A paper figure of several panels from one results folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--panels", default="accuracy,knockout,gates", help=", ".join(PANELS))
    parser.add_argument("--width-mm", type=float, default=DOUBLE_COLUMN_MM)
    parser.add_argument("--font-pt", type=float, default=7.0)
    parser.add_argument("--columns", type=int, default=2)
    parser.add_argument("--units", default="", help='for the panel "gates", e.g. 0.1,1.0')
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--formats", default="pdf,svg,png,html")
    parser.add_argument("-o", "--out", default="figure", help="path without a suffix")
    given = parser.parse_args(argv)
    from interp.figures.export import export
    from interp.report import load_results

    try:
        figure = paper_figure(
            load_results(given.folder), given.panels.split(","), width_mm=given.width_mm, font_pt=given.font_pt,
            columns=given.columns, units=given.units.split(",") if given.units else None, dark=given.dark,
        )  # fmt: skip
        written = export(figure, given.out, given.formats.split(","))
    except PhaselensError as error:
        print(f"phaselens: {error}", file=sys.stderr)
        return 2
    for file in written.files:
        print(file)
    if written.notice:
        print(written.notice)
    return 0


if __name__ == "__main__":
    sys.exit(main())
