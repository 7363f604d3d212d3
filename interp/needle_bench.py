"""How fast the needle generator is at the paper's size: python -m interp.needle_bench -o docs/needle.md."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interp import results
from interp.tasks.needle import NeedleTask

__all__ = ["full_size_task", "main", "measure"]


def full_size_task(*, modulus: int = 8) -> NeedleTask:
    """Return 16,000 records of four tokens in 131,072, over a vocabulary of made-up ids."""
    return NeedleTask(
        key_ids=tuple(range(1000, 5000)),
        value_ids=tuple(range(5000, 5500)),
        filler_ids=tuple(range(100)),
        separator=(101,),
        modulus=modulus,
    )


def measure(task: NeedleTask, *, prompts: int, seed: int = 0) -> dict[str, Any]:
    """Time prompts one by one and compare the moments of the target's position between residues.

    Parameters
    ----------
    task : NeedleTask
        What is generated.
    prompts : int
        How many are timed, after a first one that is not.
    seed : int
        Of the prompts.

    Returns
    -------
    dict
        ``seconds``, wall-clock time of each prompt; ``cpu``, processor time of each; ``mean`` and ``variance``,
        largest relative difference between residues of the moments of the target's position.
    """
    batches = task.batches(prompts + 1, seed=seed)
    next(batches)
    seconds, cpu = [], []
    for _ in range(prompts):
        wall, busy = time.perf_counter(), time.process_time()
        next(batches)
        seconds.append(time.perf_counter() - wall)
        cpu.append(time.process_time() - busy)
    means, variances = [], []
    for residue in range(task.modulus):
        positions, weights = task.balance().distribution(residue)
        mean = float(sum(p * w for p, w in zip(positions, weights, strict=True)))
        means.append(mean)
        variances.append(float(sum((p - mean) ** 2 * w for p, w in zip(positions, weights, strict=True))))
    apart = {
        name: (max(values) - min(values)) / max(map(abs, values))
        for name, values in (("mean", means), ("variance", variances))
    }
    return {"seconds": seconds, "cpu": cpu, **apart}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="Time the needle generator at the paper's size.")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/needle.md"))
    parser.add_argument("--prompts", type=int, default=16)
    given = parser.parse_args(argv)
    task = full_size_task()
    found = measure(task, prompts=given.prompts)
    seconds, cpu = sorted(found["seconds"]), sorted(found["cpu"])
    lines = [
        "# The needle generator at full size", "",
        "Made by `python -m interp.needle_bench -o docs/needle.md`.", "",
        f"{task.n_records:,} records of {task.record_tokens} tokens in {task.length:,}, {given.prompts} prompts, "
        f"{platform.machine()}, Python {platform.python_version()}:", "",
        "| | median | slowest |", "| --- | --- | --- |",
        f"| wall-clock seconds a prompt | {seconds[len(seconds) // 2]:.3f} | {seconds[-1]:.3f} |",
        f"| processor seconds a prompt | {cpu[len(cpu) // 2]:.3f} | {cpu[-1]:.3f} |", "",
        f"Between residues the mean of the target's position differs by {found['mean']:.1e} and its variance by "
        f"{found['variance']:.1e}, relative to their size.", "",
    ]  # fmt: skip
    with results.atomic_path(given.out) as path:
        path.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
