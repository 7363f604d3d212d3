"""Cycled gates: accuracy by phase as observed, over what the cycle predicts."""

from __future__ import annotations

from dataclasses import replace

import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import describe, layout_of, number, require
from interp.figures.compose import GAP_MM, panels
from interp.figures.series import Series, lines
from interp.figures.theme import COLUMN_MM, DOUBLE_COLUMN_MM, Theme

__all__ = ["cycling_figure"]

_NEEDED = ["observed", "observed_low", "observed_high", "predicted", "r2", "r2_inner"]
_TWO_PANELS_MM = 120.0
"""Narrower figures put their panels below each other."""


def cycling_figure(found: xr.Dataset, *, theme: Theme | None = None) -> go.Figure:
    """Draw one panel a shift δ: observed accuracy (%) with 95% intervals, and A_0((r − δ) mod S).

    Parameters
    ----------
    found : Dataset
        A result of :func:`interp.gate_interventions.cycling`.
    theme : Theme
        Size, fonts and ground; several panels take a double column if left out, and stand side by side where
        the width holds two.

    Returns
    -------
    plotly.graph_objects.Figure
        R² of each shift, with and without the boundary phase, stands in the caption. Its panels have no
        letters, so that it can be a panel of a larger figure itself.

    Raises
    ------
    FigureError
        If it is no such result.
    """
    require(found, _NEEDED, kind="cycling")
    shifts = [int(s) for s in found["shift"].values]
    theme = theme or Theme(width_mm=DOUBLE_COLUMN_MM if len(shifts) > 1 else COLUMN_MM)
    columns = 2 if len(shifts) > 1 and theme.width_mm >= _TWO_PANELS_MM else 1
    slot = replace(theme, width_mm=(theme.width_mm - GAP_MM * (columns - 1)) / columns)
    phases = [int(p) for p in found["phase"].values]
    told = []
    drawn = []
    for shift in shifts:
        one = 100 * found[_NEEDED[:4]].sel(shift=shift)
        r2, inner = (float(found[name].sel(shift=shift)) for name in ("r2", "r2_inner"))
        told.append(
            f"δ = {number(shift, sign=True)}: R² {number(r2, 2)} over {found.attrs['n']} phases, {number(inner, 2)} over the "
            f"{found.attrs['n_inner']} without the boundary phase"
        )
        drawn.append(
            lines(
                {
                    f"gates cycled by {number(shift, sign=True)}": Series(
                        *(one[name].values.tolist() for name in _NEEDED[:3])
                    ),
                    f"predicted, δ = {number(shift, sign=True)}": Series(one["predicted"].values.tolist()),
                },
                phases,
                x_title=f"target position mod {len(phases)} (phase)",
                y_title="accuracy (%)",
                caption=told[-1],
                y_range=(-3, 103),
                cycle=len(phases),
                theme=slot,
            )
        )
    caption = (
        f"{found.attrs['model']}: accuracy by phase after cycling all gates by δ offsets, observed (whiskers: 95%, "
        f"{found.sizes['prompt']} prompts) and predicted as A_0((r − δ) mod S), nothing fitted. {'; '.join(told)}."
    )
    whole = (
        drawn[0]
        if len(drawn) == 1
        else panels(drawn, labels=None, columns=columns, width_mm=theme.width_mm, theme=theme)
    )
    return describe(whole, alt=layout_of(whole)["meta"]["alt"], caption=caption)
