"""Output folders that appear whole or not at all, and results as plain JSON values."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hooks.errors import CheckpointError

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "FILES",
    "MANIFEST",
    "as_argument",
    "as_word",
    "check_writable",
    "output_folder",
    "to_plain",
    "write_json",
]

MANIFEST = "report.json"
"""What a report says of itself and its files; the last of them to be written."""
FILES = "files.json"
"""What lists the files of other runs; likewise."""
MADE_BY = "phaselens"
_PER_PROMPT = "prompt"


def as_argument(path: str | os.PathLike[str]) -> str:
    """A path as an argument of a command: one that begins with a dash would be taken for an option."""
    text = os.fspath(path)
    return f"./{text}" if text.startswith("-") else text


def as_word(path: str | os.PathLike[str]) -> str:
    """The same as a word of a command line that can be pasted into a shell."""
    return shlex.quote(as_argument(path))


@contextlib.contextmanager
def output_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder beside `path`; what is in it becomes part of `path` when the block ends well.

    The folder is made at once, so that one that cannot be written is found before any work is done. On an
    error nothing is left behind, folders made on the way included.

    A run is there whole or not at all: each lists its files with their digests, a report in its ``report.json``,
    others in ``files.json``, and where this one replaces a file of an earlier run, that run's other files are
    removed, so that no result of one seed stands beside a control of another. Runs that share no file stay side by
    side; what is not listed, was changed since, or lies behind a link is never removed.

    Raises
    ------
    CheckpointError
        If the folder cannot be made or written, or holds another program's ``files.json``.
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
            _runs(target)
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
    _require_room(target, new)
    report, others = _report(target), _runs(target)
    kept = [run for run in others if not run.keys() & new]
    gone = [run for run in (report, *others) if run.keys() & new]
    own = {file: _digest(staging / file) for file in sorted(new)}
    if Path(MANIFEST) in new:
        told = json.loads((staging / MANIFEST).read_text(encoding="utf-8"))
        write_json({**told, "made_by": MADE_BY, "digests": _named(own)}, staging / MANIFEST)
    else:
        kept.append(own)
    if kept:
        write_json({"made_by": MADE_BY, "runs": [_named(run) for run in kept]}, staging / FILES)
    if not target.exists():
        staging.rename(target)
        return
    # What lists files goes first and comes last: whoever sees a manifest finds everything that it lists.
    (target / FILES).unlink(missing_ok=True)
    if Path(MANIFEST) in new or report in gone:
        (target / MANIFEST).unlink(missing_ok=True)
    for run in gone:
        for file, digest in run.items():
            if file not in new:
                _remove(target, file, digest)
    last = (Path(MANIFEST), Path(FILES))
    written = new | ({Path(FILES)} if kept else set())
    for relative in sorted(written, key=lambda file: (file in last, file)):
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        (staging / relative).replace(target / relative)


def _named(run: dict[Path, str]) -> dict[str, str]:
    return {file.as_posix(): digest for file, digest in run.items() if file != Path(MANIFEST)}


def _report(folder: Path) -> dict[Path, str]:
    """Files of the report in a folder, with the digest each had; nothing if its ``report.json`` is not ours."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if told["made_by"] == MADE_BY:
            found = {Path(str(name)): str(digest) for name, digest in told["digests"].items()}
            return {**found, Path(MANIFEST): _digest(folder / MANIFEST)}
    return {}


def _runs(folder: Path) -> list[dict[Path, str]]:
    """Files of each other run, with the digest each had.

    Raises
    ------
    CheckpointError
        If what should list them is another program's, or damaged: nothing is guessed, and nothing overwritten.
    """
    path = folder / FILES
    if not path.exists() and not path.is_symlink():
        return []
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["made_by"] != MADE_BY:
            raise ValueError
        return [{Path(str(name)): str(digest) for name, digest in run.items()} for run in told["runs"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{path} was not made by {MADE_BY} or is damaged; choose another folder with -o, or move that file away"
        ) from None


def _require_room(target: Path, new: set[Path]) -> None:
    """Raise, before anything is changed, where a folder stands in a file's place or a file in a folder's."""
    for file in sorted(new):
        blocked = [file] if (target / file).is_dir() else []
        blocked += [parent for parent in file.parents[:-1] if (target / parent).is_file()]
        if blocked:
            kind = "folder" if blocked[0] == file else "file"
            raise CheckpointError(
                f"cannot write {target / file}: {target / blocked[0]} is a {kind}; move it away, or choose another "
                "folder with -o"
            )


def _remove(folder: Path, file: Path, digest: str) -> None:
    """Delete a file that an earlier run left as it is now; never one outside the folder or behind a link."""
    path = folder / file
    inside = not file.is_absolute() and ".." not in file.parts
    if not inside or any((folder / part).is_symlink() for part in (file, *file.parents[:-1])):
        return
    with contextlib.suppress(OSError, ValueError):
        if _digest(path) == digest:
            path.unlink()
            _remove_empty([folder / parent for parent in reversed(file.parents[:-1])])


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
