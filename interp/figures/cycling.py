"""Cycled gates: accuracy by phase as observed, over what the cycle predicts."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import describe, layout_of, number, require
from interp.figures.compose import panels
from interp.figures.series import Series, lines
from interp.figures.theme import DOUBLE_COLUMN_MM, Theme

__all__ = ["cycling_figure"]

_NEEDED = ["observed", "observed_low", "observed_high", "predicted", "r2", "r2_inner"]


def cycling_figure(found: xr.Dataset, *, theme: Theme | None = None) -> go.Figure:
    """Draw one panel a shift δ: observed accuracy (%) with 95% intervals, and A_0((r − δ) mod S).

    Parameters
    ----------
    found : Dataset
        A result of :func:`interp.gate_interventions.cycling`.
    theme : Theme
        Fonts and ground; several panels take a double column.

    Returns
    -------
    plotly.graph_objects.Figure
        R² of each panel, with and without the boundary phase, stands in its caption.

    Raises
    ------
    FigureError
        If it is no such result.
    """
    require(found, _NEEDED, kind="cycling")
    theme = theme or Theme()
    phases = [int(p) for p in found["phase"].values]
    told = []
    drawn = []
    for shift in (int(s) for s in found["shift"].values):
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
                    "predicted": Series(one["predicted"].values.tolist()),
                },
                phases,
                x_title=f"target position mod {len(phases)} (phase)",
                y_title="accuracy (%)",
                caption=told[-1],
                y_range=(-3, 103),
                cycle=len(phases),
                theme=theme,
            )
        )
    caption = (
        f"{found.attrs['model']}: accuracy by phase after cycling all gates by δ offsets, observed (whiskers: 95%, "
        f"{found.sizes['prompt']} prompts) and predicted as A_0((r − δ) mod S), nothing fitted. {'; '.join(told)}."
    )
    whole = drawn[0] if len(drawn) == 1 else panels(drawn, theme=theme, width_mm=DOUBLE_COLUMN_MM)
    return describe(whole, alt=layout_of(whole)["meta"]["alt"], caption=caption)
