"""The stride a model is measured at, and prompts folded to [prompt, residue] tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hooks.checks import whole_number
from hooks.errors import StatisticsError
from hooks.sites import HookedModel
from interp.tasks.prompts import Prompts, Task

__all__ = ["PLACEBO_STRIDE", "fold", "measured_stride", "model_strides", "sample_blocks"]

PLACEBO_STRIDE = 8
"""The stride that models without one are measured at (full attention has none)."""


def model_strides(model: HookedModel) -> list[int]:
    """Distinct strides of a model's compressors, ascending; empty without any."""
    geometries = (model.geometry(layer) for layer in range(model.cfg.n_layers))
    return sorted({g.stride for g in geometries if g is not None and g.stride > 1})


def measured_stride(model: HookedModel, task: Task, stride: int | None = None) -> int:
    """The stride phases are counted by: given, or the lcm of the model's strides that divide R.

    Models without a stride get :data:`PLACEBO_STRIDE` if it divides R, else the largest divisor below it.

    Raises
    ------
    PhaselensError
        If the given stride is no whole number or does not divide R.
    """
    modulus = task.modulus
    if stride is not None:
        if whole_number("stride", stride) < 1 or modulus % stride:
            valid = [d for d in range(1, modulus + 1) if modulus % d == 0]
            raise StatisticsError(
                f"stride={stride} does not divide modulus={modulus}; valid: {', '.join(map(str, valid))}"
            )
        return stride
    strides = model_strides(model)
    found = [s for s in strides if modulus % s == 0]
    if found:
        return math.lcm(*found)
    if strides:
        raise StatisticsError(
            f"no stride of the model ({', '.join(map(str, strides))}) divides modulus={modulus}; make the task with "
            "RecallTask.for_model(model), or give the stride to count phases by"
        )
    return max(d for d in range(1, PLACEBO_STRIDE + 1) if modulus % d == 0)


def whole_blocks(task: Task, n: int | None, default: int = 1) -> int:
    """How many blocks of R prompts hold `n` of them; `default` blocks for None.

    Raises
    ------
    PhaselensError
        For no prompt at all, or a part of one.
    """
    if n is None:
        return default
    if whole_number("n", n) < 1:
        raise StatisticsError(f"n={n} prompts; valid: 1 or more, {task.modulus} for one at every residue")
    return -(-n // task.modulus)


def sample_blocks(task: Task, n: int | None, seed: int, default: int = 1) -> Prompts:
    """Whole blocks of R prompts, at least `n` of them; see :func:`whole_blocks`."""
    return task.sample(whole_blocks(task, n, default) * task.modulus, seed=seed)


def fold(values: Tensor | np.ndarray, modulus: int) -> np.ndarray:
    """Fold the last axis of length blocks·R to [..., prompt, residue]."""
    array = values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    return array.reshape(*array.shape[:-1], -1, modulus)


def by_phase(values: np.ndarray, stride: int) -> Any:
    """Sum [..., prompt, residue] over prompts and cycles to [..., phase]."""
    cycles = values.reshape(*values.shape[:-1], values.shape[-1] // stride, stride)
    return cycles.sum(axis=(-3, -2))
