"""Writing files so that nothing half-written is ever left behind."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hooks.errors import CheckpointError

__all__ = ["atomic_path", "read_object", "require_writable", "write_json"]

_MOST_DIGITS = 20
"""Of whole numbers in settings: as many as 64 bits hold."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name in the same folder; renamed to `path` on success, removed on failure.

    Raises
    ------
    CheckpointError
        If the folder cannot be written.
    """
    target = Path(path)
    require_writable(target.parent)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def require_writable(folder: str | os.PathLike[str]) -> Path:
    """Create a folder if need be and make sure that files can be written in it.

    Raises
    ------
    CheckpointError
        Naming the folder and the reason.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"cannot write to {str(folder)!r}: {reason}; choose a folder you may write to"
        ) from error


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises
    ------
    CheckpointError
        If it cannot be read, or holds something else or a whole number that no setting can have.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"), parse_int=_whole)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{str(path)!r} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{str(path)!r} is not a JSON object")
    return value


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(
            f"{digits[:12]}… is a whole number of {len(digits)} digits; valid: up to {_MOST_DIGITS}"
        )
    return int(digits)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write JSON, indented, in one step."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
