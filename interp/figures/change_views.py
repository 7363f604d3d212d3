"""What an intervention changes, by phase: before and after, direct against total, what takes over; and by query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import FigureError, number, require
from interp.figures.cell_map import cell_map
from interp.figures.chance import significant, untested
from interp.figures.series import Series, lines
from interp.figures.theme import Theme
from interp.stats import SIGNIFICANCE, phase_intervals

__all__ = ["REPLACED", "before_and_after", "direct_and_total", "takes_over_map", "target_by_query"]

REPLACED = {
    "mean": "its mean",
    "zero": "zero",
    "phase_mean": "its mean at the same phase",
    "resample": "its value in another prompt",
}
_BARS = "bars are BCa 95% intervals over prompts where there are at least ten."
_FLOOR = 0.1
"""Smallest range of colours (nats), so that a map of nothing stays pale."""


def before_and_after(knockout: xr.Dataset, *, theme: Theme | None = None) -> go.Figure:
    """Draw accuracy (%) by phase as the model is, and without the first unit (or set) of a knockout.

    Parameters
    ----------
    knockout : Dataset
        Result of `knockout` with its prompts.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        If it is no such result.
    """
    require(knockout, ["correct", "clean_correct"], kind="knockout")
    stride = int(knockout.attrs["stride"])
    named = {}
    for name, correct in (
        ("before", knockout["clean_correct"].values), ("after", knockout["correct"].values[0])
    ):  # fmt: skip
        low, high = (100 * bound for bound in phase_intervals(correct, stride))
        mean = 100 * correct.reshape(correct.shape[0], -1, stride).mean((0, 1))
        named[name] = Series(mean.tolist(), low.tolist(), high.tolist())
    return lines(
        named, range(stride), x_title="phase of the target", y_title="accuracy (%)", y_range=(-3, 103),
        cycle=stride, theme=theme,
        caption=f"Accuracy by phase{_of(knockout)} before and after {_removal(knockout)}; {_BARS}",
    )  # fmt: skip


def direct_and_total(found: xr.Dataset, unit: str | None = None, *, theme: Theme | None = None) -> go.Figure:
    """Draw the direct and the total effect of removing one unit, by phase.

    Parameters
    ----------
    found : Dataset
        Result of `direct_effects`.
    unit : str, optional
        The one with the largest total loss if left out.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        If it is no such result, or has no such unit.
    """
    require(found, ["direct", "total"], kind="direct_effects")
    labels = [str(label) for label in found["unit"].values]
    unit = unit or str(found["total"].min("phase").idxmin("unit").item())
    if unit not in labels:
        raise FigureError(f"unit {unit!r} is not in the results; valid: {', '.join(labels[:40])}")
    row = found.sel(unit=[unit])
    named = {
        name: Series(*(row[f"{name}{end}"].values[0].tolist() for end in ("", "_low", "_high")))
        for name in ("direct", "total")
    }
    return lines(
        named, range(row.sizes["phase"]), x_title="phase of the target", y_title="Δ log-probability (nats)",
        cycle=row.sizes["phase"], theme=theme,
        caption=(
            f"Mean change of the answer's log-probability{_of(found)} when {_removal(row)}: direct, with all later "
            f"components held, and total; {_BARS}"
        ),
    )  # fmt: skip


def takes_over_map(found: xr.Dataset, *, theme: Theme | None = None) -> go.Figure:
    """Draw how much more every other unit is worth once one is gone (nats), by phase.

    Parameters
    ----------
    found : Dataset
        Result of `takes_over`.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        If it is no such result.
    """
    require(found, ["takes_over", "takes_over_p"], kind="takes_over")
    a, values = found.attrs, found["takes_over"].values
    rows = [str(unit) for unit in found["unit"].values]
    best = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return cell_map(
        values, rows=rows, columns=[str(p) for p in found["phase"].values], x_title="phase of the target",
        y_title="other unit", value_name="takes over (nats)",
        limit=max(_FLOOR, float(np.nanmax(np.abs(values)))),
        outlined=significant(found["takes_over_p"].values), theme=theme,
        alt=(
            f"Map of {len(rows)} units by {values.shape[1]} phases. Most is taken over by {rows[best[0]]} at phase "
            f"{best[1]}: {number(values[best], 2)} nats."
        ),
        caption=(
            f"How much more each other unit{_of(found)} is worth once {a['gone']} is gone: mean log-probability (nats) "
            f"its removal costs then, minus what it costs now. Each {_done(a)}; "
            f"{int(a['n_per_residue'])} prompts a residue, seed {int(a['seed'])}. "
            + (untested(found["takes_over_p"], found) or f"Outlined: family-wise p < {SIGNIFICANCE:g}.")
        ),
    )  # fmt: skip


def target_by_query(found: xr.Dataset, *, theme: Theme | None = None) -> go.Figure:
    """Draw accuracy (%) by phase of the target (rows) and query phase (columns).

    Parameters
    ----------
    found : Dataset
        Result of `query_sweep`, or the crossed part of an audit.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        If it has no such cells.
    """
    if "accuracy_cell" in found:
        cells = found["accuracy_cell"].transpose("target_phase", "phase")
        rows, columns = found["target_phase"].values, found["phase"].values
    elif "accuracy" in found and set(found["accuracy"].dims) == {"query_phase", "phase"}:
        cells = found["accuracy"].transpose("phase", "query_phase")
        rows, columns = found["phase"].values, found["query_phase"].values
    else:
        raise FigureError(
            "no accuracy by target and query phase here; make it with: phaselens sweep MODEL --axis query"
        )
    values = 100 * cells.values.astype(float)
    low, high = (np.unravel_index(int(at(values)), values.shape) for at in (np.nanargmin, np.nanargmax))
    told = [
        f"{number(values[at])}% at target phase {rows[at[0]]}, query phase {columns[at[1]]}"
        for at in (low, high)
    ]
    shares = {
        name: float(found.attrs.get(f"share_{name}", np.nan)) for name in ("target", "query", "interaction")
    }
    split = ", ".join(f"{name} {number(100 * share)}%" for name, share in shares.items())
    return cell_map(
        values, rows=[str(r) for r in rows], columns=[str(c) for c in columns], x_title="query phase (q + 1) mod S",
        y_title="phase of the target", value_name="accuracy (%)", limit=100.0, signed=False, theme=theme,
        alt=(
            f"Map of accuracy, {len(rows)} target phases by {len(columns)} query phases: from {told[0]}, to {told[1]}."
        ),
        caption=(
            f"Accuracy (%){_of(found)} by phase of the target and query phase, every prompt shown at each pair."
            + (f" Of what varies between cells: {split}." if np.isfinite(list(shares.values())).all() else "")
        ),
    )  # fmt: skip


def _removal(found: xr.Dataset) -> str:
    """What was done, as a clause."""
    return f"{found['unit'].values[0]} {_done(found.attrs)}"


def _done(attrs: Mapping[str, Any]) -> str:
    how = str(attrs.get("replace", "mean"))
    if how == "masked":
        return "is masked"
    at = {"all": "at all positions"}.get(str(attrs.get("at", "final")), "at the final position")
    return f"is replaced by {REPLACED.get(how, how)} {at}"


def _of(found: xr.Dataset) -> str:
    model = found.attrs.get("model", "")
    return f" of {model}" if model else ""
