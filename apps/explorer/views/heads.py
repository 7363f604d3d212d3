"""Heads: the unit × phase heatmap, and one unit in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import streamlit as st
import xarray as xr

from apps.explorer.parts import chosen_report, figure, heading, in_the_meantime, sweep_summary, table
from apps.explorer.state import choice, on_paper, screen_theme, switch
from apps.explorer.still import heat_table
from apps.explorer.words import plain
from interp.figures import accuracy_by_residue, effect_heatmap, gate_profiles
from interp.figures.base import number
from interp.figures.gate_units import gate_unit, gates_beside
from interp.specialization import served_text

_ACROSS = {"phase": "phases", "residue": "residues"}
_LABEL = {"kv_head": "layer.head", "head": "layer.head", "gate_offset": "layer.offset"}


def page() -> None:
    """Draw the page."""
    heading(
        "Which heads serve which phases",
        "Each row is a unit that was knocked out, each column a phase of the token to be retrieved. "
        "**Click a cell, or choose a unit in the list**, to see its gates and its effect.",
    )
    chosen = chosen_report()
    if chosen is None:
        return
    name, found = chosen
    if "sweep" in found:
        sweep_summary(found["sweep"].attrs)
    if "knockout" not in found:
        st.info("This folder has no knockout. Add one with: `phaselens knockout MODEL -o DIR`")
    else:
        unit = _heatmap(found)
        _unit(unit, found)
        _live(unit, found)
    if "sweep" in found:
        by_query = found["sweep"].attrs.get("axis") == "query"
        st.header(f"Accuracy by {'query phase' if by_query else 'residue'}")
        figure(
            accuracy_by_residue(found["sweep"], theme=screen_theme(190)),
            f"accuracy-{_stem(name)}",
            paper=on_paper("accuracy"),
        )


def _heatmap(found: Mapping[str, xr.Dataset]) -> str:
    """Draw the heatmap and return the unit that is clicked or chosen."""
    knockout = found["knockout"]
    units = [str(unit) for unit in knockout["unit"].values]
    st.header("Effect of knocking out one unit")
    left, right = st.columns(2)
    with left:
        across: Any = choice("Across", "across", list(_ACROSS), names=_ACROSS)
    with right:
        label = _LABEL.get(str(knockout.attrs.get("unit_kind", "kv_head")), "layer")
        unit = choice(f"Unit ({label})", "unit", units, default=_most_telling(knockout))
    served, looks = found.get("specialization"), {"theme": screen_theme(190), "max_height_mm": 170}
    still = heat_table(knockout, served, axis=across, **looks)
    place = (
        in_the_meantime(still, f"heatmap-{across}") if still else st
    )  # before the chart, which takes longer
    drawn = effect_heatmap(knockout, served, axis=across, **looks)
    # Few rows are too short for "KV head (layer.head)"; the list above says how units are named.
    drawn.for_each_yaxis(_short_title, selector={"side": None})
    figure(
        drawn,
        f"heatmap-{across}",
        on_click=_open,
        place=place,
        paper=on_paper("knockout", {"across": across}),
    )
    return unit


def _short_title(axis: Any) -> None:
    axis.title.text = axis.title.text.split(" (")[0]


def _open(cell: Sequence[Any]) -> None:
    """Choose the unit of a clicked cell in the list."""
    st.session_state["unit"] = str(cell[0])


def _most_telling(knockout: xr.Dataset) -> str:
    """The unit with the largest loss anywhere."""
    return str(knockout["effect"].min("phase").fillna(0.0).idxmin("unit").item())


def _unit(unit: str, found: Mapping[str, xr.Dataset]) -> None:
    """One unit: what it serves in words, its profiles, and its numbers by phase."""
    knockout, served, gates = found["knockout"], found.get("specialization"), found.get("gates")
    st.header(f"Unit {plain(unit)}")
    st.markdown(_sentence(unit, served))
    left, right = st.columns([3, 2])
    with left:
        lacking = _no_profile(unit, knockout, gates)
        if gates is None or lacking:
            st.info(plain(lacking))
        else:
            drawn = gate_profiles(gates, knockout, [unit], theme=screen_theme(110, 8.5))
            figure(drawn, f"profiles-{unit}", paper=on_paper("gates", {"units": [unit]}))
    with right:
        table(_by_phase(unit, knockout, served))


def _no_profile(unit: str, knockout: xr.Dataset, gates: xr.Dataset | None) -> str:
    """Why no gate profile can stand beside a unit's effect; "" if one can."""
    if gates is None:
        return "This folder has no gate profiles. Add them with: phaselens gates MODEL -o DIR"
    if gates.sizes["phase"] != knockout.sizes["phase"]:
        return (
            f"The gate profiles have {gates.sizes['phase']} phases and the effects {knockout.sizes['phase']}, so "
            "they do not stand beside each other."
        )
    if gates_beside(knockout, unit, [str(u) for u in gates["unit"].values]):
        return ""
    why = "" if knockout.attrs.get("unit_kind") == "layer" else gate_unit(knockout, unit)[1]
    return f"No gate profile beside this effect: {why or f'layer {unit.split(chr(46))[0]} has no gates'}."


def _sentence(unit: str, served: xr.Dataset | None) -> str:
    if served is None:
        return "Whether it serves a phase was not tested: this folder has no specialization.nc."
    row = served.sel(unit=unit)
    selectivity = float(row["selectivity"])
    words = f"**{plain(unit)} serves phases: {served_text(row['serves'].values.astype(bool), row['loss'].values)}.**"
    if selectivity == selectivity:
        words += f" Selectivity {selectivity:.2f} (0: all phases alike, 1: one alone)."
    return words + f" Test of selectivity: p = {float(row['p_selective']):.3g}."


def _by_phase(unit: str, knockout: xr.Dataset, served: xr.Dataset | None) -> list[dict[str, Any]]:
    """Effect, its change in log-probability with interval where prompts exist, and what was tested."""
    row = knockout.sel(unit=unit)
    change = low = high = np.full(row.sizes["phase"], np.nan)
    if {"logprob", "clean_logprob"} <= set(map(str, knockout.data_vars)):
        from interp.controls import paired_statistics

        deltas = (row["logprob"].values - row["clean_logprob"].values)[None].astype(float)
        found = paired_statistics("change", deltas, row.sizes["phase"], n_resamples=500)
        change, low, high = (found[f"change{end}"][1][0] for end in ("", "_low", "_high"))
    rows = []
    for i, phase in enumerate(row["phase"].values):
        cells = {"phase": str(phase), "effect (%)": number(float(row["effect"][i]), 0)}
        if np.isfinite(change[i]):
            interval = f" ({number(low[i], 2)} to {number(high[i], 2)})" if np.isfinite(low[i]) else ""
            cells["Δ log p (95%)"] = f"{number(change[i], 2)}{interval}"
        if served is not None:
            tested = served.sel(unit=unit)
            cells["adj. p"] = f"{float(tested['p_effect'][i]):.3g}"
            cells["serves"] = "yes" if bool(tested["serves"][i]) else "no"
        rows.append(cells)
    return rows


def _live(unit: str, found: Mapping[str, xr.Dataset]) -> None:
    """What needs the model: attention over entries for a prompt, and what takes over."""
    st.header("Inside the model")
    if not switch(
        "Load the model: its attention for one prompt, and what takes over without the unit", "look"
    ):
        st.caption("Runs on this computer, in this session alone.")
        return
    from apps.explorer.views.head_live import look_inside

    look_inside(unit, found["knockout"])


def _stem(name: str) -> str:
    return "report" if name == "." else name.replace("/", "-")
