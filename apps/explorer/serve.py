"""Start Streamlit, and load what the first page needs while the browser is still on its way to it."""

from __future__ import annotations

import importlib
import sys
import threading

# Nothing of the app itself: its modules want Streamlit's running server.
_FIRST = ("pandas", "xarray", "h5netcdf", "interp.results", "interp.figures", "interp.figures.export")


def main() -> None:
    """Run ``streamlit`` with the arguments of this process."""
    threading.Thread(target=_load, daemon=True).start()
    from streamlit.web import cli

    cli.main(prog_name="streamlit")


def _load() -> None:
    for name in _FIRST:
        importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
