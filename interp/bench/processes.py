"""Worker processes that wait while others run, so that repeats can be interleaved, in limited memory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hooks.errors import PhaselensError

__all__ = ["Worker", "limit_address_space", "limit_here", "space_for_workers"]


def space_for_workers(device: str) -> dict[str, int]:
    """Bytes of address space that every worker of a benchmark gets on a CPU, ``{"address_space_bytes": ...}``.

    It is what the machine has free when the benchmark starts, or a lower limit that this container or this
    process is under already: a way of computing that needs more then fails alone, before the kernel would end
    other programs for it. Empty on a GPU, whose driver reserves address space beyond any memory, and where
    the system does not tell.
    """
    if device != "cpu":
        return limit_here()
    free = [*limit_here().values(), *_free_memory()]
    return {"address_space_bytes": min(free)} if free else {}


def limit_here() -> dict[str, int]:
    """The limit that was set on this process's address space, as in :func:`space_for_workers`, if one was."""
    try:
        import resource
    except ImportError:  # Windows has none
        return {}
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return {} if limit == resource.RLIM_INFINITY else {"address_space_bytes": limit}


def limit_address_space(most: int) -> None:
    """Let this process's allocations fail from here on where its address space would exceed so many bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _free_memory() -> list[int]:
    """What is free on the whole machine, and the limit of this container where it has one; bytes, Linux."""
    found = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            found.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return found


class Worker:
    """A process of :mod:`interp.bench.worker`; use it as a context.

    Parameters
    ----------
    kind : "knockout" or "length"
        What it does.
    spec : dict
        JSON values, ``threads`` among them; ``address_space_bytes`` limits it, see :func:`space_for_workers`.
    """

    def __init__(self, kind: str, spec: dict[str, Any]) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": str(spec["threads"]), "PYTHONWARNINGS": "ignore"}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "interp.bench.worker", kind, json.dumps(spec)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=env,
        )  # fmt: skip

    def ready(self) -> Worker:
        """Wait until it has loaded and warmed up.

        Raises
        ------
        PhaselensError
            With its reason, if it cannot.
        """
        self._answer()
        return self

    def ask(self, line: str = "go") -> dict[str, Any]:
        """Have it run once.

        Raises
        ------
        PhaselensError
            With its reason, if it fails or dies.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._log.seek(0)
            reason = (self._log.read().strip().splitlines() or [f"code {code}"])[-1]
            if code == -9:
                reason = "killed, most likely for memory"
            raise PhaselensError(f"a benchmark process ended: {reason}")
        found = json.loads(line)
        if "error" in found:
            raise PhaselensError(found["error"])
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.kill()
        self._process.wait()
        self._log.close()
