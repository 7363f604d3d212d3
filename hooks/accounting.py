"""Cache accounting: what a token costs in the compressed caches, and what each saving is worth. Pure numbers.

A layer *owns* a cache if it stores rows that later positions read; a *reuse* or *reindex* layer reads a row
that an earlier layer stored. Only rows whose number grows with the sequence count per token; the exact
window is a constant per sequence and is reported on its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hooks.config import ModelConfig
from hooks.errors import ConfigError, did_you_mean
from hooks.quantize import FORMATS

__all__ = [
    "CACHE_SPECS",
    "CacheSpec",
    "LayerCache",
    "Saving",
    "bytes_per_token",
    "cache_spec",
    "describe",
    "from_config",
    "prefill_layer_operations",
    "row_bytes",
    "savings",
    "window_bytes",
]

Role = Literal["window", "full", "reindex", "reuse"]

_PLAIN = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
_V4_ROTARY, _V4_SCALES = 64, 8
PREFILL_TOKENS = 131_072
"""Length of the prompt whose prefill is counted: 128K."""
PRECISIONS = (*_PLAIN, *FORMATS, "fp8+bf16")


@dataclass(frozen=True)
class LayerCache:
    """What one layer stores and reads.

    Parameters
    ----------
    role : "window", "full", "reindex" or "reuse"
        Exact window only; owner of a cache; reader of an earlier owner's cache with picks of its own; reader
        with the owner's or last reindexer's picks.
    stride : int
        Tokens per row; 0 in a window layer. Readers state the stride of what they read.
    width : int
        Numbers in one row: channels, times KV heads, times 2 where keys and values are stored apart.
    index_width : int
        Numbers in one index key; 0 without an indexer.
    """

    role: Role
    stride: int
    width: int
    index_width: int = 0

    def __post_init__(self) -> None:
        if (self.role == "window") != (self.stride == 0) or self.stride < 0:
            raise ConfigError(
                f"stride {self.stride} in a {self.role} layer; valid: 0 in window layers, else 1 or more"
            )


@dataclass(frozen=True)
class CacheSpec:
    """The caches of a whole model.

    Parameters
    ----------
    name : str
        For display.
    layers : tuple of LayerCache
        First to last.
    n_heads, d_head : int
        Query heads, for the baseline that keeps a key and a value for each.
    stored, index_stored, window_stored : str
        Precision of entries, index keys and window rows, see :func:`row_bytes`.
    window : int
        Exact tokens kept per layer.
    encoder_layers : int or None
        Layers that must run over the whole prompt; None where there is no encoder-decoder split.

    Raises
    ------
    ConfigError
        For an unknown precision, or a layer that reads a cache no earlier layer owns.
    """

    name: str
    layers: tuple[LayerCache, ...]
    n_heads: int
    d_head: int
    stored: str
    index_stored: str
    window_stored: str
    window: int
    encoder_layers: int | None = None

    def __post_init__(self) -> None:
        for precision in (self.stored, self.index_stored, self.window_stored):
            if precision not in PRECISIONS:
                raise ConfigError(
                    f"unknown stored precision {precision!r}; {did_you_mean(precision, PRECISIONS)}"
                )
        owned: set[int] = set()
        for number, layer in enumerate(self.layers):
            if layer.role == "full":
                owned.add(layer.stride)
            elif layer.role != "window" and layer.stride not in owned:
                raise ConfigError(
                    f"layer {number} ({layer.role}) reads stride {layer.stride}, which no earlier layer owns"
                )


@dataclass(frozen=True)
class Saving:
    """One step from the baseline to the real cache.

    Attributes
    ----------
    name : str
        ``"entry width"``, ``"sequence"``, ``"layers"`` or ``"precision"``.
    before, after : float
        Bytes a token.
    """

    name: str
    before: float
    after: float

    @property
    def factor(self) -> float:
        """How many times smaller the cache is after this step."""
        return self.before / self.after


def row_bytes(width: int, precision: str) -> float:
    """Size of one stored row, scales included.

    Parameters
    ----------
    width : int
        Numbers in the row.
    precision : str
        ``fp32``, ``bf16``, ``fp16``; a block format of :mod:`hooks.quantize`; or ``"fp8+bf16"``, the row of
        DeepSeek-V4: 64 rotary numbers as bf16, the rest as FP8, and 8 bytes of scales (512 → 584
        bytes; the row layout is not sourced).

    Raises
    ------
    ConfigError
        For an unknown precision, or a width that its blocks do not divide.
    """
    if precision in _PLAIN:
        return width * _PLAIN[precision]
    if precision in FORMATS:
        return FORMATS[precision].bytes(width) if width else 0.0
    if precision == "fp8+bf16":
        if width <= _V4_ROTARY:
            raise ConfigError(
                f"width {width} has no place for {_V4_ROTARY} rotary numbers in precision {precision}"
            )
        return (width - _V4_ROTARY) + 2.0 * _V4_ROTARY + _V4_SCALES
    raise ConfigError(f"unknown stored precision {precision!r}; {did_you_mean(precision, PRECISIONS)}")


def bytes_per_token(spec: CacheSpec) -> float:
    """Bytes by which the caches grow per token: rows and index keys of the owners, over their strides."""
    return math.fsum(
        (row_bytes(layer.width, spec.stored) + row_bytes(layer.index_width, spec.index_stored)) / layer.stride
        for layer in spec.layers
        if layer.role == "full"
    )


def window_bytes(spec: CacheSpec) -> float:
    """Bytes of the exact windows of all layers, once they are full; they do not grow with the sequence."""
    return math.fsum(spec.window * row_bytes(layer.width, spec.window_stored) for layer in spec.layers)


def savings(spec: CacheSpec) -> tuple[Saving, ...]:
    """From multi-head attention in bf16 to the real cache, one saving at a time.

    The baseline keeps a key and a value of `d_head` for every query head, layer and token, two bytes a
    number. Then, in this order (part of the definition: the steps interact): *entry width*, every
    layer keeps one row of its own width and its index key instead; *sequence*, one row every `stride` tokens,
    none in window layers; *layers*, only owners keep rows; *precision*, rows as stored. The factors
    multiply to the whole saving.
    """
    baseline = len(spec.layers) * spec.n_heads * 2 * spec.d_head * 2.0
    rows = [(layer, 2.0 * (layer.width + layer.index_width)) for layer in spec.layers]
    width = math.fsum(size for _, size in rows)
    sequence = math.fsum(size / layer.stride for layer, size in rows if layer.stride)
    owners = math.fsum(size / layer.stride for layer, size in rows if layer.role == "full")
    sizes = (baseline, width, sequence, owners, bytes_per_token(spec))
    names = ("entry width", "sequence", "layers", "precision")
    return tuple(Saving(name, sizes[i], sizes[i + 1]) for i, name in enumerate(names))


def prefill_layer_operations(spec: CacheSpec, tokens: int, *, split: bool) -> int:
    """Token-layer pairs that a prefill of `tokens` computes.

    Parameters
    ----------
    spec : CacheSpec
        The model.
    tokens : int
        Length of the prompt.
    split : bool
        Use the encoder-decoder split: the decoder, whose caches are projected from the encoder's output,
        runs over the last `window` tokens only (a bounded replay, an approximation). Those
        projections are not counted as layer operations.

    Raises
    ------
    ConfigError
        If the model has no split.
    """
    if not split:
        return len(spec.layers) * tokens
    if spec.encoder_layers is None:
        raise ConfigError(f"{spec.name} has no encoder-decoder split; valid: split=False")
    decoder = len(spec.layers) - spec.encoder_layers
    return spec.encoder_layers * tokens + decoder * min(tokens, spec.window)


def from_config(config: ModelConfig, *, name: str, stored: str = "fp32") -> CacheSpec:
    """Describe the caches of a configuration.

    Full layers keep every token's key and value; chunked layers that own entries keep theirs, one row if keys and
    values are tied, and an index key where they have an indexer. Windows of different lengths count as the
    longest.

    Parameters
    ----------
    config : ModelConfig
        Whose caches.
    name : str
        For display.
    stored : str
        Precision of caches for which the configuration states none.

    Raises
    ------
    ConfigError
        If owners store the same kind of cache at different precisions.
    """
    layers = []
    for number in range(config.n_layers):
        layer = config.layer(number)
        rows = config.n_kv_heads * config.d_head * (1 if layer.tied_kv else 2)
        if layer.attention == "sliding":
            layers.append(LayerCache("window", 0, rows))
        else:
            stride = layer.stride if layer.attention == "chunked" else 1
            keys = config.layer(number if layer.owner is None else layer.owner).index_dim or 0
            layers.append(LayerCache(_role(layer.role), stride, rows, keys))
    decoder_start = config.decoder_start
    return CacheSpec(
        name, tuple(layers), n_heads=config.n_heads, d_head=config.d_head,
        stored=_precision(config, "entry_precision", stored),
        index_stored=_precision(config, "index_precision", stored),
        window_stored=_precision(config, "exact_precision", stored),
        window=max(config.layer(i).exact_window for i in range(config.n_layers)), encoder_layers=decoder_start,
    )  # fmt: skip


def _role(role: str) -> Role:
    return "reindex" if role == "reindex" else "reuse" if role == "reuse" else "full"


def _precision(config: ModelConfig, field: str, default: str) -> str:
    """The one precision of a kind of cache over all layers that keep it."""
    found = set()
    for number in range(config.n_layers):
        layer = config.layer(number)
        owns = layer.attention != "sliding" and layer.role == "full"
        if field == "exact_precision" or (owns and (field == "entry_precision" or layer.index_dim)):
            found.add(getattr(layer, field) if layer.attention != "full" else layer.exact_precision)
    if len(found) > 1:
        raise ConfigError(f"{field} differs between layers ({found}): one size per token would hide which")
    return next(iter(found), None) or default


# --------------------------------------------------------------------------- published models

_WIDTH, _INDEX = 512, 128
_SLIDING = LayerCache("window", 0, _WIDTH)
_CSA, _HCA = LayerCache("full", 4, _WIDTH, _INDEX), LayerCache("full", 128, _WIDTH)


def _v4(name: str, layers: tuple[LayerCache, ...], n_heads: int) -> CacheSpec:
    return CacheSpec(
        name, layers, n_heads=n_heads, d_head=_WIDTH, stored="fp8+bf16", index_stored="mxfp4",
        window_stored="fp8+bf16", window=128,
    )  # fmt: skip


def _v41_layer(number: int) -> LayerCache:
    if number < 2:
        return _SLIDING
    role: Role = "full" if number in (2, 8, 14, 20) else "reindex" if number in (24, 28, 32, 36) else "reuse"
    return LayerCache(role, 2 if number < 20 else 1, _WIDTH, _INDEX)


CACHE_SPECS: Mapping[str, CacheSpec] = {
    spec.name: spec
    for spec in (
        # 43 layers: 2 sliding, then CSA on even and HCA on odd layers.
        _v4("deepseek-v4-flash", (_SLIDING, _SLIDING, *(_HCA if i % 2 else _CSA for i in range(2, 43))), 64),
        # 61 layers: 2 HCA, then alternating; HCA on even layers, as transformers' class builds its default.
        _v4("deepseek-v4-pro", (_HCA, _HCA, *(_CSA if i % 2 else _HCA for i in range(2, 61))), 128),
        CacheSpec(
            "deepseek-v4.1-flash", tuple(_v41_layer(i) for i in range(40)), n_heads=64, d_head=_WIDTH,
            stored="fp4", index_stored="mxfp4", window_stored="fp8", window=128, encoder_layers=20,
        ),
    )
}  # fmt: skip
"""The published models, from the numbers of their configurations."""


def cache_spec(name: str) -> CacheSpec:
    """Return the caches of a published model.

    Raises
    ------
    ConfigError
        Listing the names that exist.
    """
    if name not in CACHE_SPECS:
        raise ConfigError(f"no published cache {name!r}; {did_you_mean(name, CACHE_SPECS)}")
    return CACHE_SPECS[name]


def describe(spec: CacheSpec) -> dict[str, Any]:
    """Return all numbers of one model as plain values: bytes a token, window bytes, savings and prefill.

    ``prefill`` counts token-layer pairs of a prompt of :data:`PREFILL_TOKENS`, None without an encoder-decoder
    split.
    """
    prefill = None
    if spec.encoder_layers is not None:
        prefill = {
            "tokens": PREFILL_TOKENS,
            "whole": prefill_layer_operations(spec, PREFILL_TOKENS, split=False),
            "split": prefill_layer_operations(spec, PREFILL_TOKENS, split=True),
        }
    return {
        "name": spec.name,
        "bytes_per_token": bytes_per_token(spec),
        "window_bytes": window_bytes(spec),
        "savings": [
            {"name": s.name, "before": s.before, "after": s.after, "factor": s.factor} for s in savings(spec)
        ],
        "prefill": prefill,
    }
