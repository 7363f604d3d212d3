"""What every page is made of: figures with words and files, tables, and the reports of the folder."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
import xarray as xr

from apps.explorer import live
from apps.explorer.folder import load_report, report_names, stamp
from apps.explorer.legend import legend
from apps.explorer.state import NOT_THERE, begin, choice, notes_here, root_folder
from apps.explorer.words import failed, plain
from hooks.errors import PhaselensError
from interp.figures.base import number
from interp.figures.browser import RENDERED, browser_path, render
from interp.figures.export import figure_csv, to_html

__all__ = [
    "alt_text",
    "chosen_report",
    "figure",
    "heading",
    "in_the_meantime",
    "no_reports",
    "period_told",
    "report",
    "shown",
    "sweep_summary",
    "table",
    "worst_told",
]

_TITLE_EM = 1.7
_HEAD_START_S = 0.3
_ROOM = 8
_KEY_SIGNS = ("□ ", "• ", "▼ ", "/// ")
_MIME = {
    "pdf": "application/pdf",
    "svg": "image/svg+xml",
    "png": "image/png",
    "html": "text/html",
    "csv": "text/csv",
}
CONFIG = {"displaylogo": False, "displayModeBar": False, "showTips": False}


def shown(name: str) -> None:
    """Draw the page of this name; what its files or its address make impossible is one line on it."""
    begin(name)
    live.begin()
    try:
        importlib.import_module(f"apps.explorer.views.{name}").page()
    except (PhaselensError, OSError) as error:
        failed(error, "Choose something else above, or make the results again.")


def heading(title: str, lead: str) -> None:
    """Title of a page and what can be done on it."""
    st.title(title)
    st.markdown(lead)
    notes_here()


def alt_text(drawn: go.Figure) -> str:
    """The figure in words, for people who do not see it."""
    return str((drawn.layout.meta or {}).get("alt", ""))


def figure(
    drawn: go.Figure,
    name: str,
    *,
    on_click: Callable[[Sequence[Any]], None] | None = None,
    place: Any = st,
    paper: Mapping[str, str] | None = None,
) -> None:
    """Show a chart with its caption, its description in words, and its files.

    Parameters
    ----------
    drawn : Figure
        Of a builder in :mod:`interp.figures`.
    name : str
        Of its files, and of the chart on the page.
    on_click : function, optional
        Called with the ``customdata`` of a point that is clicked, before the page is drawn again.
    place : container
        Where the chart goes, e.g. :func:`in_the_meantime`; its words follow on the page.
    paper : mapping, optional
        Of :func:`apps.explorer.state.on_paper`: where its size, type and colours are chosen.
    """
    more: dict[str, Any] = {}
    if on_click is not None:
        more = {"on_select": partial(_clicked, f"chart-{name}", on_click), "selection_mode": "points"}
    if drawn.layout.showlegend:
        st.html(legend(drawn))
    with place.container(key=f"{'dense' if _dense(drawn) else 'plain'}-{name}"):
        st.plotly_chart(
            _on_screen(drawn),
            key=f"chart-{name}",
            theme=None,
            config=CONFIG,
            alt=alt_text(drawn) or name,
            **more,
        )
    st.caption(plain(" ".join([str((drawn.layout.meta or {}).get("caption", "")), _key(drawn)])))
    with st.expander(f"{plain(name.replace('-', ' ')).capitalize()}: in words, and as files"):
        st.markdown(plain(alt_text(drawn)))
        _files(drawn, name)
        if paper is not None:
            # A page is known by its path alone, so this is that of the navigation.
            page = st.Page(partial(shown, "figures"), title="Figures", url_path="figures")
            st.page_link(page, label="Size, type and colours for a paper", query_params=dict(paper))


def in_the_meantime(still: str, name: str) -> Any:
    """A place for a chart, in which HTML of class ``still`` stands until the browser has drawn that."""
    place = st.container(key=f"in-still-{name}")
    place.html(still)
    if not st.session_state.get("painted"):
        # What arrives together is painted together, and a browser that is new here compiles the charts' program first.
        time.sleep(_HEAD_START_S)
        st.session_state["painted"] = True
    return place


def _clicked(chart: str, on_click: Callable[[Sequence[Any]], None]) -> None:
    """Pass a click on; one on the cell that is selected already takes its selection away, but is a click too."""
    last: dict[str, Sequence[Any] | None] = st.session_state.setdefault("last clicks", {})
    points = st.session_state[chart]["selection"]["points"]
    if points:
        last[chart] = points[0].get("customdata")
    if cell := last.get(chart):
        on_click(cell)


def _dense(drawn: go.Figure) -> bool:
    """Whether numbers in its cells would run into each other on a phone, where they are left out then."""
    traces: Any = drawn.data
    return any(
        trace.type == "scatter" and trace.mode == "text" and len(set(trace.x)) > _ROOM for trace in traces
    )


def _key(drawn: go.Figure) -> str:
    """The key of a heat map's signs, which wraps as words and not within the chart."""
    return " · ".join(a.text.replace("<br>", " · ").replace("    ", " · ") for a in _keys(drawn))


def _keys(drawn: go.Figure) -> list[Any]:
    notes: Any = drawn.layout.annotations
    return [note for note in notes if str(note.text).startswith(_KEY_SIGNS)]


