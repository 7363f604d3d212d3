"""How time and memory of long prompts grow with T: least squares over the lengths that were run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

__all__ = ["fits", "power_fit"]

FEWEST = 3
"""Lengths below which nothing is fitted; each further power of T needs one more."""


def fits(rows: Sequence[dict[str, Any]], *, gpu: bool) -> dict[str, dict[str, Any]]:
    """Fit our times and our memory.

    Parameters
    ----------
    rows : sequence of dict
        By length ``ours`` with ``seconds``, ``cpu_seconds`` and ``peak_bytes``, one value per repeat.
    gpu : bool
        Wall time is fitted on a GPU, CPU time elsewhere: the best repeat of each length.

    Returns
    -------
    dict
        ``time`` or ``CPU time``, with a T² term for the indexer's scores, and ``memory``, without; each as
        in :func:`power_fit`, with its ``unit``, and for times ``straight_residuals`` of a fit without T².
        Empty below three lengths.
    """
    done = [(row["length"], row["ours"]) for row in rows if "seconds" in row["ours"]]
    if len(done) < FEWEST:
        return {}
    lengths = [length for length, _ in done]
    name, key = ("time", "seconds") if gpu else ("CPU time", "cpu_seconds")
    times = [min(found[key]) for _, found in done]
    memory = [max(found["peak_bytes"]) / 2**20 for _, found in done]
    straight = power_fit(lengths, times, highest=1)
    curve = power_fit(lengths, times, highest=2) if len(done) > FEWEST else straight
    return {
        name: {**curve, "unit": "s", "straight_residuals": straight["relative_residuals"]},
        "memory": {**power_fit(lengths, memory, highest=1), "unit": "MiB"},
    }


def power_fit(lengths: Sequence[int], values: Sequence[float], *, highest: int) -> dict[str, list[float]]:
    """Least squares of Σ c_k·(T/1024)^k, k = 0 … highest, with no c_k below 0.

    Every length counts alike: residuals are weighted by 1/value². Terms cannot cancel each other, so that each
    has a share of the whole.

    Returns
    -------
    dict
        ``coefficients``, from the constant on; ``shares``: what each term carries of the fit at the longest
        T; ``relative_residuals`` = (value - fit) / value, in order of `lengths`.
    """
    x, y = np.asarray(lengths, dtype=float) / 1024, np.asarray(values, dtype=float)
    powers = np.stack([x**k for k in range(highest + 1)], axis=1)
    # Columns of unit size: T² at 128K is some 10⁴ times the constant.
    scale = np.linalg.norm(powers / y[:, None], axis=0)
    coefficients = nnls(powers / y[:, None] / scale, np.ones_like(y))[0] / scale
    terms = coefficients * powers
    last = terms[int(np.argmax(x))]
    return {
        "coefficients": [float(c) for c in coefficients],
        "shares": [float(share) for share in last / last.sum()],
        "relative_residuals": [float(r) for r in 1 - terms.sum(1) / y],
    }
