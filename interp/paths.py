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

from hooks.checks import require_choice
from hooks.errors import SiteError
from hooks.sites import HookedModel
from interp import engine, results
from interp.controls import NOTHING, compared, paired_statistics
from interp.engine import At, Edit, Rows, Variant
from interp.patching import held_values
from interp.phases import by_phase, fold, measured_stride, sample_blocks
from interp.replacement import CALIBRATION_BLOCKS, Replace, ValueAt, calibrate
from interp.tasks.prompts import Prompts, Task
from interp.tasks.recall import RecallTask
from interp.units import Unit, select_units, units

__all__ = ["direct_effects", "path_patch"]

_FROZEN = ("engram.hook_out", "hook_attn_out", "hook_mlp_out")
"""Components that write to the stream, in the order in which a layer runs them."""
_ENDS = ("head", "kv_head", "layer")
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
    unit : "head", "kv_head", "layer", "mlp" or "engram"
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
    outputs, size = _outputs(model), len(chosen)
    total = [Variant(one.label, one.edits(value_at)) for one in chosen]

    def on(rows: range) -> dict[str, Tensor]:  # what it holds is let go before the next batch is run
        held = held_values(model, prompts, outputs, at="final", rows=rows, memory=memory, progress=False)
        direct = [Variant(one.label, (*one.edits(value_at), *_freeze(outputs, held, one))) for one in chosen]
        return engine.run(model, prompts, [*direct, *total], rows=rows, memory=memory, progress=False)

    batches = engine.portions(
        model, prompts, outputs, 2 * size, memory=memory, progress=progress, label="direct"
    )
    parts = [on(rows) for rows in batches]
    tables = {
        name: fold(torch.cat([part[name] for part in parts], dim=1), task.modulus).astype(float)
        for name in parts[0]
    }
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
            **compared(logprob_total="clean_logprob", logprob_direct="clean_logprob"),
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
        family-wise over all paths, ``effect_q`` exploratory; ``effect_low effect_high`` BCa. Per prompt
        ``change (sender, receiver, prompt, residue)`` and ``clean_logprob (prompt, residue)``.

    Raises
    ------
    PhaselensError
        For units or labels that do not exist.
    """
    require_choice("unit", unit, _ENDS)
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task, stride)
    prompts = sample_blocks(task, n, seed, DEFAULT_PER_RESIDUE)
    every = _replaceable(model, unit, prompts, None)
    sending, receiving = select_units(every, senders), select_units(every, receivers)
    value_at = _values(model, task, prompts, sending, replace, at, step, seed, memory, progress)
    names = [*_outputs(model), *(name for one in receiving for name in one.sites)]
    parts = [
        _along(model, prompts, rows, sending, receiving, value_at, at, memory, progress)
        for rows in engine.portions(
            model, prompts, names, len(receiving), at=at, memory=memory, progress=False
        )
    ]  # fmt: skip
    change, clean = (np.concatenate(each, axis=-1) for each in zip(*parts, strict=True))
    there = np.array([[other.layer > one.layer for other in receiving] + [True] for one in sending])
    change = fold(change, task.modulus)
    found = paired_statistics("effect", change[there], step, seed=seed)
    data: dict[str, Any] = {}
    for name, (_, values) in found.items():
        table = np.full((*there.shape, step), np.nan)
        table[there] = values
        data[name] = (("sender", "receiver", "phase"), table)
    axes = ("sender", "receiver", "prompt", "residue")
    data |= {
        "change": (axes, change),
        "clean_logprob": (axes[2:], fold(clean, task.modulus)),
        "target_position": (axes[2:], fold(prompts.target_position, task.modulus)),
    }
    return xr.Dataset(
        data,
        coords={
            "sender": [one.label for one in sending],
            "receiver": [*(one.label for one in receiving), "logits"],
            "phase": np.arange(step), "prompt": np.arange(change.shape[2]),
            "residue": np.arange(task.modulus),
        },
        attrs=results.provenance(
            model, task, seed, unit_kind=unit, replace=replace, at=at, stride=step, modulus=task.modulus,
            n_per_residue=len(prompts) // task.modulus, query_position=prompts.query_position,
            **compared(change=NOTHING),
        ),
    )  # fmt: skip


def _along(
    model: HookedModel, prompts: Prompts, rows: range, sending: Sequence[Unit], receiving: Sequence[Unit],
    value_at: ValueAt, at: At, memory: int, progress: bool | None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Changes of log-probability along every path [sender, receiver and logits, prompt], and its clean value.

    What is held for the batch is let go on return.
    """
    outputs = _outputs(model)
    held = held_values(model, prompts, outputs, at=at, rows=rows, memory=memory, progress=False)
    options: dict[str, Any] = {"rows": rows, "memory": memory, "progress": progress}
    change = np.full((len(sending), len(receiving) + 1, len(rows)), np.nan)
    clean = np.empty(len(rows))
    for row, one in enumerate(sending):
        behind = [i for i, other in enumerate(receiving) if other.layer > one.layer]
        probe = _Probe({name for i in behind for name in receiving[i].sites})
        cut = Variant(one.label, (*one.edits(value_at), *_freeze(outputs, held, one), *probe.edits()))
        clean, alone = _logprob(engine.run(model, prompts, [cut], at=at, label="sender", **options))
        change[row, -1] = alone - clean
        if behind:
            cuts = [Variant(receiving[i].label, receiving[i].edits(probe.at)) for i in behind]
            through = _logprob(engine.run(model, prompts, cuts, label="receivers", **options))
            change[row, behind] = through[1:] - through[0]
    return change, clean


def _logprob(scores: dict[str, Tensor]) -> np.ndarray:
    return scores["logprob"].double().numpy()


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
        raise SiteError(f"unit={unit!r} is masked, not replaced; valid: head, kv_head, layer, mlp, engram")
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


def _outputs(model: HookedModel) -> list[str]:
    """Sites of all that writes to the stream, in the order in which it runs."""
    valid = set(model.site_names())
    every = (f"blocks.{layer}.{kind}" for layer in range(model.cfg.n_layers) for kind in _FROZEN)
    return [name for name in every if name in valid]


def _freeze(outputs: Sequence[str], held: ValueAt, one: Unit) -> tuple[Edit, ...]:
    """Edits that hold everything that runs behind a unit, in its own layer and later, at its clean output."""

    def hold(name: str) -> Edit:
        return Edit(name, lambda tensor, rows: held(name, tensor, rows).to(tensor.dtype))

    # A head's z is no output itself: its layer's attention output is made of it.
    own = next((name for name in one.sites if name in outputs), f"blocks.{one.layer}.hook_attn_out")
    return tuple(hold(name) for name in outputs[outputs.index(own) + 1 :])


def _coords(chosen: Sequence[Unit], stride: int, table: np.ndarray) -> dict[str, Any]:
    return {
        "unit": [one.label for one in chosen],
        "layer": ("unit", [one.layer for one in chosen]),
        "head": ("unit", [one.head for one in chosen]),
        "phase": np.arange(stride),
        "prompt": np.arange(table.shape[1]),
        "residue": np.arange(table.shape[2]),
    }
