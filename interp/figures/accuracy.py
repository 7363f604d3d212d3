"""Accuracy by residue, with intervals, cycles of phases and boundary phases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import (
    FigureError,
    Legend,
    Margins,
    blank,
    describe,
    number,
    require,
    room_below,
    room_beside,
    tick_step,
)
from interp.figures.text import LINE, text_width, wrapped
from interp.figures.theme import Theme, mm

__all__ = ["accuracy_by_residue"]

_COLUMNS = ["series", "residue", "phase", "accuracy_percent", "low_percent", "high_percent"]


def accuracy_by_residue(
    sweeps: xr.Dataset | Mapping[str, xr.Dataset],
    *,
    theme: Theme | None = None,
    height_mm: float = 55.0,
) -> go.Figure:
    """Draw accuracy (%) by residue with Wilson 95% whiskers, one line per sweep.

    Where all sweeps share one stride, every other cycle of phases is shaded and boundary phases are darker;
    with several strides each line marks its own boundary phases with open markers alone. Query sweeps are
    drawn by query phase (q+1) mod S, with the BCa intervals over base prompts that they carry: no phase of
    the query is a boundary.

    Parameters
    ----------
    sweeps : Dataset or mapping of str to Dataset
        Results of `phase_sweep`, by the name in the legend. They may have different moduli; all are by
        target, or all by query.
    theme : Theme
        Size, fonts, light or dark.
    height_mm : float
        Height of the figure.

    Returns
    -------
    plotly.graph_objects.Figure
        ``layout.meta`` holds ``alt`` and ``caption``.

    Raises
    ------
    FigureError
        If there is no sweep, one lacks ``accuracy_residue`` or its interval, or the axes are mixed.
    """
    theme = theme or Theme()
    named = {_label(sweeps): sweeps} if isinstance(sweeps, xr.Dataset) else dict(sweeps)
    if not named:
        raise FigureError("no sweep to draw; give at least one result of phase_sweep")
    for sweep in named.values():
        require(
            sweep, ["accuracy_residue", "accuracy_residue_low", "accuracy_residue_high"], kind="phase_sweep"
        )
    axis = _axis(named)
    strides = {_stride(sweep) for sweep in named.values()} - {0}
    shaded = axis == "target" and len(strides) == 1
    f = theme.font
    left, right = max(3.6 * f, room_beside(f, text_width("100", f), "")), 0.6 * f
    width = theme.width - left - right
    residues = max(sweep.sizes["residue"] for sweep in named.values())
    legend = Legend.above(list(named), width, f, left=left)
    note = wrapped(_boundary(min(strides)), theme.small, width) if shaded else ""
    x_title = wrapped(_x_title(axis, residues, strides), f, width + 2 * right)
    more_lines = LINE * (f * x_title.count("<br>") + theme.small * note.count("<br>"))
    # Room for the lines that name the boundary phase.
    lift = max(1.4 * f, 1.2 * theme.small + 4) if shaded else 0.5 * f
    lift += LINE * theme.small * note.count("<br>")
    margins = Margins(
        left=left,
        right=right,
        top=lift + (max(0.6 * f, 5) if legend.height else 0.1 * f) + legend.height,
        bottom=room_below(f, x_title),
    )
    height = mm(height_mm) + more_lines + (legend.height if legend.orientation == "v" else 0.0)
    plot_height = height - margins.top - margins.bottom
    figure = blank(theme=theme, height=height, margins=margins)
    for index, (name, sweep) in enumerate(named.items()):
        figure.add_trace(_line(name, sweep, index, theme).update(name=legend.names[index]))
    if shaded:
        _shade(figure, note, residues=residues, stride=min(strides), width=width, theme=theme)
    step = tick_step(residues, width / residues, theme.font * 1.7, cycle=min(strides, default=None))
    figure.update_layout(
        xaxis=theme.axis(
            title=x_title,
            range=[-0.6, residues - 0.4],
            tickmode="array",
            tickvals=list(range(0, residues, step)),
        ),
        yaxis=theme.axis(title="accuracy (%)", standoff=2, range=[-3, 103], dtick=25, showgrid=True),
        showlegend=len(named) > 1,
        legend=legend.layout(theme, lift=lift / plot_height),
    )
    return describe(figure, alt=_alt(named), caption=_caption(named, axis))


def _label(sweep: xr.Dataset) -> str:
    return str(sweep.attrs.get("model", "")) or "accuracy"


def _stride(sweep: xr.Dataset) -> int:
    """Stride of a sweep; 0 where there is none, or where it is the placebo of a model without one."""
    return 0 if sweep.attrs.get("placebo", 0) else int(sweep.attrs.get("stride", 0))


def _axis(named: Mapping[str, xr.Dataset]) -> str:
    """What all sweeps run over: "target" or "query"."""
    axes = {name: str(sweep.attrs.get("axis", "target")) for name, sweep in named.items()}
    if len(set(axes.values())) > 1:
        told = ", ".join(f"{name} by {axis}" for name, axis in axes.items())
        raise FigureError(f"sweeps over different axes cannot share one: {told}; draw each axis by itself")
    return next(iter(axes.values()))


def _x_title(axis: str, residues: int, strides: set[int]) -> str:
    if axis == "query":
        return f"query phase (q + 1) mod {min(strides) if len(strides) == 1 else 'S'}"
    return f"target position mod {residues} (residue)"


def _line(name: str, sweep: xr.Dataset, index: int, theme: Theme) -> go.Scatter:
    colour, symbol, dash = theme.series(index)
    stride = _stride(sweep)
    residue = np.arange(sweep.sizes["residue"])
    mean, low, high = (
        100 * sweep[v].values.astype(float)
        for v in ("accuracy_residue", "accuracy_residue_low", "accuracy_residue_high")
    )
    by_query = sweep.attrs.get("axis") == "query"
    edges = stride > 1 and not by_query
    boundary = (residue % stride == stride - 1) if edges else np.zeros(len(residue), bool)
    columns, where = _COLUMNS, "residue %{customdata[1]}, phase %{customdata[2]}"
    places = [[int(r), int(r) % stride if stride else -1] for r in residue]
    if by_query:
        columns, where = ["series", "query_phase", *_COLUMNS[3:]], "query phase %{customdata[1]}"
        places = [[int(r)] for r in residue]
    first = len(places[0]) + 1  # the column of the accuracy
    return go.Scatter(
        x=residue,
        y=mean,
        name=name,
        mode="lines+markers",
        line={"color": colour, "width": 1.2, "dash": dash},
        marker={
            "size": 4.5,
            "symbol": [symbol] * len(residue),
            "color": [theme.paper if b else colour for b in boundary],
            "line": {"color": colour, "width": 1.2},
        },
        error_y={
            "type": "data",
            "symmetric": False,
            "array": np.maximum(high - mean, 0),
            "arrayminus": np.maximum(mean - low, 0),
            "color": colour,
            "thickness": 0.8,
            "width": 1.5,
        },
        customdata=[
            [name, *at, float(m), float(a), float(b)]
            for at, m, a, b in zip(places, mean, low, high, strict=True)
        ],
        meta={"columns": columns},
        hovertemplate=(
            f"%{{customdata[0]}}<br>{where}<br>accuracy %{{customdata[{first}]:.1f}}% "
            f"(%{{customdata[{first + 1}]:.1f}} to %{{customdata[{first + 2}]:.1f}})<extra></extra>"
        ),
    )


def _boundary(stride: int) -> str:
    return f"boundary phase {stride - 1} (S = {stride})"


def _shade(figure: go.Figure, note: str, *, residues: int, stride: int, width: float, theme: Theme) -> None:
    """Shade every other cycle and, darker, all boundary phases; name them once above the plot."""
    shapes = [
        {"x0": start - 0.5, "x1": min(start + stride, residues) - 0.5, "fillcolor": theme.shade}
        for start in range(stride, residues, 2 * stride)
    ]
    boundaries = range(stride - 1, residues, stride) if stride > 1 else range(0)
    shapes += [{"x0": b - 0.5, "x1": b + 0.5, "fillcolor": theme.shade_boundary} for b in boundaries]
    common = {
        "type": "rect",
        "xref": "x",
        "yref": "y domain",
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"width": 0},
    }
    figure.update_layout(shapes=[common | shape for shape in shapes])
    if not boundaries:
        return
    half = text_width(note, theme.small) / 2 * residues / width
    centred = half <= stride - 0.5 <= residues - half  # room on both sides of the first column
    figure.add_annotation(
        text=note,
        x=boundaries[0] if centred else -0.5,
        xref="x",
        y=1,
        yref="y domain",
        xanchor="center" if centred else "left",
        align="center" if centred else "left",
        yanchor="bottom",
        yshift=1,
        showarrow=False,
        font={"size": theme.small, "color": theme.muted},
    )


def _alt(named: Mapping[str, xr.Dataset]) -> str:
    parts, axis = [], _axis(named)
    place, phase = ("query phase", "query phase") if axis == "query" else ("residue", "phase")
    for name, sweep in named.items():
        accuracy = 100 * sweep["accuracy_residue"].values.astype(float)
        if not np.isfinite(accuracy).any():
            parts.append(f"{name}: undefined at every {place}")
            continue
        worst, best = int(np.nanargmin(accuracy)), int(np.nanargmax(accuracy))
        ends = [f"{number(accuracy[r])}% at {place} {r}" for r in (worst, best)]
        parts.append(
            f"{name}: from {ends[0]} to {ends[1]}"
            + (
                f", worst {phase} {sweep.attrs['worst_phase']}"
                if _stride(sweep) and "worst_phase" in sweep.attrs
                else ""
            )
        )
    return f"Line chart of accuracy by {place}. " + "; ".join(parts) + "."


def _caption(named: Mapping[str, xr.Dataset], axis: str) -> str:
    gaps = []
    for name, sweep in named.items():
        a = sweep.attrs
        if {"gap_pp", "null_gap_pp"} <= set(a):
            gaps.append(f"{name} {number(a['gap_pp'], 1)} pp (null gap {number(a['null_gap_pp'], 1)} pp)")
    if axis == "query":
        return (
            "Accuracy by query phase, how full the open window is at the query, over all target phases; whiskers "
            "are BCa 95% intervals over base prompts." + (f" Query gap: {'; '.join(gaps)}." if gaps else "")
        )
    strides = {_stride(sweep) for sweep in named.values()} - {0}
    marks = " Open markers are boundary phases." if strides else ""
    if len(strides) == 1:
        marks = " Dark columns and open markers are boundary phases; every other cycle of phases is shaded."
    return f"Accuracy by residue of the target position; whiskers are Wilson 95% intervals.{marks}" + (
        f" Phase gap: {'; '.join(gaps)}." if gaps else ""
    )
