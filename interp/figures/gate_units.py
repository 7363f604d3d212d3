"""Which KV head's gates stand beside a knocked-out unit: one rule for figures, tables and the explorer."""

from __future__ import annotations

from collections.abc import Collection

import xarray as xr

__all__ = ["gate_unit", "gates_beside", "pairable"]

_WHOLE_LAYER = ("mlp", "engram", "exact_branch", "entry_branch", "target_entry", "picks")


def gate_unit(knockout: xr.Dataset, label: str) -> tuple[str | None, str]:
    """Label of the KV head whose gates belong to a unit of a knockout result, or None with the reason.

    A KV head has its own gates; a query head reads those of KV head ``head // heads_per_kv`` of its layer.
    Labels of other kinds look alike ("0.3" is also a gate offset) and are never taken for heads.

    Parameters
    ----------
    knockout : Dataset
        Result of `knockout`; its ``unit_kind`` says what the labels are (KV heads where it is missing), its
        ``heads_per_kv`` how many query heads read one KV head.
    label : str
        One of its units.

    Returns
    -------
    tuple of (str or None, str)
        The gate's label and "", or None and one line that says why there is none.
    """
    kind = str(knockout.attrs.get("unit_kind", "kv_head"))
    if "+" in label:
        return None, f"{label} is a set of units, which has no one gate"
    if kind == "kv_head":
        return label, ""
    if kind == "layer":
        return None, f"layer {label} has the gates of all its KV heads, not one of its own"
    if kind == "head":
        share = int(knockout.attrs.get("heads_per_kv", 0))
        layer, _, head = label.partition(".")
        if share < 1:
            return None, (
                f"the result does not say which KV head query head {label} reads (no heads_per_kv); make it again"
            )
        return (f"{layer}.{int(head) // share}", "") if head.isdecimal() else (None, f"{label} is no head")
    if kind == "gate_offset":
        return None, f"{label} is one offset of every gate in its layer, not a head with gates"
    what = f"the {kind} of layer {label}" if kind in _WHOLE_LAYER else f"unit {label} ({kind})"
    return None, f"{what} has no gates; valid unit kinds: kv_head, head, layer"


def gates_beside(knockout: xr.Dataset, label: str, gated: Collection[str]) -> list[str]:
    """Every gate among `gated` that belongs to a unit: those of all its KV heads for a layer."""
    if knockout.attrs.get("unit_kind") == "layer" and "+" not in label:
        return [gate for gate in gated if gate.split(".")[0] == label]
    own = gate_unit(knockout, label)[0]
    return [own] if own is not None and own in gated else []


def pairable(gates: xr.Dataset, knockout: xr.Dataset | None) -> xr.Dataset | None:
    """The knockout result if its phases are the gates' and one of its units has gates; None otherwise."""
    if knockout is None or knockout.sizes.get("phase") != gates.sizes["phase"]:
        return None
    gated = [str(unit) for unit in gates["unit"].values]
    there = any(gates_beside(knockout, str(label), gated) for label in knockout["unit"].values)
    return knockout if there else None
