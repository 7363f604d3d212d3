"""Model configurations: one frozen dataclass, resolved layer by layer, and named presets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from hooks.checks import is_real
from hooks.errors import ConfigError, did_you_mean
from hooks.geometry import ChunkGeometry
from hooks.presets import FULL_SIZE, TRAINABLE
from hooks.roles import check_roles, index_sources, owners
from hooks.stored import check_width

__all__ = ["LayerConfig", "ModelConfig", "full_size_names", "preset", "preset_names", "scaled_down"]

Attention = Literal["full", "sliding", "chunked"]
Tail = Literal["window", "open"]
Gate = Literal["scalar", "vector", "uniform"]
Payload = Literal["per_offset", "shared", "two_series"]
Role = Literal["full", "reindex", "reuse"]
IndexStyle = Literal["compressor", "latent"]


@dataclass(frozen=True)
class LayerConfig:
    """What one layer is, with every per-layer field of :class:`ModelConfig` resolved to a single value.

    Beside them: `owner`, the layer whose entries it reads (itself if it is full), `index_from`, the layer whose
    picks it follows, `readers`, who else reads its entries. ``index_topk`` of a reuse layer is that of
    the picks it follows; ``index_heads`` and ``index_dim`` are None in a layer without an indexer of its own.
    """

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
    role: str
    q_norm: bool
    index_style: str
    index_pool: int | None
    index_block: int
    exact_precision: str | None
    entry_precision: str | None
    index_precision: str | None
    engram: bool
    owner: int | None
    index_from: int | None
    readers: tuple[int, ...]

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
        The indexer: entries picked per query, its query heads and their width. ``index_topk=None`` attends every
        visible entry; with `index_heads` or `index_dim` set the indexer is there all the same and learns
        ("dense" mode). Otherwise `index_heads` defaults to ``n_heads`` and `index_dim` to ``d_head``.
    gate_init_std : float
        Standard deviation of the initial gate maps.
    roles : "full", "reindex" or "reuse"
        Whose entries and picks a chunked layer reads, see :mod:`hooks.roles`.
    q_norm : bool or None
        RMSNorm on queries alone; None follows `qk_norm`.
    index_style : "compressor" or "latent"
        Index keys come from a compressor of their own (V4), or are RMSNorm(W_K · latent) of the layer's pooled
        and normed key entry before RoPE (V4.1).
    index_pool, index_block : int or None, int
        A full layer's reindex readers pick inside its best `index_pool` blocks of `index_block` entries; None
        does not restrict them.
    exact_precision, entry_precision, index_precision : str or None
        How exact keys and values, entries, and index keys and queries are stored, see :mod:`hooks.stored`.
    engram : bool
        A hashed n-gram memory adds to the stream before the layer, see :mod:`hooks.engram`.
    decoder_start : int or None
        First layer of the decoder: a full layer, whose entries are the only ones that later layers read. For the
        whole model, like the three fields below.
    engram_rows, engram_heads, engram_dim : int
        Rows of each hash table; hash heads per n-gram length; width of a row.

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
    roles: Role | tuple[Role, ...] = "full"
    q_norm: bool | tuple[bool | None, ...] | None = None
    index_style: IndexStyle | tuple[IndexStyle, ...] = "compressor"
    index_pool: int | tuple[int | None, ...] | None = None
    index_block: int | tuple[int, ...] = 8
    exact_precision: str | tuple[str | None, ...] | None = None
    entry_precision: str | tuple[str | None, ...] | None = None
    index_precision: str | tuple[str | None, ...] | None = None
    engram: bool | tuple[bool, ...] = False
    decoder_start: int | None = None
    engram_rows: int = 4096
    engram_heads: int = 8
    engram_dim: int = 32

    _layers: ClassVar[tuple[LayerConfig, ...]]

    def __post_init__(self) -> None:
        for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "d_vocab"):
            _check_int(name, getattr(self, name), minimum=1)
        for name in ("engram_rows", "engram_heads", "engram_dim"):
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
        # Not a field: resolved once, for models of many layers ask often.
        object.__setattr__(self, "_layers", self._resolved())
        check_roles(self)

    def value(self, name: str, layer: int) -> Any:
        """Return one per-layer field as it was given, for one layer."""
        return _pick(getattr(self, name), layer)

    def layer(self, layer: int) -> LayerConfig:
        """Resolve every per-layer field for one layer.

        Raises
        ------
        ConfigError
            If there is no such layer.
        """
        if not 0 <= layer < self.n_layers:
            raise ConfigError(f"layer {layer} does not exist; valid: 0 to {self.n_layers - 1}")
        return self._layers[layer]

    def _resolved(self) -> tuple[LayerConfig, ...]:
        owned, sources, layers = owners(self), index_sources(self), []
        for layer in range(self.n_layers):
            values = {name: self.value(name, layer) for name in _PER_LAYER}
            values["role"] = values.pop("roles")
            if values["rope_dims"] is None:
                values["rope_dims"] = self.d_head
            if values["q_norm"] is None:
                values["q_norm"] = values["qk_norm"]
            values["owner"], values["index_from"] = owned[layer], sources[layer]
            values["readers"] = tuple(i for i in range(layer + 1, self.n_layers) if owned[i] == layer)
            layers.append(LayerConfig(**{**values, **self._indexer(values)}))
        return tuple(layers)

    def _indexer(self, values: Mapping[str, Any]) -> dict[str, int | None]:
        """The indexer a layer has, all None without one; and the picks it follows."""
        fields = ("index_topk", "index_heads", "index_dim")
        topk, heads, dim = (values[name] for name in fields)
        if values["attention"] != "chunked" or values["role"] == "reuse" or (topk, heads, dim) == (None,) * 3:
            source = values["index_from"]
            topk = None if source is None else self.value("index_topk", source)
            return dict(zip(fields, (topk, None, None), strict=True))
        return dict(zip(fields, (topk, heads or self.n_heads, dim or self.d_head), strict=True))

    @property
    def strides(self) -> tuple[int, ...]:
        """The distinct strides of the chunked layers, ascending."""
        found = {self.layer(i).stride for i in range(self.n_layers) if self.layer(i).attention == "chunked"}
        return tuple(sorted(found))

    def cache_bytes_per_token(self) -> float:
        """Return by how many bytes the caches of entries and index keys grow per token.

        Caches without a stored precision count as float32, see :func:`hooks.accounting.from_config`.
        """
        from hooks.accounting import bytes_per_token, from_config

        return bytes_per_token(from_config(self, name="model"))

    def replace(self, **changes: Any) -> ModelConfig:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; tuples become lists."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, complete: bool = False) -> ModelConfig:
        """Build a configuration from JSON values.

        Parameters
        ----------
        values : mapping
            Fields by name.
        complete : bool
            Every field must be there, as in a saved file, where a default would be a guess.

        Raises
        ------
        ConfigError
            For an unknown or missing key, by name, or if the values are no mapping.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"configuration {values!r} is not understood; valid: an object of fields")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = [key for key in values if key not in fields]
        if unknown:
            raise ConfigError(
                f"unknown configuration key {unknown[0]!r}; {did_you_mean(unknown[0], fields, 30)}"
            )
        required = [
            name for name, field in fields.items() if complete or field.default is dataclasses.MISSING
        ]
        missing = [name for name in required if name not in values]
        if missing:
            raise ConfigError(f"configuration key {missing[0]!r} is missing; required: {', '.join(required)}")
        given: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return cls(**given)


