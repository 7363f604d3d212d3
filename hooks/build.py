"""Building the models of the zoo from scratch, whatever class they are."""

from __future__ import annotations

from typing import Any

from hooks.config import preset, preset_names
from hooks.errors import ConfigError, did_you_mean

__all__ = ["build", "buildable"]

_HUGGING_FACE = {"hfv4-mix": "mix", "hfv4-csa": "csa"}
"""Models of the Hugging Face DeepSeek-V4 class, by layer pattern."""


def buildable() -> list[str]:
    """Names :func:`build` knows."""
    return [*preset_names(), *_HUGGING_FACE]


def build(name: str, *, seed: int = 0) -> Any:
    """Build an untrained model.

    Parameters
    ----------
    name : str
        One of :func:`buildable`.
    seed : int
        Seed of its weights.

    Raises
    ------
    ConfigError
        Listing the names that exist.
    """
    if name not in buildable():
        raise ConfigError(f"unknown model {name!r}; {did_you_mean(name, buildable(), 40)}")
    if name in _HUGGING_FACE:
        from hooks.hf_train import build_deepseek_v4

        return build_deepseek_v4(_HUGGING_FACE[name], seed=seed)
    from hooks.transformer import CompressedTransformer

    return CompressedTransformer(preset(name).replace(seed=seed))
