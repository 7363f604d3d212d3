"""What a map or a table says of chance: which marks stand for a test, or that too few prompts allow none."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from interp.stats import MIN_TEST_PROMPTS, SIGNIFICANCE

__all__ = ["significant", "untested"]


def significant(p: ArrayLike) -> list[tuple[int, int]]:
    """Cells (row, column) whose p is below the level of every test."""
    return [(int(r), int(c)) for r, c in zip(*np.nonzero(np.asarray(p) < SIGNIFICANCE), strict=True)]


def untested(p: ArrayLike, found: xr.Dataset) -> str:
    """One sentence where no sign-flip test of a result can reach its level, else an empty string.

    With n base prompts the least two-sided p is 2/2ⁿ, which is below 0.05 from six on; p is undefined below that.

    Parameters
    ----------
    p : array
        All adjusted p of the result.
    found : Dataset
        The result: its ``prompt`` axis, or its attr ``n_per_residue``, is n.
    """
    if np.isfinite(np.asarray(p, dtype=float)).any():
        return ""
    n = int(found.sizes.get("prompt", 0) or found.attrs.get("n_per_residue", 0))
    if not 0 < n < MIN_TEST_PROMPTS:
        return "No cell is tested against chance."
    return f"No cell can be told from chance at n = {n}; {MIN_TEST_PROMPTS} prompts a residue are the least."
