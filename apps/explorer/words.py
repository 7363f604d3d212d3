"""Text that comes from files, names and addresses: shown letter for letter, never as Markdown."""

from __future__ import annotations

import re

import streamlit as st

__all__ = ["failed", "plain"]

# Streamlit takes :name: and :name[…] for icons and colours, $ for formulas, beside all that Markdown has.
# An underscore inside a word means nothing to Markdown.
_SIGNS = re.compile(
    r"[\\`*{}\[\]<>$~#|&^]|(?<![^\W_])_|_(?![^\W_])|:(?=[\w/])|(?<=\w)@(?=\w)|(?<=www)\.|^[-+=>]"
)
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


def plain(text: object) -> str:
    """One line of Markdown that reads as `text` does: no image is fetched, no link, list or formula is made."""
    words = str(text).encode(errors="backslashreplace").decode()  # names of files need not be text
    line = _SIGNS.sub(r"\\\g<0>", " ".join(words.split()))
    return _NUMBERED.sub(r"\1\\\2", line)


def failed(error: object, advice: str = "") -> None:
    """Say on the page what went wrong, and what can be done about it."""
    st.error(plain(f"{error}. {advice}".strip()))
