"""Recipes: everything that decides what training gives, device and seed aside.

Figures of the recipe: AdamW (0.9, 0.98), linear warm-up then cosine to 5%, clip 1.0, bf16 autocast on a GPU,
number of records raised linearly (without this curriculum several runs never leave 5% accuracy).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from hooks.errors import PhaselensError, did_you_mean
from interp.tasks.recall import RecallTask

__all__ = ["Recipe", "recipe", "recipe_names"]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what training gives, device and seed aside.

    Parameters
    ----------
    task : RecallTask
        Makes the batches.
    steps, batch : int
        Optimiser steps; sequences a step.
    lr, warmup, final_lr : float, int, float
        Peak rate, steps of linear warm-up, fraction of the peak that the cosine ends at.
    records_from, records_share : int, float
        Records at the start, and the share of steps over which they rise to the task's own number.
    clip, weight_decay : float
        Gradient norm; AdamW's decay.
    compiled : bool
        Compile the forward pass on a GPU; not for a class that does not trace.
    """

    task: RecallTask = field(default_factory=RecallTask)
    steps: int = 4000
    batch: int = 256
    lr: float = 1e-3
    warmup: int = 300
    final_lr: float = 0.05
    records_from: int = 16
    records_share: float = 0.5
    clip: float = 1.0
    weight_decay: float = 0.01
    compiled: bool = True

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (
            self.final_lr + (1 - self.final_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        )

    def records(self, step: int) -> int:
        """Records in the context at a step."""
        top = self.task.n_records
        share = 1.0 if self.records_share == 0 else min(1.0, step / (self.records_share * self.steps))
        return min(top, self.records_from + round(share * (top - self.records_from)))

    def describe(self) -> dict[str, Any]:
        """JSON values."""
        return {**dataclasses.asdict(self), "task": self.task.describe()}


_TINY_TASK = RecallTask(
    n_keys=32, n_values=32, n_filler=8, n_records=14, context=48, n_queries=8, n_demonstrations=7, modulus=12
)
# Steps after which a model's accuracy no longer rose; the rest learns within the default's.
_STEPS = {
    "w4s4-4kv": 3500, "w8s4-4kv": 3000, "w8s6-4kv": 3500, "w8s8-4kv": 3500, "w8s8-1kv": 6000, "w8s8-2kv": 8600,
    "w8s8-2kv-nope": 6000, "w12s12-4kv": 8500, "v41-ced": 2500, "v41-ced-bf": 2500,
}  # fmt: skip
_RECIPES: dict[str, Recipe] = {
    **{name: Recipe(steps=steps) for name, steps in _STEPS.items()},
    **{name: Recipe(compiled=False, steps=1700) for name in ("hfv4-mix", "hfv4-csa")},
    "full-4kv": Recipe(task=RecallTask(n_queries=8), steps=6000, lr=2e-3, records_from=8, records_share=0.8),
    "tiny": Recipe(
        task=_TINY_TASK, steps=800, batch=64, lr=3e-3, warmup=100, records_from=14, records_share=0.0
    ),
}


def recipe_names() -> list[str]:
    """Names of models that :func:`interp.training.train` can make."""
    from hooks.build import buildable

    return buildable()


def recipe(name: str) -> Recipe:
    """Return the recipe of a zoo model.

    Raises
    ------
    PhaselensError
        Listing the names that exist.
    """
    if name not in recipe_names():
        raise PhaselensError(f"no recipe for {name!r}; {did_you_mean(name, recipe_names(), 40)}")
    return _RECIPES.get(name, Recipe())
