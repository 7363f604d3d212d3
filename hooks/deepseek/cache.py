"""Decode state of a hooked DeepSeek-V4: the Hugging Face cache, with copies and forks that are safe.

The class's own `batch_repeat_interleave` leaves the compressor's buffers behind and breaks the next call, so
rows are repeated here by hand, in every tensor of every layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hooks.errors import PhaselensError

__all__ = ["DeepseekCache"]


@dataclass
class DeepseekCache:
    """What later positions read: window KVs, entries, and the tokens of open windows.

    Attributes
    ----------
    hf : transformers DynamicCache
        One cache layer per decoder layer.
    batch : int
        Number of sequences.
    forked : bool
        Read-only: calls read the shared past, with U rows per sequence, and store nothing.
    ids : integer tensor [rows, pos] or None
        Of a fork: the tokens its call began with, for the layers that route by token id.
    """

    hf: Any
    batch: int
    forked: bool = False
    ids: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens absorbed by the whole model so far."""
        return int(self.hf.layers[-1].get_seq_length())

    def clone(self) -> DeepseekCache:
        """Return an independent copy."""
        return DeepseekCache(
            _mapped(self.hf, Tensor.clone, range(len(self.hf.layers))), self.batch, self.forked
        )

    def fork(self) -> DeepseekCache:
        """Return a read-only view for one call of U·B rows (row = b·U + u); see ``hooks.sites.Cache``."""
        return DeepseekCache(self.hf, self.batch, forked=True)

    def crop(self, n: int) -> None:
        """Not possible: the class drops what a shorter past would need.

        Raises
        ------
        PhaselensError
            Always.
        """
        raise PhaselensError(
            f"crop({n}): DeepSeek-V4's cache drops closed windows and cannot go back; clone() it before"
        )

    def ids_for(self, streams: Any) -> Tensor | None:
        """Token ids of residual streams [rows, pos, …] that continue this fork's call; None if unknown."""
        if self.ids is None or not isinstance(streams, Tensor) or streams.ndim < 2:
            return None
        variants, left = divmod(streams.shape[0], self.ids.shape[0])
        return (
            None if left or streams.shape[1] != self.ids.shape[1] else self.ids.repeat_interleave(variants, 0)
        )

    def for_rows(self, rows: int, layers: range) -> Any:
        """Return the Hugging Face cache that a call of `rows` rows through some layers may write to.

        Raises
        ------
        PhaselensError
            If the rows do not fit the sequences.
        """
        if rows % self.batch or (rows != self.batch and not self.forked):
            raise PhaselensError(f"{rows} rows do not fit a cache of {self.batch} sequences")
        if not self.forked:
            return self.hf
        times = rows // self.batch
        return _mapped(self.hf, lambda t: t.repeat_interleave(times, 0) if times > 1 else t, layers)


def _mapped(cache: Any, change: Callable[[Tensor], Tensor], layers: range) -> Any:
    """Copy a cache, sending every tensor of some layers that has a batch axis through `change`."""
    out = copy.copy(cache)
    out.layers = list(cache.layers)
    for index in layers:
        layer = out.layers[index] = copy.copy(cache.layers[index])
        keys, values = layer.keys, layer.values
        for name, value in vars(layer).items():
            if isinstance(value, dict):
                setattr(layer, name, {k: change(v) if isinstance(v, Tensor) else v for k, v in value.items()})
            elif isinstance(value, Tensor) and value.ndim > 1:
                setattr(layer, name, change(value))
        if keys is values:
            layer.values = layer.keys
    return out
