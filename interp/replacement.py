"""What an ablated activation is replaced by: zero, a mean, a per-phase mean, or another prompt's value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from hooks.errors import PhaselensError, TaskError
from hooks.sites import HookedModel, site
from interp import engine
from interp.engine import At, Rows
from interp.phases import whole_blocks
from interp.rng import derive_seed, numpy_rng
from interp.tasks.prompts import Prompts, Task

__all__ = ["CALIBRATION_BLOCKS", "Replace", "Replacement", "calibrate"]

Replace = Literal["mean", "zero", "phase_mean", "resample"]
CALIBRATION_BLOCKS = 8
"""Base prompts behind every replacement, unless told otherwise; donors always come from so many."""


@dataclass(frozen=True)
class Replacement:
    """Replacement values of some sites for the prompts that are measured.

    Attributes
    ----------
    kind : str
        "mean", "zero", "phase_mean" or "resample".
    values : dict of Tensor
        By site: [1 or phases or donors, pos or 1, …]; empty for zero.
    choice : Int64[Tensor, "n"] or None
        Which row of `values` each measured prompt gets, where the values are; None: the only one.
    """

    kind: str
    values: dict[str, Tensor]
    choice: Tensor | None

    def at(self, name: str, tensor: Tensor, rows: Rows) -> Tensor:
        """Values for a site's tensor of some prompts, of its shape (or broadcast over the batch)."""
        if self.kind == "zero":
            return torch.zeros_like(tensor[:1]).expand_as(tensor)
        values = self.values[name]
        if self.choice is not None:
            values = values[self.choice[rows.prompt]]
        axes = site(name).axes
        if "pos" in axes and values.shape[axes.index("pos")] > 1:
            values = values.index_select(axes.index("pos"), rows.positions)
        return values.expand_as(tensor).to(tensor.dtype)


def calibrate(
    model: HookedModel,
    task: Task,
    prompts: Prompts,
    names: Sequence[str],
    *,
    replace: Replace,
    at: At,
    stride: int,
    seed: int,
    n: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> Replacement:
    """Measure replacement values on prompts that are disjoint in seed from the measured ones.

    Parameters
    ----------
    model, task : HookedModel, Task
        Calibration prompts come from `task`, balanced over residues, seeded by (seed, "calibration").
    prompts : Prompts
        Those that will be measured.
    names : sequence of str
        Sites; where nothing is replaced (units that are masked) there are none, and nothing is run.
    replace : str
        Means at all positions are per position; "resample" gives every prompt a donor of the same length and
        residue, drawn by seed and prompt_id only: neither `n` nor the other prompts matter.
    at : "final" or "all"
        Positions that are replaced.
    stride : int
        S, for "phase_mean".
    seed : int
        Of the calibration prompts and donors.
    n : int, optional
        Calibration prompts behind a mean, rounded up to whole blocks of R; :data:`CALIBRATION_BLOCKS` blocks if
        left out. Donors come from that many blocks whatever `n` is.
    memory, progress
        As in :func:`interp.engine.run`.

    Raises
    ------
    PhaselensError
        For another kind of replacement.
    TaskError
        If the task's prompts are not as long as those that are measured.
    """
    if replace not in get_args(Replace):
        raise PhaselensError(f"replace={replace!r}; valid: {', '.join(get_args(Replace))}")
    if replace == "zero" or not names:
        return Replacement(replace, {}, None)
    blocks = whole_blocks(task, n, CALIBRATION_BLOCKS) if replace != "resample" else CALIBRATION_BLOCKS
    source = task.sample(blocks * task.modulus, seed=derive_seed(seed, "calibration"))
    if source.tokens.shape[1] != prompts.tokens.shape[1]:
        raise TaskError(
            f"calibration prompts have {source.tokens.shape[1]} tokens, measured ones {prompts.tokens.shape[1]}; "
            "valid: prompts of one task, which all have one length"
        )
    group, choice = _groups(source, prompts, replace, stride, seed)
    count = torch.bincount(group, minlength=int(group.max()) + 1)
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for chunk, kept in engine.activations(
        model, source, list(dict.fromkeys(names)), at=at, memory=memory, progress=progress
    ):
        index = group[chunk.start : chunk.stop].to(model.device)
        for name, tensor in kept.items():
            dtypes[name] = tensor.dtype
            # A donor's value is copied, not averaged: it needs no wider sum.
            wide = tensor if replace == "resample" else tensor.to(torch.float64)
            if name not in sums:
                sums[name] = wide.new_zeros((len(count), *tensor.shape[1:]))
            sums[name].index_add_(0, index, wide)
    values = {}
    for name in list(sums):
        total = sums.pop(name)
        share = count.to(total.device).reshape(-1, *[1] * (total.ndim - 1))
        values[name] = total if replace == "resample" else (total / share).to(dtypes[name])
    return Replacement(replace, values, None if choice is None else choice.to(model.device))


def _groups(
    source: Prompts, prompts: Prompts, replace: str, stride: int, seed: int
) -> tuple[Tensor, Tensor | None]:
    """Which calibration prompts are averaged together, and which average each measured prompt gets."""
    if replace == "mean":
        return torch.zeros(len(source), dtype=torch.long), None
    if replace == "phase_mean":
        return source.residue % stride, prompts.residue % stride
    donor = {
        int(i): int(numpy_rng(seed, "donor", int(i)).integers(CALIBRATION_BLOCKS))
        for i in prompts.prompt_id.unique().tolist()
    }
    block = torch.tensor([donor[int(i)] for i in prompts.prompt_id])
    return torch.arange(len(source)), block * source.modulus + prompts.residue


ValueAt = Callable[[str, Tensor, Rows], Tensor]
"""How units ask for replacement values; :meth:`Replacement.at` is one."""