_WHOLE_MODEL = (
    "n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "d_mlp", "d_vocab", "seed", "decoder_start",
    "engram_rows", "engram_heads", "engram_dim",
)  # fmt: skip
_PER_LAYER = tuple(f.name for f in dataclasses.fields(ModelConfig) if f.name not in _WHOLE_MODEL)
_CHOICES: dict[str, tuple[str, ...]] = {
    "attention": get_args(Attention),
    "tail": get_args(Tail),
    "gate": get_args(Gate),
    "payload": get_args(Payload),
    "roles": get_args(Role),
    "index_style": get_args(IndexStyle),
}
_BOOLS = ("gate_bias", "tied_kv", "qk_norm", "inverse_rope", "sink", "engram")


def _pick(value: Any, layer: int) -> Any:
    return value[layer] if isinstance(value, tuple) else value


def _check_int(name: str, value: Any, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{name}={value!r} is not an integer of at least {minimum}")


def _check_precision(cfg: ModelConfig, values: Mapping[str, Any], layer: int, rope_dims: int) -> None:
    for name in ("exact_precision", "entry_precision"):
        if values[name] is not None:
            where = f"{name} in layer {layer}"
            check_width(values[name], cfg.d_head, rope_dims, where=where, what="d_head")
    indexed = any(values[name] is not None for name in ("index_topk", "index_heads", "index_dim"))
    if values["index_precision"] is not None and indexed:
        width = values["index_dim"] or cfg.d_head
        where = f"index_precision in layer {layer}"
        check_width(values["index_precision"], width, None, where=where, what="index_dim")


def _check_layer(cfg: ModelConfig, layer: int) -> None:
    values = {name: _pick(getattr(cfg, name), layer) for name in _PER_LAYER}
    for name, choices in _CHOICES.items():
        if values[name] not in choices:
            raise ConfigError(f"{name}={values[name]!r} in layer {layer}; valid: {', '.join(choices)}")
    for name in _BOOLS:
        if not isinstance(values[name], bool):
            raise ConfigError(f"{name}={values[name]!r} in layer {layer}; valid: True, False")
    if values["q_norm"] not in (True, False, None):
        raise ConfigError(f"q_norm={values['q_norm']!r} in layer {layer}; valid: True, False, None")
    _check_int("exact_window", values["exact_window"], minimum=0)
    _check_int("index_block", values["index_block"], minimum=1)
    for name in ("index_topk", "index_heads", "index_dim", "index_pool"):
        if values[name] is not None:
            _check_int(name, values[name], minimum=1)
    rope_dims = cfg.d_head if values["rope_dims"] is None else values["rope_dims"]
    _check_int("rope_dims", rope_dims, minimum=0)
    if rope_dims > cfg.d_head or rope_dims % 2:
        raise ConfigError(
            f"rope_dims={rope_dims} in layer {layer}; valid: even numbers from 0 to d_head={cfg.d_head}"
        )
    if values["rope_base"] == 0:
        raise ConfigError(
            f"rope_base=0 in layer {layer} gives no finite angles; valid: numbers above 0, e.g. 1e4"
        )
    for name in ("rope_base", "gate_init_std"):
        if not is_real(values[name]) or values[name] < 0:
            raise ConfigError(f"{name}={values[name]!r} in layer {layer} is not a number of at least 0")
    _check_precision(cfg, values, layer, rope_dims)
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


def preset_names() -> list[str]:
    """Names of the configurations of a size to train."""
    return list(TRAINABLE)


def full_size_names() -> list[str]:
    """Names of the published models' configurations at full size."""
    return list(FULL_SIZE)


def preset(name: str) -> ModelConfig:
    """Return a named configuration.

    Raises
    ------
    ConfigError
        Listing the names that exist.
    """
    known = TRAINABLE | FULL_SIZE
    if name not in known:
        raise ConfigError(f"unknown preset {name!r}; {did_you_mean(name, known, 30)}")
    return ModelConfig(**known[name])


def scaled_down(name: str, *, seed: int = 0) -> ModelConfig:
    """Return a small copy of a full-size configuration, for the recall vocabulary.

    Every layer keeps its kind, role, payload, gate and picking; V4.1 its precision. Widths, windows and top-k
    shrink, and strides above 16 become 16.

    Raises
    ------
    ConfigError
        Listing the names that exist.
    """
    if name not in FULL_SIZE:
        raise ConfigError(f"no full-size configuration {name!r}; {did_you_mean(name, FULL_SIZE)}")
    cfg = preset(name)
    layers = range(cfg.n_layers)

    def shrunk(field: str, limit: int) -> tuple[int | None, ...]:
        given = (cfg.value(field, i) for i in layers)
        return tuple(None if value is None else min(value, limit) for value in given)

    return cfg.replace(
        seed=seed, d_model=64, n_heads=4, d_head=32, d_mlp=128, d_vocab=273, exact_window=16, rope_dims=16,
        window=shrunk("window", 16), stride=shrunk("stride", 16), index_topk=shrunk("index_topk", 12),
        index_heads=shrunk("index_heads", 8), index_dim=shrunk("index_dim", 32),
        index_pool=shrunk("index_pool", 4), engram_dim=16,
        **{
            f"{cache}_precision": None
            for cache in ("exact", "entry")
            if cfg.value(f"{cache}_precision", 0) == "fp8+bf16"
        },
    )  # fmt: skip
