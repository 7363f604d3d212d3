"""Where a page's state lives: in its address, so that a link reproduces the view.

Every widget made here starts from the address, writes its value back, and is remembered across pages. What a link
asks for and is not there is said at the top of the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import streamlit as st

from apps.explorer.words import plain
from interp.figures import Theme

__all__ = [
    "asked_runs", "begin", "choice", "choices", "keep_run", "notes_here", "on_paper", "root_folder", "screen_theme",
    "slider", "switch", "tabs", "whole_number",
]  # fmt: skip

SCREEN_FONT_PT = 9.5
NO_CHOICE = "no choice here"
NOT_THERE = "not in this folder"
_RUNS = "run"
_LONGEST = 60
_notes: ContextVar[Any] = ContextVar("notes", default=None)


def root_folder() -> Path:
    """The folder on the command line, the only one that is opened."""
    return Path(sys.argv[-1] if len(sys.argv) > 1 else "reports")


def screen_theme(width_mm: float = 150.0, font_pt: float = SCREEN_FONT_PT) -> Theme:
    """Larger type than on paper, in the colours of the page."""
    dark = getattr(st.context.theme, "type", "light") == "dark"
    return Theme(width_mm=width_mm, font_pt=font_pt, dark=dark)


def begin(page: str) -> None:
    """Start to draw a page; notes on the link of another one, and its widgets, are forgotten."""
    if st.session_state.get("page") != page:
        st.session_state["page"] = page
        st.session_state["drawn"] = set()
        st.session_state["unmet"] = {}
    _notes.set(None)


def notes_here() -> None:
    """Choose this place for notes on what a link asks for and is not there."""
    _notes.set(st.container())


def choice(
    label: str, key: str, options: Sequence[str], *, default: str | None = None, help: str | None = None,
    names: dict[str, str] | None = None, lacking: str = NO_CHOICE,
) -> str:  # fmt: skip
    """A list to choose one of `options` from; `names` are shown in their place, `lacking` told of any other."""
    first = default if default in options else options[0]
    _restore(key, label, lambda text: text if text in options else None, str, first, lacking)
    chosen = st.selectbox(
        label, options, key=key, help=help, format_func=lambda option: str((names or {}).get(option, option))
    )
    return _keep(key, str(chosen), shown=str((names or {}).get(chosen, chosen)))


def choices(
    label: str, key: str, options: Sequence[str], *, default: Sequence[str], help: str | None = None,
    names: dict[str, str] | None = None, lacking: str = NO_CHOICE,
) -> list[str]:  # fmt: skip
    """A list to choose several of `options` from; what is no option any more, or is there twice, is dropped.

    In the address commas separate them, and commas within one are written %2C; an empty value is an empty choice.
    """

    def decode(text: str) -> list[str] | None:
        found = [one for one in _split(text) if one in options]
        return found or (None if text else [])

    def missing(text: str) -> list[str]:
        return [one for one in _split(text) if one not in options]

    first = [one for one in default if one in options]
    _restore(key, label, decode, _joined, first, lacking, missing)
    chosen = st.multiselect(
        label, options, key=key, help=help, format_func=lambda option: str((names or {}).get(option, option))
    )
    _keep(key, _joined(chosen), shown=", ".join((names or {}).get(one, one) for one in chosen) or "none")
    return list(chosen)


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(unquote(part) for part in text.split(","))) if text else []


def _joined(chosen: Sequence[str]) -> str:
    return ",".join(one.replace("%", "%25").replace(",", "%2C") for one in chosen)


def slider(label: str, key: str, low: int, high: int, *, default: int, help: str | None = None) -> int:
    """A slider over whole numbers; where there is one alone, its value in words."""
    if low >= high:
        st.caption(f"{label}: {low}")
        asked = st.query_params.get(key)
        if asked is not None and asked != str(low) and key not in st.session_state.setdefault("kept", {}):
            _tell(label, [asked], f"not {low}", str(low))
        return low
    _restore(key, label, _whole(low, high), str, default, f"no whole number from {low} to {high}")
    return int(_keep(key, str(st.slider(label, low, high, key=key, help=help))))


def whole_number(label: str, key: str, low: int, high: int, *, default: int, help: str | None = None) -> int:
    """A field for one whole number."""
    _restore(key, label, _whole(low, high), str, default, f"no whole number from {low} to {high}")
    return int(_keep(key, str(st.number_input(label, low, high, key=key, step=1, help=help))))


def switch(label: str, key: str, *, help: str | None = None) -> bool:
    """A switch that starts off; 1 in the address is on, 0 off."""
    _restore(
        key, key, lambda text: {"1": True, "0": False}.get(text), lambda on: str(int(on)), False, "neither 0 nor 1"
    )  # fmt: skip
    return _keep(key, str(int(st.toggle(label, key=key, help=help)))) == "1"


def tabs(key: str, names: Sequence[str]) -> Sequence[Any]:
    """Containers behind tabs, one a name, the first one open."""
    _restore(key, "tab", lambda text: text if text in names else None, str, names[0], NO_CHOICE)
    made = st.tabs(names, key=key, on_change="rerun")
    _keep(key, str(st.session_state[key]))
    return made


def asked_runs() -> list[str]:
    """Names of the runs that the address asks for."""
    return _split(st.query_params.get(_RUNS, ""))


def keep_run(name: str, asked: bool) -> None:
    """Write into the address that a run was asked for, or take it out."""
    others = [one for one in asked_runs() if one != name]
    text = _joined([*others, name] if asked else others)
    if not text:
        st.query_params.pop(_RUNS, None)
    elif asked != (name in asked_runs()):
        st.query_params[_RUNS] = text


def on_paper(
    panel: str, settings: Mapping[str, str | int | Sequence[str]] | None = None, *, live: bool = False,
    model: str | None = None,
) -> dict[str, str]:  # fmt: skip
    """What the address of the Figures page says to draw one panel of what is chosen here.

    Parameters
    ----------
    panel : str
        Of :data:`interp.figures.paper.PANELS`.
    settings : mapping
        Every setting that the panel takes, so that none is left as it was on that page before.
    live : bool
        Whether it is measured now.
    model : str, optional
        Key of the model that is measured; the one that is chosen here if left out.
    """
    kept: dict[str, str] = st.session_state.setdefault("kept", {})
    query = {"panels": panel, "live": str(int(live))}
    if live:
        query["model"] = kept["model"] if model is None else model
    elif "report" in kept:
        query["report"] = kept["report"]
    for key, value in (settings or {}).items():
        text = str(value) if isinstance(value, str | int) else _joined(value)
        query["units" if panel == "gates" else f"{panel}.{key}"] = text
    return query


def _whole(low: int, high: int) -> Callable[[str], int | None]:
    def decode(text: str) -> int | None:
        return int(text) if text.lstrip("-").isdecimal() and low <= int(text) <= high else None

    return decode


def _restore(
    key: str, label: str, decode: Callable[[str], Any], encode: Callable[[Any], str], default: Any, lacking: str,
    missing: Callable[[str], list[str]] | None = None,
) -> None:  # fmt: skip
    """Set a widget that is new to the page, whose value is no option any more, or whose address was changed.

    `missing` tells what of a text cannot be had; all of it, where it cannot be decoded, if left out.
    """
    kept: dict[str, str] = st.session_state.setdefault("kept", {})
    unmet: dict[str, tuple[str, list[str], str, str | None]] = st.session_state.setdefault("unmet", {})
    asked = st.query_params.get(key)
    from_outside = asked is not None and asked != kept.get(key)
    if asked is not None and from_outside:
        gone = missing(asked) if missing else [] if decode(asked) is not None else [asked]
        unmet.pop(key, None)
        if gone:
            unmet[key] = (label, gone, lacking, None)
    current = st.session_state.get(key)
    fits = current is not None and (not current or decode(encode(current)) == current)
    drawn: set[str] = st.session_state["drawn"]
    if fits and not from_outside and key in drawn:
        return
    drawn.add(key)  # one of the same key on the page before is another widget, whose value is not passed on
    candidates = [asked, kept.get(key)]
    found = [value for text in candidates if text is not None and (value := decode(text)) is not None]
    st.session_state[key] = found[0] if found else default


def _keep(key: str, text: str, *, shown: str | None = None) -> str:
    """Write a widget's value into the address; say what a link asked for in its place, until it is changed."""
    st.session_state["kept"][key] = text
    if st.query_params.get(key) != text:
        st.query_params[key] = text
    unmet = st.session_state["unmet"]
    if key in unmet:
        label, gone, lacking, instead = unmet[key]
        if instead in (None, text):
            unmet[key] = (label, gone, lacking, text)
            _tell(label, gone, lacking, text if shown is None else shown)
        else:
            del unmet[key]
    return text


def _tell(label: str, gone: Iterable[str], lacking: str, shown: str) -> None:
    """One line on what a link asks for and does not get, in the place that was chosen for it."""
    words = [one if len(one) <= _LONGEST else f"{one[:_LONGEST]}…" for one in gone]
    told = ", ".join(f"'{one}'" if one.isprintable() else repr(one) for one in words)
    name = re.split(r" \(|,", label)[0]
    line = (
        f"The link asks for {name[:1].lower()}{name[1:]} {told}, which {'is' if len(words) == 1 else 'are'} "
        f"{lacking}; shown: {shown}"
    )
    (_notes.get() or st).warning(plain(line))
