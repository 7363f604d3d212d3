"""The explorer's start page: which heads of a model serve which phases, and one head in detail.

Run by ``phaselens explore DIR``; everything shown comes from results under DIR.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import streamlit as st
import xarray as xr

from apps.explorer.folder import load_report, report_names
from hooks.errors import PhaselensError
from interp.figures import Theme, accuracy_by_residue, effect_heatmap, gate_profiles
from interp.figures.export import to_html
from interp.specialization import arcs_text

HEATMAP = "heatmap"


def root_folder() -> Path:
    """The folder on the command line, the only one that is opened."""
    return Path(sys.argv[-1] if len(sys.argv) > 1 else "reports")


@st.cache_data(show_spinner="Loading results", max_entries=32)
def _load(root: str, name: str, stamp: float) -> dict[str, xr.Dataset]:
    """Load once per file version; `stamp` is the newest modification time."""
    return load_report(Path(root), name)


def main() -> None:
    """Draw the page."""
    st.set_page_config(page_title="phaselens", layout="wide")
    st.title("Which heads serve which phases")
    root = root_folder()
    names = report_names(root) if root.is_dir() else []
    if not names:
        st.info(
            "No results in this folder yet. Make some with: `phaselens report w8s8-2kv -o reports/w8s8-2kv`"
        )
        return
    name = _choice("Report", "report", names)
    try:
        stamp = max(path.stat().st_mtime for path in (root / name).glob("*.nc"))
        found = _load(str(root.resolve()), name, stamp)
    except PhaselensError as error:
        st.error(f"{error} Remove the file or make the report again.")
        return
    _summary(found)
    _heads(found)


def _choice(label: str, key: str, options: list[str], default: str | None = None) -> str:
    """A select box whose value lives in the page's address, so that a link reproduces the view."""
    asked = st.query_params.get(key, default or options[0])
    index = options.index(asked) if asked in options else 0
    if st.session_state.get(key) not in options:
        st.session_state[key] = options[index]
    chosen = st.selectbox(label, options, key=key)
    st.query_params[key] = chosen
    return chosen


def _theme(width_mm: float) -> Theme:
    dark = getattr(st.context.theme, "type", "light") == "dark"
    return Theme(width_mm=width_mm, dark=dark)


def _summary(found: dict[str, xr.Dataset]) -> None:
    """Accuracy by residue, with the gap, the worst phase and the period beside it."""
    sweep = found.get("sweep")
    if sweep is None:
        return
    attrs = sweep.attrs
    columns = st.columns(4)
    columns[0].metric(
        "Phase gap", f"{attrs['gap_pp']:.1f} pp", help="Best minus worst phase, percentage points."
    )
    columns[1].metric("If phases meant nothing", f"{attrs['null_gap_pp']:.1f} pp")
    columns[2].metric("Worst phase", str(attrs["worst_phase"]))
    period = int(attrs["period"])
    columns[3].metric(
        "Period in the data", str(period) if period else "none", help=f"p = {attrs['period_p']:.3g}"
    )
    _figure(accuracy_by_residue(sweep, theme=_theme(150)), "accuracy")


def _heads(found: dict[str, xr.Dataset]) -> None:
    """The heatmap, and the head that is clicked or chosen."""
    knockout = found.get("knockout")
    if knockout is None:
        st.info("This folder has no knockout. Add one with: `phaselens knockout MODEL -o DIR`")
        return
    served = found.get("specialization")
    units = [str(unit) for unit in knockout["unit"].values]
    st.subheader("Effect of knocking out one unit, by phase")
    left, right = st.columns([3, 2])
    with left:
        event: Any = st.plotly_chart(
            effect_heatmap(knockout, served, theme=_theme(120)),
            key=HEATMAP,
            on_select="rerun",
            selection_mode="points",
            theme=None,
            config={"displaylogo": False},
        )
        st.caption("Click a cell, or choose the unit in the list: both do the same.")
    clicked = _clicked(event)
    if clicked in units and clicked != st.session_state.get("clicked"):
        st.session_state["clicked"] = st.session_state["unit"] = clicked
    with right:
        unit = _choice("Unit (layer.head)", "unit", units, default=_most_telling(knockout))
        st.markdown(_sentence(unit, knockout, served))
        gates = found.get("gates")
        if gates is not None and unit in gates["unit"].values:
            figure = gate_profiles(gates, knockout, [unit], theme=_theme(85))
            _figure(figure, f"profiles-{unit}")
        else:
            st.info("This unit has no gates of its own, so there is no gate profile beside its effect.")


def _clicked(event: Any) -> str | None:
    """The unit of the selected cell, if any."""
    points = event.get("selection", {}).get("points", []) if event else []
    return str(points[0]["customdata"][0]) if points and points[0].get("customdata") else None


def _most_telling(knockout: xr.Dataset) -> str:
    """The unit with the largest loss anywhere."""
    return str(knockout["effect"].min("phase").fillna(0.0).idxmin("unit").item())


def _sentence(unit: str, knockout: xr.Dataset, served: xr.Dataset | None) -> str:
    effect = knockout["effect"].sel(unit=unit)
    numbers = ", ".join(
        f"{int(p)}: {'n/a' if v != v else f'{v:.0f}%'}"
        for p, v in zip(effect.phase, effect.values, strict=True)
    )
    text = f"Effect by phase: {numbers}."
    if served is not None:
        row = served.sel(unit=unit)
        phases = arcs_text(row["serves"].values.astype(bool))
        choice = float(row["selectivity"])
        text = (
            f"**{unit} serves phases: {phases}.** "
            + (f"Selectivity {choice:.2f}. " if choice == choice else "")
            + text
        )
    return text


def _figure(figure: Any, name: str) -> None:
    """A chart with its description in words and a download that works offline."""
    st.plotly_chart(figure, key=name, theme=None, config={"displaylogo": False})
    meta = figure.layout.meta or {}
    with st.expander("In words, and as a file"):
        st.write(meta.get("alt", ""))
        st.download_button(
            "HTML figure", to_html(figure), file_name=f"{name}.html", mime="text/html", key=f"{name}-html"
        )


main()
