"""Building the models of the zoo from scratch, whatever class they are."""

from __future__ import annotations

from typing import Any

from hooks.config import preset, preset_names
from hooks.errors import ConfigError, did_you_mean

__all__ = ["build", "buildable"]


def buildable() -> list[str]:
    """Names :func:`build` knows."""
    return preset_names()


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
    from hooks.transformer import CompressedTransformer

    return CompressedTransformer(preset(name).replace(seed=seed))
