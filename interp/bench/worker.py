"""One process of a benchmark: it loads a model once and runs when it is told to, and only then.

``python -m interp.bench.worker KIND JSON`` answers each line on its input with one JSON line.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch

from hooks.errors import PhaselensError
from interp.bench.processes import limit_address_space

__all__ = ["Timing", "main", "peak_memory", "timed"]

Timing = dict[str, float]
"""``seconds`` (wall), ``cpu_seconds`` (all threads) and ``peak_bytes`` of a process while it ran."""


def timed(run: Callable[[], Any], device: torch.device) -> tuple[Timing, Any]:
    """Run something once and measure it."""
    _reset_peak(device)
    wall, cpu = time.perf_counter(), time.process_time()
    found = run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_bytes": peak_memory(device),
    }, found


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):  # elsewhere the peak counts from the start of the process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> float:
    """Largest memory since the last reset in bytes, the model's own included: the GPU's, or resident pages.

    On Linux it is the process's own mark: ``ru_maxrss`` would start at what its parent held.
    """
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _knockout(spec: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Answer "go" with times, "answers" with log-probabilities and which units they belong to."""
    from interp.bench.cases import Case, Loaded
    from interp.bench.ceilings import measure_ceilings, work_of
    from interp.bench.methods import METHODS

    method, case = METHODS[spec["method"]], Case(**spec["case"])
    loaded = Loaded.of(case)
    device = loaded.model.device
    last: list[Any] = []
    extra: dict[str, Any] = {}
    if spec["method"] == "bare":
        extra = dict(zip(("operations", "bytes"), work_of(lambda: method(loaded)), strict=True))
    else:  # the first call of anything is slow: loops warm up on one unit
        method(loaded.smaller())

    def answer(line: str) -> dict[str, Any]:
        if line == "answers":
            return {"logprob": last[-1].tolist(), "units": loaded.loop_units(), "n_units": len(loaded.units)}
        ceilings = measure_ceilings(device) if spec["method"] == "bare" else None
        timing, found = timed(lambda: method(loaded), device)
        last[:] = [found.double().cpu()]
        if ceilings is not None:
            timing |= {**ceilings._asdict(), **extra}
        return timing

    return answer


def _length(spec: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    from interp.bench.lengths import runner

    return runner(spec)


def main(kind: str, text: str, source: TextIO, sink: TextIO) -> None:
    """Serve one process's requests until its input ends; a mistake is answered with its one line."""
    spec = json.loads(text)
    torch.set_num_threads(spec["threads"])
    if "address_space_bytes" in spec:
        limit_address_space(spec["address_space_bytes"])

    def say(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=sink, flush=True)

    try:
        answer = {"knockout": _knockout, "length": _length}[kind](spec)
        say({"ready": True})
        for line in source:
            say(answer(line.strip()))
    except (PhaselensError, MemoryError, torch.OutOfMemoryError) as error:
        say({"error": " ".join(str(error).split()) or type(error).__name__, "kind": type(error).__name__})
    except RuntimeError as error:  # torch's CPU allocator has no class of its own
        if "allocate memory" not in str(error):
            raise
        say({"error": "out of memory", "kind": "MemoryError"})


if __name__ == "__main__":
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(sys.argv[1], sys.argv[2], sys.stdin, answers)
