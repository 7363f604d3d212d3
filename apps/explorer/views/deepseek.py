"""DeepSeek: the published needle and completion results, and the audits of the folder, drawn alike."""

from __future__ import annotations

import streamlit as st
import xarray as xr

from apps.explorer.folder import audit_names, load_audit
from apps.explorer.parts import figure, heading, sweep_summary, table
from apps.explorer.state import NOT_THERE, choice, choices, on_paper, root_folder, screen_theme, slider
from apps.explorer.words import failed
from hooks.errors import PhaselensError
from interp.figures import accuracy_by_residue
from interp.figures.base import number
from interp.figures.completion import completion_by_length
from interp.published import load_published
from interp.published.sweeps import published_sweeps


def page() -> None:
    """Draw the page."""
    heading(
        "DeepSeek-V4 and V4.1",
        "Published results, and audits of your own checkpoints (`phaselens audit CHECKPOINT -o DIR`), drawn alike.",
    )
    st.header("Needle in 128K tokens")
    sweeps = published_sweeps()
    chosen = choices("Models", "needle", list(sweeps), default=list(sweeps)[:2])
    if chosen:
        named = {name: sweeps[name] for name in chosen}
        drawn = accuracy_by_residue(named, theme=screen_theme(190), height_mm=75)
        figure(drawn, "needle", paper=on_paper("needle", {"models": chosen}))
        table(
            [
                {
                    "model": name, "stride": str(one.attrs["stride"]),
                    "gap by phase (pp)": float(one.attrs["gap_pp"]),
                    "gap by residue (pp)": float(one.attrs["gap_residue_pp"]),
                    "worst phase": str(one.attrs["worst_phase"]),
                }
                for name, one in named.items()
            ]
        )  # fmt: skip
    else:
        st.info("Choose at least one model in the list above.")
    st.header("Completion behind a docstring")
    _completion(load_published("completion_fp8"))
    st.header("Your audits")
    _audits()


def _completion(found: dict) -> None:
    lengths = [int(n) for n in found["filler_tokens"]]
    length = slider("Filler length (tokens)", "filler", lengths[0], lengths[-1], default=lengths[0])
    at = lengths.index(length)
    columns = st.columns(3)
    columns[0].metric("Length mod 4", str(length % 4))
    columns[1].metric("P(8), right here", number(found["p_8"][at], 3))
    columns[2].metric("P(32)", number(found["p_32"][at], 3))
    drawn = completion_by_length(
        found, lengths, cycle=4, caption=f"{found['task']}.", chosen=length, theme=screen_theme(190)
    )
    figure(drawn, "completion", paper=on_paper("completion", {"length": length}))
    st.caption(str(found["source"]))


def _audits() -> None:
    root = root_folder()
    names = audit_names(root) if root.is_dir() else []
    if not names:
        st.info("No audits in this folder yet. Make one with: `phaselens audit CHECKPOINT -o DIR`")
        return
    name = choice("Audit result", "audit", names, lacking=NOT_THERE)
    try:
        found = load_audit(root, name)
    except (PhaselensError, OSError) as error:
        failed(error, "Remove the file, or make the audit again.")
        return
    _audit(found, on_paper("audit", {"result": name}))


def _audit(found: xr.Dataset, paper: dict[str, str]) -> None:
    a = found.attrs
    if {"accuracy_residue", "accuracy_residue_low"} <= set(map(str, found.data_vars)):
        sweep_summary(a)
        figure(accuracy_by_residue(found, theme=screen_theme(190)), "audit-accuracy", paper=paper)
    elif {"p_8", "p_32", "length"} <= set(map(str, found.variables)):
        drawn = completion_by_length(
            {name: found[name].values for name in ("p_8", "p_32")},
            [int(n) for n in found["length"].values],
            cycle=int(a.get("period", 0)),
            caption=str(a.get("task", "")),
            theme=screen_theme(190),
        )
        figure(drawn, "audit-completion", paper=paper)
    else:
        st.info("This part of an audit has no curve to draw; see its index.html.")
