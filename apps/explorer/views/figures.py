"""Figures: the plots of a report as one paper figure, with the command line that makes the same file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st
import xarray as xr

from apps.explorer.parts import CONFIG, alt_text, chosen_report, heading
from apps.explorer.state import choice, choices, slider, switch, whole_number
from apps.explorer.words import failed, plain
from hooks.errors import PhaselensError
from interp.figures.gate_units import gates_beside, pairable
from interp.figures.paper import PANELS, Look, available, command, paper_figure
from interp.figures.theme import COLOURS

FORMATS = {
    "pdf": ("PDF (vector)", "application/pdf"),
    "svg": ("SVG (vector)", "image/svg+xml"),
    "png": ("PNG (300 dpi)", "image/png"),
    "html": ("HTML (interactive)", "text/html"),
    "csv": ("CSV (the data)", "text/csv"),
}

_COLOURS = {
    "okabe-ito": "Okabe and Ito; losses red, gains blue",
    "tol": "Tol; losses orange, gains purple",
}


def page() -> None:
    """Draw the page."""
    heading(
        "Figures for a paper",
        "Choose panels, set the width of your column and the size of your type, and take the file. "
        "What is measured live has its own files below each chart.",
    )
    chosen = chosen_report()
    if chosen is None:
        return
    name, found = chosen
    there = available(found)
    panels = choices(
        "Panels, in order (a, b, c …)", "panels", there, default=there[:3],
        names={key: PANELS[key] for key in there},
    )  # fmt: skip
    look = _look(found)
    if not panels:
        st.info("Choose at least one panel.")
        return
    try:
        drawn = paper_figure(found, panels, look)
    except PhaselensError as error:
        failed(error)
        return
    st.subheader("Preview")
    width = int(drawn.layout.width)
    st.html(f"<style>.st-key-preview > * {{ flex: none; min-width: {width}px; }}</style>")
    with st.container(horizontal=True, key="preview"):
        st.plotly_chart(
            drawn,
            key="preview-chart",
            theme=None,
            config=CONFIG,
            alt=alt_text(drawn),
            width=int(drawn.layout.width),
        )
    st.caption(plain(drawn.layout.meta["caption"]))
    _files(drawn, name, panels, look)


def _look(found: Mapping[str, xr.Dataset]) -> Look:
    one, two, three = st.columns(3)
    with one:
        width = slider("Width (mm)", "width", 60, 200, default=180, help="85: one column; 180: two.")
    with two:
        font = slider("Type size (pt)", "type", 5, 12, default=7)
    with three:
        columns = whole_number("Panels side by side", "columns", 1, 4, default=2)
    units: list[str] = []
    if there := _gated(found):
        units = choices(
            "Units in the gate panel", "units", there, default=[], help="Empty: the two that cost most."
        )
    colours = choice("Colours", "colours", COLOURS, names=_COLOURS)
    dark = switch("Light type on a dark ground", "dark")
    return Look(width_mm=width, font_pt=font, columns=columns, units=tuple(units), colours=colours, dark=dark)


def _gated(found: Mapping[str, xr.Dataset]) -> list[str]:
    """Units that the gate panel can show: knocked-out ones that have gates, or all gates where none has."""
    if "gates" not in found:
        return []
    gated = [str(u) for u in found["gates"]["unit"].values]
    paired = pairable(found["gates"], found.get("knockout"))
    if paired is None:
        return gated
    return [label for u in paired["unit"].values if gates_beside(paired, label := str(u), gated)]


def _files(drawn: go.Figure, name: str, panels: list[str], look: Look) -> None:
    st.subheader("The file")
    suffix = choice(
        "Format", "format", list(FORMATS), names={key: value[0] for key, value in FORMATS.items()}
    )
    key = str(hash((drawn.to_json(), suffix)))
    made: dict[str, bytes] = st.session_state.setdefault("files", {})
    if key not in made and st.button("Make the file", type="primary", key="make"):
        with st.spinner(f"Rendering {suffix.upper()}"):
            content, notice = _render(drawn, suffix)
        if content is None:
            failed(notice)
            return
        made.clear()
        made[key] = content
    if key in made:
        st.download_button(
            f"Download figure.{suffix}", made[key], f"figure.{suffix}", FORMATS[suffix][1], key="download",
            on_click="ignore", type="primary",
        )  # fmt: skip
    st.caption("The same file from the command line, in the folder the explorer was opened on:")
    st.code(command(name, panels, look, suffix=suffix), language="bash", wrap_lines=True)


def _render(drawn: go.Figure, suffix: str) -> tuple[bytes | None, str]:
    """Bytes of the file, or None and what to install."""
    from interp.figures.export import export

    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder) / "figure"
        try:
            done = export(drawn, stem, [suffix])
        except PhaselensError as error:
            return None, str(error)
        path = stem.with_suffix(f".{suffix}")
        return (path.read_bytes(), "") if path.is_file() else (None, done.notice)
