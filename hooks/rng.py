"""Explicit random generators, seeded by a seed and labels; the global generators are never touched."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from hooks.checks import whole_number

if TYPE_CHECKING:
    import torch

__all__ = ["derive_seed", "numpy_rng", "torch_rng"]


def derive_seed(seed: int, *labels: str | int) -> int:
    """Return a 63-bit seed that depends on `seed` and every label, and on nothing else.

    Parameters
    ----------
    seed : int
        The user's seed.
    *labels : str or int
        What the numbers are for, e.g. ``"calibration"``; other labels give independent streams.

    Raises
    ------
    PhaselensError
        If the seed is no whole number.
    """
    text = "\x1f".join([repr(whole_number("seed", seed)), *(repr(label) for label in labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def numpy_rng(seed: int, *labels: str | int) -> np.random.Generator:
    """Return a fresh numpy generator for (seed, labels)."""
    return np.random.default_rng(derive_seed(seed, *labels))


def torch_rng(seed: int, *labels: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """Return a fresh torch generator for (seed, labels) on a device."""
    import torch

    return torch.Generator(device=device).manual_seed(derive_seed(seed, *labels))
