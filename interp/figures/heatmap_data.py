"""The numbers of an effect heatmap, in drawing order, and the words that describe them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from interp.figures.base import FigureError, number, require, unit_order
from interp.figures.chance import untested
from interp.specialization import arcs_text
from interp.stats import MIN_CLEAN_CORRECT

__all__ = ["Grid", "alt_text", "caption", "grid_of"]


@dataclass(frozen=True)
class Grid:
    """What is drawn: rows in order of layer and head, columns phases or residues."""

    units: list[str]
    stride: int
    axis: str
    effect: np.ndarray  # [unit, column], percent, NaN where undefined
    effect_pp: np.ndarray
    serves: np.ndarray | None
    p_effect: np.ndarray | None
    uncovered: np.ndarray  # [column] bool
    min_loss: float
    untested: str  # why nothing is marked, where too few prompts allow no test

    def phase(self, column: int) -> int:
        """Phase of a column."""
        return column % self.stride


def grid_of(knockout: xr.Dataset, specialization: xr.Dataset | None, axis: str) -> Grid:
    """Check both results and put their numbers in drawing order.

    Raises
    ------
    FigureError
        As :func:`interp.figures.effect_heatmap`.
    """
    if axis not in ("phase", "residue"):
        raise FigureError(f"axis={axis!r} cannot run across a heatmap; valid: phase, residue")
    require(knockout, ["effect"], kind="knockout")
    stride = int(knockout.attrs.get("stride", 0) or knockout.sizes.get("phase", 0))
    if stride < 1:
        raise FigureError("the knockout result has no stride; set its attr 'stride' to the S of the model")
    effect, effect_pp = _effects(knockout, axis)
    labels = [str(u) for u in knockout["unit"].values]
    order = unit_order(labels)
    units = [labels[i] for i in order]
    columns = effect.shape[1]
    serves = p_effect = None
    uncovered, min_loss, why = np.zeros(columns, bool), float("nan"), ""
    if specialization is not None:
        require(specialization, ["serves", "p_effect", "uncovered"], kind="specialization")
        there = [str(u) for u in specialization["unit"].values]
        if sorted(there) != sorted(units) or specialization.sizes["phase"] != stride:
            raise FigureError(
                f"the specialization result has {len(there)} units, {specialization.sizes['phase']} phases; "
                f"the knockout result {len(units)} units, {stride} phases; they must come from the same run"
            )
        rows = [there.index(u) for u in units]
        phases = np.arange(columns) % stride
        serves = specialization["serves"].transpose("unit", "phase").values[rows][:, phases].astype(bool)
        p_effect = specialization["p_effect"].transpose("unit", "phase").values[rows][:, phases]
        uncovered = specialization["uncovered"].values[phases].astype(bool)
        min_loss = float(specialization.attrs.get("min_loss", np.nan))
        if specialization.attrs.get("tested_on", "none") != "none":
            why = untested(specialization["p_effect"], knockout)
        if why:  # nothing can serve a phase then: no outlines, and no flags
            serves, p_effect, uncovered = None, None, np.zeros(columns, bool)
    return Grid(
        units, stride, axis, effect[order], effect_pp[order], serves, p_effect, uncovered, min_loss, why
    )


def _effects(knockout: xr.Dataset, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Effect in percent and in points, [unit, column]; by residue from pooled counts where prompts exist."""
    effect = knockout["effect"]
    if axis in effect.dims:
        values = effect.transpose("unit", axis).values.astype(float)
        if "effect_pp" in knockout and axis in knockout["effect_pp"].dims:
            return values, knockout["effect_pp"].transpose("unit", axis).values.astype(float)
        return values, np.full(values.shape, np.nan)
    if axis == "phase" or not {"correct", "clean_correct"} <= set(map(str, knockout.data_vars)):
        raise FigureError(
            f"the knockout result has no effect by {axis} and no prompts to count; it has {effect.dims}"
        )
    clean = knockout["clean_correct"].transpose("prompt", "residue").values.astype(bool)
    under = knockout["correct"].transpose("unit", "prompt", "residue").values.astype(bool)
    lost = under.sum(1) - clean.sum(0)
    enough = clean.sum(0) >= MIN_CLEAN_CORRECT
    percent = np.where(enough, 100.0 * lost / np.maximum(clean.sum(0), 1), np.nan)
    return percent, 100.0 * lost / max(1, len(clean))


def alt_text(grid: Grid) -> str:
    """Alternative text: which unit serves which phases, or the largest loss where that was not tested."""
    text = f"Heat map of knockout effects, {len(grid.units)} units by {grid.effect.shape[1]} {grid.axis}s."
    if grid.untested:
        text += f" {grid.untested}"
    if grid.serves is None:
        if np.isfinite(grid.effect).any():
            row, column = np.unravel_index(int(np.nanargmin(grid.effect)), grid.effect.shape)
            worst = number(grid.effect[row, column])
            text += f" Lowest effect {worst}%, unit {grid.units[row]} at {grid.axis} {column}."
        return text
    by_phase = grid.serves[:, : grid.stride]
    serving = [
        f"{u} serves {arcs_text(row)}" for u, row in zip(grid.units, by_phase, strict=True) if row.any()
    ]
    text += f" {'; '.join(serving) if serving else 'No unit serves any phase'}."
    none = grid.uncovered[: grid.stride]
    return text + (f" Served by no unit: {arcs_text(none)}." if none.any() else " Every phase is served.")


def caption(grid: Grid, knockout: xr.Dataset) -> str:
    """Caption: what was measured and how."""
    who, how = knockout.attrs.get("model", ""), knockout.attrs.get("replace", "")
    whose = (f" of {who}" if who else "") + (f" ({how} replacement)" if how else "")
    return (
        f"Effect of knocking out each unit{whose}, "
        f"in percent of clean accuracy, by {grid.axis} (S = {grid.stride}); negative is loss."
        + (f" {grid.untested}" if grid.untested else "")
    )
