"""Output folders that appear whole or not at all, and results as plain JSON values."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hooks.errors import CheckpointError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["FILES", "MANIFEST", "check_writable", "output_folder", "to_plain", "write_json"]

MANIFEST = "report.json"
"""What lists the files of a report; the last to be written."""
FILES = "files.json"
"""What lists the files of other runs."""
_PER_PROMPT = "prompt"


@contextlib.contextmanager
def output_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder beside `path`; what is in it becomes part of `path` when the block ends well.

    The folder is made at once, so that one that cannot be written is found before any work is done. On an
    error nothing is left behind, folders made on the way included.

    A run is there whole or not at all: each is listed, a report in ``report.json``, others in ``files.json``, and
    where this one replaces a file of an earlier run, that run's other files are removed, so that no result of one
    seed stands beside a control of another. Runs that share no file stay side by side; files that nothing lists
    stay.

    Raises
    ------
    CheckpointError
        If the folder cannot be made or written.
    """
    target = Path(path).expanduser().absolute()
    made: list[Path] = []
    try:
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(20, "it is a file")
        for folder in reversed([target.parent, *target.parent.parents]):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
        if target.is_dir():
            _probe(target)
        staging = target.parent / f".{target.name}.{secrets.token_hex(4)}"
        staging.mkdir()
    except OSError as error:
        _remove_empty(made)
        raise CheckpointError(
            f"cannot write to {target}: {error.strerror}; choose a folder that can be written with -o"
        ) from error
    try:
        yield staging
        _publish(staging, target)
        made = []
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        _remove_empty(made)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise unless :func:`output_folder` could write to `path`; leaves no trace.

    Raises
    ------
    CheckpointError
        If the folder cannot be made or written.
    """
    with contextlib.suppress(_Done), output_folder(path):
        raise _Done


class _Done(Exception):
    """Ends an output folder without publishing it."""


def _probe(folder: Path) -> None:
    probe = folder / f".{secrets.token_hex(4)}"
    probe.touch()
    probe.unlink()


def _remove_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _publish(staging: Path, target: Path) -> None:
    new = {file.relative_to(staging) for file in staging.rglob("*") if file.is_file()}
    earlier = _runs(target)
    stale = {file for run in earlier if run & new for file in run} - new
    kept = [run for run in earlier if not run & new and Path(MANIFEST) not in run]
    own = [] if Path(MANIFEST) in new else [new]
    if kept or own:
        runs = [sorted(file.as_posix() for file in run) for run in (*kept, *own)]
        write_json({"runs": runs}, staging / FILES)
    elif (target / FILES).is_file():
        stale.add(Path(FILES))
    if not target.exists():
        staging.rename(target)
        return
    for file in stale:
        with contextlib.suppress(OSError):
            (target / file).unlink()
            _remove_empty([target / folder for folder in reversed(file.parents[:-1])])
    # The manifest last: whoever sees it finds everything that it lists.
    written = [file.relative_to(staging) for file in staging.rglob("*") if file.is_file()]
    for relative in sorted(written, key=lambda file: (file in (Path(MANIFEST), Path(FILES)), file)):
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        (staging / relative).replace(target / relative)


def _runs(folder: Path) -> list[set[Path]]:
    """Files of each earlier run that a manifest in the folder lists; never anything outside of the folder."""
    listed: list[list[str]] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        listed += json.loads((folder / FILES).read_text(encoding="utf-8"))["runs"]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        listed.append([*json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"], MANIFEST])
    runs = [{Path(name) for name in names} for names in listed]
    return [{path for path in run if not path.is_absolute() and ".." not in path.parts} for run in runs]


def write_json(value: Any, path: Path) -> Path:
    """Write plain values as JSON, undefined numbers as null."""
    path.write_text(json.dumps(to_plain(value), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def to_plain(value: Any) -> Any:
    """Turn a result into JSON values.

    A Dataset becomes its attrs and every variable without a prompt axis, as ``{"dims": …, "values": …}``;
    per-prompt values stay in the netCDF file. Undefined numbers become null.
    """
    if hasattr(value, "data_vars"):
        return _plain_dataset(value)
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [to_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return to_plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def _plain_dataset(dataset: xr.Dataset) -> dict[str, Any]:
    def table(names: Any) -> dict[str, Any]:
        return {
            str(name): {"dims": list(dataset[name].dims), "values": to_plain(dataset[name].values)}
            for name in names
            if _PER_PROMPT not in dataset[name].dims
        }

    return {
        "attrs": to_plain(dict(dataset.attrs)),
        "coords": table(dataset.coords),
        "variables": table(dataset.data_vars),
    }
