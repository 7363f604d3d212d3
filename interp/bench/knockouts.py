"""One knockout map computed in every way, each in a process of its own, repeats interleaved."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

import numpy as np

from hooks.errors import PhaselensError, did_you_mean
from interp.bench.cases import Case
from interp.bench.ceilings import Ceilings, Work
from interp.bench.processes import Worker, limit_here, space_for_workers

__all__ = ["LOOPS", "METHOD_NAMES", "REFERENCE", "TOLERANCE", "bench_knockout", "machine", "summarise"]

LOOPS = ("transformer_lens", "nnsight", "hugging_face")
METHOD_NAMES = ("ours", "bare", *LOOPS)
REFERENCE = "float64"
"""What tells rounding from mistakes where ways differ: ours in twice the precision, run only if asked for."""
TOLERANCE = 1e-5
"""Largest difference in log-probability, relative where that is above 1, that counts as the same answer."""


def bench_knockout(
    case: Case,
    *,
    repeats: int = 3,
    methods: Sequence[str] = METHOD_NAMES,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Time every way of computing a knockout map.

    Parameters
    ----------
    case : Case
        Model, prompts, units.
    repeats : int
        Runs of each way: first all ways once, then all again.
    methods : sequence of str
        Of :data:`METHOD_NAMES`, and :data:`REFERENCE`; "ours" and "bare", the bare run, always run.
    say : function
        Told what goes on, line by line.

    Returns
    -------
    dict
        JSON values: ``case``, ``machine``, and by way under ``methods`` the lists ``seconds``,
        ``cpu_seconds`` and ``peak_bytes`` with one value per repeat, ``max_difference`` from ours,
        ``from_float64`` where that was run, and ``scale`` (above 1 where a loop ran some units only);
        ``summary`` as in :func:`summarise`. A way that this model does not allow, or that failed, has
        ``skipped`` with the reason.

    Raises
    ------
    PhaselensError
        For another way, or if ours or the bare run fails.
    """
    valid = (*METHOD_NAMES, REFERENCE)
    for name in methods:
        if name not in valid:
            raise PhaselensError(f"method {name!r}; {did_you_mean(name, valid)}")
    chosen = [name for name in valid if name in methods or name in ("ours", "bare")]
    found: dict[str, Any] = {name: {"seconds": [], "cpu_seconds": [], "peak_bytes": []} for name in chosen}
    space = space_for_workers(case.device)
    with ExitStack() as stack:
        workers = {}
        for name in chosen:  # one after the other, so that loading does not disturb anything
            say(f"loading {case.model} for {name}")
            spec = {"method": name, "case": case.to_dict(), "threads": case.threads, **space}
            worker = stack.enter_context(Worker("knockout", spec))
            try:
                workers[name] = worker.ready()
            except PhaselensError as error:
                if name in ("ours", "bare"):
                    raise
                found[name] = {"skipped": str(error)}
        for repeat in range(repeats):
            for name, worker in list(workers.items()):
                try:
                    timing = worker.ask()
                except PhaselensError as error:
                    if name in ("ours", "bare"):
                        raise PhaselensError(f"{name}: {error}") from error
                    found[name] = {"skipped": str(error)}
                    del workers[name]
                    continue
                say(f"repeat {repeat + 1} of {repeats}: {name} {timing['seconds']:.2f} s")
                for key, value in timing.items():
                    found[name].setdefault(key, []).append(value)
        answers = {name: worker.ask("answers") for name, worker in workers.items()}
    _compare_answers(found, answers, case)
    return {
        "kind": "knockout", "case": case.to_dict(), "machine": machine(case.threads, case.device) | space,
        "repeats": repeats, "units": answers["ours"]["n_units"], "methods": found, "summary": summarise(found, case),
    }  # fmt: skip


def _compare_answers(found: dict[str, Any], answers: dict[str, Any], case: Case) -> None:
    """Note how far each way's numbers are from ours and from exact ones, and by what its times are to be multiplied."""
    ours = np.array(answers["ours"]["logprob"])
    total = answers["ours"]["n_units"]
    exact = np.array(answers[REFERENCE]["logprob"]) if REFERENCE in answers else None
    for name, answer in answers.items():
        scale = 1.0
        if name in LOOPS:
            rows = [0, *(index + 1 for index in answer["units"])]
            theirs = np.array(answer["logprob"])
            found[name]["max_difference"] = _apart(theirs, ours[rows])
            if exact is not None:
                found[name]["from_float64"] = _apart(theirs, exact[rows])
            n, cal = theirs.shape[1], case.n_calibration
            # Every forward pass of a loop is a whole one and costs the same, whatever it replaces.
            scale = (cal + n * (1 + total)) / (cal + n * len(rows))
        found[name]["scale"] = scale
    if exact is not None:
        found[REFERENCE]["max_difference"] = found["ours"]["from_float64"] = _apart(ours, exact)


def _apart(some: np.ndarray, others: np.ndarray) -> float:
    return float((np.abs(some - others) / np.maximum(1, np.abs(others))).max())


def summarise(found: dict[str, Any], case: Case) -> dict[str, Any]:
    """Ratios from one run.

    Parameters
    ----------
    found : dict
        ``methods`` of :func:`bench_knockout`.
    case : Case
        Of the same.

    Returns
    -------
    dict
        ``times_ours`` and ``cpu_times_ours``: by way, its best wall time, or CPU time, over our best;
        ``of_bare`` and ``cpu_of_bare``: ours over the bare run; ``floor_seconds``: what the bare run's
        operations and bytes take at the best rates measured in the run; ``of_floor``: our best wall time over
        that; ``agree``: whether every way gave the same answer.
    """
    there = {name: each for name, each in found.items() if "seconds" in each}

    def best(name: str, key: str) -> float:
        return min(there[name][key]) * there[name].get("scale", 1.0)

    bare = there["bare"]
    ceilings = Ceilings(max(bare["matmul"]), max(bare["copy"]))
    floor = ceilings.floor(Work(bare["operations"][0], bare["bytes"][0]))
    return {
        "times_ours": {n: best(n, "seconds") / best("ours", "seconds") for n in there if n in LOOPS},
        "cpu_times_ours": {
            n: best(n, "cpu_seconds") / best("ours", "cpu_seconds") for n in there if n in LOOPS
        },
        "of_bare": best("ours", "seconds") / best("bare", "seconds"),
        "cpu_of_bare": best("ours", "cpu_seconds") / best("bare", "cpu_seconds"),
        "floor_seconds": floor,
        "of_floor": best("ours", "seconds") / floor,
        "agree": all(there[n]["max_difference"] <= TOLERANCE for n in there if n in LOOPS),
    }


def machine(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Where and with what numbers were measured, and the limit on this process's address space, if one was set."""
    import torch

    gpu = {} if device == "cpu" else {"gpu": torch.cuda.get_device_name(torch.device(device))}
    names = ("torch", "transformer-lens", "nnsight", "transformers")
    return {
        "processor": _processor(), "threads": threads, "python": platform.python_version(),
        **{name: version(name) for name in names}, **gpu, **limit_here(),
    }  # fmt: skip


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0].split(":", 1)[1].strip() if lines else platform.processor() or platform.machine()
