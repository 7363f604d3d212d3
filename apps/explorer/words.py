"""Text that comes from files, names and addresses: shown letter for letter, never as Markdown."""

from __future__ import annotations

import re

import streamlit as st

__all__ = ["failed", "plain"]

# Streamlit takes :name: and :name[…] for icons and colours, $ for formulas, beside all that Markdown has.
_SIGNS = re.compile(r"[\\`*_{}\[\]<>$~#|&^]|:(?=[\w/])|(?<=\w)@(?=\w)|(?<=www)\.|^[-+=>]|^(?<=\d)[.)]")


def plain(text: object) -> str:
    """One line of Markdown that reads as `text` does: no image is fetched, no link, list or formula is made."""
    return _SIGNS.sub(r"\\\g<0>", " ".join(str(text).split()))


def failed(error: object, advice: str = "") -> None:
    """Say on the page what went wrong, and what can be done about it."""
    st.error(plain(f"{error}. {advice}".strip()))
