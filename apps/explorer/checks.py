"""Whether a file holds what its name says: dims, types and sizes of all that a page draws from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from hooks.errors import CheckpointError

__all__ = ["PARTS", "check_audit", "check_report"]

_NEEDED = {
    "sweep": "accuracy accuracy_low accuracy_high accuracy_residue gap_pp worst_phase stride",
    "knockout": "effect unit phase stride",
    "specialization": "serves loss selectivity p_effect p_selective uncovered unit phase",
    "gates": "profile_key profile_value static_key static_value per_window_key per_window_value unit phase",
    "cycling": "observed observed_low observed_high predicted r2 r2_inner shift phase model n n_inner",
    "patch": "effect_logprob effect_logprob_p unit phase",
}
"""Variables and attrs without which nothing can be drawn; a file of another kind is told by what it lacks."""
PARTS = tuple(_NEEDED)

_DIMS = {
    "sweep": {
        "phase": "accuracy accuracy_low accuracy_high target_gap",
        "residue": "accuracy_residue accuracy_residue_low accuracy_residue_high",
    },
    "knockout": {
        "unit phase": "effect effect_pp",
        "unit residue": "effect_residue",
        "unit prompt residue": "correct logprob margin",
        "prompt residue": "clean_correct clean_logprob clean_margin",
    },
    "specialization": {
        "unit phase": "serves loss p_effect",
        "unit": "selectivity p_selective",
        "phase": "uncovered",
    },
    "gates": {
        "unit phase": "profile_key profile_value",
        "unit offset": "gate_key gate_value",
        "unit": "static_key static_value per_window_key per_window_value window stride",
    },
    "cycling": {
        "shift phase": "observed observed_low observed_high predicted",
        "shift": "r2 r2_inner",
        "phase": "accuracy",
    },
    "patch": {"unit phase": "effect_logprob effect_logprob_low effect_logprob_high effect_logprob_p"},
}
_AUDIT_DIMS = {"residue": _DIMS["sweep"]["residue"], "length": "p_8 p_32"}

_WHOLE = [
    "stride",
    "modulus",
    "period",
    "worst_phase",
    "n_per_residue",
    "window",
    "placebo",
    "n",
    "n_inner",
    "heads_per_kv",
]
_NUMBERS = [
    *("gap_pp", "gap_pp_low", "gap_pp_high", "gap_residue_pp", "null_gap_pp", "target_gap_pp"),
    *("period_p", "min_loss", "seed", "shift"),
]
_TEXTS = ["model", "model_hash", "task", "unit_kind", "replace", "at", "axis", "altered"]
_MAX_WHOLE = 1 << 20
_MAX_CELLS = 1 << 15
_MAX_LABEL = 200


def check_report(found: Mapping[str, xr.Dataset], name: str) -> None:
    """Refuse parts of a report that no page could draw.

    Parameters
    ----------
    found : mapping of str to Dataset
        Of :data:`PARTS`.
    name : str
        Of the report.

    Raises
    ------
    CheckpointError
        Naming the file, and what in it is missing, of another shape or type, or too large.
    """
    for part, dataset in found.items():

        def wrong(what: str, part: str = part) -> CheckpointError:
            return CheckpointError(f"{part}.nc of report {name!r} is no {part}: {what}")

        there = {*map(str, dataset.variables), *map(str, dataset.attrs)}
        lacking = [one for one in _NEEDED[part].split() if one not in there]
        if lacking:
            raise wrong(f"it has no {lacking[0]!r}")
        _check(dataset, _DIMS[part], wrong)
        if part in ("knockout", "specialization", "patch") and not dataset.sizes["unit"]:
            raise wrong("it has no unit")
        if part == "patch" and not np.isfinite(dataset["effect_logprob"].values).any():
            raise wrong("every effect_logprob is undefined")


def check_audit(found: xr.Dataset, name: str) -> None:
    """Refuse an audit whose curve cannot be drawn; errors as of :func:`check_report`."""

    def wrong(what: str) -> CheckpointError:
        return CheckpointError(f"{name}.nc is no result of an audit: {what}")

    _check(found, _AUDIT_DIMS, wrong)
    if {"p_8", "p_32"} <= set(map(str, found.variables)):
        _axis(found, "length", wrong)


def _check(dataset: xr.Dataset, dims: Mapping[str, str], wrong: Callable[[str], CheckpointError]) -> None:
    for axes, names in dims.items():
        for name in names.split():
            if name in dataset.variables:
                _check_variable(dataset, name, tuple(axes.split()), wrong)
    _check_attrs(dataset.attrs, wrong)
    sizes = dataset.sizes
    for axis in ("phase", "residue", "shift"):
        if axis in sizes:
            _axis(dataset, axis, wrong)
    if "unit" in dataset.variables:
        _check_units(dataset, wrong)
    columns = max(sizes.get("phase", 1), sizes.get("residue", 1), sizes.get("offset", 1))
    cells = sizes.get("unit", 1) * columns
    if cells > _MAX_CELLS:
        raise wrong(f"{cells} cells are too many to draw; the most is {_MAX_CELLS}")
    stride = int(dataset.attrs.get("stride", 0))
    if stride and "phase" in sizes and sizes["phase"] != stride:
        raise wrong(f"it has {sizes['phase']} phases at stride {stride}")
    if stride and "phase" in sizes and sizes.get("residue", stride) % stride:
        raise wrong(f"its {sizes['residue']} residues are no multiple of stride {stride}")


def _check_variable(
    dataset: xr.Dataset, name: str, axes: tuple[str, ...], wrong: Callable[[str], CheckpointError]
) -> None:
    found = dataset[name]
    if found.dims != axes:
        raise wrong(f"{name} has dims ({', '.join(map(str, found.dims))}), not ({', '.join(axes)})")
    if found.dtype.kind not in "biuf":
        raise wrong(f"{name} holds {found.dtype.name}, not numbers")


def _check_attrs(attrs: Mapping[Any, Any], wrong: Callable[[str], CheckpointError]) -> None:
    for name in (*_WHOLE, *_NUMBERS, *_TEXTS):
        value = attrs.get(name)
        if value is None:
            continue
        if name in _TEXTS:
            if not isinstance(value, str):
                raise wrong(f"attr {name} is {_short(value)}, not text")
        elif not isinstance(value, int | float):
            raise wrong(f"attr {name} is {_short(value)}, not a number")
        elif name in _WHOLE and not (0 <= value <= _MAX_WHOLE and float(value).is_integer()):
            raise wrong(f"attr {name} is {_short(value)}, not a whole number from 0 to {_MAX_WHOLE}")
    if attrs.get("stride", 1) < 1:
        raise wrong("attr stride is 0; the smallest stride is 1")


def _axis(dataset: xr.Dataset, name: str, wrong: Callable[[str], CheckpointError]) -> None:
    """An axis of whole numbers; phases and residues count from 0."""
    size = dataset.sizes.get(name, 0)
    if not size:
        raise wrong(f"it has no {name}")
    values = dataset[name].values
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not all(float(v).is_integer() for v in values):
        raise wrong(f"{name} does not hold whole numbers")
    if name in ("phase", "residue") and not np.array_equal(values, np.arange(size)):
        raise wrong(f"{name} does not count from 0 to {size - 1}")


def _check_units(dataset: xr.Dataset, wrong: Callable[[str], CheckpointError]) -> None:
    units = dataset["unit"]
    if units.dims != ("unit",) or units.dtype.kind != "U":
        raise wrong("unit does not hold labels")
    labels = units.values.tolist()
    if len(set(labels)) < len(labels):
        raise wrong("two units have the same label")
    long = [one for one in labels if not 0 < len(one) <= _MAX_LABEL or not one.isprintable()]
    if long:
        raise wrong(f"unit {_short(long[0])} is no label of 1 to {_MAX_LABEL} printable characters")


def _short(value: Any) -> str:
    text = repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        text = "undefined"
    return text if len(text) <= 40 else f"{text[:37]}..."
