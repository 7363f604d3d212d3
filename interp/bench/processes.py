"""Worker processes that wait while others run, so that repeats can be interleaved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from hooks.errors import PhaselensError

__all__ = ["Worker"]


class Worker:
    """A process of :mod:`interp.bench.worker`; use it as a context.

    Parameters
    ----------
    kind : "knockout" or "length"
        What it does.
    spec : dict
        JSON values, ``threads`` among them.
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
