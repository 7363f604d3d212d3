"""What got slower or larger since an earlier benchmark, beyond the noise of the repeats of both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hooks.errors import PhaselensError

__all__ = ["FEWEST_REPEATS", "Comparison", "Series", "compare", "require_comparable", "series_of"]

FEWEST_REPEATS = 3
"""Repeats on either side below which there is no noise to measure a difference against."""
LEAST_SLOWDOWN = 1.1
"""Medians that differ by less are no regression, however small the noise was."""
FALSE_ALARM = 0.05
"""Chance that equal code is flagged at all, over everything that one comparison looks at."""
MEMORY_SLACK = 1.05
"""Memory is counted in pages and allocator arenas; less than this is no change."""
RESOLUTION = 1e-3
"""Seconds; clocks and the scheduler make shorter times equal."""

_SETTINGS = {
    "lengths": ("layers", "d_model", "seed"),
    "profile": ("model", "n_per_residue", "seed"),
    "family": ("names", "n", "seed"),
    "sweep": ("model", "n_per_residue", "seed"),
}
_MACHINE = ("processor", "gpu", "threads")
_VERSIONS = ("python", "torch", "transformer-lens", "nnsight", "transformers")


@dataclass(frozen=True)
class Series:
    """What one way of computing took.

    Attributes
    ----------
    times : tuple of float
        One value per repeat, above 0; in `unit`.
    unit : str
        What they count.
    peaks : tuple of float
        Largest memory, bytes; empty where several ways share one process.
    stopped : str
        Why there are no times, or "".
    """

    times: tuple[float, ...] = ()
    unit: str = ""
    peaks: tuple[float, ...] = ()
    stopped: str = ""


@dataclass
class Comparison:
    """What two benchmarks of the same thing say about each other, in lines.

    Attributes
    ----------
    worse : list of str
        What got slower or larger, or no longer runs.
    notes : list of str
        What was compared how sharply, and what could not be.
    """

    worse: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare(new: dict[str, Any], old: dict[str, Any]) -> Comparison:
    """Hold a benchmark against an earlier one of the same thing on the same machine.

    On a CPU CPU seconds are compared, on a GPU wall seconds. Those of a knockout map count in units of the bare
    run of the same repeat, so that a machine that is slower as a whole changes nothing; the bare run itself in
    units of its matrix products at the rate, in the same seconds, measured beside it. Slower means both: the medians differ by 10 %
    or more, and a one-sided t-test of the logarithms, with the spread of both runs' repeats pooled, gives
    p < 0.05 ÷ the number of times compared. Larger means that every repeat now needed 5 % more memory than any
    did before.

    Raises
    ------
    PhaselensError
        As :func:`require_comparable`.
    """
    require_comparable(new, old)
    found = Comparison()
    for name in _VERSIONS:
        then, now = old["machine"].get(name), new["machine"].get(name)
        if then != now:
            found.notes.append(f"{name} was {then} then and is {now} now")
    now, then = series_of(new), series_of(old)
    both: dict[str, tuple[Series, Series]] = {}
    for name in list(dict.fromkeys((*then, *now))):
        after, before = now.get(name), then.get(name)
        if before is None or before.stopped:
            if after is None or after.stopped:
                continue
            found.notes.append(f"{name}: nothing to compare with, the earlier run has no times of it")
        elif after is None:
            found.notes.append(f"{name}: not run this time")
        elif after.stopped:
            found.worse.append(f"{name} ran before and does not any more: {after.stopped}")
        elif min(len(after.times), len(before.times)) < FEWEST_REPEATS:
            found.notes.append(
                f"{name}: not compared, {len(before.times)} repeats then and {len(after.times)} now; it takes "
                f"{FEWEST_REPEATS}"
            )
        else:
            both[name] = after, before
    shown = []
    for name, (after, before) in both.items():
        slower, least = _slower(after.times, before.times, FALSE_ALARM / len(both))
        shown.append(least)
        if slower:
            found.worse.append(
                f"{name}: {statistics.median(after.times):.3g} {after.unit} (median), before "
                f"{statistics.median(before.times):.3g}: {slower:.2f} times as slow"
            )
        if after.peaks and before.peaks and min(after.peaks) > MEMORY_SLACK * max(before.peaks):
            found.worse.append(
                f"{name}: {min(after.peaks) / 2**20:.0f} MiB at least, before {max(before.peaks) / 2**20:.0f} MiB at most"
            )
    if shown:
        found.notes.append(
            f"{len(both)} compared; by the spread of the repeats a slowdown shows from {min(shown):.2f}× on where that is "
            f"least, from {max(shown):.2f}× on where it is largest"
        )
    return found


def _slower(now: Sequence[float], then: Sequence[float], p: float) -> tuple[float, float]:
    """Ratio of medians if it is a slowdown, else 0; and from what ratio on one would be."""
    from scipy.stats import t

    logs = [[math.log(value) for value in values] for values in (now, then)]
    degrees = len(now) + len(then) - 2
    pooled = sum(statistics.variance(each) * (len(each) - 1) for each in logs) / degrees
    error = math.sqrt(pooled * (1 / len(now) + 1 / len(then)))
    least = float(t.isf(p, degrees)) * error
    ratio = statistics.median(now) / statistics.median(then)
    slower = ratio >= LEAST_SLOWDOWN and statistics.mean(logs[0]) - statistics.mean(logs[1]) > least
    return ratio if slower else 0.0, max(LEAST_SLOWDOWN, math.exp(least))


def require_comparable(new: dict[str, Any], old: dict[str, Any]) -> None:
    """Refuse to compare different things; `new` may be a plan, with settings and machine and no results yet.

    Raises
    ------
    PhaselensError
        For another kind of benchmark, other settings, another machine, or an earlier run with fewer repeats
        of everything than a comparison takes.
    """
    if new["kind"] != old["kind"]:
        raise PhaselensError(
            f"the earlier run is a {old['kind']} benchmark, this one {new['kind']}; compare equal ones"
        )
    places = [(f"machine.{key}", new["machine"].get(key), old["machine"].get(key)) for key in _MACHINE]
    if new["kind"] == "knockout":
        settings = [(key, value, old["case"].get(key)) for key, value in new["case"].items()]
    else:
        settings = [(key, new.get(key), old.get(key)) for key in _SETTINGS[new["kind"]]]
    for key, now, then in (*settings, *places):
        if now != then:
            raise PhaselensError(
                f"the earlier run has {key}={then!r}, this one {now!r}; compare equal settings on one machine"
            )
    repeats = max((len(each.times) for each in series_of(old).values()), default=0)
    if repeats < FEWEST_REPEATS:
        raise PhaselensError(
            f"the earlier run can not be compared with: {repeats} repeat(s) with times, it takes {FEWEST_REPEATS}; "
            f"make it again with --repeats {FEWEST_REPEATS} or more"
        )


def series_of(bench: dict[str, Any]) -> dict[str, Series]:
    """Times of a benchmark that are compared, by what they are of."""
    gpu = "gpu" in bench["machine"]
    return {
        "knockout": _of_knockout, "lengths": _of_lengths, "profile": _of_stages, "family": _of_ways, "sweep": _of_ways,
    }[bench["kind"]](bench, "seconds" if gpu else "cpu_seconds", "s" if gpu else "CPU s")  # fmt: skip


def _clipped(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(max(value, RESOLUTION) for value in values)


def _of_knockout(bench: dict[str, Any], key: str, unit: str) -> dict[str, Series]:
    bare = bench["methods"]["bare"]
    found = {}
    for name, way in bench["methods"].items():
        if "skipped" in way:
            found[name] = Series(stopped=way["skipped"])
            continue
        if name == "bare":
            rates = bare["matmul"] if key == "seconds" else bare.get("matmul_cpu")
            if rates is None:  # earlier files have wall rates only, which say nothing of CPU seconds
                found[name] = Series()
                continue
            yardstick = [work / rate for work, rate in zip(bare["operations"], rates, strict=True)]
            label = "times its matrix products"
        else:
            yardstick, label = _clipped(bare[key]), "times the bare run"
        times = tuple(each / one for each, one in zip(_clipped(way[key]), yardstick, strict=True))
        found[name] = Series(times, label, tuple(way["peak_bytes"]))
    return found


def _of_lengths(bench: dict[str, Any], key: str, unit: str) -> dict[str, Series]:
    found = {}
    for row in bench["rows"]:
        for side in ("ours", "hugging_face"):
            run = row[side]
            found[f"{side} at T = {row['length']:,}"] = (
                Series(stopped=run["stopped"])
                if "stopped" in run
                else Series(_clipped(run[key]), unit, tuple(run["peak_bytes"]))
            )
    return found


def _of_stages(bench: dict[str, Any], key: str, unit: str) -> dict[str, Series]:
    from interp.bench.profile import ELSEWHERE

    found = {}
    for stage in bench["stages"]:
        elsewhere = stage["stage"] in ELSEWHERE
        times = stage["seconds"] if elsewhere else stage.get(key, ())
        found[stage["stage"]] = Series(_clipped(times), "s" if elsewhere else unit)
    return found


def _of_ways(bench: dict[str, Any], key: str, unit: str) -> dict[str, Series]:
    return {name: Series(_clipped(way.get(key, ())), unit) for name, way in bench["ways"].items()}
