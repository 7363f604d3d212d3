"""The names of what can be hooked, the axes behind each name, and the protocol that interp/ relies on.

Axis legend: batch B, pos T (query positions of this call), key (all positions so far, then all entries so
far, then the sink), entry E, offset W, head H (query heads), kv_head G, d_head D, pick k, index_head and
index_dim (of the indexer), block (of entries, for hierarchical picks).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from hooks.errors import SiteError, did_you_mean
from hooks.geometry import ChunkGeometry

__all__ = ["SITE_AXES", "Cache", "HookedModel", "Site", "check_names", "site"]

_STREAM = ("batch", "pos", "d_model")
_QUERY = ("batch", "pos", "head", "d_head")
_EXACT = ("batch", "pos", "kv_head", "d_head")
_ENTRY = ("batch", "entry", "kv_head", "d_head")
_SLOT = ("batch", "entry", "offset", "kv_head", "d_head")
_MAP = ("batch", "head", "pos", "key")
_BRANCH = {
    "hook_gate_logits": _SLOT,
    "hook_gate": _SLOT,
    "hook_payload": _SLOT,
    "hook_pooled": _ENTRY,
    "hook_entry": _ENTRY,
}

SITE_AXES: dict[str, tuple[str, ...]] = {
    "hook_embed": _STREAM,
    "hook_resid_pre": _STREAM,
    "hook_resid_mid": _STREAM,
    "hook_resid_post": _STREAM,
    "hook_attn_out": _STREAM,
    "hook_mlp_out": _STREAM,
    "engram.hook_gate": ("batch", "pos"),
    "engram.hook_value": _STREAM,
    "engram.hook_out": _STREAM,
    "attn.hook_q": _QUERY,
    "attn.hook_k": _EXACT,
    "attn.hook_v": _EXACT,
    "attn.hook_rot_q": _QUERY,
    "attn.hook_rot_k": _EXACT,
    "attn.hook_entry_k": _ENTRY,
    "attn.hook_entry_v": _ENTRY,
    "attn.hook_attn_scores": _MAP,
    "attn.hook_pattern": _MAP,
    "attn.hook_z": _QUERY,
    "attn.hook_result": ("batch", "pos", "head", "d_model"),
    **{
        f"attn.{branch}.{name}": axes
        for branch in ("compressor.key", "compressor.value", "indexer.compressor")
        for name, axes in _BRANCH.items()
    },
    "attn.indexer.hook_key": ("batch", "entry", "index_dim"),
    "attn.indexer.hook_q": ("batch", "pos", "index_head", "index_dim"),
    "attn.indexer.hook_weight": ("batch", "pos", "index_head"),
    "attn.indexer.hook_pool": ("batch", "pos", "block"),
    "attn.indexer.hook_scores": ("batch", "pos", "entry"),
    "attn.indexer.hook_picks": ("batch", "pos", "pick"),
}
"""Axes of every site, by its name within a block (``blocks.{l}.`` left out)."""

_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Site:
    """A parsed hook name: which layer, which kind, and what its axes mean.

    Attributes
    ----------
    name : str
        The full hook name, e.g. ``"blocks.1.attn.hook_z"``.
    layer : int or None
        None for ``hook_embed``.
    kind : str
        The name within the block, a key of :data:`SITE_AXES`.
    axes : tuple of str
        One word per tensor axis.
    """

    name: str
    layer: int | None
    kind: str
    axes: tuple[str, ...]

    def axis(self, word: str) -> int:
        """Index of an axis by its word.

        Raises
        ------
        SiteError
            If the site has no such axis.
        """
        if word not in self.axes:
            raise SiteError(f"{self.name} has no axis {word!r}; {did_you_mean(word, self.axes)}")
        return self.axes.index(word)


def site(name: str) -> Site:
    """Parse a hook name.

    Raises
    ------
    SiteError
        If it is not the name of any site of any model.
    """
    if name == "hook_embed":
        return Site(name, None, name, SITE_AXES[name])
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in SITE_AXES:
        kind = match[2] if match else name
        raise SiteError(
            f"{name!r} is not a hook site; {did_you_mean(kind, SITE_AXES, 30)} (after 'blocks.LAYER.')"
        )
    return Site(name, int(match[1]), match[2], SITE_AXES[match[2]])


def check_names(names: Iterable[str], valid: Sequence[str]) -> None:
    """Raise unless every name is among the sites that fire in this model.

    Raises
    ------
    SiteError
        Naming the first bad one and the sites of the same layer that do fire.
    """
    known = set(valid)
    for name in names:
        if name in known:
            continue
        match = _BLOCK.fullmatch(name)
        layer = match[1] if match else ""
        same_layer = [v for v in valid if match and v.startswith(f"blocks.{layer}.")]
        owner = _owning(name, known)
        if owner is not None:
            raise SiteError(
                f"{name!r} never fires in this model: layer {layer} reads what layer {owner[0]} owns; hook "
                f"{owner[1]!r}, or what this layer reads: "
                f"{', '.join(v for v in same_layer if 'attn.hook_entry' in v)}"
            )
        raise SiteError(
            f"{name!r} never fires in this model" + (f" (layer {layer} lacks it)" if same_layer else "")
            + f"; {did_you_mean(name, same_layer or valid, 30)}"
        )  # fmt: skip


def _owning(name: str, known: set[str]) -> tuple[int, str] | None:
    """Layer and name of the site behind one that a reading layer lacks; None where there is no such thing.

    A layer that reads entries and has no compressor reads those of the nearest earlier layer with one; the
    same holds for index keys and picks.
    """
    match = _BLOCK.fullmatch(name)
    if match is None or not match[2].startswith(("attn.compressor.", "attn.indexer.")):
        return None
    layer = int(match[1])
    if f"blocks.{layer}.attn.hook_entry_k" not in known:
        return None
    if any(f"blocks.{layer}.attn.compressor.key.{kind}" in known for kind in _BRANCH):
        return None
    for earlier in range(layer - 1, -1, -1):
        if f"blocks.{earlier}.{match[2]}" in known:
            return earlier, f"blocks.{earlier}.{match[2]}"
    return None


@runtime_checkable
class Cache(Protocol):
    """Decode state: what later positions read."""

    @property
    def length(self) -> int:
        """Tokens absorbed so far."""
        ...

    def fork(self) -> Cache:
        """Return a read-only view for one more call of U·B rows over B shared pasts (row = b·U + u).

        The call reads the shared past, keeps its own new keys and entries per row, and stores nothing. It may
        run in pieces, layer by layer, and variants may join in between at the end of each sequence's
        rows: what earlier layers left for later ones in this call, they take from variant 0.
        """
        ...


class ModelSizes(Protocol):
    """The sizes every measured model states."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_vocab: int


