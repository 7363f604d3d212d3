"""Decode state: what later positions read of earlier ones, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hooks.config import LayerConfig, ModelConfig
from hooks.errors import PhaselensError

__all__ = ["DecodeCache", "LayerState"]


@dataclass(frozen=True)
class LayerState:
    """One layer's share of a :class:`DecodeCache`.

    Attributes
    ----------
    length : int
        Tokens absorbed.
    key, value : Tensor [B, n, G, D] or None
        Exact keys (as scored) and values of the last n positions; None without an exact branch.
    x : Tensor [B, m, d] or None
        Attention inputs of the last m positions, from which open windows are still to be pooled.
    entry_key, entry_value : Tensor [B, E, G, D] or None
        Entries so far, as this layer reads them.
    """

    length: int = 0
    key: Tensor | None = None
    value: Tensor | None = None
    x: Tensor | None = None
    entry_key: Tensor | None = None
    entry_value: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that are there, by attribute name."""
        names = ("key", "value", "x", "entry_key", "entry_value")
        return {name: t for name in names if (t := getattr(self, name)) is not None}

    def map(self, f) -> LayerState:
        """Apply a function to every tensor; tensors that are one object stay one object."""
        done: dict[int, Tensor] = {}
        for tensor in self.tensors().values():
            if id(tensor) not in done:
                done[id(tensor)] = f(tensor)
        return replace(self, **{name: done[id(t)] for name, t in self.tensors().items()})


def kept_exact(layer: LayerConfig, length: int, rewind: bool) -> int:
    """How many trailing exact keys later queries can still read."""
    if rewind or layer.attention == "full":
        return length
    if layer.tail == "open":
        return length % layer.stride
    return min(length, max(0, layer.exact_window - 1))


def kept_inputs(layer: LayerConfig, length: int, rewind: bool) -> int:
    """How many trailing attention inputs belong to windows that have not closed yet."""
    if rewind:
        return length
    first_open = length // layer.stride
    return min(length, length - max(0, (first_open + 1) * layer.stride - layer.window))


@dataclass
class DecodeCache:
    """Decode state of a :class:`~hooks.transformer.CompressedTransformer`.

    Made by :meth:`CompressedTransformer.start_cache`; each call of the model with it absorbs that call's
    tokens.

    Attributes
    ----------
    cfg : ModelConfig
        Of the model it belongs to.
    batch : int
        Number of sequences.
    rewind : bool
        Keep everything, so that :meth:`crop` works. Without it only what later tokens can read is kept.
    forked : bool
        Read-only: calls read the shared past and store nothing.
    """

    cfg: ModelConfig
    batch: int
    rewind: bool = True
    forked: bool = False
    layers: list[LayerState] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.layers:
            self.layers = [LayerState() for _ in range(self.cfg.n_layers)]

    @property
    def length(self) -> int:
        """Tokens absorbed by the whole model so far."""
        return self.layers[-1].length

    def clone(self) -> DecodeCache:
        """Return an independent copy."""
        return replace(self, layers=[state.map(torch.clone) for state in self.layers])

    def fork(self) -> DecodeCache:
        """Return a read-only view for one more call of U·B rows (row = b·U + u); see ``hooks.sites.Cache``."""
        return replace(self, forked=True, layers=list(self.layers))

    def crop(self, n: int) -> None:
        """Forget every token from position `n` on; the next call then equals one after a fresh run of `n`.

        Raises
        ------
        PhaselensError
            If the cache was started with ``rewind=False``, or holds fewer than `n` tokens.
        """
        if not self.rewind:
            raise PhaselensError(
                "crop needs a cache that keeps its past; start it with start_cache(batch, rewind=True)"
            )
        if not 0 <= n <= self.length:
            raise PhaselensError(f"crop({n}) of a cache of {self.length} tokens; valid: 0 to {self.length}")
        self.layers = [self._cropped(index, state, n) for index, state in enumerate(self.layers)]

    def _cropped(self, index: int, state: LayerState, n: int) -> LayerState:
        def first(tensor: Tensor | None, count: int) -> Tensor | None:
            return None if tensor is None else tensor[:, :count].clone()

        geometry = self.cfg.layer(index).geometry
        entries = geometry.n_entries(n) if geometry else 0
        tied = state.entry_key is state.entry_value
        entry_key = first(state.entry_key, entries)
        return LayerState(
            n,
            first(state.key, n),
            first(state.value, n),
            first(state.x, n),
            entry_key,
            entry_key if tied else first(state.entry_value, entries),
        )
