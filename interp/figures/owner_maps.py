"""Shared caches as maps: what a dropped record costs each reading layer, and what later layers then attend."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import FigureError, number, require
from interp.figures.cell_map import cell_map
from interp.figures.chance import significant, untested
from interp.figures.theme import Theme
from interp.stats import SIGNIFICANCE

__all__ = ["owner_effects_map", "owner_mass_map"]

_FLOOR = 0.1
"""Smallest range of colours in nats, so that a map of nothing stays pale."""
_MASS_FLOOR = 0.02


def owner_effects_map(found: xr.Dataset, *, theme: Theme | None = None) -> go.Figure:
    """Draw the change of the answer's log-probability, one row an owner → reader, one column a phase.

    Parameters
    ----------
    found : Dataset
        Result of :func:`interp.owners.owner_effects`.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        If it is no such result.
    """
    _require(found)
    values, p = found["effect_logprob"].values, found["effect_logprob_p"].values
    rows = [str(unit) for unit in found["unit"].values]
    columns = [str(phase) for phase in found["phase"].values]
    at = np.unravel_index(int(np.abs(values).argmax()), values.shape)
    return cell_map(
        values, rows=rows, columns=columns, x_title="phase of the target", y_title="owner → reader",
        value_name="change (nats)", limit=max(_FLOOR, float(np.abs(values).max())), theme=theme, row_mm=6.5,
        outlined=significant(p),
        alt=(
            f"Map of {len(rows)} pairs of owner and reader by {len(columns)} phases. The largest change is "
            f"{number(values[at], 2)} nats, {rows[at[0]]} at phase {columns[at[1]]}."
        ),
        caption=(
            f"Mean change of the answer's log-probability (nats){_of(found)} when the target's record is dropped "
            "from an owner's entries as one layer reads them, or where they are stored (all); blue helps, red hurts. "
            + (untested(p, found) or f"Outlined: family-wise p < {SIGNIFICANCE:g} (sign-flip, over prompts).")
        ),
    )  # fmt: skip


def owner_mass_map(found: xr.Dataset, *, phase: int | None = None, theme: Theme | None = None) -> go.Figure:
    """Draw the change of attention on the entries that held the record, one column a layer.

    Parameters
    ----------
    found : Dataset
        Result of :func:`interp.owners.owner_effects`.
    phase : int, optional
        Of the target; the mean over phases if left out.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        If it is no such result, or has no such phase.
    """
    _require(found)
    if phase is not None and phase not in found["phase"].values:
        raise FigureError(f"no phase {phase}; valid: 0 to {found.sizes['phase'] - 1}")
    mass = found["mass"].mean("phase") if phase is None else found["mass"].sel(phase=phase)
    values = mass.values
    rows = [str(unit) for unit in found["unit"].values]
    columns = [str(layer) for layer in found["layer"].values]
    at = np.unravel_index(int(np.nanargmax(np.abs(values))), values.shape)
    return cell_map(
        values, rows=rows, columns=columns, x_title="layer that attends", y_title="owner → reader",
        value_name="change of attention", theme=theme, row_mm=6.5,
        limit=max(_MASS_FLOOR, float(np.nanmax(np.abs(values)))),
        alt=(
            f"Map of {len(rows)} pairs of owner and reader by {len(columns)} layers. The largest change of "
            f"attention is {number(values[at], 2)}, {rows[at[0]]} in layer {columns[at[1]]}."
        ),
        caption=(
            f"Change of the final query's attention{_of(found)} on the entries that held the target's record "
            "(mean over heads, "
            f"{'mean over phases' if phase is None else f'targets at phase {phase}'}) when it is dropped for one "
            "reader, or where it is stored (all)."
        ),
    )  # fmt: skip


def _require(found: xr.Dataset) -> None:
    require(found, ["effect_logprob", "effect_logprob_p", "mass"], kind="owners")


def _of(found: xr.Dataset) -> str:
    model = found.attrs.get("model", "")
    return f" of {model}" if model else ""
