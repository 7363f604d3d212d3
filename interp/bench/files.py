"""Files that ``phaselens bench`` wrote: read, checked, and brought to today's names."""

from __future__ import annotations

import json
from pathlib import Path
from types import EllipsisType
from typing import Any

from hooks.checks import is_real
from hooks.errors import PhaselensError

__all__ = ["KINDS", "load_bench"]

_Shape = type | list[Any] | dict[Any, Any] | tuple[Any, ...]


class _Above:
    """Stands for a number above 0."""


_TIMES = {"seconds": [_Above], "cpu_seconds": [_Above], "peak_bytes": [_Above]}
_SKIPPED, _STOPPED = {"skipped": str}, {"stopped": str}
_MACHINE = {"processor": str, "threads": int, "torch": str}
_CASE = {
    "model": str, "n": int, "n_calibration": int, "length": int, "unit": str, "memory": int, "threads": int, "seed": int,
    "device": str, "loop_units": (int, type(None)),
}  # fmt: skip
_BARE = {**_TIMES, "operations": [_Above], "bytes": [_Above], "matmul": [_Above], "copy": [_Above]}
_SIDE = ({**_TIMES}, _STOPPED)

KINDS: dict[str, dict[str, Any]] = {
    "knockout": {
        "case": _CASE, "repeats": int, "units": int,
        "methods": {"ours": _TIMES, "bare": _BARE, ...: (_TIMES, _SKIPPED)},
    },
    "lengths": {
        "layers": int, "d_model": int, "longest": int, "seed": int, "most_seconds": float,
        "rows": [{"length": int, "ours": _SIDE, "hugging_face": _SIDE}],
    },
    "profile": {
        "model": str, "n_per_residue": int, "seed": int, "repeats": int, "total": [_Above], "cpu_total": [_Above],
        "stages": [{"stage": str, "seconds": [float], "share": float}],
    },
    "family": {
        "models": int, "names": [str], "n": int, "seed": int, "repeats": int, "what": str, "ratio": float,
        "cpu_ratio": float, "max_difference": float, "ways": {...: {"seconds": [_Above], "cpu_seconds": [_Above]}},
    },
    "sweep": {
        "model": str, "n_per_residue": int, "seed": int, "batch": int, "batches": int, "repeats": int,
        "half_width": (float, type(None)),
        "ways": {
            "plain fp32": {"seconds": [_Above]},
            ...: {"seconds": [_Above], "setup": float, "max_difference": float, "accuracy_change": float},
        },
    },
}  # fmt: skip
"""What a benchmark of each kind holds at least; a tuple lists alternatives, ``...`` stands for every key."""


