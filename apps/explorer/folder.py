"""What the explorer may open: results and models under one folder, and nothing outside of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xarray as xr

from apps.explorer.checks import PARTS, check_audit, check_report
from hooks.errors import CheckpointError, did_you_mean
from interp import results

__all__ = ["audit_names", "load_audit", "load_report", "model_folder", "model_names", "report_names", "stamp"]

MAX_BYTES = 1 << 28
MAX_HEADER = 1 << 22
MAX_TENSORS = 1 << 13
MAX_DIMENSIONS = 6
MAX_NUMBER = 1 << 20
MAX_DEPTH = 3
MAX_FOLDERS = 2000


def report_names(root: Path) -> list[str]:
    """Folders under `root` that hold a knockout or a sweep, as relative names ("." is the root itself).

    Links that lead out of the root are left out.
    """
    return _holding(root, ("knockout.nc", "sweep.nc"))


def model_names(root: Path) -> list[str]:
    """Folders under `root` that hold a saved model."""
    return _holding(root, ("model.safetensors",))


def audit_names(root: Path) -> list[str]:
    """Results of audits under `root`, as relative names of files without ``.nc``."""
    root = root.resolve()
    return sorted(
        (folder / name).relative_to(root).with_suffix("").as_posix()
        for folder, files in _walk(root)
        if "report.json" in files
        for name in files
        if name.endswith(".nc") and name[:-3] not in PARTS and _inside(folder / name, root)
    )


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
        If there is no such report under `root`, or a file holds something else than its name says.
    ResultsError
        If a file is damaged, foreign or too large.
    """
    folder = _chosen(root, name, report_names(root), "report")
    found = {
        part: results.load(path, max_bytes=MAX_BYTES)
        for part in PARTS
        if (path := folder / f"{part}.nc").is_file() and _inside(path, root.resolve())
    }
    check_report(found, name)
    return found


def load_audit(root: Path, name: str) -> xr.Dataset:
    """Load one of :func:`audit_names`; errors as :func:`load_report`."""
    path = _chosen(root, name, audit_names(root), "audit result")
    found = results.load(f"{path}.nc", max_bytes=MAX_BYTES)
    check_audit(found, name)
    return found


def model_folder(root: Path, name: str) -> Path:
    """Folder of one of :func:`model_names`, its files checked for size before anything is read.

    Raises
    ------
    CheckpointError
        If there is no such model, or its weights are too large, have too many tensors or dimensions, or its
        configuration asks for more than this computer should try to make.
    """
    folder = _chosen(root, name, model_names(root), "model")
    for path in (folder / "model.safetensors", folder / "config.json"):
        if not path.is_file() or not _inside(path, root.resolve()):
            raise CheckpointError(f"model {name!r} has no {path.name} in its folder; save it there again")
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(
                f"{path.name} of model {name!r} is over {MAX_BYTES >> 20} MB; not opened here"
            )
    _check_config(folder / "config.json", name)
    _check_header(folder / "model.safetensors", name)
    return folder


def stamp(root: Path, name: str) -> float:
    """Newest time of change among the results of a report; changes when one is written again."""
    found = (
        [path.stat().st_mtime for path in (root / name).glob("*.nc")] if name in report_names(root) else []
    )
    return max(found, default=0.0)


def _check_config(path: Path, name: str) -> None:
    """Refuse numbers that would have a layer, or a prompt, of absurd size made."""
    try:
        waiting: list[tuple[str, Any]] = [("config", json.loads(path.read_text(encoding="utf-8")))]
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"config.json of model {name!r} is damaged; save the model again") from error
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(key, one) for one in value]
        elif isinstance(value, int | float) and key != "seed" and not abs(value) <= MAX_NUMBER:
            raise CheckpointError(
                f"config.json of model {name!r} has {key} = {value:g}, over {MAX_NUMBER}; not opened here"
            )


def _check_header(path: Path, name: str) -> None:
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if not 2 <= size <= MAX_HEADER:
            raise CheckpointError(f"model {name!r} has no safetensors header that can be read; save it again")
        try:
            header = json.loads(stream.read(size))
            shapes = [one["shape"] for key, one in header.items() if key != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(
                f"model {name!r} has a damaged safetensors header; save it again"
            ) from error
    if len(shapes) > MAX_TENSORS or any(len(shape) > MAX_DIMENSIONS for shape in shapes):
        raise CheckpointError(f"model {name!r} has over {MAX_TENSORS} tensors or {MAX_DIMENSIONS} dimensions")


def _chosen(root: Path, name: str, names: list[str], what: str) -> Path:
    if name not in names:
        raise CheckpointError(f"no {what} {name!r} in this folder; {did_you_mean(name, names)}")
    return root.resolve() / name


def _holding(root: Path, wanted: tuple[str, ...]) -> list[str]:
    root = root.resolve()
    return sorted(
        folder.relative_to(root).as_posix()
        for folder, files in _walk(root)
        if any(name in files and _inside(folder / name, root) for name in wanted)
    )


def _walk(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders and their file names, a few levels deep, a bounded number of them, links not followed."""
    for number, (folder, inner, files) in enumerate(os.walk(root)):
        if number >= MAX_FOLDERS:
            return
        if len(Path(folder).relative_to(root).parts) >= MAX_DEPTH:
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        yield Path(folder), files


def _inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root)
