"""Hooked compressed-attention models: everything inside can be read and changed.

Knows nothing of tasks, statistics or screens. Names load on first use, so that importing this package
costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import torch

    from hooks.cache import DecodeCache as DecodeCache
    from hooks.checkpoint import from_pretrained as from_pretrained
    from hooks.checkpoint import load as load
    from hooks.checkpoint import zoo as zoo
    from hooks.config import ModelConfig as ModelConfig
    from hooks.config import preset as preset
    from hooks.deepseek import hook_deepseek_v4 as hook_deepseek_v4
    from hooks.errors import PhaselensError as PhaselensError
    from hooks.errors import SiteError as SiteError
    from hooks.geometry import ChunkGeometry as ChunkGeometry
    from hooks.tracing import trace_deepseek_v4 as trace_deepseek_v4
    from hooks.transformer import CompressedTransformer as CompressedTransformer

_HOME = {
    "ChunkGeometry": "geometry",
    "CompressedTransformer": "transformer",
    "DecodeCache": "cache",
    "ModelConfig": "config",
    "PhaselensError": "errors",
    "SiteError": "errors",
    "from_pretrained": "checkpoint",
    "hook_deepseek_v4": "deepseek",
    "load": "checkpoint",
    "preset": "config",
    "trace_deepseek_v4": "tracing",
    "zoo": "checkpoint",
}

__all__ = sorted([*_HOME, "save"])


def save(model: Any, path: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> Path:
    """Write a model's weights and config into a folder; see :func:`hooks.checkpoint.save`."""
    # A name that loads on first use would be lost to nnsight, which gives every object a method `save`.
    from hooks import checkpoint

    return checkpoint.save(model, path, dtype=dtype)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hooks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hooks.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
