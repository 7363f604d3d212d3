"""The smallest set of units whose joint removal breaks a phase, found greedily and confirmed on other prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from hooks.checks import whole_number
from hooks.errors import PhaselensError, StatisticsError
from hooks.sites import HookedModel
from interp import engine, results, stats
from interp.engine import At, Variant
from interp.phases import measured_stride, sample_blocks
from interp.replacement import Replace, ValueAt, calibrate
from interp.tasks.prompts import Task
from interp.tasks.recall import RecallTask
from interp.units import Unit, select_units, union, units, where

__all__ = ["smallest_set", "together"]

DEFAULT_PER_RESIDUE = 64


def together(chosen: Sequence[Unit], value_at: ValueAt | None) -> Variant:
    """One variant that removes several units at once."""
    whole = union(chosen)
    return Variant(whole.label, whole.edits(value_at, repeatable=True))


def smallest_set(
    model: HookedModel,
    task: Task | None = None,
    *,
    phase: int,
    below: float = 50.0,
    unit: str = "kv_head",
    replace: Replace = "mean",
    at: At = "final",
    only: Sequence[str] | None = None,
    n: int | None = None,
    seed: int = 0,
    stride: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Find a small set of units whose joint removal brings accuracy at one phase below a value.

    The unit that costs most joins first, then the one that costs most beside it, and so on; at the end every
    unit the others can do without is dropped. Units are chosen on one half of the prompts, by mean
    log-probability where accuracies tie, and judged on the other.

    Parameters
    ----------
    model, task, unit, replace, at, only, seed, stride, memory, progress
        As in :func:`interp.knockout.knockout`.
    phase : int
        r.
    below : float
        x, in percent.
    n : int, optional
        Prompts over all residues; 64 a residue if left out. Those at the phase are used.

    Returns
    -------
    Dataset
        By ``step`` (0 is the clean run): ``label``, the unit that joined; ``accuracy_discover
        accuracy_confirm (step)`` in percent, the latter with Wilson interval ``…_low …_high`` (of prompts that
        share a base prompt at several residues: an approximation). Attributes ``units`` (the final set,
        "+"-joined), ``size``, ``n_confirm`` prompts of ``n_confirm_ids`` base prompts, ``reached`` (1 if accuracy
        on the confirming prompts is below x), ``accuracy_final_confirm``. Below
        :data:`interp.stats.MIN_TEST_PROMPTS` confirming base prompts what they would confirm is undefined (NaN):
        both attributes and ``accuracy_confirm``. Greedy: a smaller set may exist.

    Raises
    ------
    PhaselensError
        For a phase, unit, replacement, label or word for `at` that does not exist, or a percentage out of range.
    StatisticsError
        For fewer than two base prompts.
    """
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task, stride)
    if not 0 <= whole_number("phase", phase) < step:
        raise PhaselensError(f"phase={phase} does not exist at stride {step}; valid: 0 to {step - 1}")
    if not 0 < below <= 100:
        raise PhaselensError(f"below={below} is not a percentage; valid: above 0, up to 100")
    prompts = sample_blocks(task, n, seed, DEFAULT_PER_RESIDUE)
    prompts = prompts.select(prompts.residue % step == phase)
    blocks = int(prompts.prompt_id.max()) + 1
    if blocks < 2:
        raise StatisticsError("1 base prompt cannot be split to discover and confirm; valid: 2 or more")
    discover, confirming = stats.discover_confirm(blocks, seed=seed)
    enough = len(confirming) >= stats.MIN_TEST_PROMPTS
    chosen = select_units(units(model, unit, prompts), only)
    at = where(chosen, at)
    names = [name for one in chosen if one.replaced for name in one.sites]
    value_at = calibrate(
        model, task, prompts, names, replace=replace, at=at, stride=step, seed=seed, memory=memory,
        progress=progress,
    ).at  # fmt: skip
    looked_at = torch.isin(prompts.prompt_id, torch.from_numpy(discover))

    def score(sets: Sequence[Sequence[Unit]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        variants = [together(each, value_at) for each in sets]
        found = engine.run(model, prompts, variants, at=at, memory=memory, progress=progress, label="greedy")
        right = found["correct"].double()
        first = (right[:, looked_at].mean(1), found["logprob"][:, looked_at].mean(1))
        return first[0].numpy(), first[1].numpy(), right[:, ~looked_at].numpy()

    kept: list[Unit] = []
    rows: list[tuple[str, float, np.ndarray]] = []
    rest = list(chosen)
    while rest:
        accuracy, logprob, confirm = score([[*kept, one] for one in rest])
        if not rows:
            rows.append(("", float(accuracy[0]), confirm[0]))
            if 100 * accuracy[0] < below:
                break
        best = min(range(len(rest)), key=lambda i: (accuracy[i + 1], logprob[i + 1]))
        rows.append((rest[best].label, float(accuracy[best + 1]), confirm[best + 1]))
        kept.append(rest.pop(best))
        if 100 * rows[-1][1] < below:
            break
    kept, final = _pruned(kept, below, score, rows[-1][2])
    size = rows[0][2].size
    counts = np.array([row[2].sum() if enough else np.nan for row in rows])
    low, high = stats.wilson(counts, size) if enough else (counts, counts)
    accuracy_final = 100 * float(final.mean()) if enough else float("nan")
    return xr.Dataset(
        {
            "label": ("step", [label for label, _, _ in rows]),
            "accuracy_discover": ("step", [100 * value for _, value, _ in rows]),
            "accuracy_confirm": ("step", 100 * counts / size),
            "accuracy_confirm_low": ("step", 100 * low),
            "accuracy_confirm_high": ("step", 100 * high),
        },
        coords={"step": np.arange(len(rows))},
        attrs=results.provenance(
            model, task, seed, unit_kind=unit, replace=replace if names else "masked", at=at, stride=step,
            modulus=task.modulus, phase=phase, below=float(below), n_per_residue=blocks, n_confirm=int(size),
            n_confirm_ids=len(confirming), units="+".join(one.label for one in kept), size=len(kept),
            accuracy_final_confirm=accuracy_final, reached=int(accuracy_final < below) if enough else float("nan"),
        ),
    )  # fmt: skip


def _pruned(kept: list[Unit], below: float, score, final: np.ndarray) -> tuple[list[Unit], np.ndarray]:
    """Drop, one at a time, units whose return leaves accuracy below the value."""
    while len(kept) > 1:
        accuracy, _, confirm = score([[two for two in kept if two is not one] for one in kept])
        best = int(accuracy[1:].argmin())
        if 100 * accuracy[best + 1] >= below:
            break
        kept, final = [one for i, one in enumerate(kept) if i != best], confirm[best + 1]
    return kept, final
