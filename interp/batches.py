"""How a budget of memory divides prompts into batches, and what they are estimated to hold and to take."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from hooks.checks import whole_number
from hooks.costs import scores_held
from hooks.sites import HookedModel, site
from interp.memory import show_bytes

__all__ = ["MEMORY", "Plan", "chunks", "expected_seconds", "plan", "reads_maps", "show_seconds"]

MEMORY = 1 << 30
"""Default budget for activations, in bytes."""
_COST = 0.03  # of a run that an estimate of its time may take
_PROBE = 8  # prompts below which it says little


class Plan(NamedTuple):
    """How a budget of memory divides the prompts.

    Attributes
    ----------
    batches : list of range
        Rows that run at once.
    bytes : int
        Estimated activations of the largest batch.
    memory : int
        The budget.
    """

    batches: list[range]
    bytes: int
    memory: int

    def describe(self, variants: int, seconds: float | None = None) -> str:
        """One line: how much is to be run, in what portions, and what it is estimated to take."""
        batches, (count, size) = len(self.batches), (self.batches[-1].stop, len(self.batches[0]))
        over = f" (over the budget of {show_bytes(self.memory)})" if self.bytes > self.memory else ""
        takes = "" if seconds is None else f", {show_seconds(seconds)}"
        return (
            f"{count} prompts × (1 + {variants}) runs in {batches} batch{'es' * (batches > 1)} of {size}; "
            f"about {show_bytes(self.bytes)}{over}{takes}"
        )


def plan(
    model: HookedModel,
    n: int,
    length: int,
    variants: int,
    memory: int,
    held: int = 0,
    *,
    whole_maps: bool = False,
) -> Plan:
    """Split `n` prompts so that one batch's activations stay within a budget of bytes.

    The estimate counts, per position, the stream and its projections; the attention scores of a layer that are
    alive at once, with what is made of them; the logits; per variant, single positions of the same; and `held`
    bytes a prompt beside the run. `whole_maps`: hooks read attention maps, which are formed whole then. A batch
    has one prompt at least.

    Raises
    ------
    PhaselensError
        If `memory` is no whole number above 0.
    """
    memory = whole_number("memory", memory, 1)
    cfg = model.cfg
    stream = 16 * cfg.d_model + 8 * cfg.n_heads * cfg.d_head + 3 * getattr(cfg, "d_mlp", 4 * cfg.d_model)
    row = 4 * (length * stream + variants * (stream + 4 * cfg.d_vocab)) + held

    def size_of(batch: int) -> int:
        queries = batch * (length + variants)
        return batch * row + 16 * scores_held(cfg, queries, length, whole=whole_maps)

    size = max(1, bisect_right(range(1, n + 1), memory, key=size_of))
    return Plan([range(i, min(n, i + size)) for i in range(0, n, size)], size_of(size), memory)


@torch.no_grad()
def expected_seconds(
    model: HookedModel, tokens: Int64[Tensor, "batch pos"], planned: Plan, work: float
) -> float | None:
    """Estimate how long a planned run takes from clean passes over the first prompts.

    It runs a whole batch, or as much as the estimate may cost. A GPU takes as long over a few prompts as over
    many: there it is a whole batch or nothing.

    Parameters
    ----------
    model : HookedModel
        What runs.
    tokens : Int64[Tensor, "batch pos"]
        The prompts.
    planned : Plan
        Their batches.
    work : float
        What one prompt costs with all its variants, as a multiple of one clean pass.

    Returns
    -------
    float or None
        Seconds; None where measuring would take too much of the run.
    """
    count, batch = planned.batches[-1].stop, len(planned.batches[0])
    size = min(batch, int(_COST * count * work) - 1)
    if size < (batch if model.device.type == "cuda" else min(batch, _PROBE)):
        return None
    for some in (1, size):  # the first pass warms up
        start = time.perf_counter()
        model(tokens[:some].to(model.device), last_only=True).cpu()
    return (time.perf_counter() - start) * work * count / size


def show_seconds(seconds: float) -> str:
    """Return a duration of two digits with a unit."""
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def reads_maps(names: Iterable[str]) -> bool:
    """Whether any of these sites is an attention map, which is formed whole for its hooks."""
    return any(site(name).kind in ("attn.hook_attn_scores", "attn.hook_pattern") for name in names)


def chunks(
    model: HookedModel, n: int, length: int, variants: int, memory: int, names: Sequence[str] = ()
) -> list[range]:
    """Return the batches of :func:`plan` for a run whose hooks read the sites `names`."""
    return plan(model, n, length, variants, memory, whole_maps=reads_maps(names)).batches
