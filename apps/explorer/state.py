"""Where a page's state lives: in its address, so that a link reproduces the view.

Every widget made here starts from the address, writes its value back, and is remembered across pages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import streamlit as st

from interp.figures import Theme

__all__ = ["choice", "choices", "root_folder", "screen_theme", "slider", "switch", "tabs", "whole_number"]

SCREEN_FONT_PT = 9.5


def root_folder() -> Path:
    """The folder on the command line, the only one that is opened."""
    return Path(sys.argv[-1] if len(sys.argv) > 1 else "reports")


def screen_theme(width_mm: float = 150.0, font_pt: float = SCREEN_FONT_PT) -> Theme:
    """Larger type than on paper, in the colours of the page."""
    dark = getattr(st.context.theme, "type", "light") == "dark"
    return Theme(width_mm=width_mm, font_pt=font_pt, dark=dark)


def choice(
    label: str, key: str, options: Sequence[str], *, default: str | None = None, help: str | None = None,
    names: dict[str, str] | None = None,
) -> str:  # fmt: skip
    """A list to choose one of `options` from; `names` are shown in their place."""
    first = default if default in options else options[0]
    _restore(key, lambda text: text if text in options else None, str, first)
    chosen = st.selectbox(
        label, options, key=key, help=help, format_func=lambda option: str((names or {}).get(option, option))
    )
    return _keep(key, str(chosen))


def choices(
    label: str, key: str, options: Sequence[str], *, default: Sequence[str], help: str | None = None,
    names: dict[str, str] | None = None,
) -> list[str]:  # fmt: skip
    """A list to choose several of `options` from; what is no option any more is dropped.

    In the address commas separate them, and commas within one are written %2C; an empty value is an empty choice.
    """

    def decode(text: str) -> list[str] | None:
        found = [one for part in text.split(",") if (one := unquote(part)) in options]
        return found or (None if text else [])

    _restore(key, decode, _joined, [one for one in default if one in options])
    chosen = st.multiselect(
        label, options, key=key, help=help, format_func=lambda option: str((names or {}).get(option, option))
    )
    _keep(key, _joined(chosen))
    return list(chosen)


def _joined(chosen: Sequence[str]) -> str:
    return ",".join(one.replace("%", "%25").replace(",", "%2C") for one in chosen)


def slider(label: str, key: str, low: int, high: int, *, default: int, help: str | None = None) -> int:
    """A slider over whole numbers."""
    if low >= high:
        st.caption(f"{label}: {low}")
        return low
    _restore(key, _whole(low, high), str, default)
    return int(_keep(key, str(st.slider(label, low, high, key=key, help=help))))


def whole_number(label: str, key: str, low: int, high: int, *, default: int, help: str | None = None) -> int:
    """A field for one whole number."""
    _restore(key, _whole(low, high), str, default)
    return int(_keep(key, str(st.number_input(label, low, high, key=key, step=1, help=help))))


def switch(label: str, key: str, *, help: str | None = None) -> bool:
    """A switch that starts off."""
    _restore(key, lambda text: {"1": True, "0": False}.get(text), lambda on: str(int(on)), False)
    return _keep(key, str(int(st.toggle(label, key=key, help=help)))) == "1"


def tabs(key: str, names: Sequence[str]) -> Sequence[Any]:
    """Containers behind tabs, one a name, the first one open."""
    _restore(key, lambda text: text if text in names else None, str, names[0])
    made = st.tabs(names, key=key, on_change="rerun")
    _keep(key, str(st.session_state[key]))
    return made


def _whole(low: int, high: int) -> Callable[[str], int | None]:
    def decode(text: str) -> int | None:
        return int(text) if text.lstrip("-").isdecimal() and low <= int(text) <= high else None

    return decode


def _restore(key: str, decode: Callable[[str], Any], encode: Callable[[Any], str], default: Any) -> None:
    """Set a widget that is new, whose value is no option any more, or whose address was changed."""
    kept: dict[str, str] = st.session_state.setdefault("kept", {})
    asked = st.query_params.get(key)
    from_outside = asked is not None and asked != kept.get(key)
    current = st.session_state.get(key)
    if current is not None and not from_outside and (not current or decode(encode(current)) == current):
        return
    candidates = [asked, kept.get(key)]
    found = [value for text in candidates if text is not None and (value := decode(text)) is not None]
    st.session_state[key] = found[0] if found else default


def _keep(key: str, text: str) -> str:
    st.session_state["kept"][key] = text
    if st.query_params.get(key) != text:
        st.query_params[key] = text
    return text
