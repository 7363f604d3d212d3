"""Interventions: remove units, patch between phases, and tell direct from total effects; all run live."""

from __future__ import annotations

from typing import Any

import streamlit as st
import xarray as xr

from apps.explorer import live
from apps.explorer.parts import figure, heading, table
from apps.explorer.state import choice, choices, on_paper, screen_theme, slider, tabs, whole_number
from interp.figures.base import number
from interp.figures.change_views import REPLACED, before_and_after, direct_and_total
from interp.figures.patch_maps import patch_by_phase, patch_by_place

_UNITS = {"kv_head": "KV heads", "head": "query heads", "layer": "whole layers"}
_PARTS = {
    "unit": "outputs of units",
    "position": "the stream at one position, layer by layer",
    "entry": "one entry, layer by layer",
}


def page() -> None:
    """Draw the page."""
    heading(
        "Change the model and see",
        "Runs on this computer and in this session alone: nobody else's page sees what is removed here. "
        "Every run can be stopped.",
    )
    chosen = live.chosen_model()
    if chosen is None:
        return
    hooked = chosen[1]
    left, right = st.columns(2)
    with left:
        kind = choice("Units", "kind", list(_UNITS), names=_UNITS)
    with right:
        blocks = slider("Prompts a residue", "n", 2, 32, default=6, help="More prompts, narrower intervals.")
    labels = _labels(hooked, kind)
    remove, patching, direct = tabs("tab", ["Remove", "Patch", "Direct and total"])
    with remove:
        _remove(hooked, kind, labels, blocks)
    with patching:
        _patch(hooked, kind, blocks)
    with direct:
        _direct(hooked, kind, labels, blocks)


def _labels(hooked: Any, kind: str) -> list[str]:
    from interp.units import units

    return [one.label for one in units(hooked, kind)]


def _task(hooked: Any) -> Any:
    from interp.tasks import RecallTask

    return RecallTask.for_model(hooked)


# ---- removing ----------------------------------------------------------------------------------------------


def _remove(hooked: Any, kind: str, labels: list[str], blocks: int) -> None:
    only = choices("Remove together", "remove", labels, default=labels[:1])
    left, right = st.columns(2)
    with left:
        replace: Any = choice("Replaced by", "replace", list(REPLACED), names=REPLACED)
    with right:
        prompt = whole_number("Prompt to look at", "prompt", 0, 99, default=0)
    if not only:
        st.info("Choose at least one unit to remove.")
        return
    arguments = {"kind": kind, "only": only, "replace": replace, "blocks": blocks}
    if not live.asked("Run", "run-remove", "removal", hooked, arguments):
        return

    def work() -> xr.Dataset:
        from interp import knockout

        task = _task(hooked)
        return knockout(
            hooked, task, unit=kind, replace=replace, sets=[only], n=blocks * task.modulus, memory=1 << 26,
            progress=False,
        )  # fmt: skip

    found = live.run("removal", hooked, arguments, work)
    if found is None:
        return
    paper = on_paper("removed", {"kind": kind, "units": only, "replace": replace, "n": blocks}, live=True)
    figure(before_and_after(found, theme=screen_theme(190)), "before-and-after", paper=paper)
    _one_prompt(hooked, kind, only, replace, prompt)


def _one_prompt(hooked: Any, kind: str, only: list[str], replace: Any, prompt: int) -> None:
    from interp.follow import before_after, token_word

    task = _task(hooked)
    st.subheader(f"Prompt {prompt}: what the model answers")
    residue = slider("Residue of the target", "residue", 0, task.modulus - 1, default=0)
    found = live.run(
        "one prompt", hooked, {"kind": kind, "only": only, "replace": replace, "prompt": prompt},
        lambda: before_after(hooked, task, only=only, unit=kind, replace=replace, prompt=prompt),
    )  # fmt: skip
    if found is None:
        return
    at = found.sel(residue=residue)
    answer = int(at["answer"])
    st.markdown(
        f"The right answer is **{token_word(task, answer)}**: probability "
        f"**{number(float(at['probability'][0]), 3)}** before and **{number(float(at['probability'][1]), 3)}** after."
    )
    rows = []
    for rank in range(at.sizes["rank"]):
        row = {"rank": str(rank + 1)}
        for i, run in enumerate(("before", "after")):
            token = int(at["token"][i, rank])
            mark = " ✓" if token == answer else ""
            row[run] = f"{token_word(task, token)}{mark}"
            row[f"p {run}"] = number(float(at["p"][i, rank]), 3)
        rows.append(row)
    table(rows)


