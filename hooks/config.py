"""Model configurations: one frozen dataclass, resolved layer by layer, and named presets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hooks.errors import ConfigError, did_you_mean
from hooks.geometry import ChunkGeometry

__all__ = ["LayerConfig", "ModelConfig", "preset", "preset_names"]

Attention = Literal["full", "sliding", "chunked"]
Tail = Literal["window", "open"]
Gate = Literal["scalar", "vector", "uniform"]
Payload = Literal["per_offset", "shared", "two_series"]


@dataclass(frozen=True)
class LayerConfig:
    """What one layer is, with every per-layer field of :class:`ModelConfig` resolved to a single value."""

    attention: str
    window: int
    stride: int
    exact_window: int
    tail: str
    gate: str
    gate_bias: bool
    payload: str
    tied_kv: bool
    qk_norm: bool
    rope_dims: int
    rope_base: float
    inverse_rope: bool
    sink: bool
    index_topk: int | None
    index_heads: int | None
    index_dim: int | None
    gate_init_std: float

    @property
    def geometry(self) -> ChunkGeometry | None:
        """The compressor's geometry, or None in a layer without one."""
        return ChunkGeometry(self.window, self.stride) if self.attention == "chunked" else None

    @property
    def has_exact_branch(self) -> bool:
        """Whether the layer reads exact tokens at all."""
        return self.attention == "full" or self.tail == "open" or self.exact_window > 0


