"""What takes over when a unit is gone: which others matter more then than they did before."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from hooks.errors import SiteError
from hooks.sites import HookedModel
from interp import results
from interp.controls import compared, paired_statistics
from interp.engine import At
from interp.knockout import knockout
from interp.phases import by_phase
from interp.replacement import Replace
from interp.tasks.prompts import Task
from interp.tasks.recall import RecallTask

__all__ = ["takes_over"]


def takes_over(
    model: HookedModel,
    task: Task | None = None,
    *,
    gone: str,
    unit: str = "kv_head",
    replace: Replace = "mean",
    at: At = "final",
    n: int | None = None,
    seed: int = 0,
    memory: int = 1 << 28,
    progress: bool | None = None,
) -> xr.Dataset:
    """Measure what every other unit is worth with one unit there, and with it gone.

    Parameters
    ----------
    model, task, unit, replace, at, n, seed, memory, progress
        As in :func:`interp.knockout.knockout`.
    gone : str
        Label of the unit that is removed.

    Returns
    -------
    Dataset
        Mean change of the answer's log-probability (nats, negative = loss) when another unit is removed:
        ``before (unit, phase)`` with `gone` in place, ``after (unit, phase)`` without it, and ``takes_over
        (unit, phase)`` = before − after, positive where the other is worth more once `gone` is removed, with
        BCa interval (``_low``, ``_high``) and family-wise ``_p``; per prompt ``change_before change_after (unit,
        prompt, residue)`` and ``clean_logprob gone_logprob (prompt, residue)``; ``accuracy_gone (phase)``.

    Raises
    ------
    PhaselensError
        For a label that does not exist, or a model that has no other unit.
    """
    task = task or RecallTask.for_model(model)
    options: dict[str, Any] = {
        "unit": unit, "replace": replace, "at": at, "n": 8 * task.modulus if n is None else n, "seed": seed, "memory": memory,
        "progress": progress,
    }  # fmt: skip
    alone = knockout(model, task, **options)
    labels = [str(label) for label in alone["unit"].values]
    others = [label for label in labels if label != gone]
    if not others:
        raise SiteError(f"model {model.name!r} has no other {unit} that could take over from {gone!r}")
    pairs = knockout(model, task, sets=[[gone], *([gone, other] for other in others)], **options)
    stride, clean = int(alone.attrs["stride"]), alone["clean_logprob"].values
    without = pairs["logprob"].values[0]
    before = alone["logprob"].sel(unit=others).values - clean
    after = pairs["logprob"].values[1:] - without
    per_phase = clean.size // stride
    found = paired_statistics("takes_over", (before - after).astype(float), stride, seed=seed)
    axes, rows = ("unit", "phase"), ("unit", "prompt", "residue")
    return xr.Dataset(
        {
            "before": (axes, by_phase(before, stride) / per_phase),
            "after": (axes, by_phase(after, stride) / per_phase),
            **found,
            "accuracy_gone": ("phase", by_phase(pairs["correct"].values[0].astype(np.int64), stride) / per_phase),
            "clean_accuracy": ("phase", alone["clean_accuracy"].values),
            "change_before": (rows, before),
            "change_after": (rows, after),
            "clean_logprob": (rows[1:], clean),
            "gone_logprob": (rows[1:], without),
            "target_position": (rows[1:], alone["target_position"].values),
        },
        coords={
            "unit": others, "phase": np.arange(stride), "prompt": np.arange(clean.shape[0]),
            "residue": np.arange(clean.shape[1]),
        },
        attrs=results.provenance(
            model, task, seed, unit_kind=unit, replace=alone.attrs["replace"], at=alone.attrs["at"], stride=stride, gone=gone,
            modulus=task.modulus, n_per_residue=clean.shape[0], **compared(change_before="change_after"),
        ),
    )  # fmt: skip
