"""Heads: the unit × phase heatmap, and one unit in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import streamlit as st
import xarray as xr

from apps.explorer import live
from apps.explorer.parts import chosen_report, figure, heading, table
from apps.explorer.state import choice, screen_theme, whole_number
from apps.explorer.words import plain
from interp.figures import accuracy_by_residue, effect_heatmap, gate_profiles
from interp.figures.base import number
from interp.specialization import arcs_text

_ACROSS = {"phase": "phases", "residue": "residues"}


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
    _summary(found)
    if "knockout" not in found:
        st.info("This folder has no knockout. Add one with: `phaselens knockout MODEL -o DIR`")
    else:
        unit = _heatmap(found)
        _unit(unit, found)
        _live(unit, found)
    if "sweep" in found:
        st.header("Accuracy by residue")
        figure(accuracy_by_residue(found["sweep"], theme=screen_theme(190)), f"accuracy-{_stem(name)}")


def _summary(found: Mapping[str, xr.Dataset]) -> None:
    """Gap, null gap, worst phase and period."""
    if "sweep" not in found:
        return
    a = found["sweep"].attrs
    period = int(a.get("period", 0))
    columns = st.columns(4)
    columns[0].metric("Phase gap", f"{number(a['gap_pp'], 1)} pp", help="Best minus worst phase.")
    columns[1].metric(
        "Null gap",
        f"{number(a.get('null_gap_pp', float('nan')), 1)} pp",
        help="The gap if phases meant nothing.",
    )
    columns[2].metric("Worst phase", str(a["worst_phase"]))
    columns[3].metric(
        "Period in the data",
        str(period) if period else "none",
        help=f"p = {a.get('period_p', float('nan')):.3g}",
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
        unit = choice("Unit (layer.head)", "unit", units, default=_most_telling(knockout))
    drawn = effect_heatmap(
        knockout, found.get("specialization"), axis=across, theme=screen_theme(190), max_height_mm=170
    )
    drawn.update_yaxes(title_text="unit", selector={"side": None})
    figure(drawn, f"heatmap-{across}", on_click=_open)
    return unit


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
    same = gates is not None and gates.sizes["phase"] == knockout.sizes["phase"]
    left, right = st.columns([3, 2])
    with left:
        if gates is not None and same and unit in gates["unit"].values:
            figure(gate_profiles(gates, knockout, [unit], theme=screen_theme(110, 8.5)), f"profiles-{unit}")
        else:
            st.info("This unit has no gates of its own, so there is no gate profile beside its effect.")
    with right:
        table(_by_phase(unit, knockout, served))


def _sentence(unit: str, served: xr.Dataset | None) -> str:
    if served is None:
        return "Whether it serves a phase was not tested: this folder has no specialization.nc."
    row = served.sel(unit=unit)
    selectivity = float(row["selectivity"])
    words = f"**{plain(unit)} serves phases: {arcs_text(row['serves'].values.astype(bool))}.**"
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


# ---- live: the model itself --------------------------------------------------------------------------------


def _live(unit: str, found: Mapping[str, xr.Dataset]) -> None:
    """What needs the model: attention over entries for a prompt, and what takes over."""
    with st.expander("Look into the model: its attention for one prompt, and what takes over without it"):
        if not st.toggle("Load the model and run it here", key="look"):
            st.caption("Runs on this computer, in this session alone.")
            return
        hooked = _model_of(found["knockout"].attrs)
        if hooked is None:
            return
        _attention(unit, hooked)
        _backup(unit, hooked, str(found["knockout"].attrs.get("unit_kind", "kv_head")))


def _model_of(attrs: Mapping[str, Any]) -> Any | None:
    """The model these results were measured on, told by its hash."""
    name, wanted = str(attrs.get("model", "")), attrs.get("model_hash")
    for key, shown in live.sources().items():
        if key.endswith(f":{name}") or shown.split(" ")[0].endswith(name):
            hooked = live.model(key)
            if hooked.content_hash() == wanted:
                return hooked
    st.info(
        f"The weights these results were measured on ({plain(name)}) are neither bundled nor in this folder. Put the "
        "model's folder beside the results, or make the report again."
    )
    return None


def _attention(unit: str, hooked: Any) -> None:
    from interp.figures.prompt_views import attention_over_entries
    from interp.follow import follow, shifted

    prompt = whole_number("Prompt", "prompt", 0, 99, default=0)
    followed = live.run("follow", hooked, {"prompt": prompt}, lambda: follow(hooked, prompt=prompt))
    if followed is None:
        return
    if unit not in followed["unit"].values:
        st.caption("This unit has no compressor of its own: it reads entries another layer stores, or none.")
        return
    drawn = attention_over_entries(followed, unit, residue=shifted(followed, 0), theme=screen_theme(190))
    figure(drawn, f"attention-{unit}")


def _backup(unit: str, hooked: Any, kind: str) -> None:
    from interp.backup import takes_over
    from interp.figures.cell_map import cell_map

    arguments = {"gone": unit, "unit": kind}
    pressed = st.button("Measure what takes over when it is gone", key="backup")
    found = live.kept("what takes over", hooked, arguments)
    if found is None and not pressed:
        return
    found = live.run(
        "what takes over", hooked, arguments, lambda: takes_over(hooked, gone=unit, unit=kind, progress=False),
        stop=True,
    )  # fmt: skip
    if found is None:
        return
    values = found["takes_over"].values
    sure = {(int(r), int(c)) for r, c in zip(*np.nonzero(found["takes_over_p"].values < 0.05), strict=True)}
    rows = [str(u) for u in found["unit"].values]
    best = np.unravel_index(int(np.nanargmax(values)), values.shape)
    drawn = cell_map(
        values, rows=rows, columns=[str(p) for p in found["phase"].values], x_title="phase of the target",
        y_title="other unit", value_name="takes over (nats)", limit=max(0.1, float(np.nanmax(np.abs(values)))),
        outlined=sure, theme=screen_theme(150),
        alt=f"Most is taken over by {rows[best[0]]} at phase {best[1]}: {values[best]:.2f} nats.",
        caption=(
            f"How much more each other unit is worth once {unit} is gone: mean log-probability (nats) its "
            "removal costs then, minus what it costs now. Outlined: family-wise p < 0.05."
        ),
    )  # fmt: skip
    figure(drawn, f"takes-over-{unit}")


def _stem(name: str) -> str:
    return "report" if name == "." else name.replace("/", "-")
