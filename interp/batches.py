"""How a budget of memory divides prompts into batches, and what a batch is estimated to hold."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hooks.checks import whole_number
from hooks.costs import scores_held
from hooks.sites import HookedModel, site
from interp.memory import show_bytes

__all__ = ["MEMORY", "Plan", "chunks", "plan", "reads_maps"]

MEMORY = 1 << 30
"""Default budget for activations, in bytes."""


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

    def describe(self, variants: int) -> str:
        """One line: how much is to be run, and in what portions."""
        count = self.batches[-1].stop if self.batches else 0
        over = f", over the budget of {show_bytes(self.memory)}" if self.bytes > self.memory else ""
        return (
            f"{count} prompts × (1 + {variants}) runs, {len(self.batches)} batches of {len(self.batches[0])}, "
            f"about {show_bytes(self.bytes)} of activations at a time{over}"
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


def reads_maps(names: Iterable[str]) -> bool:
    """Whether any of these sites is an attention map, which is formed whole for its hooks."""
    return any(site(name).kind in ("attn.hook_attn_scores", "attn.hook_pattern") for name in names)


def chunks(
    model: HookedModel, n: int, length: int, variants: int, memory: int, names: Sequence[str] = ()
) -> list[range]:
    """Return the batches of :func:`plan` for a run whose hooks read the sites `names`."""
    return plan(model, n, length, variants, memory, whole_maps=reads_maps(names)).batches
