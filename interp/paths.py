"""Paths: what a head does by itself, what others make of it, and which head it speaks to.

Everything is measured by :mod:`interp.engine`. *Frozen* means: attention outputs, MLP outputs and n-gram
memories of later layers are held at their values in the clean run, so that a change travels along the
residual stream alone. Final norm and unembedding always run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from hooks.errors import PhaselensError, SiteError
from hooks.sites import HookedModel
from interp import engine, results
from interp.controls import paired_statistics
from interp.engine import At, Edit, Rows, Variant
from interp.phases import by_phase, fold, measured_stride, sample_blocks
from interp.replacement import CALIBRATION_BLOCKS, Replace, ValueAt, calibrate
from interp.tasks.prompts import Prompts, Task
from interp.tasks.recall import RecallTask
from interp.units import Unit, select_units, units

__all__ = ["direct_effects", "path_patch"]

_FROZEN = ("engram.hook_out", "hook_attn_out", "hook_mlp_out")
DEFAULT_PER_RESIDUE = 16


def direct_effects(
    model: HookedModel,
    task: Task | None = None,
    *,
    unit: str = "head",
    replace: Replace = "mean",
    n: int | None = None,
    seed: int = 0,
    only: Sequence[str] | None = None,
    stride: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Remove each head at the final position: its direct effect on the logits beside its total effect.

    Parameters
    ----------
    model, task, n, seed, stride, memory, progress
        As in :func:`interp.knockout.knockout`; 16 prompts a residue if `n` is left out.
    unit : "head", "kv_head", "layer" or "mlp"
        What is removed.
    replace : str
        By what.
    only : sequence of str, optional
        Labels; all if left out.

    Returns
    -------
    Dataset
        Mean changes of the answer's log-probability (nats, negative = loss) ``direct (unit, phase)``, with
        every later component frozen, and ``total (unit, phase)``, with none; ``repair (unit, phase)`` =
        total − direct, positive where later components make up for the loss. Each with BCa interval
        (``_low``, ``_high``), family-wise ``_p`` and exploratory ``_q``; per prompt ``logprob_direct
        logprob_total (unit, prompt, residue)`` and ``clean_logprob (prompt, residue)``; accuracies
        ``accuracy_direct accuracy_total (unit, phase)``.

    Raises
    ------
    PhaselensError
        For a unit that is not replaced but masked, or that does not exist.
    """
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task, stride)
    prompts = sample_blocks(task, n, seed, DEFAULT_PER_RESIDUE)
    chosen = _replaceable(model, unit, prompts, only)
    value_at = _values(model, task, prompts, chosen, replace, "final", step, seed, memory, progress)
    held = _clean_outputs(model, prompts, 0, "final", memory, progress)
    direct = [
        Variant(one.label, (*one.edits(value_at), *_freeze(model, held, one.layer, unit == "mlp")))
        for one in chosen
    ]
    total = [Variant(one.label, one.edits(value_at)) for one in chosen]
    scores = engine.run(model, prompts, [*direct, *total], memory=memory, progress=progress, label="direct")
    tables = {name: fold(values, task.modulus).astype(float) for name, values in scores.items()}
    size = len(chosen)
    logprob, correct = tables["logprob"], tables["correct"]
    changes = {
        "direct": logprob[1 : 1 + size] - logprob[0],
        "total": logprob[1 + size :] - logprob[0],
        "repair": logprob[1 + size :] - logprob[1 : 1 + size],
    }
    data: dict[str, Any] = {}
    for name, deltas in changes.items():
        data |= paired_statistics(name, deltas, step, seed=seed)
    share = by_phase(correct, step) / (correct.shape[1] * correct.shape[2] // step)
    axes = ("unit", "prompt", "residue")
    data |= {
        "accuracy_direct": (("unit", "phase"), share[1 : 1 + size]),
        "accuracy_total": (("unit", "phase"), share[1 + size :]),
        "clean_accuracy": ("phase", share[0]),
        "logprob_direct": (axes, logprob[1 : 1 + size]),
        "logprob_total": (axes, logprob[1 + size :]),
        "clean_logprob": (axes[1:], logprob[0]),
        "target_position": (axes[1:], fold(prompts.target_position, task.modulus)),
    }
    return xr.Dataset(
        data,
        coords=_coords(chosen, step, logprob),
        attrs=results.provenance(
            model, task, seed, unit_kind=unit, replace=replace, at="final", stride=step, modulus=task.modulus,
            n_per_residue=logprob.shape[1], query_position=prompts.query_position,
        ),
    )  # fmt: skip


def path_patch(
    model: HookedModel,
    task: Task | None = None,
    *,
    unit: str = "head",
    senders: Sequence[str] | None = None,
    receivers: Sequence[str] | None = None,
    replace: Replace = "mean",
    at: At = "final",
    n: int | None = None,
    seed: int = 0,
    stride: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Cut single paths: from one head to the input of another, or to the logits, everything else frozen.

    A sender is replaced; with everything between frozen, every receiver's final output is noted. The
    receiver alone is then set to it in a clean run (Wang et al. 2023, arXiv 2211.00593, §3.1).

    Parameters
    ----------
    model, task, n, seed, stride, memory, progress
        As in :func:`direct_effects`.
    unit : "head", "kv_head" or "layer"
        What senders and receivers are.
    senders, receivers : sequence of str, optional
        Labels; all if left out.
    replace : str
        What a sender is replaced by.
    at : "final" or "all"
        Where senders are replaced: at the final position, so that paths lead through the receiver's query
        (and its own key and value there), or everywhere, so that keys, values and entries carry too.

    Returns
    -------
    Dataset
        ``effect (sender, receiver, phase)``: mean change of log-probability (nats) along the path; receiver
        "logits" is the direct effect; NaN where the receiver does not lie behind the sender. ``effect_p`` is
        family-wise over all paths, ``effect_q`` exploratory; ``effect_low effect_high`` BCa.

    Raises
    ------
    PhaselensError
        For labels that do not exist.
    """
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task, stride)
    prompts = sample_blocks(task, n, seed, DEFAULT_PER_RESIDUE)
    every = _replaceable(model, unit, prompts, None)
    if unit == "mlp":
        raise PhaselensError("unit='mlp' is no end of a path; valid: head, kv_head, layer")
    sending, receiving = select_units(every, senders), select_units(every, receivers)
    value_at = _values(model, task, prompts, sending, replace, at, step, seed, memory, progress)
    held = _clean_outputs(model, prompts, 0, at, memory, progress)
    deltas: list[np.ndarray] = []
    pairs: list[tuple[int, int]] = []
    for row, one in enumerate(sending):
        behind = [(i, other) for i, other in enumerate(receiving) if other.layer > one.layer]
        probe = _Probe({name for _, other in behind for name in other.sites})
        freeze = _freeze(model, held, one.layer, False)
        cut = Variant(one.label, (*one.edits(value_at), *freeze, *probe.edits()))
        first = engine.run(model, prompts, [cut], at=at, memory=memory, progress=progress, label="sender")
        second = engine.run(
            model, prompts, [Variant(other.label, other.edits(probe.at)) for _, other in behind],
            memory=memory, progress=progress, label="receivers",
        )  # fmt: skip
        tables = [fold(s["logprob"], task.modulus).astype(float) for s in (first, second)]
        deltas += [tables[0][1] - tables[0][0], *(tables[1][1:] - tables[1][0])]
        pairs += [(row, len(receiving)), *((row, i) for i, _ in behind)]
    found = paired_statistics("effect", np.stack(deltas), step, seed=seed)
    shape = (len(sending), len(receiving) + 1, step)
    data: dict[str, Any] = {}
    for name, (_, values) in found.items():
        table = np.full(shape, np.nan)
        for (row, column), value in zip(pairs, values, strict=True):
            table[row, column] = value
        data[name] = (("sender", "receiver", "phase"), table)
    return xr.Dataset(
        data,
        coords={
            "sender": [one.label for one in sending],
            "receiver": [*(one.label for one in receiving), "logits"],
            "phase": np.arange(step),
        },
        attrs=results.provenance(
            model, task, seed, unit_kind=unit, replace=replace, at=at, stride=step, modulus=task.modulus,
            n_per_residue=len(prompts) // task.modulus, query_position=prompts.query_position,
        ),
    )  # fmt: skip


class _Probe:
    """Notes what a variant's sites hold at the final position, and gives it back as replacement values."""

    def __init__(self, names: set[str]) -> None:
        self.names = sorted(names)
        self.kept: dict[str, dict[int, Tensor]] = {name: {} for name in self.names}

    def edits(self) -> tuple[Edit, ...]:
        return tuple(Edit(name, self._noting(name)) for name in self.names)

    def _noting(self, name: str) -> Callable[[Tensor, Rows], Tensor]:
        def note(tensor: Tensor, rows: Rows) -> Tensor:
            for row, prompt in enumerate(rows.prompt.tolist()):
                self.kept[name][prompt] = tensor[row, -1:].detach().clone()
            return tensor

        return note

    def at(self, name: str, tensor: Tensor, rows: Rows) -> Tensor:
        """Noted values of some prompts; a :data:`interp.replacement.ValueAt`."""
        return torch.stack([self.kept[name][prompt] for prompt in rows.prompt.tolist()])


def _replaceable(model: HookedModel, unit: str, prompts: Prompts, only: Sequence[str] | None) -> list[Unit]:
    chosen = select_units(units(model, unit, prompts), only)
    if not chosen or not all(one.replaced for one in chosen):
        raise SiteError(f"unit={unit!r} is masked, not replaced; valid: head, kv_head, layer, mlp")
    return chosen


def _values(
    model: HookedModel, task: Task, prompts: Prompts, chosen: Sequence[Unit], replace: Replace, at: At,
    stride: int, seed: int, memory: int, progress: bool | None,
) -> ValueAt:  # fmt: skip
    names = [name for one in chosen for name in one.sites]
    return calibrate(
        model, task, prompts, names, replace=replace, at=at, stride=stride, seed=seed,
        n=CALIBRATION_BLOCKS * task.modulus, memory=memory, progress=progress,
    ).at  # fmt: skip


def _clean_outputs(
    model: HookedModel, prompts: Prompts, first: int, at: At, memory: int, progress: bool | None
) -> dict[str, Tensor]:
    """Clean outputs of every component from layer `first` on."""
    valid = set(model.site_names())
    names = [
        name
        for layer in range(first, model.cfg.n_layers)
        for kind in _FROZEN
        if (name := f"blocks.{layer}.{kind}") in valid
    ]
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    for _, kept in engine.activations(
        model, prompts, names, at=at, memory=memory, progress=progress, label="clean outputs"
    ):
        for name, tensor in kept.items():
            parts[name].append(tensor)
    return {name: torch.cat(part) for name, part in parts.items()}


def _freeze(model: HookedModel, held: dict[str, Tensor], layer: int, is_mlp: bool) -> tuple[Edit, ...]:
    """Edits that hold everything behind a head (or an MLP) of a layer at its clean output."""

    def hold(name: str) -> Edit:
        def apply(tensor: Tensor, rows: Rows) -> Tensor:
            values = held[name][rows.prompt]
            return values[:, -tensor.shape[1] :].to(tensor.dtype)

        return Edit(name, apply)

    def behind(name: str) -> bool:
        own = int(name.split(".")[1])
        return own > layer or (own == layer and name.endswith("hook_mlp_out") and not is_mlp)

    return tuple(hold(name) for name in held if behind(name))


def _coords(chosen: Sequence[Unit], stride: int, table: np.ndarray) -> dict[str, Any]:
    return {
        "unit": [one.label for one in chosen],
        "layer": ("unit", [one.layer for one in chosen]),
        "head": ("unit", [one.head for one in chosen]),
        "phase": np.arange(stride),
        "prompt": np.arange(table.shape[1]),
        "residue": np.arange(table.shape[2]),
    }
