"""Engram: a memory of hashed n-grams that adds to the residual stream without any attention.

Every 2-, 3- and 4-gram that ends at a token selects one row in each of several hash tables; the rows together give
a key and a value, and ``stream += sigmoid(sign(d)·√|d|) · value`` with d the normalised dot product of stream and
key (DeepSeek-V4.1, arXiv 2609.19969). The hash function, the width of a row's maps and their initial values are not
sourced: values start at 0, so that a new model is the one without the memory.

Axis legend: rows R, pos T, gram N (lengths 2, 3, 4), hash head H, row width d, d_model m.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hooks.cache import PAST
from hooks.config import ModelConfig
from hooks.numerics import RMSNorm, working_dtype
from hooks.points import HookPoint
from hooks.rng import numpy_rng

__all__ = ["GRAMS", "Engram", "with_past"]

GRAMS = tuple(range(2, PAST + 2))
"""Lengths of the n-grams: 2, 3, 4."""


def with_past(
    past: Int[Tensor, "b n"] | None, tokens: Int[Tensor, "r t"], pad: int
) -> Int[Tensor, "r past_and_t"]:
    """Put the three tokens before a call in front of its own; before position 0 stands `pad`.

    With fewer sequences than rows, the variants of a sequence share its past (row = b·U + u).
    """
    front = tokens.new_full((len(tokens), PAST), pad)
    if past is not None and past.shape[1]:
        known = past[:, -PAST:].repeat_interleave(len(tokens) // len(past), dim=0)
        front[:, PAST - known.shape[1] :] = known
    return torch.cat((front, tokens), dim=1)


class Engram(nn.Module):
    """The memory of one layer.

    Parameters
    ----------
    cfg : ModelConfig
        ``engram_rows`` a table, ``engram_heads`` tables per n-gram length, ``engram_dim`` numbers a row.
    index : int
        Which layer this is; every layer hashes differently.
    """

    multipliers: Tensor

    def __init__(self, cfg: ModelConfig, index: int) -> None:
        super().__init__()
        self.rows = cfg.engram_rows
        tables, width = len(GRAMS) * cfg.engram_heads, cfg.engram_dim
        self.W_table = nn.Parameter(torch.empty(tables, cfg.engram_rows, width))
        self.W_key = nn.Parameter(torch.empty(tables * width, cfg.d_model))
        self.W_value = nn.Parameter(torch.empty(tables * width, cfg.d_model))
        self.stream_norm, self.key_norm = RMSNorm(cfg.d_model), RMSNorm(cfg.d_model)
        self.hook_gate, self.hook_value, self.hook_out = HookPoint(), HookPoint(), HookPoint()
        # Part of the architecture, not of the weights: the same for every seed.
        drawn = numpy_rng(0, "engram", index).integers(1, 1 << 62, (len(GRAMS), cfg.engram_heads, PAST + 1))
        self.register_buffer("multipliers", torch.from_numpy(drawn) | 1, persistent=False)

    def table_rows(self, grams: Int[Tensor, "r past_and_t"]) -> Int[Tensor, "r t tables"]:
        """Row number in every table, for each token of :func:`with_past`."""
        count = grams.shape[1] - PAST
        back = torch.stack([grams[:, PAST - i : PAST - i + count] for i in range(PAST + 1)], dim=-1)
        rows = []
        for number, length in enumerate(GRAMS):
            # Products wrap around; the shift brings high bits, which depend on every token, down.
            mixed = ((back[..., None, :length] + 1) * self.multipliers[number, :, :length]).sum(-1)
            rows.append((mixed ^ (mixed >> 29)).remainder(self.rows))
        return torch.cat(rows, dim=-1)

    def forward(
        self, x: Float[Tensor, "r t m"], grams: Int[Tensor, "r past_and_t"]
    ) -> Float[Tensor, "r t m"]:
        """Return the stream with the memory added."""
        rows = self.table_rows(grams)
        found = self.W_table[torch.arange(rows.shape[-1], device=rows.device), rows].flatten(2)
        value = self.hook_value(found @ self.W_value)
        wide = working_dtype(x.dtype)
        key = self.key_norm((found @ self.W_key).to(wide))
        d = (self.stream_norm(x.to(wide)) * key).sum(-1, keepdim=True) * x.shape[-1] ** -0.5
        # The square root's slope is infinite at 0.
        gate = self.hook_gate(torch.sigmoid(d.sign() * d.abs().clamp_min(1e-6).sqrt()).squeeze(-1))
        return x + self.hook_out((gate[..., None] * value).to(x.dtype))
