"""How fast the needle generator is at the paper's size: python -m interp.needle_bench -o docs/needle.md."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

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
        How many, after a first one that is not timed; the moments are those of the whole blocks of R among them.
    seed : int
        Of the prompts.

    Returns
    -------
    dict
        ``seconds``, wall-clock time of each prompt; ``cpu``, processor time of each; ``drawn_mean`` and
        ``drawn_variance``, largest relative difference between residues of the moments of the target's position in
        these prompts (NaN below one block); ``mean`` and ``variance``, of the law they are drawn from.
    """
    batches = task.batches(prompts, seed=seed)
    next(task.batches(1, seed=seed))
    seconds, cpu, drawn = [], [], []
    for _ in range(prompts):
        wall, busy = time.perf_counter(), time.process_time()
        made = next(batches)
        seconds.append(time.perf_counter() - wall)
        cpu.append(time.process_time() - busy)
        drawn.append(int(made.target_position[0]))
    whole = np.array(drawn[: prompts // task.modulus * task.modulus], dtype=float).reshape(-1, task.modulus)
    means, variances = [], []
    for residue in range(task.modulus):
        positions, weights = task.balance().distribution(residue)
        mean = float(sum(p * w for p, w in zip(positions, weights, strict=True)))
        means.append(mean)
        variances.append(float(sum((p - mean) ** 2 * w for p, w in zip(positions, weights, strict=True))))
    return {
        "seconds": seconds, "cpu": cpu,
        "drawn_mean": _apart(whole.mean(axis=0)) if len(whole) else float("nan"),
        "drawn_variance": _apart(whole.var(axis=0)) if len(whole) else float("nan"),
        "mean": _apart(means), "variance": _apart(variances),
    }  # fmt: skip


def _apart(moments: ArrayLike) -> float:
    """Largest difference, relative to the largest."""
    largest = np.abs(moments).max()
    return float(np.ptp(moments) / largest) if largest else 0.0


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="Time the needle generator at the paper's size.")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/needle.md"))
    task = full_size_task()
    whole = task.modulus * task.balance().exact_count
    parser.add_argument(
        "--prompts", type=int, default=whole, help="R^3, the default, have equal moments exactly"
    )
    given = parser.parse_args(argv)
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
        f"Target positions of {given.prompts // task.modulus} base prompts, each shown at {task.modulus} residues: between "
        f"residues their mean differs by {found['drawn_mean']:.1e} and their variance by {found['drawn_variance']:.1e}, relative to "
        f"their size. Base prompts in multiples of R² = {task.balance().exact_count} have equal moments exactly; fewer have those of "
        f"the law that they are drawn from ({found['mean']:.1e} and {found['variance']:.1e}) in expectation, and results "
        "state by how much the means of their own positions differ.", "",
    ]  # fmt: skip
    with results.atomic_path(given.out) as path:
        path.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
