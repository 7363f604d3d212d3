"""The same weights under another configuration: without quantization, or with more or fewer picks."""

from __future__ import annotations

import copy
from typing import Any

from hooks.checks import whole_number
from hooks.errors import ConfigError

__all__ = ["entries_seen", "with_picks", "without_quantization"]

_PRECISIONS = ("exact_precision", "entry_precision", "index_precision")


def without_quantization(model: Any) -> Any:
    """Return a copy of an own model that stores exact keys, entries and index keys as it computes them.

    Raises
    ------
    ConfigError
        If it stores nothing at a lower precision anyway, or is of another class.
    """
    cfg: Any = model.cfg
    if not hasattr(cfg, "replace") or all(
        cfg.value(name, layer) is None for name in _PRECISIONS for layer in range(cfg.n_layers)
    ):
        raise ConfigError(
            f"model {model.name!r} stores nothing at a lower precision; valid: one with "
            f"{', '.join(_PRECISIONS)}, e.g. v41-ced"
        )
    return _again(model, cfg.replace(**dict.fromkeys(_PRECISIONS)), "not quantized")


def with_picks(model: Any, topk: int) -> Any:
    """Return a copy whose indexers pick `topk` entries a query, without a pool of blocks before them.

    With as many picks as there are visible entries (:func:`entries_seen`) it attends everything.

    Parameters
    ----------
    model : CompressedTransformer or HookedDeepseekV4
        With an indexer that picks.
    topk : int
        Entries a query.

    Raises
    ------
    ConfigError
        For a model without picks, or fewer than 1.
    """
    topk = whole_number("topk", topk, 1, error=ConfigError)
    if not any(name.endswith("indexer.hook_picks") for name in model.site_names()):
        raise ConfigError(f"model {model.name!r} picks no entries: it attends every visible one")
    label = f"{topk} picks"
    if hasattr(model.cfg, "replace"):
        cfg = model.cfg
        given = tuple(cfg.value("index_topk", layer) for layer in range(cfg.n_layers))
        picks = tuple(None if k is None else topk for k in given)
        return _again(model, cfg.replace(index_topk=picks, index_pool=None), label)
    plain = copy.deepcopy(model.plain)
    plain.config.index_topk = topk
    for module in plain.modules():
        if hasattr(module, "index_topk"):
            module.index_topk = topk
    made = type(model)(plain)
    made.name, made.task = f"{model.name}, {label}", model.task
    return made


def entries_seen(model: Any, length: int) -> int:
    """Most entries that any layer sees at the end of `length` tokens."""
    geometries = (model.geometry(layer) for layer in range(model.cfg.n_layers))
    return max((g.n_entries(length) for g in geometries if g is not None), default=0)


def _again(model: Any, cfg: Any, label: str) -> Any:
    made = type(model)(cfg, weights={name: tensor.clone() for name, tensor in model.state_dict().items()})
    made = made.to(model.device).eval()
    made.name, made.task = f"{model.name}, {label}", model.task
    return made
