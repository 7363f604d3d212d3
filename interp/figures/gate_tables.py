"""Terminal tables of cycled and forced gates, and of what results on gates are held against."""

from __future__ import annotations

import numpy as np
import xarray as xr
from rich.console import Group, RenderableType

from interp.figures.base import number, unit_order
from interp.figures.table import _of, _table, _titled
from interp.specialization import served_text

__all__ = [
    "cycling_control_table", "cycling_table", "parts_control_table", "parts_table", "profile_control_table", "table_of",
]  # fmt: skip


def table_of(dataset: xr.Dataset) -> RenderableType | None:
    """Return the table of cycling, parts, or controls of these and of gate profiles; None for any other result."""
    there = set(map(str, dataset.data_vars))
    if {"observed", "predicted", "r2_inner"} <= there:
        return cycling_table(dataset)
    if {"accuracy", "serves", "loss", "similarity"} <= there and "gates" in dataset.dims:
        return parts_table(dataset)
    if {"spread_key", "exceeds_key", "bar"} <= there:
        return profile_control_table(dataset)
    if {"r2_inner", "lead_inner"} <= there:
        return cycling_control_table(dataset)
    if {"similarity", "lead"} <= there and "control" in dataset.dims:
        return parts_control_table(dataset)
    return None


def cycling_table(found: xr.Dataset) -> Group:
    """Accuracy by phase of the cycled model over what the cycle predicts, and R² without the boundary phase."""
    table = _table(["δ", *(f"{phase}" for phase in found["phase"].values), "R²", "95% interval"])
    undefined = False
    for i, shift in enumerate(found["shift"].values):
        r2, low, high = (float(found[f"r2_inner{end}"].values[i]) for end in ("", "_low", "_high"))
        undefined |= not np.isfinite([r2, low, high]).all()
        observed, predicted = (
            [number(100 * v) for v in found[name].values[i]] for name in ("observed", "predicted")
        )
        table.add_row(number(int(shift), sign=True), *observed, number(r2, 2), _between(low, high))
        table.add_row("  predicted", *predicted, "", "")
    lines = ["Accuracy (%) by phase. R²: without the boundary phase, nothing fitted."]
    why = "accuracy does not vary, or too few prompts" if undefined else ""
    return _titled(f"Gates cycled by δ offsets{_of(found)}", table, lines, undefined=why)


def parts_table(found: xr.Dataset) -> Group:
    """Accuracy by phase under forced gates; what each head specialised under intact gates serves there."""
    table = _table(["gates", "accuracy (%) by phase; serves", "similarity", "95% interval"])
    undefined = False
    special = found["serves"].sel(gates="intact").values.any(axis=1)
    for gates in found["gates"].values:
        one = found.sel(gates=gates)
        table.add_row(str(gates), " ".join(number(100 * v) for v in one["accuracy"].values), "", "")
        for unit in one["unit"].values[special]:
            cell = one.sel(unit=unit)
            value, low, high = (float(cell[f"similarity{end}"]) for end in ("", "_low", "_high"))
            undefined |= not np.isfinite([value, low, high]).all()
            served = served_text(cell["serves"].values, cell["loss"].values)
            table.add_row(f"  {unit}", served, number(value, 2), _between(low, high))
    lines = ["Similarity: correlation over phases of a head's effect with its effect under intact gates."]
    if not special.any():
        lines.append("No head is specialised under intact gates.")
    why = "too few prompts" if undefined else ""
    return _titled(f"Knocking heads out under forced gates{_of(found)}", table, lines, undefined=why)


def profile_control_table(found: xr.Dataset) -> Group:
    """Spread of every gate's profile over phases, beside the largest of the model with random weights."""
    table = _table(["unit", "key spread", "value spread", "above"])
    own, labels = found.sel(control="own"), [str(u) for u in found["unit"].values]
    for i in unit_order(labels):
        above = [b for b in ("key", "value") if bool(found[f"exceeds_{b}"].values[i])]
        spreads = (number(float(own[f"spread_{b}"].values[i]), 3) for b in ("key", "value"))
        table.add_row(labels[i], *spreads, " and ".join(above) or "neither")
    lines = [
        f"Bar: {number(float(found['bar']), 3)}, the largest spread of any gate of the same model with random weights. "
        "Spread: largest minus smallest profile over phases; 1 is a uniform gate's share.",
        "No placebo strides: gates are counted by offset.",
    ]
    absent = not np.isfinite([own["spread_key"].values, own["spread_value"].values]).all()
    return _titled(
        f"Controls of gate profiles{_of(found)}",
        table,
        lines,
        undefined="the layer has no such branch" if absent else "",
    )


def cycling_control_table(found: xr.Dataset) -> Group:
    """R² of each cycle's own prediction without the boundary phase, beside the best that another shift gives."""
    table = _table(["δ", "R²", "best other", "of δ", "lead", "95% interval", "above 0"])
    step, undefined = found.sizes["other"], False
    for i, shift in enumerate(found["shift"].values):
        r2 = found["r2_inner"].values[i].astype(float)
        lead, low, high = (float(found[f"lead_inner{end}"].values[i]) for end in ("", "_low", "_high"))
        others = np.where(np.arange(step) == int(shift) % step, -np.inf, r2)
        best = int(others.argmax())
        undefined |= not np.isfinite([lead, low, high]).all()
        table.add_row(
            number(int(shift), sign=True), number(r2[int(shift) % step], 2), number(r2[best], 2),
            str(best) if np.isfinite(r2).all() else "–", number(lead, 2), _between(low, high),
            "yes" if bool(found["exceeds_inner"].values[i]) else "no",
        )  # fmt: skip
    lines = [
        "Without the boundary phase. Others: predictions by every other δ from 0 (nothing moves) to S − 1; a cycle "
        "whose lead is not above 0 is predicted as well by one of them."
    ]
    why = "accuracy does not vary, or too few prompts" if undefined else ""
    return _titled(f"Controls of gate cycling{_of(found)}", table, lines, undefined=why)


def parts_control_table(found: xr.Dataset) -> Group:
    """Similarity of each specialised head under forced gates, beside those that mean nothing."""
    table = _table(["gates", "unit", "similarity", "control", "its", "lead", "95% interval", "above 0"])
    undefined = False
    for control in found["control"].values:
        for gates in found["gates"].values:
            for unit in found["unit"].values:
                one = found.sel(control=control, gates=gates, unit=unit)
                its, lead, low, high = (
                    float(one[name]) for name in ("similarity", "lead", "lead_low", "lead_high")
                )
                if not np.isfinite(lead):
                    continue
                undefined |= not np.isfinite([low, high]).all()
                table.add_row(
                    str(gates), str(unit), number(its + lead, 2), str(control), number(its, 2), number(lead, 2),
                    _between(low, high), "yes" if bool(one["exceeds"]) else "no",
                )  # fmt: skip
    lines = [
        "Another head: the most similar other specialised head. Moved gates: the mean gate moved by half a window. "
        "A similarity whose lead is not above 0 says nothing about the gates."
    ]
    if not table.row_count:
        lines = ["No head is specialised under intact gates: there is nothing to compare."]
    return _titled(
        f"Controls of gate parts{_of(found)}",
        table,
        lines,
        undefined="too few prompts" if undefined else "",
    )


def _between(low: float, high: float) -> str:
    return f"{number(low, 2)} to {number(high, 2)}" if np.isfinite([low, high]).all() else "–"
