"""Compressor: tokens in their windows, followed through gate, payload and entry; the prompt shifted live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import streamlit as st
import xarray as xr

from apps.explorer import live
from apps.explorer.parts import figure, heading, table
from apps.explorer.state import choice, on_paper, screen_theme, slider, whole_number
from apps.explorer.words import plain
from interp.figures.base import number, weight

_BRANCH = {"key": "keys", "value": "values"}


def page() -> None:
    """Draw the page."""
    heading(
        "Inside the compressor",
        "A compressor pools the tokens of each window into one entry. Choose a token to follow it, and shift "
        "the prompt to see its weight and the answer change.",
    )
    chosen = live.chosen_model()
    if chosen is None:
        return
    hooked = chosen[1]
    from interp.follow import gate_changes

    geometry = _geometries(hooked)
    if not geometry:
        st.info(
            f"{plain(hooked.name)} has full attention in every layer: there is no compressor to look into. Choose another "
            "model above."
        )
        return
    left, right = st.columns(2)
    with left:
        gates = choice(
            "Gates", "gates", gate_changes(hooked, geometry[0].stride), help="As trained, forced, or moved."
        )
    with right:
        prompt = whole_number("Prompt", "prompt", 0, 99, default=0)
    followed = _follow(hooked, prompt, gates)
    if followed is None:  # why is on the page
        return
    if not followed.sizes["unit"]:
        st.info("This model's gates cannot be followed here.")
        return
    _strip(followed, {"gates": gates, "prompt": prompt})
    _plane(hooked, gates)


def _geometries(hooked: Any) -> list[Any]:
    return [g for i in range(hooked.cfg.n_layers) if (g := hooked.geometry(i)) is not None]


def _follow(hooked: Any, prompt: int, gates: str) -> xr.Dataset | None:
    def work() -> xr.Dataset:
        from interp.follow import changed_gates, follow
        from interp.tasks import RecallTask

        task = RecallTask.for_model(hooked)
        with changed_gates(hooked, gates, task) as changed:
            return follow(changed, task, prompt=prompt)

    return live.run("follow", hooked, {"prompt": prompt, "gates": gates}, work)


def _strip(followed: xr.Dataset, asked: Mapping[str, str | int]) -> None:
    """The strip of windows, the token that is followed, and both by shift."""
    from interp.figures.prompt_views import sharpest, target_by_shift, token_windows
    from interp.follow import shifted

    stride = int(followed.attrs["phase_stride"])
    units = [str(u) for u in followed["unit"].values]
    one, two, three = st.columns([2, 2, 3])
    with one:
        unit = choice("KV head (layer.head)", "unit", units, default=sharpest(followed))
    with two:
        there = [b for b in _BRANCH if np.isfinite(followed[f"gate_{b}"].sel(unit=unit)).any()]
        branch = choice("Gates of", "branch", there, names=_BRANCH)
    with three:
        shift = slider("Shift of the target (tokens)", "shift", 0, stride - 1, default=0)
    residue = shifted(followed, shift)
    at = followed.sel(residue=residue)
    target = int(at["target_position"])
    right = int(at["answer"]) == int(at["predicted"])
    columns = st.columns(4)
    columns[0].metric(
        "Target", f"{at['word'].values[target]} at {target}", help="Key token and its position."
    )
    columns[1].metric("Phase", str(target % stride))
    # Value gates are read at the value, the token behind the target key: that is what the answer needs of them.
    behind = f" on {at['word'].values[target + 1]} at {target + 1}" if branch == "value" else ""
    columns[2].metric(
        f"{branch.capitalize()} gate weight{behind}",
        weight(float(at[f"target_{branch}"].sel(unit=unit))),
        help="Value gates: on the value, the token after the target key. Key gates: on the target key.",
    )
    columns[3].metric("Answer", f"{'right' if right else 'wrong'}, p = {number(float(at['probability']), 2)}")
    token = _token(followed, residue, target)
    drawn = token_windows(
        followed, unit, residue=residue, branch=branch, token=token, theme=screen_theme(190)
    )
    given = {"unit": unit, "shift": shift, **asked}
    paper = on_paper("windows", {**given, "branch": branch, "token": token}, live=True)
    figure(drawn, f"windows-{unit}-{branch}", on_click=_go_to, paper=paper)
    st.subheader(f"Token {token}: from gate to entry")
    table(_path(at.sel(unit=unit), token))
    drawn = target_by_shift(followed, unit, chosen=shift, theme=screen_theme(190))
    figure(drawn, f"shift-{unit}", paper=on_paper("shift", given, live=True))


def _go_to(cell: Sequence[Any]) -> None:
    """Put the position of a clicked token into the field; cells before the first token have none."""
    if cell[3] is not None:
        st.session_state["token"] = int(cell[3])


def _token(followed: xr.Dataset, residue: int, target: int) -> int:
    """The position that is followed: clicked in the strip, or typed; the target at first, and after a shift."""
    st.session_state.setdefault("token-of", residue)
    if st.session_state["token-of"] != residue:
        st.session_state["token-of"] = residue
        st.session_state.pop("token", None)
        st.session_state.get("kept", {}).pop("token", None)
        if "token" in st.query_params:
            del st.query_params["token"]
    words = followed["word"].sel(residue=residue).values
    return whole_number(
        "Token to follow (position)", "token", 0, len(words) - 1, default=target,
        help="Or click a token in the strip below.",
    )  # fmt: skip


def _path(at: xr.Dataset, token: int) -> list[dict[str, Any]]:
    """Where one token goes: each window it is in, its gate weight there and the norm of its payload."""
    window, stride = int(at["window"]), int(at["stride"])
    rows = []
    for entry in range(token // stride, (token + window) // stride):
        offset = token - (entry + 1) * stride + window
        row: dict[str, Any] = {"entry": str(entry), "offset": str(offset)}
        closed = entry < at.sizes["entry"] and bool(np.isfinite(at["gate_key"][entry]).any())
        for branch in _BRANCH:
            for kind, what in (("gate", "gate weight"), ("payload", "payload norm")):
                value = float(at[f"{kind}_{branch}"][entry, offset]) if closed else float("nan")
                row[f"{branch}: {what}"] = weight(value) if kind == "gate" else number(value, 2)
        row["state"] = "stored" if closed else "window still open: no entry yet"
        rows.append(row)
    return rows


def _plane(hooked: Any, gates: str) -> None:
    """Static against per-window effective number of offsets, of all gates as they were chosen."""
    from interp.figures import effective_offsets

    st.header("How static each gate is" + ("" if gates == "trained" else f", gates {gates}"))

    def work() -> xr.Dataset:
        from interp import gate_profile
        from interp.follow import changed_gates
        from interp.tasks import RecallTask

        task = RecallTask.for_model(hooked)
        with changed_gates(hooked, gates, task) as changed:
            return gate_profile(changed, task, n=task.modulus, progress=False)

    as_trained = {"blocks": 1, "seed": 0}  # the same measurement as other pages make
    arguments = as_trained if gates == "trained" else as_trained | {"gates": gates}
    found = live.run("gate profiles", hooked, arguments, work)
    if found is not None:
        paper = on_paper("offsets-live", {"gates": gates}, live=True)
        figure(effective_offsets(found, theme=screen_theme(120)), "effective-offsets", paper=paper)
