"""Activation patching between prompts that differ in one thing."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from hooks.errors import PhaselensError, StatisticsError
from hooks.sites import HookedModel
from interp import engine, results
from interp.engine import Rows, Variant
from interp.phases import by_phase, fold, measured_stride
from interp.tasks.prompts import Prompts
from interp.tasks.recall import RecallTask
from interp.units import units

__all__ = ["patch"]

MIN_DIFFERENCE = 0.1
"""Mean log-probability difference (nats) between the two runs below which a normalised effect is undefined."""


def patch(
    model: HookedModel,
    task: RecallTask | None = None,
    *,
    pairs: Literal["shift", "value"] = "shift",
    shift: int = 1,
    unit: Literal["kv_head", "head", "layer"] = "head",
    n: int | None = None,
    seed: int = 0,
    stride: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Write one unit's final-position output z of a source run into a base run, by layer × head × phase.

    Parameters
    ----------
    model : HookedModel
        What to measure.
    task : RecallTask, optional
        Makes the pairs; :meth:`RecallTask.for_model` if left out.
    pairs : "shift" or "value"
        The source shows the same prompt with its target `shift` residues on; or with another value.
    shift : int
        In residues.
    unit : str
        Which heads are patched together.
    n : int, optional
        Prompts, rounded up to whole blocks of R; 32 a residue if left out.
    seed : int
        Of the prompts.
    stride, memory, progress
        As in :func:`interp.knockout.knockout`.

    Returns
    -------
    Dataset
        ``effect_logprob (unit, phase)``: mean change of the log-probability (nats) of the base run's answer
        ("shift": both runs have the same; "value": the source's answer, so that a head that carries the value
        is positive); ``normalised (unit, phase)``: that change ÷ the whole difference between the two runs, NaN
        (undefined) where it is below 0.1 nats; per-prompt ``logprob margin correct`` and ``base_logprob``,
        ``source_logprob (prompt, residue)``. Phases are the base prompt's.

    Raises
    ------
    PhaselensError
        For a shift that is a multiple of the stride, or another kind of pair.
    """
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task, stride)
    if pairs == "shift" and shift % step == 0:
        raise PhaselensError(
            f"shift={shift} leaves every phase where it is at stride {step}; valid: 1 to {step - 1}"
        )
    blocks = -(-(n or 32 * task.modulus) // task.modulus)
    base, source = task.sample_pairs(blocks * task.modulus, seed=seed, kind=pairs, shift=shift)
    chosen = units(model, unit)
    names = list(dict.fromkeys(name for one in chosen for name in one.sites))
    held: dict[str, list[Tensor]] = {name: [] for name in names}
    for _, kept in engine.activations(model, source, names, memory=memory, progress=progress, label="source"):
        for name, tensor in kept.items():
            held[name].append(tensor)
    values = {name: torch.cat(parts) for name, parts in held.items()}

    def value_at(name: str, tensor: Tensor, rows: Rows) -> Tensor:
        return values[name][rows.prompt]

    # Of a pair with two answers, the one the source should bring along is scored in every run.
    scored = Prompts(
        tokens=base.tokens, answer=source.answer, target_position=base.target_position,
        query_position=base.query_position, residue=base.residue, prompt_id=base.prompt_id, modulus=base.modulus,
    )  # fmt: skip
    variants = [Variant(one.label, one.edits(value_at)) for one in chosen]
    patched = engine.run(model, scored, variants, memory=memory, progress=progress, label="patch")
    clean = engine.run(model, source, memory=memory, progress=progress, label="source")
    tables = {name: fold(v, task.modulus) for name, v in patched.items()}
    source_logprob = fold(clean["logprob"][0], task.modulus)
    change, whole = _by_phase_change(tables["logprob"], source_logprob, step)
    with np.errstate(invalid="ignore", divide="ignore"):
        normalised = np.where(np.abs(whole) >= MIN_DIFFERENCE, change / whole, np.nan)
    axes = ("unit", "prompt", "residue")
    return xr.Dataset(
        {
            "effect_logprob": (("unit", "phase"), change),
            "normalised": (("unit", "phase"), normalised),
            "difference": ("phase", whole),
            **{name: (axes, v[1:]) for name, v in tables.items()},
            "base_logprob": (axes[1:], tables["logprob"][0]),
            "base_correct": (axes[1:], tables["correct"][0]),
            "source_logprob": (axes[1:], source_logprob),
            "target_position": (axes[1:], fold(base.target_position, task.modulus)),
        },
        coords={
            "unit": [one.label for one in chosen],
            "layer": ("unit", [one.layer for one in chosen]),
            "head": ("unit", [one.head for one in chosen]),
            "phase": np.arange(step),
            "residue": np.arange(task.modulus),
            "prompt": np.arange(blocks),
        },
        attrs=results.provenance(
            model,
            task,
            seed,
            unit_kind=unit,
            pairs=pairs,
            shift=shift,
            stride=step,
            modulus=task.modulus,
            n_per_residue=blocks,
        ),
    )


def _by_phase_change(logprob: np.ndarray, source: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean patched − base by unit and phase, and mean source − base by phase."""
    if not np.isfinite(logprob).all():
        raise StatisticsError(
            "a patched run gave log-probabilities that are not finite; nothing can be averaged"
        )
    count = logprob.shape[1] * logprob.shape[2] // stride
    change = by_phase(logprob[1:] - logprob[0], stride) / count
    return change, by_phase(source - logprob[0], stride) / count
