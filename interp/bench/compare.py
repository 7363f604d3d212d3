"""What got slower since an earlier benchmark, beyond the noise of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hooks.errors import PhaselensError

__all__ = ["load_bench", "regressions"]

MEMORY_SLACK = 1.02
"""Resident memory is counted in pages and allocator arenas; less than this is no change."""


def load_bench(path: str | Path) -> dict[str, Any]:
    """Read a file that ``phaselens bench`` wrote.

    Raises
    ------
    PhaselensError
        If it is none.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise PhaselensError(f"{str(path)!r} is not JSON: {error}; give a file of phaselens bench") from error
    if not isinstance(found, dict) or found.get("kind") not in (
        "knockout",
        "lengths",
        "profile",
        "family",
        "sweep",
    ):
        raise PhaselensError(f"{str(path)!r} holds no benchmark; give a file of phaselens bench")
    return found


def regressions(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """One line for each way of computing that got slower or larger.

    A time counts in units of the floor measured in the same repeat, so that a busier machine changes nothing;
    the floor itself in units of the time its operations take at the matrix-product rate measured beside it.
    Something has regressed if its best repeat now is worse than its worst repeat before: both runs' own
    repeats are the noise.

    Raises
    ------
    PhaselensError
        If the two did not measure the same thing.
    """
    if new["kind"] != "knockout" or old["kind"] != "knockout":
        raise PhaselensError(
            f"a {new['kind']} and a {old['kind']} benchmark; valid: two of one model's knockout map"
        )
    now, then = ({"device": "cpu", **bench["case"]} for bench in (new, old))
    for key, value in now.items():
        if then.get(key) != value:
            raise PhaselensError(
                f"the earlier run has {key}={then.get(key)!r}, this one {value!r}; compare equal settings"
            )
    lines = []
    for name, method in new["methods"].items():
        before = old["methods"].get(name, {})
        if "seconds" not in method or "seconds" not in before:
            continue
        now, then = _relative(new, name), _relative(old, name)
        if min(now) > max(then):
            lines.append(
                f"{name}: {min(now):.2f} to {max(now):.2f} times {_unit(name)}, before {min(then):.2f} to {max(then):.2f}"
            )
        now, then = method["peak_bytes"], before["peak_bytes"]
        if min(now) > MEMORY_SLACK * max(then):
            lines.append(
                f"{name}: {min(now) / 2**20:.0f} MiB at least, before {max(then) / 2**20:.0f} MiB at most"
            )
    return lines


def _unit(name: str) -> str:
    return "the matrix-product ceiling" if name == "floor" else "the floor"


def _relative(bench: dict[str, Any], name: str) -> list[float]:
    """Time of every repeat over what its machine could do at that moment."""
    floor = bench["methods"]["floor"]
    if name == "floor":
        unit = [ops / rate for ops, rate in zip(floor["operations"], floor["matmul"], strict=True)]
    else:
        unit = floor["seconds"]
    return [each / one for each, one in zip(bench["methods"][name]["seconds"], unit, strict=True)]
