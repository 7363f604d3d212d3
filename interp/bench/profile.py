"""Where the main job spends its time, from the start of its process to the end.

``python -m interp.bench.profile JSON`` is the process that is measured; it prints one JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from hooks.errors import PhaselensError

__all__ = ["STAGES", "Stopwatch", "profile_report"]

STAGES = {
    "import": "",
    "load the model": "hooks.load",
    "calibration": "interp.knockout.calibrate",
    "clean run and knockouts": "interp.engine.run",
    "effects by unit and phase": "interp.knockout.effects",
    "statistics of the sweep": "interp.sweep.phase_sweep",
    "specialization tests": "interp.specialization.specialization",
    "gate profiles": "interp.gates.gate_profile",
    "save results": "interp.report.save_results",
    "build figures": "interp.report.figures",
    "export figures": "interp.report.draw",
    "page": "interp.report._write_index",
}
"""Stages by name, and the function each is; a stage inside another one counts in its own."""
REASONS = {
    "import": "torch, transformer-lens and transformers; once per process",
    "clean run and knockouts": "the forward passes themselves: the measurement",
    "calibration": "forward passes over the calibration prompts",
    "export figures": "Chromium draws PDF, SVG and PNG, once for all figures",
    "specialization tests": "sign-flip and permutation tests, 10,000 draws each",
}
"""Why a stage may take long."""


class Stopwatch:
    """Time by stage; a stage that starts inside another one stops the other's clock."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = time.perf_counter()

    def switch(self, stage: str | None) -> None:
        """Enter a stage, or with None leave the latest."""
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now
        if stage is None:
            self._open.pop()
        else:
            self._open.append(stage)

    def wrap(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time noted under a stage."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.switch(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch(None)

        return timed


def profile_report(
    *, model: str = "w8s8-2kv", n_per_residue: int = 64, threads: int, seed: int = 0
) -> dict[str, Any]:
    """Run ``phaselens report`` in a process of its own and time its stages.

    Parameters
    ----------
    model : str
        Zoo name or folder.
    n_per_residue, threads, seed : int
        Of the report.

    Returns
    -------
    dict
        JSON values: ``stages`` with ``seconds`` and ``share``, largest first; "rest" is what no stage covers.

    Raises
    ------
    PhaselensError
        If the report fails.
    """
    from interp.bench.knockouts import machine

    with tempfile.TemporaryDirectory() as folder:
        spec = {
            "model": model,
            "n_per_residue": n_per_residue,
            "seed": seed,
            "out": os.path.join(folder, "report"),
        }
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "interp.bench.profile", json.dumps(spec)],
            capture_output=True, text=True, env=env, check=False,
        )  # fmt: skip
        total = time.perf_counter() - start
    if done.returncode:
        raise PhaselensError(f"the report failed: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    seconds = {**found["seconds"]}
    seconds["rest"] = max(0.0, total - sum(seconds.values()))
    stages = [
        {"stage": name, "seconds": value, "share": value / total, "reason": REASONS.get(name, "")}
        for name, value in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    return {
        "kind": "profile", "model": model, "n_per_residue": n_per_residue, "machine": machine(threads),
        "total": total, "cpu_total": found["cpu_seconds"], "stages": stages,
    }  # fmt: skip


def _run(spec: dict[str, Any]) -> dict[str, Any]:
    watch = Stopwatch()
    watch.switch("import")
    from interp import cli, cli_run
    from interp.figures import export, table  # noqa: F401
    from interp.report import MEMORY

    cli._quieten()
    for target in filter(None, STAGES.values()):
        import_module(target.rsplit(".", 1)[0])
    watch.switch(None)
    for stage, target in STAGES.items():
        if target:
            module, name = target.rsplit(".", 1)
            setattr(import_module(module), name, watch.wrap(stage, getattr(import_module(module), name)))
    from pathlib import Path

    cli_run.report(
        spec["model"], out=Path(spec["out"]), n_per_residue=spec["n_per_residue"], seed=spec["seed"],
        unit="kv_head", padding="in_sequence", memory=MEMORY, device="cpu", as_json=False,
    )  # fmt: skip
    return {"seconds": watch.seconds, "cpu_seconds": time.process_time()}


if __name__ == "__main__":
    print(json.dumps(_run(json.loads(sys.argv[1]))))
