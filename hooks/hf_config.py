"""Reading ``config.json`` of a Hugging Face model folder: nothing in it is taken for what it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hooks.errors import CheckpointError, ConfigError
from hooks.files import read_object

__all__ = ["config_strides", "read_config", "require_attention", "setting", "text_settings"]

_ATTENTION_KEYS = ("attn_implementation", "_attn_implementation")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "compress_ratios": (
        lambda value: isinstance(value, list) and all(map(_whole, value)),
        "a list with a whole number for each layer, 0 or 1 where nothing is pooled",
    ),
    "compress_rates": (
        lambda value: (
            isinstance(value, dict) and all(rate is None or _whole(rate) for rate in value.values())
        ),
        "an object with a whole number for each kind of layer",
    ),
    "compress_rate_csa": (_whole, "a whole number"),
    "compress_rate_hca": (_whole, "a whole number"),
    "layer_types": (
        lambda value: isinstance(value, list) and all(isinstance(kind, str) for kind in value),
        "a list with a name for each layer",
    ),
    "text_config": (lambda value: isinstance(value, dict), "an object of settings"),
    "phaselens_task": (lambda value: isinstance(value, dict), "an object of settings"),
    "max_position_embeddings": (_whole, "a whole number"),
    "vocab_size": (_whole, "a whole number"),
    "model_type": (lambda value: isinstance(value, str), "a name"),
}
"""What is read from a config, and what each must be."""


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read ``config.json`` of a model folder.

    Raises
    ------
    CheckpointError
        If it is missing or not a JSON object.
    """
    path = Path(folder) / "config.json"
    if not path.exists():
        raise CheckpointError(f"{str(folder)!r} holds no config.json, so it is no model folder")
    return read_object(path)


def setting(config: Mapping[str, Any], key: str) -> Any:
    """Return a checked value of a config, None where it is null or left out.

    Raises
    ------
    ConfigError
        If it is not what its key promises, naming the key.
    """
    value = config.get(key)
    fits, valid = _SETTINGS[key]
    if value is None or fits(value):
        return value
    raise ConfigError(f"{key}={value!r} in config.json is not understood; valid: {valid}")


def require_attention(
    config: Mapping[str, Any] | str | None, valid: Sequence[str], *, instead: str = ""
) -> None:
    """Raise if an attention implementation is asked for that cannot be used; without any, there is no fault.

    Parameters
    ----------
    config : mapping or str or None
        A ``config.json``, or the name that a model in memory runs with.
    valid : sequence of str
        Names that can be used.
    instead : str
        Why others cannot, and what to do.

    Raises
    ------
    ConfigError
        Naming what was asked for, where, and the valid names.
    """
    given = config if isinstance(config, Mapping) else {_ATTENTION_KEYS[0]: config}
    where = " in config.json" if isinstance(config, Mapping) else ""
    for key in _ATTENTION_KEYS:
        for part in (given, given.get("text_config")):
            asked = part.get(key) if isinstance(part, Mapping) else None
            if asked is not None and asked not in valid:
                told = f": {instead}" if instead else ""
                raise ConfigError(f"{key}={asked!r}{where}{told}; valid: {', '.join(valid)}")


def text_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the language model: the part ``text_config`` of a config that has one.

    Raises
    ------
    ConfigError
        If that part is no object.
    """
    return setting(config, "text_config") or config


def config_strides(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Distinct strides above 1 that a Hugging Face config states, ascending; empty without compression.

    Understood are ``compress_ratios`` (one number a layer, 0 or 1 where nothing is pooled) and
    ``compress_rates`` (by layer kind, counted where ``layer_types`` uses it).

    Raises
    ------
    ConfigError
        If one of them has another shape, or holds anything but whole numbers.
    """
    text = text_settings(config)
    rates = setting(text, "compress_rates") or {}
    legacy = {
        "compressed_sparse_attention": setting(text, "compress_rate_csa"),
        "heavily_compressed_attention": setting(text, "compress_rate_hca"),
    }
    used = setting(text, "layer_types") or list(rates) or list(legacy)
    found = [
        *(setting(text, "compress_ratios") or []),
        *(rates.get(kind) or legacy.get(kind) for kind in used),
    ]
    return tuple(sorted({rate for rate in found if rate and rate > 1}))