def _files(drawn: go.Figure, name: str) -> None:
    """Buttons that make the files; all but the text ones need a browser on this computer."""
    places = st.columns(len(_MIME))
    drawing = browser_path() is not None
    for suffix, place in zip(_MIME, places, strict=True):
        place.download_button(
            suffix.upper(),
            partial(_content, drawn, suffix),
            f"{name}.{suffix}",
            _MIME[suffix],
            key=f"{name}-{suffix}",
            on_click="ignore",
            disabled=not drawing and suffix in RENDERED,
        )
    if not drawing:
        st.caption(
            "PDF, SVG and PNG need Chromium on this computer (Debian: `sudo apt-get install chromium`)."
        )


def _content(drawn: go.Figure, suffix: str) -> bytes | str:
    """The file of a chart, as it stands on the page."""
    if suffix == "html":
        return to_html(drawn)
    return figure_csv(drawn) if suffix == "csv" else render(drawn, suffix)


def _on_screen(drawn: go.Figure) -> go.Figure:
    """The same figure for a page: on its ground, stretched to its width, each cell clickable to its edges."""
    shown = go.Figure(drawn)
    clear = "rgba(0,0,0,0)"
    if shown.layout.showlegend:  # it stands above the chart as words; give its room to the page
        spare = max(0.0, shown.layout.margin.t - _TITLE_EM * shown.layout.font.size)
        shown.update_layout(margin={"t": shown.layout.margin.t - spare}, height=shown.layout.height - spare)
    hidden = [note.text for note in _keys(shown)]
    shown.layout.annotations = [note for note in shown.layout.annotations if note.text not in hidden]
    # Without a limit the nearest marker answers: for markers in a grid that is the cell under the pointer.
    shown.update_layout(paper_bgcolor=clear, plot_bgcolor=clear, hoverdistance=-1, showlegend=False)
    return shown


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Show rows as a real table, which screen readers walk through; numbers with one digit."""
    shown = [
        {name: number(v, 1) if isinstance(v, float) else plain(v) for name, v in row.items()} for row in rows
    ]
    if shown:
        st.table(pd.DataFrame(shown).set_index(next(iter(shown[0]))))


def period_told(attrs: Mapping[str, Any]) -> str:
    """The period in the data: a number, "none", or "not tested" as by query phase, where no target moves."""
    if attrs.get("axis") == "query" or "period" not in attrs or math.isnan(attrs.get("period_p", 0.0)):
        return "not tested"
    return str(int(attrs["period"])) if attrs["period"] else "none"


def worst_told(attrs: Mapping[str, Any]) -> str:
    """The worst phase; "–" where all are alike."""
    return str(int(attrs["worst_phase"])) if "worst_phase" in attrs and attrs.get("gap_pp", 1.0) else "–"


def sweep_summary(attrs: Mapping[str, Any]) -> None:
    """Gap, null gap, worst phase and period of a sweep, each by name of the axis it was made along."""
    by_query = attrs.get("axis") == "query"
    phase = "query phase" if by_query else "phase"
    told = period_told(attrs)
    no_period = "Every target stays where it is." if by_query else "The result holds no test of a period."
    gap, null = (number(float(attrs.get(name, float("nan"))), 1) for name in ("gap_pp", "null_gap_pp"))
    columns = st.columns(4)
    columns[0].metric(
        f"{phase.capitalize()} gap", f"{gap} pp",
        help="Best minus worst query phase, (q + 1) mod S: how full the open window is when the model is asked."
        if by_query else "Best minus worst phase.",
    )  # fmt: skip
    columns[1].metric("Null gap", f"{null} pp", help="The gap if phases meant nothing.")
    columns[2].metric(f"Worst {phase}", worst_told(attrs))
    columns[3].metric(
        "Period in the data", told,
        help=no_period if told == "not tested" else f"p = {float(attrs.get('period_p', float('nan'))):.3g}",
    )  # fmt: skip


def no_reports() -> None:
    """What to do in an empty folder."""
    st.info(
        "No results in this folder yet. Make some with: `phaselens report w8s8-2kv -o reports/w8s8-2kv`, then "
        "reload this page. Bundled models can be looked at without: see Models, Compressor and Interventions."
    )


def chosen_report(label: str = "Report") -> tuple[str, dict[str, xr.Dataset]] | None:
    """Let the user choose a report; None, with what to do on the page, where there is none."""
    root = root_folder()
    names = report_names(root) if root.is_dir() else []
    if not names:
        no_reports()
        return None
    name = choice(label, "report", names, lacking=NOT_THERE)
    found = report(name)
    return None if found is None else (name, found)


def report(name: str) -> dict[str, xr.Dataset] | None:
    """Load a report of the folder; None, with the reason on the page, if it cannot be read."""
    root = root_folder()
    try:
        return _load(os.fsencode(root), name, stamp(root, name))
    except (PhaselensError, OSError) as error:
        failed(error, "Remove the file, or make the report again.")
        return None


@st.cache_data(show_spinner="Loading results", max_entries=32)
def _load(root: bytes, name: str, changed: float) -> dict[str, xr.Dataset]:
    """Load once per file version; `root` in bytes, for its name need not be text."""
    return load_report(Path(os.fsdecode(root)), name)
