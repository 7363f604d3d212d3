"""Locks between processes that share a folder: created in one step, and free again once their process is dead."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Held", "Holder", "hold"]


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    host: str
    pid: int
    started: int
    """Clock ticks from boot to the start of the process, so that a reused pid is another process; 0: unknown."""

    @classmethod
    def me(cls) -> Holder:
        """The process that asks."""
        return cls(socket.gethostname(), os.getpid(), _started(os.getpid()))

    def alive(self) -> bool:
        """Whether it may still run; a process on another host cannot be asked, so it may."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # another user's
        return not self.started or _started(self.pid) == self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Held(Exception):
    """Another process has the lock."""

    def __init__(self, holder: Holder, path: Path) -> None:
        self.holder = holder
        super().__init__(f"{holder} is making it; if that is gone, delete {path}")


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock file `path` while the block runs.

    Raises
    ------
    Held
        If another living process has it.
    """
    mine = Holder.me()
    while not _create(path, mine):
        other = _read(path)
        if other is not None and other.alive():
            raise Held(other, path)
        if other is not None:
            _remove_stale(path, other)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _create(path: Path, holder: Holder) -> bool:
    """Make the lock file with its content in one step; False if there is one."""
    # A link to a written file: a file opened exclusively would be empty for a moment, or for good after a kill.
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(json.dumps(asdict(holder)), encoding="utf-8")
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            return False  # swept away as a leftover by whoever held the lock: look again
    finally:
        temporary.unlink(missing_ok=True)
    for leftover in path.parent.glob(f"{path.name}.????????"):
        leftover.unlink(missing_ok=True)
    return True


def _read(path: Path) -> Holder | None:
    """The holder; None if the lock has gone."""
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return Holder(socket.gethostname(), _no_process(), 0)  # damaged: nobody's


def _remove_stale(path: Path, holder: Holder) -> None:
    """Remove a dead process' lock, unless another process has just done so and taken it."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        # Whoever removes a stale lock holds the flock of that very file, so none removes a newer one.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino and _read(path) == holder:
                path.unlink()
    finally:
        os.close(descriptor)


def _started(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])  # field 22; the name, field 2, may hold spaces


def _no_process() -> int:
    """A pid that no process has."""
    return 2**22 + 1  # one above the highest that Linux gives
