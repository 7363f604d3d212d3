"""Sizes of a DeepSeek-V4 under the names our own models use, and what a compressor slot holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from hooks.errors import ConfigError
from hooks.geometry import ChunkGeometry

__all__ = ["DeepseekSizes", "SlotLabel", "sizes_of", "slots"]


class SlotLabel(NamedTuple):
    """What a compressor slot holds.

    Attributes
    ----------
    offset : int
        Slot 0 … W−1.
    series : str
        "a": a token's contribution to the entry after its own; "b": to its own entry.
    phase : int
        Phase of the token.
    token : int or None
        Its position; None where the first entry has no such token (its gate is exactly 0).
    """

    offset: int
    series: str
    phase: int
    token: int | None


@dataclass(frozen=True)
class DeepseekSizes:
    """Sizes of a hooked DeepSeek-V4; `stride` and `window` hold None for layers without a compressor."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_vocab: int
    exact_window: int
    n_streams: int
    layer_types: tuple[str, ...]
    stride: tuple[int | None, ...]
    window: tuple[int | None, ...]
    device: str

    @property
    def n_key_value_heads(self) -> int:
        """TransformerLens's name for the number of KV heads."""
        return self.n_kv_heads

    @property
    def strides(self) -> tuple[int, ...]:
        """The distinct strides of the compressed layers, ascending."""
        return tuple(sorted({stride for stride in self.stride if stride}))

    def geometry(self, layer: int) -> ChunkGeometry | None:
        """Geometry of a layer's compressor, None where it has none.

        Raises
        ------
        ConfigError
            For a layer that does not exist.
        """
        if not 0 <= layer < self.n_layers:
            raise ConfigError(f"layer {layer} does not exist; valid: 0 to {self.n_layers - 1}")
        window, stride = self.window[layer], self.stride[layer]
        return None if window is None or stride is None else ChunkGeometry(window, stride)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return json.loads(json.dumps(asdict(self)))


def sizes_of(config: Any, device: torch.device) -> DeepseekSizes:
    """Read the sizes off a ``DeepseekV4Config``; sparse layers pool two strides, heavy ones one."""
    rates = [config.compress_rates.get(kind) for kind in config.layer_types]
    double = [kind == "compressed_sparse_attention" for kind in config.layer_types]
    return DeepseekSizes(
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        n_heads=config.num_attention_heads,
        n_kv_heads=1,
        d_head=config.head_dim,
        d_vocab=config.vocab_size,
        exact_window=config.sliding_window,
        n_streams=config.hc_mult,
        layer_types=tuple(config.layer_types),
        stride=tuple(rates),
        window=tuple(rate and rate * (2 if two else 1) for rate, two in zip(rates, double, strict=True)),
        device=str(device),
    )


def slots(geometry: ChunkGeometry, entry: int) -> list[SlotLabel]:
    """Label every slot of an entry.

    Raises
    ------
    ConfigError
        For an entry below 0.
    """
    first = geometry.covered(entry).stop - geometry.window
    return [
        SlotLabel(
            offset,
            "a" if offset < geometry.window - geometry.stride else "b",
            geometry.offset_phase(offset),
            first + offset if first + offset >= 0 else None,
        )
        for offset in range(geometry.window)
    ]
