"""A figure of several panels from one results folder: what the explorer's Figures page and the verb draw."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import plotly.graph_objects as go
import xarray as xr

from hooks.errors import did_you_mean
from interp.figures import (
    Theme,
    accuracy_by_residue,
    effect_heatmap,
    effective_offsets,
    gate_profiles,
    panels,
)
from interp.figures.base import FigureError
from interp.figures.completion import completion_by_length
from interp.figures.compose import GAP_MM
from interp.figures.gate_units import gates_beside, pairable
from interp.figures.patch_maps import patching_map
from interp.figures.theme import DOUBLE_COLUMN_MM

__all__ = ["PANELS", "Look", "available", "command", "paper_figure"]

PANELS = {
    "accuracy": "Accuracy by residue",
    "knockout": "Knockout effect, unit × phase",
    "gates": "Gate profiles over knockout profiles",
    "offsets": "Static and per-window offsets",
    "cycling": "Effect of cycled gates",
    "patch": "Patching map",
    "needle": "Needle in 128K tokens (published)",
    "completion": "Completion by filler length (published)",
}
_NEEDS = {
    "accuracy": "sweep", "knockout": "knockout", "gates": "gates", "offsets": "gates", "cycling": "cycling",
    "patch": "patch",
}  # fmt: skip
_WIDTH_MM = (20.0, 400.0)
_FONT_PT = (4.0, 24.0)


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a figure of several panels looks.

    Parameters
    ----------
    width_mm : float
        Width of the whole figure.
    font_pt : float
        Size of labels.
    columns : int
        Panels side by side.
    units : tuple of str
        Those of the panel "gates"; the two with the largest loss if empty.
    colours : str
        Of :data:`interp.figures.theme.COLOURS`.
    dark : bool
        Light ink on a dark ground.

    Raises
    ------
    FigureError
        For a width outside of 20–400 mm, type outside of 4–24 pt, or no column.
    """

    width_mm: float = DOUBLE_COLUMN_MM
    font_pt: float = 7.0
    columns: int = 2
    units: tuple[str, ...] = field(default=())
    colours: str = "okabe-ito"
    dark: bool = False

    def __post_init__(self) -> None:
        for name, value, (low, high) in (
            ("width_mm", self.width_mm, _WIDTH_MM), ("font_pt", self.font_pt, _FONT_PT)
        ):  # fmt: skip
            if not low <= value <= high:
                raise FigureError(f"{name}={value:g} is out of range; valid: {low:g} to {high:g}")
        if self.columns < 1:
            raise FigureError(f"columns={self.columns}; a figure has at least one")


def available(found: Mapping[str, xr.Dataset]) -> list[str]:
    """Panels that these results can fill; published ones always can be."""
    return [
        name
        for name in PANELS
        if (part := _NEEDS.get(name)) is None or (part in found and found[part].sizes.get("unit", 1))
    ]


def paper_figure(
    found: Mapping[str, xr.Dataset], names: Sequence[str], look: Look | None = None, **options: Any
) -> go.Figure:
    """Compose panels a, b, c … of one figure.

    Parameters
    ----------
    found : mapping of str to Dataset
        Of :func:`interp.report.load_results`.
    names : sequence of str
        Of :data:`PANELS`, in order; a single one has no letter.
    look : Look, optional
        Sizes and colours.
    options
        Fields of :class:`Look` that replace those of `look`.

    Raises
    ------
    FigureError
        For a panel that is unknown or that the results cannot fill, or a size that is out of range.
    """
    look = replace(look or Look(), **options)
    there = available(found)
    for name in names:
        if name not in there:
            raise FigureError(f"no panel {name!r} in these results; {did_you_mean(name, there)}")
    if not names:
        raise FigureError(f"no panel was chosen; valid: {', '.join(there)}")
    columns = min(look.columns, len(names))
    slot = (look.width_mm - GAP_MM * (columns - 1)) / columns
    theme = Theme(width_mm=slot, font_pt=look.font_pt, dark=look.dark, colours=look.colours)
    built = [_panel(name, found, theme, look.units) for name in names]
    if len(built) == 1:
        return built[0]
    return panels(built, columns=columns, width_mm=look.width_mm, theme=theme)


def _panel(name: str, found: Mapping[str, xr.Dataset], theme: Theme, units: Sequence[str]) -> go.Figure:
    drawn: dict[str, Callable[[], go.Figure]] = {
        "accuracy": lambda: accuracy_by_residue(found["sweep"], theme=theme),
        "knockout": lambda: effect_heatmap(found["knockout"], found.get("specialization"), theme=theme),
        "gates": lambda: _gates(found, theme, units),
        "offsets": lambda: effective_offsets(found["gates"], theme=theme),
        "cycling": lambda: _cycling(found["cycling"], theme),
        "patch": lambda: patching_map(found["patch"], theme=theme),
        "needle": lambda: _needle(theme),
        "completion": lambda: _completion(theme),
    }
    return drawn[name]()


def _gates(found: Mapping[str, xr.Dataset], theme: Theme, units: Sequence[str]) -> go.Figure:
    """Gate profiles of the chosen units, or of the two that cost most."""
    gates = found["gates"]
    knockout = pairable(gates, found.get("knockout"))
    gated = [str(u) for u in gates["unit"].values]
    if not units and knockout is not None:
        loss = knockout["effect"].min("phase").fillna(0.0).to_series().sort_values(kind="stable")
        units = [u for u in map(str, loss.index) if gates_beside(knockout, u, gated)][:2]
    return gate_profiles(gates, knockout, units or gated[:2], theme=theme)


def _cycling(found: xr.Dataset, theme: Theme) -> go.Figure:
    from interp.figures.cycling import cycling_figure

    return cycling_figure(found, theme=theme)


def _needle(theme: Theme) -> go.Figure:
    from interp.published.sweeps import published_sweeps

    return accuracy_by_residue(dict(list(published_sweeps().items())[:2]), theme=theme)


def _completion(theme: Theme) -> go.Figure:
    from interp.published import load_published

    found = load_published("completion_fp8")
    lengths = [int(n) for n in found["filler_tokens"]]
    return completion_by_length(found, lengths, cycle=4, caption=f"{found['task']}.", theme=theme)


def command(folder: str, names: Sequence[str], look: Look, *, suffix: str) -> str:
    """Return the command line that makes the same figure, as ``paper/figure.SUFFIX``."""
    words = [
        "phaselens", "figures", folder, "--panels", ",".join(names), "--width-mm", f"{look.width_mm:g}",
        "--font-pt", f"{look.font_pt:g}", "--columns", str(look.columns), "--colours", look.colours,
    ]  # fmt: skip
    words += ["--units", ",".join(look.units)] if look.units else []
    words += ["--dark"] if look.dark else []
    return shlex.join([*words, "--format", suffix, "-o", "paper"])