@runtime_checkable
class HookedModel(Protocol):
    """What interp/ needs from a model; the own models and both DeepSeek adapters implement it.

    ``name`` is for display, ``task`` the recall settings stored with a trained model (or None), and
    ``content_hash`` identifies config and weights.
    """

    name: str
    task: dict[str, Any] | None

    @property
    def cfg(self) -> Any:
        """Sizes, see :class:`ModelSizes`."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    def geometry(self, layer: int) -> ChunkGeometry | None:
        """Geometry of a layer's compressor, None where it has none."""
        ...

    def site_names(self) -> list[str]:
        """Every hook name that fires in this model, in order of firing."""
        ...

    def content_hash(self) -> str:
        """SHA-256 over configuration and weights, hexadecimal."""
        ...

    def start_cache(self, batch: int, rewind: bool = True) -> Any:
        """An empty decode cache, see :class:`Cache`."""
        ...

    def __call__(
        self,
        tokens: Tensor,
        cache: Any = None,
        *,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits [batch, pos, d_vocab].

        With `start_at_layer`, `tokens` is that layer's residual input; with `stop_at_layer`, the residual
        before that layer is returned. `last_only` computes the last layer, norm and unembedding at the
        final position alone and returns [batch, 1, d_vocab].
        """
        ...

    def hooks(self, fwd_hooks: Sequence[tuple[str, Callable[..., Any]]] = ...) -> AbstractContextManager[Any]:
        """Context with temporary hooks ``f(tensor, hook) -> tensor or None``; they never outlive it."""
        ...

    def run_with_hooks(
        self, tokens: Tensor, fwd_hooks: Sequence[tuple[str, Callable[..., Any]]] = ..., **kwargs: Any
    ) -> Tensor:
        """One forward pass under temporary hooks; a name that never fires raises :class:`SiteError`."""
        ...

    def run_with_cache(self, tokens: Tensor, names_filter: Any = None, **kwargs: Any) -> tuple[Tensor, Any]:
        """Logits and copies of the chosen activations by hook name."""
        ...
