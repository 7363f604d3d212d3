"""Published needle tests as sweeps to draw: accuracy by residue with Wilson intervals, straight from counts.

An audit recomputes intervals of gaps and periods too, which takes seconds: :mod:`interp.audit.published`.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from interp import stats
from interp.published import load_published

__all__ = ["published_sweeps"]


def published_sweeps(name: str = "needle_128k") -> dict[str, xr.Dataset]:
    """Return, by model, ``accuracy_residue`` with its interval and ``accuracy (phase)``; attrs hold the gaps."""
    table, found = load_published(name), {}
    for model in table["models"]:
        counts, n, stride = np.asarray(model["correct"]), int(model["n_per_residue"]), int(model["stride"])
        low, high = stats.wilson(counts, n)
        by_phase = counts.reshape(-1, stride).mean(0) / n
        found[str(model["name"])] = xr.Dataset(
            {
                "accuracy_residue": ("residue", counts / n),
                "accuracy_residue_low": ("residue", low),
                "accuracy_residue_high": ("residue", high),
                "accuracy": ("phase", by_phase),
            },
            coords={"residue": np.arange(len(counts)), "phase": np.arange(stride)},
            attrs={
                "model": str(model["name"]), "stride": stride, "modulus": len(counts), "n_per_residue": n,
                "axis": "target", "gap_pp": 100 * float(np.ptp(by_phase)),
                "gap_residue_pp": 100 * float(np.ptp(counts / n)), "worst_phase": int(by_phase.argmin()),
                "source": str(table["source"]), "published": 1,
            },
        )  # fmt: skip
    return found
