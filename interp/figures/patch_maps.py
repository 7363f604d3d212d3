"""Patching as a map: unit × phase, or layer × place relative to the target."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import FigureError, number, require
from interp.figures.cell_map import cell_map
from interp.figures.chance import significant, untested
from interp.figures.theme import Theme
from interp.stats import SIGNIFICANCE

__all__ = ["patch_by_phase", "patch_by_place", "patching_map"]

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
        values, rows=rows, columns=columns, x_title=_phase_title(found), y_title="unit",
        value_name="change (nats)", limit=_limit(values), outlined=significant(found["effect_logprob_p"].values),
        theme=theme, row_mm=6.5,
        alt=(
            f"Map of {len(rows)} units by {len(columns)} phases. The largest change is "
            f"{number(values[row, column], 2)} nats, unit {rows[row]} at phase {columns[column]}."
        ),
        caption=f"{_what(found)} when the {_patched(found)} comes from the {_source(found)}; {_key(theme, found)}",
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
        y_title="layer", value_name="change (nats)", limit=_limit(values), outlined=significant(sure), theme=theme,
        row_mm=6.5,
        alt=(
            f"Map of {len(layers)} layers by {len(places)} places. The largest change is "
            f"{number(values[row, column], 2)} nats, layer {layers[row]} at {where} {places[column]}."
        ),
        caption=(
            f"{_what(found)} when the {_patched(found)} comes from the {_source(found)}, "
            f"{'mean over phases' if phase is None else f'targets at phase {phase}'}; {_key(theme, found)}"
        ),
    )  # fmt: skip


_DEFAULT_PARTS = {
    "position": "residual stream before a layer at one position",
    "entry": "key and value of one entry",
    "offset": "key and value gates of a layer at one offset",
    "head": "output of one query head",
    "kv_head": "outputs of the query heads that read one KV head",
    "layer": "outputs of all heads of a layer",
    "mlp": "output of a layer's MLP",
}
_PLACES = {
    "position": "at one position", "entry": "of one entry", "offset": "at one offset", "head": "of one query head",
    "kv_head": "of one KV head", "layer": "of one layer", "mlp": "of one layer",
}  # fmt: skip
_EVERYWHERE = ("position", "entry", "offset")
"""Units that are places themselves, for which ``at`` says nothing."""


def _phase_title(found: xr.Dataset) -> str:
    """Phases are the base prompt's: not the clean one's under denoising."""
    base = " in the patched prompt" if found.attrs.get("direction") == "denoising" else ""
    return f"phase of the target{base}"


def _key(theme: Theme | None, found: xr.Dataset) -> str:
    loss, gain = (theme or Theme()).signs
    outlined = f"Outlined: family-wise p < {SIGNIFICANCE:g} (sign-flip, over prompts)."
    return f"{gain} helps, {loss} hurts. {untested(found['effect_logprob_p'], found) or outlined}"


def _what(found: xr.Dataset) -> str:
    who, by_value = str(found.attrs.get("model", "")), found.attrs.get("pairs") == "value"
    whose = "source prompt's answer" if by_value else "answer"
    return f"Mean change of the {whose}'s log-probability (nats){f' of {who}' if who else ''}"


def _patched(found: xr.Dataset) -> str:
    """What is patched, from the kind of unit, the site and the positions that the result names."""
    a = found.attrs
    kind, site = str(a.get("unit_kind", "unit")), str(a.get("site", ""))
    part = (
        f"{site} {_PLACES.get(kind, 'of one unit')}" if site else _DEFAULT_PARTS.get(kind, f"{kind}'s output")
    )
    at = (
        ""
        if kind in _EVERYWHERE
        else {"final": ", final position,", "all": ", all positions,"}.get(str(a.get("at")), "")
    )
    return f"{part}{at}"


def _source(found: xr.Dataset) -> str:
    """Which run it comes from and where it goes, from pairs, shift and direction."""
    a = found.attrs
    if a.get("pairs") == "value":
        other = "same prompt with another value behind the target key"
    else:
        other = f"same prompt with its target shifted by {number(int(a.get('shift', 1)))}"
    if a.get("direction") == "denoising":
        return f"clean prompt and goes into the {other} (denoising)"
    return other


def _axes(labels: list[str]) -> tuple[list[str], list[str]]:
    """Layers and places, each in order of first appearance."""
    pairs = [label.split(".", 1) for label in labels]
    return list(dict.fromkeys(layer for layer, _ in pairs)), list(dict.fromkeys(place for _, place in pairs))


def _limit(values: np.ndarray) -> float:
    return max(_FLOOR, float(np.nanmax(np.abs(values))))


def _largest(values: np.ndarray) -> tuple[int, int]:
    row, column = np.unravel_index(int(np.nanargmax(np.abs(values))), values.shape)
    return int(row), int(column)
