"""Figures: the plots of a report as one paper figure, with the command line that makes the same file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from apps.explorer.panels import chosen_panels, chosen_sources
from apps.explorer.parts import CONFIG, alt_text, chosen_report, heading
from apps.explorer.state import choice, choices, slider, switch, whole_number
from apps.explorer.words import failed, plain
from hooks.errors import PhaselensError
from interp.figures.panel_kinds import NotMeasured
from interp.figures.paper import Look, command, paper_figure, settings
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
        "Choose panels and their settings, set the width of your column and the size of your type, and take the "
        "file. Every chart of the other pages is a panel here.",
    )
    chosen = chosen_report()
    name, found = chosen or (None, {})
    sources, model = chosen_sources()
    panels = chosen_panels(found, sources)
    look = _look(found)
    if not panels:
        st.info("Choose at least one panel.")
        return
    try:
        drawn = paper_figure(found, panels, look, sources=sources)
    except NotMeasured:  # why is on the page
        return
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
    suffix = _format()
    _files(drawn, command(name, panels, look, suffix=suffix, live=model), suffix)


def _look(found: Any) -> Look:
    one, two, three = st.columns(3)
    with one:
        width = slider("Width (mm)", "width", 60, 200, default=180, help="85: one column; 180: two.")
    with two:
        font = slider("Type size (pt)", "type", 5, 12, default=7)
    with three:
        columns = whole_number("Panels side by side", "columns", 1, 4, default=2)
    units: list[str] = []
    if "gates" in found and found["gates"].sizes["unit"]:
        (there,) = (one.choices or () for one in settings("gates", found))
        units = choices(
            "Units in the gate panel", "units", there, default=[], help="Empty: the two that cost most."
        )
    colours = choice("Colours", "colours", COLOURS, names=_COLOURS)
    dark = switch("Light type on a dark ground", "dark")
    return Look(width_mm=width, font_pt=font, columns=columns, units=tuple(units), colours=colours, dark=dark)


def _format() -> str:
    st.subheader("The file")
    return choice("Format", "format", list(FORMATS), names={key: value[0] for key, value in FORMATS.items()})


def _files(drawn: go.Figure, line: str, suffix: str) -> None:
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
    st.code(line, language="bash", wrap_lines=True)


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