@dataclass(frozen=True)
class ModelConfig:
    """Configuration of a :class:`~hooks.transformer.CompressedTransformer`.

    The first block of fields holds for the whole model. Every field after `seed` takes one value, or a
    tuple with one value per layer.

    Parameters
    ----------
    n_layers, d_model, n_heads, n_kv_heads, d_head, d_mlp, d_vocab : int
        Sizes. ``n_kv_heads`` divides ``n_heads``; query head h reads KV head h // (n_heads / n_kv_heads).
    seed : int
        Seed of the initial weights.
    attention : "full", "sliding" or "chunked"
        All exact tokens; the exact window only; the exact window and compressed entries.
    window, stride : int
        W and S of a chunked layer.
    exact_window : int
        Exact tokens a query sees, itself included; 0 means no exact branch. Ignored by full layers.
    tail : "window" or "open"
        "open": query q sees exact tokens t <= q of its own open window only (t//S == q//S).
    gate : "scalar", "vector" or "uniform"
        One gate per offset and KV head; one per channel besides; or 1/W.
    gate_bias : bool
        Whether each offset adds a learned bias to its gate logits.
    payload : "per_offset", "shared" or "two_series"
        How both the gate map Z and the payload map C are shared between offsets.
    tied_kv : bool
        The value read is the normalised, rotated key.
    qk_norm : bool
        RMSNorm on queries and keys, per head.
    rope_dims : int or None
        How many trailing channels of each head rotate; None is all, 0 none.
    rope_base : float
        RoPE base.
    inverse_rope : bool
        Rotate the head output's rotary channels back by the query position.
    sink : bool
        A learned logit per head that draws softmax mass and adds nothing.
    index_topk, index_heads, index_dim : int or None
        The indexer; None attends every visible entry.
    gate_init_std : float
        Standard deviation of the initial gate maps.

    Raises
    ------
    ConfigError
        Naming the field, its value and the valid choices.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_mlp: int
    d_vocab: int
    seed: int = 0
    attention: Attention | tuple[Attention, ...] = "chunked"
    window: int | tuple[int, ...] = 8
    stride: int | tuple[int, ...] = 8
    exact_window: int | tuple[int, ...] = 16
    tail: Tail | tuple[Tail, ...] = "window"
    gate: Gate | tuple[Gate, ...] = "scalar"
    gate_bias: bool | tuple[bool, ...] = True
    payload: Payload | tuple[Payload, ...] = "per_offset"
    tied_kv: bool | tuple[bool, ...] = False
    qk_norm: bool | tuple[bool, ...] = True
    rope_dims: int | tuple[int | None, ...] | None = None
    rope_base: float | tuple[float, ...] = 1e4
    inverse_rope: bool | tuple[bool, ...] = False
    sink: bool | tuple[bool, ...] = False
    index_topk: int | tuple[int | None, ...] | None = None
    index_heads: int | tuple[int | None, ...] | None = None
    index_dim: int | tuple[int | None, ...] | None = None
    gate_init_std: float | tuple[float, ...] = 0.02

    def __post_init__(self) -> None:
        for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "d_vocab"):
            _check_int(name, getattr(self, name), minimum=1)
        _check_int("d_mlp", self.d_mlp, minimum=0)
        _check_int("seed", self.seed, minimum=0)
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads}; "
                f"valid: {', '.join(str(k) for k in range(1, self.n_heads + 1) if self.n_heads % k == 0)}"
            )
        for name in _PER_LAYER:
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
                value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != self.n_layers:
                raise ConfigError(
                    f"{name} has {len(value)} values for {self.n_layers} layers; give one value or one per layer"
                )
        for layer in range(self.n_layers):
            _check_layer(self, layer)

    def layer(self, layer: int) -> LayerConfig:
        """Resolve every per-layer field for one layer.

        Raises
        ------
        ConfigError
            If there is no such layer.
        """
        if not 0 <= layer < self.n_layers:
            raise ConfigError(f"layer {layer} does not exist; valid: 0 to {self.n_layers - 1}")
        values = {name: _pick(getattr(self, name), layer) for name in _PER_LAYER}
        if values["rope_dims"] is None:
            values["rope_dims"] = self.d_head
        return LayerConfig(**values)

    @property
    def strides(self) -> tuple[int, ...]:
        """The distinct strides of the chunked layers, ascending."""
        found = {self.layer(i).stride for i in range(self.n_layers) if self.layer(i).attention == "chunked"}
        return tuple(sorted(found))

    def replace(self, **changes: Any) -> ModelConfig:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; tuples become lists."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build a configuration from JSON values.

        Raises
        ------
        ConfigError
            For an unknown or missing key, by name.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = [key for key in values if key not in fields]
        if unknown:
            raise ConfigError(
                f"unknown configuration key {unknown[0]!r}; {did_you_mean(unknown[0], fields, 30)}"
            )
        required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise ConfigError(f"configuration key {missing[0]!r} is missing; required: {', '.join(required)}")
        return cls(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})


_PER_LAYER = tuple(field.name for field in dataclasses.fields(LayerConfig))
_CHOICES: dict[str, tuple[str, ...]] = {
    "attention": get_args(Attention),
    "tail": get_args(Tail),
    "gate": get_args(Gate),
    "payload": get_args(Payload),
}
_BOOLS = ("gate_bias", "tied_kv", "qk_norm", "inverse_rope", "sink")


def _pick(value: Any, layer: int) -> Any:
    return value[layer] if isinstance(value, tuple) else value


def _check_int(name: str, value: Any, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{name}={value!r} is not an integer of at least {minimum}")


def _check_layer(cfg: ModelConfig, layer: int) -> None:
    values = {name: _pick(getattr(cfg, name), layer) for name in _PER_LAYER}
    for name, choices in _CHOICES.items():
        if values[name] not in choices:
            raise ConfigError(f"{name}={values[name]!r} in layer {layer}; valid: {', '.join(choices)}")
    for name in _BOOLS:
        if not isinstance(values[name], bool):
            raise ConfigError(f"{name}={values[name]!r} in layer {layer}; valid: True, False")
    _check_int("exact_window", values["exact_window"], minimum=0)
    for name in ("index_topk", "index_heads", "index_dim"):
        if values[name] is not None:
            _check_int(name, values[name], minimum=1)
    rope_dims = cfg.d_head if values["rope_dims"] is None else values["rope_dims"]
    _check_int("rope_dims", rope_dims, minimum=0)
    if rope_dims > cfg.d_head or rope_dims % 2:
        raise ConfigError(
            f"rope_dims={rope_dims} in layer {layer}; valid: even numbers from 0 to d_head={cfg.d_head}"
        )
    for name in ("rope_base", "gate_init_std"):
        if (
            isinstance(values[name], bool)
            or not isinstance(values[name], int | float)
            or not values[name] >= 0
        ):
            raise ConfigError(f"{name}={values[name]!r} in layer {layer} is not a number of at least 0")
    if values["attention"] == "chunked":
        ChunkGeometry(values["window"], values["stride"])
        if values["payload"] == "two_series" and values["window"] != 2 * values["stride"]:
            raise ConfigError(
                f"payload='two_series' needs window = 2*stride; layer {layer} has "
                f"window={values['window']}, stride={values['stride']}"
            )
    elif values["attention"] == "sliding":
        if values["exact_window"] == 0:
            raise ConfigError(
                f"layer {layer} is sliding with exact_window=0: it would read nothing; valid: 1 or more"
            )
        if values["tail"] == "open":
            raise ConfigError(
                f"tail='open' in sliding layer {layer}: only chunked layers have an open window"
            )


_RECALL = {
    "n_layers": 4, "d_model": 128, "n_heads": 4, "d_head": 32, "d_mlp": 256, "d_vocab": 273,
}  # fmt: skip
_DEEPSEEK_STYLE = {
    **_RECALL, "n_kv_heads": 1, "gate": "vector", "tied_kv": True, "rope_dims": 16,
}  # fmt: skip

_PRESETS: dict[str, dict[str, Any]] = {
    "full-4kv": {**_RECALL, "n_kv_heads": 4, "attention": "full"},
    "w4s4-4kv": {**_RECALL, "n_kv_heads": 4, "window": 4, "stride": 4},
    "w8s8-1kv": {**_RECALL, "n_kv_heads": 1},
    "w8s8-2kv": {**_RECALL, "n_kv_heads": 2},
    "w8s8-4kv": {**_RECALL, "n_kv_heads": 4},
    "w8s6-4kv": {**_RECALL, "n_kv_heads": 4, "stride": 6},
    "w8s4-4kv": {**_RECALL, "n_kv_heads": 4, "stride": 4},
    "w12s12-4kv": {**_RECALL, "n_kv_heads": 4, "window": 12, "stride": 12},
    "w8s8-2kv-uniform": {**_RECALL, "n_kv_heads": 2, "gate": "uniform"},
    "w8s8-2kv-nope": {**_RECALL, "n_kv_heads": 2, "rope_dims": 0},
    "dsv4-w8s4-1kv": {**_DEEPSEEK_STYLE, "stride": 4, "payload": "two_series"},
    "v41-w2s2-1kv": {**_DEEPSEEK_STYLE, "window": 2, "stride": 2, "payload": "shared", "gate_bias": False},
    "tiny": {
        "n_layers": 2, "d_model": 64, "n_heads": 4, "n_kv_heads": 2, "d_head": 16, "d_mlp": 128, "d_vocab": 73,
        "window": 4, "stride": 4, "exact_window": 4,
    },
}  # fmt: skip


def preset_names() -> list[str]:
    """Names that :func:`preset` knows."""
    return list(_PRESETS)


def preset(name: str) -> ModelConfig:
    """Return a named configuration.

    Raises
    ------
    ConfigError
        Listing the names that exist.
    """
    if name not in _PRESETS:
        raise ConfigError(f"unknown preset {name!r}; {did_you_mean(name, _PRESETS, 30)}")
    return ModelConfig(**_PRESETS[name])
