"""Decode state: what later positions read of earlier ones, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from hooks.checks import whole_number
from hooks.config import LayerConfig, ModelConfig
from hooks.errors import PhaselensError

__all__ = ["PAST", "DecodeCache", "LayerState", "SharedEntries", "as_read", "extend", "for_rows"]

PAST = 3
"""Tokens before a position that its n-grams reach, see :mod:`hooks.engram`."""


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
        Entries so far, as this layer reads them. Where no hook changed what a layer reads, these are the very
        tensors that their owner stores: shared entries are kept once.
    stored_key, stored_value : Tensor [B, E, G, D] or None
        Entries so far as stored, in an owner that other layers read.
    index_key : Tensor [B, E, d] or None
        Index keys so far, in an owner with an indexer.
    """

    length: int = 0
    key: Tensor | None = None
    value: Tensor | None = None
    x: Tensor | None = None
    entry_key: Tensor | None = None
    entry_value: Tensor | None = None
    stored_key: Tensor | None = None
    stored_value: Tensor | None = None
    index_key: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that are there, by attribute name."""
        return {
            field.name: tensor
            for field in fields(self)
            if field.name != "length" and (tensor := getattr(self, field.name)) is not None
        }

    def map(self, f: Callable[[str, Tensor], Tensor], done: dict[int, Tensor]) -> LayerState:
        """Apply ``f(name, tensor)`` to every tensor not in `done` yet; what is one object stays one object."""
        for name, tensor in self.tensors().items():
            if id(tensor) not in done:
                done[id(tensor)] = f(name, tensor)
        return replace(self, **{name: done[id(tensor)] for name, tensor in self.tensors().items()})


def for_rows(tensor: Tensor, rows: int, batch: int) -> Tensor:
    """Give variants that joined since (at the end of each sequence's rows) what variant 0 has."""
    if tensor.shape[0] == rows:
        return tensor
    split = tensor.unflatten(0, (batch, -1))
    new = split[:, :1].expand(-1, rows // batch - split.shape[1], *split.shape[2:])
    return torch.cat((split, new), dim=1).flatten(0, 1)


def extend(past: Tensor | None, fresh: Tensor | None, keep: int | None = None) -> Tensor | None:
    """Append along axis 1 and keep the last `keep` rows, as a tensor of its own."""
    if fresh is None:
        return past
    if past is not None and past.shape[0] != fresh.shape[0]:
        return None
    whole = fresh if past is None else torch.cat((past, fresh), dim=1)
    return whole if keep is None or keep >= whole.shape[1] else whole[:, whole.shape[1] - keep :].clone()


def as_read(
    past: Tensor | None,
    fresh: Tensor | None,
    stored_past: Tensor | None,
    stored: Tensor,
    whole: Tensor | None,
) -> Tensor | None:
    """All entries as a layer reads them: the owner's own tensor as long as no hook changed any."""
    same = fresh is not None and (fresh is stored or (whole is not None and torch.equal(fresh, stored)))
    if same and whole is not None and past is stored_past:
        return whole
    return extend(past, fresh)


@dataclass(frozen=True)
class SharedEntries:
    """What an owner leaves for its readers in one call.

    Attributes
    ----------
    owner : int
        The layer.
    stop : int
        Tokens absorbed when the call ends.
    first : int
        Number of the first entry that closes in the call.
    key, value : Tensor [R, E, G, D]
        The entries that close, as stored; one tensor when tied.
    index_past : Tensor [B, E0, d] or None
        Index keys of earlier calls.
    index_key : Tensor [R, E, d] or None
        Index keys of the entries that close.
    picks : Tensor [R, T, k] or None
        The latest picks over these entries, by query of the call.
    pool : Tensor [R, T, p] or None
        Blocks inside which reindex layers pick.
    past, whole : pair of Tensor or None
        Stored keys and values before and after the call, by which readers know whether they still read them.
    """

    owner: int
    stop: int
    first: int
    key: Tensor
    value: Tensor
    index_past: Tensor | None = None
    index_key: Tensor | None = None
    picks: Tensor | None = None
    pool: Tensor | None = None
    past: tuple[Tensor | None, Tensor | None] = (None, None)
    whole: tuple[Tensor | None, Tensor | None] = (None, None)

    def for_rows(self, rows: int, batch: int) -> SharedEntries:
        """Widen every tensor of the call, see :func:`for_rows`."""
        wider = {}
        for name in ("key", "value", "index_key", "picks", "pool"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape[0] != rows:
                wider[name] = for_rows(tensor, rows, batch)
        if "key" in wider and self.value is self.key:
            wider["value"] = wider["key"]
        return replace(self, **wider)


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
    shared : SharedEntries or None
        What an owner left for later layers of a call that goes on layer by layer.
    grams : Tensor [R, past + T] or None
        The tokens of such a call behind those before it, in a model with n-gram memories.
    tokens : Tensor [B, n] or None
        The last tokens absorbed, all of them with `rewind`; likewise.
    """

    cfg: ModelConfig
    batch: int
    rewind: bool = True
    forked: bool = False
    layers: list[LayerState] = field(default_factory=list)
    shared: SharedEntries | None = field(default=None, repr=False)
    grams: Tensor | None = field(default=None, repr=False)
    tokens: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.batch = whole_number("batch", self.batch, 1)
        if not self.layers:
            self.layers = [LayerState() for _ in range(self.cfg.n_layers)]

    @property
    def length(self) -> int:
        """Tokens absorbed by the whole model so far."""
        return self.layers[-1].length

    def require(self, cfg: ModelConfig, rows: int, first: int, last: int) -> None:
        """Raise unless layers `first` … `last`−1 of this model can absorb `rows` sequences.

        Raises
        ------
        PhaselensError
            For the cache of another model, a batch that does not fit, or layers that stand at different
            lengths because an earlier call stopped between them.
        """
        if self.cfg is not cfg and self.cfg != cfg:
            raise PhaselensError(
                "the cache belongs to a model of another configuration; use model.start_cache(batch)"
            )
        if rows % self.batch or (rows != self.batch and not self.forked):
            raise PhaselensError(f"{rows} rows do not fit a cache of {self.batch} sequences")
        lengths = {state.length for state in self.layers[first:last]}
        if len(lengths) > 1:
            raise PhaselensError(
                f"layers of the cache hold {min(lengths)} to {max(lengths)} tokens: an earlier call stopped "
                "between them; finish it with start_at_layer, or crop the cache"
            )

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Context of one call: if it raises, the cache is as it was before."""
        before = (list(self.layers), self.shared, self.grams, self.tokens)
        try:
            yield
        except BaseException:
            self.layers, self.shared, self.grams, self.tokens = before
            raise

    def clone(self) -> DecodeCache:
        """Return an independent copy."""
        done: dict[int, Tensor] = {}
        layers = [state.map(lambda _, tensor: tensor.clone(), done) for state in self.layers]
        tokens = None if self.tokens is None else self.tokens.clone()
        return replace(self, layers=layers, tokens=tokens, shared=None, grams=None)

    def end_call(self, grams: Tensor | None) -> None:
        """Forget what only a call in progress needs, and take over its tokens."""
        self.shared = self.grams = None
        if grams is None or self.forked:
            return
        new = grams[:, PAST:] if self.rewind else grams[:, -PAST:]
        past = self.tokens if self.rewind else None
        self.tokens = new.clone() if past is None else torch.cat((past, new), dim=1)

    def fork(self) -> DecodeCache:
        """Return a read-only view for one more call of U·B rows (row = b·U + u); see ``hooks.sites.Cache``."""
        return replace(self, forked=True, layers=list(self.layers), shared=None, grams=None)

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
        done: dict[int, Tensor] = {}
        self.layers = [self._cropped(index, state, n, done) for index, state in enumerate(self.layers)]
        self.tokens = None if self.tokens is None else self.tokens[:, :n].clone()
        self.shared = self.grams = None

    def _cropped(self, index: int, state: LayerState, n: int, done: dict[int, Tensor]) -> LayerState:
        geometry = self.cfg.layer(index).geometry
        entries = geometry.n_entries(n) if geometry else 0

        def first(name: str, tensor: Tensor) -> Tensor:
            return tensor[:, : n if name in ("key", "value", "x") else entries].clone()

        return replace(state.map(first, done), length=n)
