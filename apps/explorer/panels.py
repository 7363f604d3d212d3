"""The panels of a paper figure as widgets: which, with what settings, and from where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st
import xarray as xr

from apps.explorer import live
from apps.explorer.folder import audit_names, load_audit, load_report, report_names
from apps.explorer.state import choice, choices, root_folder, switch, whole_number
from interp.figures.panel_kinds import Panel, Setting, Sources
from interp.figures.paper import PANELS, available, settings

__all__ = ["chosen_panels", "chosen_sources"]

_LARGEST = 9999


def chosen_sources() -> tuple[Sources, str | None]:
    """Where panels get what a report does not hold, and the model to measure as the command line names it."""
    root = root_folder()
    there = root.is_dir()
    names = {live.named(key): key for key in live.sources()}
    name, model = None, None
    if switch("Add panels that are measured now, on a model", "live"):
        chosen = live.chosen_model()
        if chosen is not None:
            name, model = live.named(chosen[0]), chosen[1]
    return Sources(
        model=model,
        reports=tuple(report_names(root)) if there else (),
        audits=tuple(audit_names(root)) if there else (),
        models=tuple(names),
        report=partial(load_report, root),
        audit=partial(load_audit, root),
        load=lambda wanted: live.model(names.get(wanted, wanted)),
        run=live.run,
    ), name


def chosen_panels(found: Mapping[str, xr.Dataset], sources: Sources) -> list[str]:
    """Let the user choose panels and their settings; return them as the command line writes them."""
    there = available(found, sources)
    names = choices(
        "Panels, in order (a, b, c …)", "panels", there, default=there[:3] if found else there[:1],
        names={key: PANELS[key] for key in there},
    )  # fmt: skip
    return [text for name in names if (text := _with_settings(name, found, sources)) is not None]


def _with_settings(name: str, found: Mapping[str, xr.Dataset], sources: Sources) -> str | None:
    """The panel as the command line writes it; None, after saying so, where its lists were emptied."""
    first = settings(name, found, sources)
    if not first or name == "gates":  # units of the gate panel have a list of their own below
        return name
    given: dict[str, tuple[str, ...]] = {}
    lists: dict[str, tuple[str, ...]] = {one.title: () for one in first if one.many}
    with st.expander(f"Settings: {PANELS[name]}"):
        for number in range(len(first)):
            # Some choices depend on what is set before them: units on their kind.
            one = settings(str(Panel(name, given)), found, sources)[number]
            values = _widget(name, one)
            if one.many:
                lists[one.title] = values
            if values and (values != one.default or "result" in one.key or name == "models"):
                given[one.key] = values
        if lists and not any(lists.values()):
            st.warning(f"{PANELS[name]} is left out. Choose at least one: {', '.join(lists)}.")
            return None
    return str(Panel(name, given))


def _widget(panel: str, one: Setting) -> tuple[str, ...]:
    key = f"{panel}.{one.key}"
    if one.whole:
        return (str(whole_number(one.title, key, 0, _LARGEST, default=int(one.default[0]))),)
    options: Sequence[str] = one.choices or ()
    if one.many:
        return tuple(choices(one.title, key, options, default=one.default))
    if not options:
        return ()
    if one.default:
        return (choice(one.title, key, options, default=one.default[0]),)
    chosen: Any = choice(one.title, key, ["", *options], names={"": "–"})
    return (chosen,) if chosen else ()
