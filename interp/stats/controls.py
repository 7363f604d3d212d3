"""Guards against finding what one looks for: placebo strides, and data kept back for confirmation."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from hooks.errors import StatisticsError
from interp.rng import numpy_rng

__all__ = ["CONFIRMATORY_SEED", "discover_confirm", "placebo_strides"]

CONFIRMATORY_SEED = 10_000
"""Seeds from here on are for confirmatory numbers and are never used while developing."""


def placebo_strides(stride: int, modulus: int) -> list[int]:
    """Strides that mean nothing to a model of this stride and do not alias with it.

    Parameters
    ----------
    stride : int
        S, the true stride; it divides `modulus`.
    modulus : int
        R, the residue axis on which target positions are balanced.

    Returns
    -------
    list of int
        Every placebo q ≥ 2 for which (t mod S, t mod q) takes all S·q pairs equally often over the residues:
        q is coprime to S and S·q divides R. May be empty (S = 6 or 12 at R = 24); a longer modulus then
        helps.

    Raises
    ------
    StatisticsError
        If the stride does not divide the modulus.
    """
    if stride < 1 or modulus < 1 or modulus % stride:
        raise StatisticsError(
            f"stride {stride} does not divide the residue modulus {modulus}; no placebo is balanced"
        )
    return [q for q in range(2, modulus + 1) if modulus % (stride * q) == 0 and np.gcd(stride, q) == 1]


def discover_confirm(
    n_prompts: int, *, seed: int = 0, share: float = 0.5
) -> tuple[Int[np.ndarray, " discover"], Int[np.ndarray, " confirm"]]:
    """Split prompt_ids at random into those one may look at and those that confirm.

    Parameters
    ----------
    n_prompts : int
        Number of prompt_ids; rows of one prompt_id stay on one side.
    seed : int
        Of the split.
    share : float
        Part used for discovery.

    Returns
    -------
    discover, confirm : sorted int arrays
        Disjoint, together all of 0 … n_prompts−1.

    Raises
    ------
    StatisticsError
        If a side would be empty.
    """
    size = round(n_prompts * share)
    if not 0 < size < n_prompts:
        raise StatisticsError(f"share={share} of {n_prompts} prompt_ids leaves one side of the split empty")
    order = numpy_rng(seed, "discover", n_prompts).permutation(n_prompts)
    return np.sort(order[:size]), np.sort(order[size:])
