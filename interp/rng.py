"""The seeded generators of :mod:`hooks.rng`, under the name measurements import them by."""

from hooks.rng import derive_seed, numpy_rng, torch_rng

__all__ = ["derive_seed", "numpy_rng", "torch_rng"]
