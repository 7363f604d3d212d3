"""Cycled gates: accuracy by phase as observed, over what the cycle predicts."""

from __future__ import annotations

from dataclasses import replace

import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import describe, layout_of, number, require
from interp.figures.compose import most_columns, panels, slot_mm
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
    told = []
    for shift in shifts:
        r2, inner = (float(found[name].sel(shift=shift)) for name in ("r2", "r2_inner"))
        told.append(
            f"δ = {number(shift, sign=True)}: R² {number(r2, 2)} over {found.attrs['n']} phases, {number(inner, 2)} over the "
            f"{found.attrs['n_inner']} without the boundary phase"
        )
    caption = (
        f"{found.attrs['model']}: accuracy by phase after cycling all gates by δ offsets, observed (whiskers: 95%, "
        f"{found.sizes['prompt']} prompts) and predicted as A_0((r − δ) mod S), nothing fitted. {'; '.join(told)}."
    )

    def draw(columns: int) -> go.Figure:
        slot = replace(theme, width_mm=slot_mm(theme.width_mm, columns))
        drawn = [
            _shift(found, shift, caption=words, theme=slot) for shift, words in zip(shifts, told, strict=True)
        ]
        if len(drawn) == 1:
            return drawn[0]
        return panels(drawn, labels=None, columns=columns, width_mm=theme.width_mm, theme=theme)

    wide = len(shifts) > 1 and theme.width_mm >= _TWO_PANELS_MM
    whole, _ = most_columns(draw, 2 if wide else 1)
    return describe(whole, alt=layout_of(whole)["meta"]["alt"], caption=caption)


def _shift(found: xr.Dataset, shift: int, *, caption: str, theme: Theme) -> go.Figure:
    """Observed and predicted accuracy after one shift."""
    one = 100 * found[_NEEDED[:4]].sel(shift=shift)
    phases = [int(p) for p in found["phase"].values]
    observed = Series(*(one[name].values.tolist() for name in _NEEDED[:3]))
    return lines(
        {
            f"gates cycled by {number(shift, sign=True)}": observed,
            f"predicted, δ = {number(shift, sign=True)}": Series(one["predicted"].values.tolist()),
        },
        phases,
        x_title=f"target position mod {len(phases)} (phase)",
        y_title="accuracy (%)",
        caption=caption,
        y_range=(-3, 103),
        cycle=len(phases),
        theme=theme,
    )
