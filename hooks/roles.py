"""Who owns the entries a layer reads, and whose picks it follows (CSA2 of DeepSeek-V4.1, arXiv 2609.19969).

A *full* layer pools its own entries, keeps its own index keys and makes its own picks. A *reindex* layer reads
the entries and index keys of its owner with an index query of its own. A *reuse* layer reads the entries of its
owner and the latest picks made over them. Every layer keeps its own query and its own exact window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hooks.errors import ConfigError

if TYPE_CHECKING:
    from hooks.config import ModelConfig

__all__ = ["check_roles", "index_sources", "owners"]

# What a reader takes over from the entries of its owner and therefore has to state alike.
_SHARED = ("window", "stride", "tied_kv", "rope_dims", "rope_base")


def _role(cfg: ModelConfig, layer: int) -> str | None:
    """Role of a chunked layer, None in others."""
    return cfg.value("roles", layer) if cfg.value("attention", layer) == "chunked" else None


def owners(cfg: ModelConfig) -> list[int | None]:
    """Return for each layer the nearest full layer at or before it; None in layers without entries.

    Raises
    ------
    ConfigError
        If a layer reads entries that no earlier layer owns.
    """
    found: list[int | None] = []
    latest = None
    for layer in range(cfg.n_layers):
        role = _role(cfg, layer)
        if role == "full":
            latest = layer
        elif role is not None and latest is None:
            raise ConfigError(
                f"roles: layer {layer} is {role!r}, but no layer before it owns entries; the first chunked layer "
                "must be 'full'"
            )
        found.append(None if role is None else latest)
    return found


def index_sources(cfg: ModelConfig) -> list[int | None]:
    """Return for each layer the one whose picks it follows; None where every visible entry is attended."""
    found: list[int | None] = []
    latest = None
    for layer in range(cfg.n_layers):
        role = _role(cfg, layer)
        if role in ("full", "reindex"):
            latest = layer if cfg.value("index_topk", layer) is not None else None
        found.append(None if role is None else latest)
    return found


def check_roles(cfg: ModelConfig) -> None:
    """Check that every reader fits its owner, and the decoder its single one.

    Raises
    ------
    ConfigError
        Naming the layer, its owner and what differs.
    """
    for layer in range(cfg.n_layers):
        role = cfg.value("roles", layer)
        if _role(cfg, layer) is None and role != "full":
            raise ConfigError(
                f"roles: layer {layer} is {role!r}, but attention={cfg.value('attention', layer)!r} has no "
                "entries; valid: 'full', which says nothing there"
            )
        if role != "full":
            _check_reader(cfg, layer, role)
        pool = cfg.value("index_pool", layer)
        if pool is not None and (_role(cfg, layer) != "full" or cfg.value("index_topk", layer) is None):
            raise ConfigError(
                f"index_pool={pool} in layer {layer}: only a full layer with index_topk forms a pool; valid: None"
            )
    if cfg.decoder_start is not None:
        _check_decoder(cfg, cfg.decoder_start)


def _check_reader(cfg: ModelConfig, layer: int, role: str) -> None:
    own = cfg.layer(layer).owner
    assert own is not None
    for name in _SHARED:
        mine, theirs = cfg.value(name, layer), cfg.value(name, own)
        if mine != theirs:
            raise ConfigError(
                f"{name}={mine!r} in layer {layer}, which is {role!r} and reads the entries of layer {own} with "
                f"{name}={theirs!r}; valid: {theirs!r}"
            )
    if role != "reindex":
        return
    if cfg.value("index_topk", layer) is None or cfg.layer(own).index_heads is None:
        missing = layer if cfg.value("index_topk", layer) is None else own
        raise ConfigError(
            f"roles: layer {layer} is 'reindex', which picks over the index keys of layer {own}, but layer "
            f"{missing} has no index_topk; give it one or make the layer 'reuse'"
        )
    mine, theirs = cfg.layer(layer).index_dim, cfg.layer(own).index_dim
    if mine != theirs:
        raise ConfigError(
            f"index_dim={mine} in layer {layer}, which is 'reindex' over the index keys of layer {own} with "
            f"index_dim={theirs}; valid: {theirs}"
        )


def _check_decoder(cfg: ModelConfig, start: int) -> None:
    if not 1 <= start < cfg.n_layers:
        raise ConfigError(f"decoder_start={start}; valid: 1 to {cfg.n_layers - 1}, or None")
    if _role(cfg, start) != "full":
        raise ConfigError(
            f"decoder_start={start}: that layer must be chunked and 'full', for it owns what the decoder reads; it "
            f"is {cfg.value('attention', start)!r} and {cfg.value('roles', start)!r}"
        )
    for layer in range(start + 1, cfg.n_layers):
        if cfg.value("attention", layer) == "full" or _role(cfg, layer) == "full":
            raise ConfigError(
                f"decoder_start={start}: layer {layer} keeps a cache of its own; valid there: sliding, or chunked "
                "with role 'reindex' or 'reuse'"
            )