# ---- patching ----------------------------------------------------------------------------------------------


def _patch(hooked: Any, kind: str, blocks: int) -> None:
    from interp.phases import measured_stride

    task = _task(hooked)
    stride = measured_stride(hooked, task)
    if stride < 2:
        st.info("This model has a single phase: there is no other one to patch from.")
        return
    st.markdown(
        "A part of the run is taken from the **same prompt with its target shifted** to another phase and "
        "written into the prompt as it was."
    )
    left, right = st.columns(2)
    with left:
        parts = [part for part in _PARTS if part != "entry" or _has_entries(hooked)]
        part = choice("What is patched", "part", parts, names=_PARTS | {"unit": f"output of {_UNITS[kind]}"})
    with right:
        shift = slider("Shift (tokens)", "by", 1, stride - 1, default=1)
    arguments = {"unit": kind if part == "unit" else part, "shift": shift, "blocks": blocks}
    if not live.asked("Run patching", "run-patch", "patching", hooked, arguments):
        return

    def work() -> xr.Dataset:
        from interp import patch

        return patch(
            hooked, task, shift=shift, unit=arguments["unit"], n=blocks * task.modulus, memory=1 << 26,
            progress=False,
        )  # fmt: skip

    found = live.run("patching", hooked, arguments, work)
    if found is None:
        return
    given = {"kind": arguments["unit"], "shift": shift, "n": blocks}
    if part == "unit":
        paper = on_paper("patching", given | {"phase": "all"}, live=True)
        figure(patch_by_phase(found, theme=screen_theme(190)), "patching-map", paper=paper)
        return
    phases = ["all", *map(str, found["phase"].values)]
    phase = choice("Phase of the target", "at", phases, help="All: the mean over phases.")
    chosen = None if phase == "all" else int(phase)
    drawn = patch_by_place(found, phase=chosen, theme=screen_theme(190))
    paper = on_paper("patching", given | {"phase": phase}, live=True)
    figure(drawn, f"patching-{part}-{phase}", paper=paper)


def _has_entries(hooked: Any) -> bool:
    return any(name.endswith("attn.hook_entry_k") for name in hooked.site_names())


# ---- direct and total --------------------------------------------------------------------------------------


def _direct(hooked: Any, kind: str, labels: list[str], blocks: int) -> None:
    st.markdown(
        "**Direct**: everything behind the unit is held as it was. **Total**: nothing is held. Where total is "
        "smaller than direct, later components make up for the loss."
    )
    arguments = {"kind": kind, "blocks": blocks}
    if not live.asked("Run both", "run-direct", "direct and total effects", hooked, arguments):
        return

    def work() -> xr.Dataset:
        from interp.paths import direct_effects

        task = _task(hooked)
        return direct_effects(
            hooked, task, unit=kind, n=blocks * task.modulus, memory=1 << 26, progress=False
        )

    found = live.run("direct and total effects", hooked, arguments, work)
    if found is None:
        return
    unit = choice(
        "Unit shown", "shown", labels, default=str(found["total"].min("phase").idxmin("unit").item())
    )
    paper = on_paper("direct", {"kind": kind, "unit": unit, "n": blocks}, live=True)
    figure(direct_and_total(found, unit, theme=screen_theme(190)), f"direct-and-total-{unit}", paper=paper)
