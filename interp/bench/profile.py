"""Where the main job spends its time, from the start of its process to the end.

``python -m interp.bench.profile JSON`` is the process that is measured; it prints one JSON line.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from hooks.errors import PhaselensError

__all__ = ["ELSEWHERE", "MODEL", "STAGES", "Stopwatch", "profile_report"]

MODEL = "w8s8-2kv"
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
ELSEWHERE = ("export figures",)
"""Stages that another program works in: their CPU time says little."""
REASONS = {
    "import": "torch, transformer-lens and transformers; once per process",
    "clean run and knockouts": "the forward passes themselves: the measurement",
    "calibration": "forward passes over the calibration prompts",
    "export figures": "Chromium draws PDF, SVG and PNG, once for all figures",
    "specialization tests": "sign-flip and permutation tests, 10,000 draws each",
}
"""Why a stage may take long."""


class Stopwatch:
    """Wall and CPU time by stage; a stage that starts inside another one stops the other's clocks."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = time.perf_counter(), time.process_time()

    def switch(self, stage: str | None) -> None:
        """Enter a stage, or with None leave the latest."""
        now = time.perf_counter(), time.process_time()
        if self._open:
            for spent, end, start in zip((self.seconds, self.cpu_seconds), now, self._since, strict=True):
                spent[self._open[-1]] = spent.get(self._open[-1], 0.0) + end - start
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
    *, model: str = MODEL, n_per_residue: int = 64, repeats: int = 1, threads: int, seed: int = 0
) -> dict[str, Any]:
    """Run ``phaselens report`` in a process of its own and time its stages.

    Parameters
    ----------
    model : str
        Zoo name or folder.
    n_per_residue, threads, seed : int
        Of the report.
    repeats : int
        Reports, one after the other.

    Returns
    -------
    dict
        JSON values, times one per repeat: ``total`` and ``cpu_total``, that of the report's own
        process: Chromium, which draws the figures, is not in it; ``stages`` with ``seconds``, ``cpu_seconds`` and
        ``share`` (of the median wall time), largest first; "rest" is what no stage covers.

    Raises
    ------
    PhaselensError
        If the report fails.
    """
    from interp.bench.knockouts import machine

    runs = [_profiled(model, n_per_residue, threads, seed) for _ in range(repeats)]
    total = [run["total"] for run in runs]
    stages = []
    for name in runs[0]["seconds"]:
        seconds = [run["seconds"][name] for run in runs]
        stages.append({
            "stage": name, "seconds": seconds, "cpu_seconds": [run["cpu_seconds"][name] for run in runs],
            "share": statistics.median(seconds) / statistics.median(total), "reason": REASONS.get(name, ""),
        })  # fmt: skip
    return {
        "kind": "profile", "model": model, "n_per_residue": n_per_residue, "seed": seed, "repeats": repeats,
        "machine": machine(threads), "total": total, "cpu_total": [run["cpu_total"] for run in runs],
        "stages": sorted(stages, key=lambda stage: -stage["share"]),
    }  # fmt: skip


def _profiled(model: str, n_per_residue: int, threads: int, seed: int) -> dict[str, Any]:
    """Times of one report: ``total`` and ``cpu_total``, and by stage ``seconds`` and ``cpu_seconds``."""
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
    run = {"total": total, "cpu_total": found["cpu_total"]}
    for key, whole in (("seconds", "total"), ("cpu_seconds", "cpu_total")):
        run[key] = {**found[key], "rest": max(0.0, run[whole] - sum(found[key].values()))}
    return run


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
    return {
        "seconds": watch.seconds,
        "cpu_seconds": watch.cpu_seconds,
        "cpu_total": time.process_time(),
    }


if __name__ == "__main__":
    print(json.dumps(_run(json.loads(sys.argv[1]))))