def load_bench(path: str | Path) -> dict[str, Any]:
    """Read a file that ``phaselens bench`` wrote, an earlier version's included.

    Returns
    -------
    dict
        As the functions that measure return it.

    Raises
    ------
    PhaselensError
        If it is none, or lacks something.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PhaselensError(f"{str(path)!r} is not JSON: {error}; give a file of phaselens bench") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise PhaselensError(
            f"cannot read {str(path)!r}: {reason}; give a file of phaselens bench"
        ) from error
    if not isinstance(found, dict) or found.get("kind") not in KINDS:
        raise PhaselensError(f"{str(path)!r} holds no benchmark; give a file of phaselens bench")
    try:
        found = _renamed(found)
        _require(found, {"machine": _MACHINE, **KINDS[found["kind"]]}, "")
        _require_equal_repeats(found)
        return _completed(found)
    except _WrongShapeError as error:
        raise PhaselensError(
            f"{str(path)!r} is no whole {found['kind']} benchmark: {error}; give a file of phaselens bench"
        ) from error


class _WrongShapeError(Exception):
    """Says what is missing or of another type, and where."""


def _require(value: Any, shape: _Shape, where: str) -> None:
    if isinstance(shape, tuple):
        for number, each in enumerate(shape):
            try:
                return _require(value, each, where)
            except _WrongShapeError:
                if number == len(shape) - 1:
                    raise
    elif isinstance(shape, dict):
        _require(value, dict, where)
        for key, inner in shape.items():
            names = [name for name in value if name not in shape] if isinstance(key, EllipsisType) else [key]
            for name in names:
                if name not in value:
                    raise _WrongShapeError(f"it lacks {f'{where}.{name}'.lstrip('.')!r}")
                _require(value[name], inner, f"{where}.{name}".lstrip("."))
    elif isinstance(shape, list):
        if not isinstance(value, list) or not value:
            raise _WrongShapeError(f"{where!r} is no list with values")
        for each in value:
            _require(each, shape[0], where)
    else:
        number = shape in (float, _Above)
        if isinstance(value, bool) or not isinstance(value, (int, float) if number else shape):
            raise _WrongShapeError(f"{where!r} is {value!r}")
        if number and not (is_real(value) and (shape is float or value > 0)):
            raise _WrongShapeError(f"{where!r} is {value!r}")
    return None


def _require_equal_repeats(bench: dict[str, Any]) -> None:
    """A way's times, and those of its yardstick, belong together repeat by repeat."""
    if bench["kind"] != "knockout":
        return
    for name, way in bench["methods"].items():
        for key, values in way.items():
            if isinstance(values, list) and len(values) != bench["repeats"]:
                raise _WrongShapeError(
                    f"'methods.{name}.{key}' has {len(values)} of {bench['repeats']} repeats"
                )


def _renamed(bench: dict[str, Any]) -> dict[str, Any]:
    """Bring an earlier version's names and single values to today's names and lists."""

    def many(value: Any) -> Any:
        return [value] if isinstance(value, int | float) else value

    def listed(value: Any, keys: tuple[str, ...]) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: many(each) if key in keys else each for key, each in value.items()}

    kind = bench["kind"]
    if kind == "knockout":
        methods, case = bench.get("methods"), bench.get("case")
        if isinstance(methods, dict):  # the bare run was once called the floor
            bench = {**bench, "methods": {{"floor": "bare"}.get(k, k): way for k, way in methods.items()}}
        if isinstance(case, dict):
            bench = {**bench, "case": {"device": "cpu", "loop_units": None, **case}}
        return bench
    bench = {"seed": 0, **bench}
    if kind == "lengths" and isinstance(bench.get("rows"), list):
        rows = [
            {key: listed(side, tuple(_TIMES)) for key, side in row.items()} if isinstance(row, dict) else row
            for row in bench["rows"]
        ]
        bench = {"most_seconds": 600.0, **bench, "rows": rows}
    elif kind == "profile" and isinstance(bench.get("stages"), list):
        stages = [listed(stage, ("seconds",)) for stage in bench["stages"]]
        bench = {"repeats": 1, **listed(bench, ("total", "cpu_total")), "stages": stages}
    return bench


def _completed(bench: dict[str, Any]) -> dict[str, Any]:
    """Add what is computed from the measured numbers, in today's words."""
    if bench["kind"] == "knockout":
        from interp.bench.cases import Case
        from interp.bench.knockouts import summarise

        for name, way in bench["methods"].items():
            optional = {"scale": _Above, "matmul_cpu": [_Above], "from_float64": float}
            _require(way, {key: shape for key, shape in optional.items() if key in way}, f"methods.{name}")
            if "seconds" in way and name not in ("ours", "bare"):
                _require(way, {"max_difference": float}, f"methods.{name}")
        case = Case(**{key: bench["case"][key] for key in _CASE})
        bench = {**bench, "summary": summarise(bench["methods"], case)}
    elif bench["kind"] == "lengths":
        from interp.bench.fits import fits

        bench = {**bench, "fits": fits(bench["rows"], gpu="gpu" in bench["machine"])}
    return bench
