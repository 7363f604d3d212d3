"""A figure of several panels: what the explorer's Figures page and the verb draw, and the list of all panels."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import plotly.graph_objects as go
import xarray as xr

from hooks.errors import did_you_mean
from interp.figures.base import FigureError, TooNarrow
from interp.figures.compose import most_columns, panels, slot_mm
from interp.figures.fit import crowded
from interp.figures.panel_kinds import Panel, Setting, Sources, View
from interp.figures.panels_live import LIVE
from interp.figures.panels_saved import SAVED
from interp.figures.theme import DOUBLE_COLUMN_MM, Theme
from interp.outputs import as_argument

__all__ = ["PANELS", "Look", "available", "command", "paper_figure", "settings"]

_KINDS = {**SAVED, **LIVE}
PANELS = {name: kind.title for name, kind in _KINDS.items()}
"""Every panel by name, in words."""
_WIDTH_MM = (20.0, 400.0)
_FONT_PT = (4.0, 24.0)
_COLUMNS = 2
"""Panels side by side where that is not said."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a figure of several panels looks.

    Parameters
    ----------
    width_mm : float
        Width of the whole figure.
    font_pt : float
        Size of labels.
    columns : int, optional
        Panels side by side; two, or one where the text of two has no room, if left out.
    units : tuple of str
        Those of the panel "gates" unless it says so itself; the two with the largest loss if empty.
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
    columns: int | None = None
    units: tuple[str, ...] = field(default=())
    colours: str = "okabe-ito"
    dark: bool = False

    def __post_init__(self) -> None:
        for name, value, (low, high) in (
            ("width_mm", self.width_mm, _WIDTH_MM), ("font_pt", self.font_pt, _FONT_PT)
        ):  # fmt: skip
            if not low <= value <= high:
                raise FigureError(f"{name}={value:g} is out of range; valid: {low:g} to {high:g}")
        if self.columns is not None and self.columns < 1:
            raise FigureError(f"columns={self.columns}; a figure has at least one")


def available(found: Mapping[str, xr.Dataset], sources: Sources | None = None) -> list[str]:
    """Panels that these results, and what comes from elsewhere, can fill; published ones always can be."""
    return [name for name, kind in _KINDS.items() if kind.there(found, sources)]


def settings(
    panel: str, found: Mapping[str, xr.Dataset], sources: Sources | None = None
) -> tuple[Setting, ...]:
    """Settings that a panel takes here, with their choices and defaults; some depend on what is given already.

    Raises
    ------
    FigureError
        For a panel that is unknown or that cannot be filled.
    """
    view = _view(panel, found, sources)
    return _KINDS[view.panel.name].settings(view)


def paper_figure(
    found: Mapping[str, xr.Dataset],
    names: Sequence[str],
    look: Look | None = None,
    *,
    sources: Sources | None = None,
    **options: Any,
) -> go.Figure:
    """Compose panels a, b, c … of one figure.

    Parameters
    ----------
    found : mapping of str to Dataset
        Of :func:`interp.report.load_results`; may be empty where no panel draws from it.
    names : sequence of str
        Of :data:`PANELS`, in order, each with its settings: ``"patch:phase=3"``, ``"needle:models=A+B"``; a
        single one has no letter.
    look : Look, optional
        Sizes and colours.
    sources : Sources, optional
        Where panels get what `found` does not hold: other reports, audits, and a model to measure.
    options
        Fields of :class:`Look` that replace those of `look`.

    Raises
    ------
    FigureError
        For a panel that is unknown or that the results cannot fill, a setting that it does not take, a size
        that is out of range, or more columns than their text has room in.
    """
    look = replace(look or Look(), **options)
    views = [_view(name, found, sources) for name in names]
    if not views:
        raise FigureError(f"no panel was chosen; valid: {', '.join(available(found, sources))}")

    def draw(columns: int) -> go.Figure:
        return _drawn(views, look, columns)

    asked = min(look.columns or _COLUMNS, len(views))
    if look.columns is None:
        return most_columns(draw, asked)[0]
    try:
        return draw(asked)
    except TooNarrow as error:
        said = str(error).partition(";")[0]
    try:
        fits = most_columns(draw, asked - 1 or 1)[1] if asked > 1 else 0
    except TooNarrow:
        fits = 0
    way = f"columns={fits} fits" if fits else "use a larger width_mm or a smaller font_pt"
    raise TooNarrow(f"columns={look.columns}: {said}; {way}")


def _drawn(views: Sequence[View], look: Look, columns: int) -> go.Figure:
    """All panels in so many columns."""
    theme = Theme(
        width_mm=slot_mm(look.width_mm, columns), font_pt=look.font_pt, dark=look.dark, colours=look.colours
    )
    built = []
    for view in views:
        kind = _KINDS[view.panel.name]
        built.append(kind.build(replace(view, theme=theme, units=look.units, chosen=kind.resolve(view))))
    if len(built) > 1:
        return panels(built, columns=columns, width_mm=look.width_mm, theme=theme)
    if (text := crowded(built[0])) is not None:
        raise TooNarrow(
            f"{look.width_mm:g} mm are too narrow for {text!r} in {look.font_pt:g} pt; use a larger width_mm or a "
            "smaller font_pt"
        )
    return built[0]


def _view(text: str, found: Mapping[str, xr.Dataset], sources: Sources | None) -> View:
    """A panel as it was asked for, before anything is measured."""
    panel = Panel.read(text)
    if panel.name in LIVE and (sources is None or sources.model is None):
        raise FigureError(f"panel {panel.name!r} is measured now and needs a model: --live MODEL")
    there = available(found, sources)
    if panel.name not in there:
        raise FigureError(f"no panel {panel.name!r} in these results; {did_you_mean(panel.name, there)}")
    return View(panel, found, sources or Sources())


def command(
    folder: str | None, names: Sequence[str], look: Look, *, suffix: str, live: str | None = None
) -> str:
    """Return the command line that makes the same figure, as ``paper/figure.SUFFIX``.

    Parameters
    ----------
    folder : str, optional
        Of the results; None where every panel is measured, or published.
    names : sequence of str
        Panels with their settings, as of :func:`paper_figure`.
    look : Look
        Sizes and colours.
    suffix : str
        Format of the file.
    live : str, optional
        Zoo name or folder of the model that is measured.
    """
    words = [
        "phaselens", "figures", *([] if folder is None else [as_argument(folder)]), "--panels", ",".join(names), "--width-mm",
        f"{look.width_mm:g}", "--font-pt", f"{look.font_pt:g}", "--colours", look.colours,
    ]  # fmt: skip
    words += ["--columns", str(look.columns)] if look.columns is not None else []
    words += ["--live", as_argument(live)] if live is not None else []
    has_gates = any(name.split(":")[0] == "gates" for name in names)
    words += ["--units", ",".join(look.units)] if look.units and has_gates else []
    words += ["--dark"] if look.dark else []
    return shlex.join([*words, "--format", suffix, "-o", "paper"])
