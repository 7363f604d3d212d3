"""Patching as a map: unit × phase, or layer × place relative to the target."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import FigureError, number, require
from interp.figures.cell_map import cell_map
from interp.figures.theme import Theme

__all__ = ["patch_by_phase", "patch_by_place", "patching_map"]

SIGNIFICANCE = 0.05
_FLOOR = 0.1
"""Smallest range of colours (nats), so that a map of nothing stays pale."""


def patching_map(found: xr.Dataset, *, theme: Theme | None = None) -> go.Figure:
    """Draw the map that a result of `patch` allows: layer × place for positions and entries, else unit × phase."""
    places = found.attrs.get("unit_kind") in ("position", "entry")
    return patch_by_place(found, theme=theme) if places else patch_by_phase(found, theme=theme)


def patch_by_phase(found: xr.Dataset, *, theme: Theme | None = None) -> go.Figure:
    """Draw the mean change of the answer's log-probability (nats), one row a unit, one column a phase.

    Parameters
    ----------
    found : Dataset
        Result of `patch`.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        If it is no result of `patch`.
    """
    require(found, ["effect_logprob", "effect_logprob_p"], kind="patch")
    values = found["effect_logprob"].values
    rows = [str(u) for u in found["unit"].values]
    columns = [str(p) for p in found["phase"].values]
    row, column = _largest(values)
    return cell_map(
        values, rows=rows, columns=columns, x_title="phase of the target", y_title="unit",
        value_name="change (nats)", limit=_limit(values), outlined=_sure(found["effect_logprob_p"].values),
        theme=theme, row_mm=6.5,
        alt=(
            f"Map of {len(rows)} units by {len(columns)} phases. The largest change is "
            f"{number(values[row, column], 2)} nats, unit {rows[row]} at phase {columns[column]}."
        ),
        caption=f"{_what(found)} when a unit's output comes from the {_source(found)}; {_key(theme)}",
    )  # fmt: skip


def patch_by_place(found: xr.Dataset, *, phase: int | None = None, theme: Theme | None = None) -> go.Figure:
    """Draw the same by layer (rows) and place (columns): positions or entries relative to the target's.

    Parameters
    ----------
    found : Dataset
        Result of `patch` with ``unit="position"`` or ``"entry"``.
    phase : int, optional
        Of the target; the mean over phases if left out, where a place is outlined that is significant at any.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        If it is no such result, or has no such phase.
    """
    require(found, ["effect_logprob", "effect_logprob_p"], kind="patch")
    kind = str(found.attrs.get("unit_kind", ""))
    if kind not in ("position", "entry"):
        raise FigureError(f"patched units are {kind!r}; a map of places needs position or entry")
    if phase is not None and phase not in found["phase"].values:
        raise FigureError(f"no phase {phase}; valid: 0 to {found.sizes['phase'] - 1}")
    one = found[["effect_logprob", "effect_logprob_p"]]
    effect = one["effect_logprob"].mean("phase") if phase is None else one["effect_logprob"].sel(phase=phase)
    p = one["effect_logprob_p"].min("phase") if phase is None else one["effect_logprob_p"].sel(phase=phase)
    layers, places = _axes([str(u) for u in found["unit"].values])
    values, sure = np.full((2, len(layers), len(places)), np.nan)
    for label, value, chance in zip(found["unit"].values, effect.values, p.values, strict=True):
        layer, place = str(label).split(".", 1)
        at = layers.index(layer), places.index(place)
        values[at], sure[at] = value, chance
    row, column = _largest(values)
    where = "position" if kind == "position" else "entry"
    return cell_map(
        values, rows=layers, columns=places,
        x_title=f"{where} relative to the target{'' if kind == 'position' else chr(8217) + 's first'}",
        y_title="layer", value_name="change (nats)", limit=_limit(values), outlined=_sure(sure), theme=theme,
        row_mm=6.5,
        alt=(
            f"Map of {len(layers)} layers by {len(places)} places. The largest change is "
            f"{number(values[row, column], 2)} nats, layer {layers[row]} at {where} {places[column]}."
        ),
        caption=(
            f"{_what(found)} when the {_PATCHED[kind]} comes from the {_source(found)}, "
            f"{'mean over phases' if phase is None else f'targets at phase {phase}'}; {_key(theme)}"
        ),
    )  # fmt: skip


_PATCHED = {
    "position": "residual stream before a layer at one position",
    "entry": "key and value of one entry",
}


def _key(theme: Theme | None) -> str:
    loss, gain = (theme or Theme()).signs
    return f"{gain} helps, {loss} hurts. Outlined: family-wise p < 0.05 (sign-flip, over prompts)."


def _what(found: xr.Dataset) -> str:
    who = str(found.attrs.get("model", ""))
    return f"Mean change of the answer's log-probability (nats){f' of {who}' if who else ''}"


def _source(found: xr.Dataset) -> str:
    return f"same prompt with its target shifted by {int(found.attrs.get('shift', 1))}"


def _axes(labels: list[str]) -> tuple[list[str], list[str]]:
    """Layers and places, each in order of first appearance."""
    pairs = [label.split(".", 1) for label in labels]
    return list(dict.fromkeys(layer for layer, _ in pairs)), list(dict.fromkeys(place for _, place in pairs))


def _limit(values: np.ndarray) -> float:
    return max(_FLOOR, float(np.nanmax(np.abs(values))))


def _largest(values: np.ndarray) -> tuple[int, int]:
    row, column = np.unravel_index(int(np.nanargmax(np.abs(values))), values.shape)
    return int(row), int(column)


def _sure(p: np.ndarray) -> list[tuple[int, int]]:
    return [(int(r), int(c)) for r, c in zip(*np.nonzero(p < SIGNIFICANCE), strict=True)]
