"""The explorer: which heads of a model serve which phases, page by page.

Run by ``phaselens explore DIR``; results come from DIR, live runs from the bundled models and those in DIR.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import streamlit as st

PAGES = {
    "heads": ("Heads", ":material/grid_on:"),
    "models": ("Models", ":material/stacked_line_chart:"),
    "compressor": ("Compressor", ":material/compress:"),
    "interventions": ("Interventions", ":material/tune:"),
    "deepseek": ("DeepSeek", ":material/public:"),
    "figures": ("Figures", ":material/picture_as_pdf:"),
}

# Streamlit's red has too little contrast as text, links need a line, and wide tables scroll by themselves.
STYLE = """
<style>
  [data-testid="stMarkdownContainer"] a, [data-testid="stCaptionContainer"] a { text-decoration: underline; }
  [data-testid="stCaptionContainer"], [data-testid="stMetricLabel"] { opacity: 1; }
  [data-testid="stTable"] { overflow-x: auto; }
  [data-testid="stTable"] td, [data-testid="stTable"] th { white-space: nowrap; }
  .block-container { padding-top: 3.2rem; padding-bottom: 3rem; max-width: 1180px; }
  h1 { font-size: 1.9rem !important; } h2 { font-size: 1.35rem !important; } h3 { font-size: 1.1rem !important; }
  :focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
  @media (max-width: 640px) { .block-container { padding-left: 0.9rem; padding-right: 0.9rem; } }
</style>
"""


def _page(name: str) -> Callable[[], None]:
    """A page whose module, and what that imports, is loaded when it is opened."""

    def show() -> None:
        importlib.import_module(f"apps.explorer.views.{name}").page()

    show.__name__ = name
    return show


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="phaselens", layout="wide")
    pages = [
        st.Page(_page(name), title=title, icon=icon, url_path=name, default=name == "heads")
        for name, (title, icon) in PAGES.items()
    ]
    chosen = st.navigation(pages, position="top")
    st.html(STYLE)
    chosen.run()


main()
