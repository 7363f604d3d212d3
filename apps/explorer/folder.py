"""What the explorer may open: results and models under one folder, and nothing outside of it."""

from __future__ import annotations

import json
import os
import stat
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

    Links that lead out of the root, or nowhere, and names that are no text are left out, as is all but plain files.
    """
    return _holding(root, ("knockout.nc", "sweep.nc"))


def model_names(root: Path) -> list[str]:
    """Folders under `root` that hold a saved model."""
    return _holding(root, ("model.safetensors",))


def audit_names(root: Path) -> list[str]:
    """Results of audits under `root`, as relative names of files without ``.nc``."""
    root = _real(root)
    return sorted(
        (folder / name).relative_to(root).with_suffix("").as_posix()
        for folder, files in _walk(root)
        if "report.json" in files
        for name in files
        if name.endswith(".nc") and name[:-3] not in PARTS and _plain_file(folder / name, root)
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
        if _plain_file(path := folder / f"{part}.nc", _real(root))
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
        found = _plain_file(path, _real(root))
        if found is None:
            raise CheckpointError(f"model {name!r} has no {path.name} in its folder; save it there again")
        if found.st_size > MAX_BYTES:
            raise CheckpointError(
                f"{path.name} of model {name!r} is over {MAX_BYTES >> 20} MB; not opened here"
            )
    _check_config(folder / "config.json", name)
    _check_header(folder / "model.safetensors", name)
    return folder


def stamp(root: Path, name: str) -> float:
    """Newest time of change among the results of a report; changes when one is written again."""
    if name not in report_names(root):
        return 0.0
    found = (_plain_file(_real(root) / name / f"{part}.nc", _real(root)) for part in PARTS)
    return max((one.st_mtime for one in found if one), default=0.0)


def _check_config(path: Path, name: str) -> None:
    """Refuse numbers that would have a layer, or a prompt, of absurd size made."""
    try:
        waiting: list[tuple[str, Any]] = [("config", json.loads(path.read_text(encoding="utf-8")))]
    except (OSError, ValueError, RecursionError) as error:
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
    return _real(root) / name


def _holding(root: Path, wanted: tuple[str, ...]) -> list[str]:
    root = _real(root)
    return sorted(
        folder.relative_to(root).as_posix()
        for folder, files in _walk(root)
        if any(name in files and _plain_file(folder / name, root) for name in wanted)
    )


def _walk(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders and their file names, a few levels deep, a bounded number of them, links not followed.

    Folders that cannot be read are empty; names that are no text are left out, for no address can hold them.
    """
    for number, (folder, inner, files) in enumerate(os.walk(root)):
        if number >= MAX_FOLDERS:
            return
        if len(Path(folder).relative_to(root).parts) >= MAX_DEPTH:
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith(".") and _is_text(name))
        yield Path(folder), [name for name in files if _is_text(name)]


def _plain_file(path: Path, root: Path) -> os.stat_result | None:
    """What the system tells of a file that lies under `root`; None for all else, be it gone or a pipe."""
    try:
        found = path.resolve(strict=True)
        told = found.stat()
    except (OSError, RuntimeError):  # a link onto itself is a RuntimeError
        return None
    return told if found.is_relative_to(root) and stat.S_ISREG(told.st_mode) else None


def _real(root: Path) -> Path:
    return Path(os.path.realpath(root))  # Path.resolve raises where links go round


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
