"""Gate profiles over knockout profiles: whether a head pools the phases at which it matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import (
    Legend,
    Margins,
    blank,
    describe,
    finite,
    nice_ticks,
    number,
    require,
    room_below,
    room_beside,
    tick_step,
)
from interp.figures.profile_rows import Row, paired_rows
from interp.figures.text import text_width, wrapped
from interp.figures.theme import Theme, mm

__all__ = ["gate_profiles"]

_CELL_MM = 36.0
_CELL_WITHOUT_EFFECT_MM = 20.0
_CELL_MIN_WIDTH_MM = 24.0


def gate_profiles(
    gates: xr.Dataset,
    knockout: xr.Dataset | None = None,
    units: Sequence[str] | None = None,
    *,
    theme: Theme | None = None,
    columns: int | None = None,
) -> go.Figure:
    """Draw, for each unit, its gate profile by phase over its knockout profile by phase.

    The upper plot has the key gate (solid, filled circles) and the value gate (dashed, open diamonds); 1 is a
    uniform gate. The lower one has the effect of knocking the unit out, in percent of clean accuracy; a bar
    that is missing and marked "n/a" is undefined. Scales are shared by all units.

    Parameters
    ----------
    gates : Dataset
        Result of `gate_profile`: ``profile_key`` and ``profile_value`` (unit, phase).
    knockout : Dataset, optional
        Result of `knockout` with ``effect`` (unit, phase): by KV head; by query head, beside the gates of
        the KV head it reads; or by layer, beside those of each of its KV heads. Without it there are gate
        profiles only.
    units : sequence of str, optional
        Labels of the knocked-out units (of a layer, or of one of its KV heads), drawn in this order; all that
        have gates, by layer and head, if not given.
    theme : Theme
        Size, fonts, light or dark.
    columns : int, optional
        Units side by side; as many as the width holds if not given.

    Raises
    ------
    FigureError
        If variables are missing, a label is unknown, or no knocked-out unit has gates (gate offsets, MLPs
        and what else is no head).
    """
    theme = theme or Theme()
    require(gates, ["profile_key", "profile_value"], kind="gate_profile")
    if knockout is not None:
        require(knockout, ["effect"], kind="knockout")
    rows = paired_rows(gates, knockout, units)
    narrowest = max(
        mm(_CELL_MIN_WIDTH_MM), *(text_width(f"<b>{r.name}</b>", theme.font) + theme.font for r in rows)
    )
    columns = columns or max(1, int(theme.width // narrowest))
    ranges = _Ranges.of(rows)
    layout = _Layout.of(rows, min(columns, len(rows)), theme, effects=knockout is not None)
    figure = blank(theme=theme, height=layout.height, margins=layout.margins)
    stride, count = rows[0].profiles.shape[1], len(rows)
    traces = [t for index, row in enumerate(rows) for t in _traces(row, index, theme)]
    seen = {"undefined"}
    for trace in traces:  # one legend entry a name
        name = str(trace["name"])
        written = dict(zip(_names(rows), layout.legend.names, strict=True)).get(name, name)
        trace.update(showlegend=name not in seen, legendgroup=name, name=written)
        seen.add(name)
    figure.add_traces(traces)
    axes = [_axes(index, count, stride, theme, layout, ranges) for index in range(count)]
    figure.update_layout(
        **{name: axis for of_unit in axes for name, axis in of_unit.items()},
        shapes=[s for index in range(count) for s in _references(index, theme, effects=layout.effects)],
        annotations=[_title(row, index, theme) for index, row in enumerate(rows)],
        legend=layout.legend.layout(
            theme, lift=1.4 * theme.font / (layout.height - layout.margins.top - layout.margins.bottom)
        ),
        showlegend=bool(layout.legend.height),
        bargap=0.3,
    )
    return describe(figure, alt=_alt(rows), caption=_caption(rows))


@dataclass(frozen=True)
class _Ranges:
    """Scales shared by all units."""

    gate: list[float]
    effect: list[float]

    @classmethod
    def of(cls, rows: list[Row]) -> _Ranges:
        top = max([1.0, *(float(np.nanmax(r.profiles, initial=0.0)) for r in rows)])
        effects = [r.effect for r in rows if r.effect is not None]
        low = min([-100.0, *(float(np.nanmin(e, initial=0.0)) for e in effects)])
        high = max([0.0, *(float(np.nanmax(e, initial=0.0)) for e in effects)])
        return cls([0, 1.08 * top], [1.06 * low, 1.1 * high + 6])


@dataclass(frozen=True)
class _Layout:
    """Where each unit's two plots are: domains in paper coordinates."""

    columns: int
    rows: int
    height: float
    margins: Margins
    x_gap: float
    y_gap: float
    cell_width: float
    effects: bool
    legend: Legend
    titles: tuple[str, str]  # of gates and of the effect, in lines
    between: float  # half of the space between a unit's two plots, a share of its height

    @classmethod
    def of(cls, drawn: list[Row], columns: int, theme: Theme, *, effects: bool) -> _Layout:
        f = theme.font
        rows = -(-len(drawn) // columns)
        share = 0.48 if effects else 1.0  # of a cell's height, for each of its plots
        cell = max(mm(_CELL_MM if effects else _CELL_WITHOUT_EFFECT_MM), text_width("uniform", f) / share)
        titles = [wrapped(title, f, share * cell) for title in ("gate ÷ uniform", "effect (%)")]
        left = max(room_beside(f, text_width("−100" if effects else "0.5", f), title) for title in titles)
        plot_width = theme.width - left - f * 0.6
        legend = Legend.above(_names(drawn), plot_width, f, left=left)
        margins = Margins(
            left=left, right=f * 0.6, top=f * 2.0 + max(f * 2.0, legend.height), bottom=room_below(f, "", 3.0)
        )
        gap = f * 3.4
        plot_height = rows * cell + (rows - 1) * gap
        height = plot_height + margins.top + margins.bottom
        x_gap, y_gap = f * 0.9 / plot_width, gap / plot_height
        width = (1 - x_gap * (columns - 1)) / columns
        return cls(
            columns, rows, height, margins, x_gap, y_gap, width * plot_width, effects, legend, (titles[0], titles[1]),
            max(0.02, (0.4 * f - 2) / cell),
        )  # fmt: skip

    def domains(self, index: int) -> tuple[list[float], list[float], list[float]]:
        """x, upper y and lower y of the unit number `index`."""
        row, column = divmod(index, self.columns)
        width = (1 - self.x_gap * (self.columns - 1)) / self.columns
        height = (1 - self.y_gap * (self.rows - 1)) / self.rows
        left, top = column * (width + self.x_gap), 1 - row * (height + self.y_gap)
        middle = top - 0.52 * height
        return (
            [left, left + width],
            [middle + self.between * height, top],
            [max(0.0, top - height), middle - self.between * height],
        )


def _axes(
    index: int, count: int, stride: int, theme: Theme, layout: _Layout, ranges: _Ranges
) -> dict[str, Any]:
    """Axes of the unit number `index`: 2·index+1 for gates, 2·index+2 for the effect."""
    upper, lower = _suffix(2 * index + 1), _suffix(2 * index + 2)
    x_domain, gate_domain, effect_domain = layout.domains(index)
    step = tick_step(stride, layout.cell_width / stride, theme.font * 1.3)
    ticks = {"tickvals": list(range(0, stride, step)), "range": [-0.6, stride - 0.4], "domain": x_domain}
    left = index % layout.columns == 0
    bottom = index + layout.columns >= count
    title = "phase" if bottom else None
    axes = {
        f"xaxis{upper}": theme.axis(
            anchor=f"y{upper}",
            title=None if layout.effects else title,
            showticklabels=not layout.effects,
            standoff=2,
            **ticks,
        ),
        f"yaxis{upper}": theme.axis(
            domain=gate_domain,
            anchor=f"x{upper}",
            range=ranges.gate,
            tickvals=nice_ticks(*ranges.gate, most=4),
            showticklabels=left,
            title=layout.titles[0] if left else None,
            standoff=2,
        ),
    }
    if not layout.effects:
        return axes
    return axes | {
        f"xaxis{lower}": theme.axis(anchor=f"y{lower}", title=title, standoff=2, **ticks),
        f"yaxis{lower}": theme.axis(
            domain=effect_domain,
            anchor=f"x{lower}",
            range=ranges.effect,
            tickvals=[-100, -50, 0],
            ticktext=[number(v) for v in (-100, -50, 0)],
            showticklabels=left,
            title=layout.titles[1] if left else None,
            standoff=2,
        ),
    }


def _traces(row: Row, index: int, theme: Theme) -> list[go.Scatter | go.Bar]:
    upper, lower = _suffix(2 * index + 1), _suffix(2 * index + 2)
    traces: list[go.Scatter | go.Bar] = []
    of_gate = {"unit": row.unit} | ({"gate": row.gate} if row.gate != row.unit else {})
    phases = list(range(row.profiles.shape[1]))
    for branch, (name, symbol, dash) in enumerate(
        (("key gate", "circle", "solid"), ("value gate", "diamond", "dash"))
    ):
        profile = row.profiles[branch]
        if not np.isfinite(profile).any():
            continue
        colour = theme.palette[branch]
        traces.append(
            go.Scatter(
                x=phases,
                y=[finite(v) for v in profile],
                xaxis=f"x{upper}",
                yaxis=f"y{upper}",
                name=name,
                mode="lines+markers",
                line={"color": colour, "width": 1.2, "dash": dash},
                marker={
                    "size": 4,
                    "symbol": symbol,
                    "color": colour if branch == 0 else theme.paper,
                    "line": {"color": colour, "width": 1},
                },
                customdata=[
                    [*of_gate.values(), p, name, finite(v)] for p, v in zip(phases, profile, strict=True)
                ],
                meta={"columns": [*of_gate, "phase", "measure", "value"]},
                hovertemplate=f"<b>{row.name}</b> · phase %{{x}}<br>{name} %{{y:.2f}}<extra></extra>",
            )
        )
    if row.effect is None:
        return traces
    traces.append(
        go.Bar(
            x=phases,
            y=[finite(v) for v in row.effect],
            xaxis=f"x{lower}",
            yaxis=f"y{lower}",
            width=0.7,
            name="knockout effect",
            marker={"color": theme.palette[4], "line": {"width": 0}},
            customdata=[
                [row.unit, p, "effect_percent", finite(v)] for p, v in zip(phases, row.effect, strict=True)
            ],
            meta={"columns": ["unit", "phase", "measure", "value"]},
            hovertemplate=f"<b>{row.unit}</b> · phase %{{x}}<br>effect %{{y:.1f}}%<extra></extra>",
        )
    )
    undefined = [p for p, v in zip(phases, row.effect, strict=True) if not np.isfinite(v)]
    if undefined:
        traces.append(
            go.Scatter(
                x=undefined,
                y=[-4] * len(undefined),
                xaxis=f"x{lower}",
                yaxis=f"y{lower}",
                mode="text",
                name="undefined",
                text=["n/a"] * len(undefined),
                textposition="bottom center",
                textfont={"size": theme.small, "color": theme.muted},
                hoverinfo="skip",
            )
        )
    return traces


def _references(index: int, theme: Theme, *, effects: bool) -> list[dict[str, Any]]:
    """Lines at a uniform gate and at no effect."""
    upper, lower = _suffix(2 * index + 1), _suffix(2 * index + 2)
    line = {"type": "line", "x0": 0, "x1": 1, "layer": "below"}
    lines = [
        line
        | {
            "xref": f"x{upper} domain",
            "yref": f"y{upper}",
            "y0": 1,
            "y1": 1,
            "line": {"color": theme.muted, "width": 0.6, "dash": "dot"},
        },
        line
        | {
            "xref": f"x{lower} domain",
            "yref": f"y{lower}",
            "y0": 0,
            "y1": 0,
            "line": {"color": theme.ink, "width": 0.6},
        },
    ]
    return lines if effects else lines[:1]


def _title(row: Row, index: int, theme: Theme) -> dict[str, Any]:
    upper = _suffix(2 * index + 1)
    return {
        "text": f"<b>{row.name}</b>",
        "xref": f"x{upper} domain",
        "yref": f"y{upper} domain",
        "x": 0.5,
        "y": 1,
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": theme.font, "color": theme.ink},
    }


def _names(rows: list[Row]) -> list[str]:
    """What the legend names."""
    there = [np.isfinite([row.profiles[branch] for row in rows]).any() for branch in (0, 1)]
    gates = [name for name, drawn in zip(("key gate", "value gate"), there, strict=True) if drawn]
    return [*gates, *(["knockout effect"] if rows[0].effect is not None else [])]


def _suffix(number_of_axis: int) -> str:
    return "" if number_of_axis == 1 else str(number_of_axis)


def _alt(rows: list[Row]) -> str:
    parts = []
    for row in rows:
        peaks = [
            f"{name} gate peaks at phase {int(np.nanargmax(profile))}"
            for name, profile in zip(("key", "value"), row.profiles, strict=True)
            if np.isfinite(profile).any()
        ]
        if row.effect is not None and np.isfinite(row.effect).any():
            worst = int(np.nanargmin(row.effect))
            peaks.append(f"knockout hurts most at phase {worst} ({number(row.effect[worst])}%)")
        parts.append(f"{row.name}: {', '.join(peaks)}")
    return (
        "Gate profiles by phase, with the effect of knocking out each unit where there is one. "
        + "; ".join(parts)
        + "."
    )


def _caption(rows: list[Row]) -> str:
    return (
        f"Gate profiles (mean gate mass of a phase divided by its uniform share, thin dashed line) of "
        f"{len(rows)} unit{'s' if len(rows) > 1 else ''} (layer.head) by phase"
        + (", over knockout effects in percent of clean accuracy." if rows[0].effect is not None else ".")
        + (
            " Units are query heads; KV: the KV head that one reads, whose gates are drawn."
            if any(row.unit != row.gate for row in rows)
            else ""
        )
    )
