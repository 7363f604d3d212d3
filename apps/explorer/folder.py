"""What the explorer may open: results under one folder, and nothing outside of it."""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from hooks.errors import CheckpointError, did_you_mean
from interp import results

__all__ = ["PARTS", "load_report", "report_names"]

PARTS = ("sweep", "knockout", "specialization", "gates")
MAX_BYTES = 1 << 28
MAX_DEPTH = 3


def report_names(root: Path) -> list[str]:
    """Folders under `root` that hold a knockout or a sweep, as relative names ("." is the root itself).

    Links that lead out of the root are left out.
    """
    root = root.resolve()
    found = set()
    for part in ("knockout", "sweep"):
        for path in root.rglob(f"{part}.nc"):
            folder = path.parent
            inside = path.resolve().is_relative_to(root)
            if inside and len(folder.relative_to(root).parts) <= MAX_DEPTH:
                found.add(folder.relative_to(root).as_posix())
    return sorted(found)


def load_report(root: Path, name: str) -> dict[str, xr.Dataset]:
    """Load the results of one report.

    Parameters
    ----------
    root : Path
        The only folder that may be opened.
    name : str
        One of :func:`report_names`: never a path that leads elsewhere.

    Raises
    ------
    CheckpointError
        If there is no such report under `root`.
    ResultsError
        If a file is damaged, foreign or too large.
    """
    names = report_names(root)
    if name not in names:
        raise CheckpointError(f"no report {name!r} in this folder; {did_you_mean(name, names)}")
    folder = root.resolve() / name
    return {
        part: results.load(path, max_bytes=MAX_BYTES)
        for part in PARTS
        if (path := folder / f"{part}.nc").is_file() and path.resolve().is_relative_to(root.resolve())
    }
