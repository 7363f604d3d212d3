"""The explorer: which heads of a model serve which phases, page by page.

Run by ``phaselens explore DIR``; results come from DIR, live runs from the bundled models and those in DIR.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import streamlit as st

# No icons: Streamlit would fetch each from Google's servers.
PAGES = {
    "heads": "Heads",
    "models": "Models",
    "compressor": "Compressor",
    "interventions": "Interventions",
    "deepseek": "DeepSeek",
    "figures": "Figures",
}

# Links need a line, captions, tabs and sliders full contrast; wide tables scroll by themselves; numbers stay side by side.
STYLE = """
<style>
  [data-testid="stMarkdownContainer"] a, [data-testid="stCaptionContainer"] a { text-decoration: underline; }
  [data-testid="stCaptionContainer"], [data-testid="stMetricLabel"] { opacity: 1; }
  /* Streamlit's own Stop leaves a page half drawn, and its runs begin again; those of live runs are on the page. */
  [data-testid="stAppDeployButton"], [data-testid="stStatusWidget"] button { display: none; }
  [data-testid="stTable"] { overflow-x: auto; }
  [data-testid="stTable"] td, [data-testid="stTable"] th { white-space: nowrap; }
  .st-key-preview { overflow-x: auto; }
  .block-container { padding-top: 3.2rem; padding-bottom: 3rem; max-width: 1180px; }
  h1 { font-size: 1.9rem !important; } h2 { font-size: 1.35rem !important; } h3 { font-size: 1.1rem !important; }
  [data-testid="stMetricValue"] { font-size: 1.6rem; }
  ul.legend { display: flex; flex-wrap: wrap; gap: 0.1rem 1.1rem; margin: 0; padding: 0; font-size: 0.85rem; }
  ul.legend li { display: flex; align-items: center; gap: 0.4rem; list-style: none; margin: 0; }
  [role="tab"][aria-selected="true"], [role="tab"][aria-selected="true"] * { color: inherit !important; }
  [data-testid="stSlider"] * { color: inherit !important; }
  :focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
  /* A still stands in its chart's place until that is drawn, and is read out, not seen, from then on. */
  [class*="-still-"] { display: grid; grid-template-columns: 100%; }
  [class*="-still-"] > * { grid-area: 1 / 1; width: 100%; }
  [class*="-still-"] [data-testid="stSkeleton"] { display: none; }
  table.still { width: 100%; table-layout: fixed; border-collapse: separate; border-spacing: 1px; line-height: 1; }
  table.still td, table.still th { padding: 0; border: 0; text-align: center; font-weight: normal; }
  table.still th[scope="row"] { text-align: right; padding-right: 4px; }
  table.still .serves { outline: 1.3px solid; outline-offset: -2px; }
  [class*="-still-"]:has(.js-plotly-plot .shapelayer path) table.still {
    position: absolute; width: 1px; height: 1px !important; overflow: hidden; clip-path: inset(50%);
  }
  @media (max-width: 640px) {
    table.still tbody td { font-size: 0; }
    .block-container { padding-left: 0.9rem; padding-right: 0.9rem; }
    [data-testid="stHorizontalBlock"]:has([data-testid="stMetric"]) { flex-flow: row wrap; gap: 0.5rem; }
    [data-testid="stHorizontalBlock"]:has([data-testid="stMetric"]) > [data-testid="stColumn"] {
      flex: 1 1 calc(50% - 1rem); min-width: calc(50% - 1rem); width: auto;
    }
    [data-testid="stMetricValue"] { font-size: 1.35rem; }
    [class*="st-key-dense"] .textpoint { display: none; }
  }
</style>
"""

# Plotly answers a tap with the point that the pointer was over before it; moved there first, it is the tapped one.
# What scrolls sideways must be reachable by the keyboard, which Streamlit's containers are not.
SCRIPT = """
<script>
  if (!window.phaselens) {
    window.phaselens = true;
    const reach = () => {
      for (const one of document.querySelectorAll('[data-testid="stTable"], [data-testid="stTable"] div, .st-key-preview')) {
        const scrolls = one.scrollWidth > one.clientWidth && getComputedStyle(one).overflowX !== "visible";
        if (scrolls && !one.hasAttribute("tabindex")) {
          one.tabIndex = 0;
          one.setAttribute("role", "group");
          one.setAttribute("aria-label", "Scrolls sideways");
        }
      }
    };
    let asked = 0;
    const soon = () => { cancelAnimationFrame(asked); asked = requestAnimationFrame(reach); };
    new MutationObserver(soon).observe(document.body, {childList: true, subtree: true});
    addEventListener("resize", soon);
    document.addEventListener("touchstart", (event) => {
      const {clientX, clientY} = event.touches[0];
      if (event.target.closest(".js-plotly-plot")) {
        event.target.dispatchEvent(new MouseEvent("mousemove", {clientX, clientY, bubbles: true, view: window}));
      }
    }, {capture: true, passive: true});
  }
</script>
"""


def _page(name: str) -> Callable[[], None]:
    """A page whose module, and what that imports, is loaded when it is opened."""

    def show() -> None:
        importlib.import_module("apps.explorer.parts").shown(name)

    show.__name__ = name
    return show


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="phaselens", layout="wide")
    pages = [
        st.Page(_page(name), title=title, url_path=name, default=name == "heads")
        for name, title in PAGES.items()
    ]
    chosen = st.navigation(pages, position="top")
    st.html(STYLE)
    st.html(SCRIPT, unsafe_allow_javascript=True)  # a constant: no word of a file or an address is in it
    chosen.run()


main()
