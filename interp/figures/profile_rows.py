"""What a figure of gate profiles draws: each knocked-out unit's effect beside the gates that are its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from hooks.errors import did_you_mean
from interp.figures.base import FigureError, unit_order
from interp.figures.gate_units import gate_unit, gates_beside

__all__ = ["Row", "paired_rows"]


@dataclass(frozen=True)
class Row:
    """One unit: profiles [key|value, phase], NaN without that branch, and effect [phase] in percent.

    The KV head whose gates they are is another unit where a query head was knocked out.
    """

    unit: str
    gate: str
    profiles: np.ndarray
    effect: np.ndarray | None

    @property
    def name(self) -> str:
        """The unit, with the KV head whose gates are drawn where that is another one."""
        return self.unit if self.unit == self.gate else f"{self.unit} · KV {self.gate}"


def paired_rows(gates: xr.Dataset, knockout: xr.Dataset | None, units: Sequence[str] | None) -> list[Row]:
    """Put gates beside effects, unit by unit; errors as :func:`interp.figures.gate_profiles`."""
    labels = [str(u) for u in gates["unit"].values]
    profiles = np.stack(
        [gates[f"profile_{b}"].transpose("unit", "phase").values for b in ("key", "value")], axis=1
    )
    ordered = [labels[i] for i in unit_order(labels)]
    if knockout is None:
        rows = {u: [Row(u, u, profiles[labels.index(u)], None)] for u in ordered}
    else:
        rows = _with_effects(ordered, {u: profiles[labels.index(u)] for u in ordered}, knockout)
    for unit in units or ():
        if unit not in rows:
            raise FigureError(f"unit {unit!r} {_why_not(unit, knockout)}; {did_you_mean(unit, rows)}")
    chosen = [row for u in units for row in rows[u]] if units is not None else _once(rows)
    if not chosen:
        raise FigureError("no unit to draw; the gate_profile result has none, or `units` is empty")
    return chosen


def _with_effects(
    gated: list[str], profiles: dict[str, np.ndarray], knockout: xr.Dataset
) -> dict[str, list[Row]]:
    """Rows by the labels they can be asked for: the knocked-out unit, or the one gate of a whole layer."""
    effect = knockout["effect"].transpose("unit", ...).values
    stride = next(iter(profiles.values())).shape[-1] if profiles else 0
    if "phase" not in knockout["effect"].dims or (profiles and effect.shape[-1] != stride):
        raise FigureError(
            f"gates have {stride} phases, effects {dict(knockout['effect'].sizes)}; strides must agree"
        )
    there = [str(u) for u in knockout["unit"].values]
    whole_layers = knockout.attrs.get("unit_kind") == "layer"
    rows: dict[str, list[Row]] = {}
    for at in unit_order(there):
        for gate in gates_beside(knockout, there[at], gated):
            row = Row(gate if whole_layers else there[at], gate, profiles[gate], effect[at])
            for label in dict.fromkeys((there[at], row.unit)):
                rows.setdefault(label, []).append(row)
    if not rows:
        reasons = [why for u in there if (why := gate_unit(knockout, u)[1])]
        raise FigureError(
            f"gates are of units {', '.join(gated[:6])}, effects of {', '.join(there[:6])}: they share "
            f"none{f' ({reasons[0]})' if reasons else ''}; knock out KV heads, query heads or layers"
        )
    return rows


def _once(rows: Mapping[str, list[Row]]) -> list[Row]:
    """Every row, once."""
    return list({id(row): row for of_label in rows.values() for row in of_label}.values())


def _why_not(unit: str, knockout: xr.Dataset | None) -> str:
    if knockout is not None and unit in knockout["unit"].values:
        return f"has no gate profile here: {gate_unit(knockout, unit)[1] or 'its layer has no gates'}"
    return "is not in the results"
