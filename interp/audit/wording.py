"""An audit's findings in words, the same in the terminal and on the page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from interp import stats

__all__ = [
    "cross_lines",
    "interval",
    "notes",
    "number",
    "p_value",
    "period_rest",
    "period_text",
    "position_text",
    "verdict",
]

_FLOOR, _CEILING = 0.05, 0.98
_MOST_LENGTHS = 6
_SLOTS = ("docstring", "comment")
_COUNTED = {
    "key_first": "the first token of the target's key",
    "key_last": "the last token of the target's key",
    "value_first": "the first token of the target's value",
    "candidate_first": "the first token of the candidate in the evidence",
}


def number(value: float, digits: int = 1) -> str:
    """Format a number; "–" where it is undefined."""
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else "–"


def interval(low: float, high: float, digits: int = 1) -> str:
    """Format an interval; "undefined" where it is."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "undefined"
    return f"{number(low, digits)} to {number(high, digits)}"


def p_value(p: float) -> str:
    """Format a p-value, never as 0."""
    if not math.isfinite(p):
        return "p undefined"
    return f"p = {p:.4f}" if p < 0.01 else f"p = {p:.2f}"


def period_text(attrs: Mapping[str, object]) -> str:
    """Return the period and its p; and :func:`period_rest`."""
    told = f"{stats.period_label(attrs)} ({p_value(float(str(attrs['period_p'])))})"
    return "; ".join(filter(None, [told, period_rest(attrs)]))


def period_rest(attrs: Mapping[str, object]) -> str:
    """Say what the period is less changes with position; "" where it is the same or was not looked for."""
    if attrs.get("rest_period", attrs["period"]) == attrs["period"]:
        return ""
    rest = {**attrs, "period": attrs["rest_period"]}
    return f"less changes with position {stats.period_label(rest)} ({p_value(float(str(attrs['rest_period_p'])))})"


def position_text(attrs: Mapping[str, object]) -> str:
    """Say which token the target's position is counted at."""
    return _COUNTED.get(str(attrs.get("position", "")), "not stated")


def verdict(sweep: xr.Dataset) -> str:
    """One sentence: is there a gap, or how large a gap would have been seen."""
    a = sweep.attrs
    if a["found"]:
        by_residue = f", {number(a['gap_residue_pp'])} pp by residue" if "published" in a else ""
        return (
            f"accuracy depends on the target's phase: gap {number(a['gap_pp'])} pp "
            f"(95% {interval(a['gap_pp_low'], a['gap_pp_high'])}; {number(a['null_gap_pp'])} pp by chance, "
            f"{p_value(a['gap_p'])}){by_residue}, worst phase {a['worst_phase']}, period {period_text(a)}"
        )
    if a["gap_p"] <= a["level"]:
        return (
            f"no phase sensitivity found: a change with position explains the gap of {number(a['gap_pp'])} pp "
            f"({p_value(a['gap_p'])}); less a step at {a['step']} and slow changes, {number(a['rest_gap_pp'])} pp are "
            f"left ({p_value(a['rest_gap_p'])})"
        )
    seen = a["detectable_gap_pp"]
    if not math.isfinite(seen):
        return "no phase sensitivity found, but at this n no gap could have been seen: run more prompts"
    return f"no phase sensitivity found, at this n a gap over {number(seen)} pp would have been seen"


def notes(sweep: xr.Dataset) -> list[str]:
    """Say what must be known to read the verdict."""
    a = sweep.attrs
    found = []
    if a["mean_accuracy"] < _FLOOR:
        found.append(
            f"Mean accuracy is {number(100 * a['mean_accuracy'])}%: the model hardly does this test, so it "
            "says little about compression."
        )
    elif a["mean_accuracy"] > _CEILING:
        found.append(
            f"Mean accuracy is {number(100 * a['mean_accuracy'])}%: the test is too easy to show a gap"
            + ("; more records or a longer context make it harder." if a["test"] == "needle" else ".")
        )
    if a["placebo"]:
        found.append(
            f"The model states no stride; phases are counted by {a['stride']}, a placebo. Another one can be "
            "given with --stride."
        )
    if not a["found"] and a["period"] and a.get("rest_period", 1):
        on = "log-probability" if a["period_on"] == "logprob" else "right and wrong"
        found.append(f"Still, {on} has period {period_text(a)} in the target's position.")
    aliased = [
        f"{int(q)} ({p_value(float(p))})"
        for q, p in zip(sweep["placebo_stride"].values, sweep["placebo_p"].values, strict=True)
        if p <= 0.05 / max(1, sweep.sizes["placebo_stride"])
    ]
    if aliased:
        found.append(f"A placebo stride has a gap too: {', '.join(aliased)}. Do not blame the stride alone.")
    left = [int(x) for x in a["strides_left_out"]] if "strides_left_out" in a else []
    if left:
        found.append(
            f"The model also has stride {', '.join(map(str, left))}: audit it by itself, with --stride."
        )
    task = settings(a)
    if "usable_families" in task:
        found.append(fillers_text(task))
    # One string comes back from a file as itself, not as a list.
    skipped = a.get("tests_left_out", [])
    found += [f"Left out: {test}." for test in ([skipped] if isinstance(skipped, str) else skipped)]
    if "published" not in a:
        found.append(_seed_text(a))
    return found


def fillers_text(task: Mapping[str, Any]) -> str:
    """Say which filler families a completion test uses, and which it cannot and why."""
    used, missing = task.get("usable_families", []), task.get("missing_lengths", {})
    text = f"Filler families: {', '.join(used)}"
    left = [
        f"{family}, which cannot make {' or '.join(_lengths_text(slot, slots[slot]) for slot in _SLOTS if slot in slots)}"
        for family, slots in missing.items()
    ]
    return f"{text}; left out: {'; '.join(left)}." if left else f"{text}."


def _lengths_text(slot: str, lengths: Sequence[int]) -> str:
    shown = ", ".join(map(str, lengths[:_MOST_LENGTHS]))
    more = f" … ({len(lengths) - _MOST_LENGTHS} more)" if len(lengths) > _MOST_LENGTHS else ""
    return f"{shown}{more} tokens in the {slot}"


def _seed_text(a: Mapping[str, object]) -> str:
    if a["confirmatory"]:
        return f"Seed {a['seed']}: a confirmatory seed."
    return f"Seed {a['seed']}: exploratory. Confirm with a seed of 10000 or more that was never used before."


def cross_lines(crossed: xr.Dataset) -> list[str]:
    """Say how much of what varies the target's phase and the query's phase explain."""
    a = crossed.attrs
    lines = [
        f"By target phase the gap is {number(a['target_gap_pp'])} pp ({number(a['target_null_pp'])} by "
        f"chance, {p_value(a['target_p'])}), by query phase {number(a['query_gap_pp'])} pp "
        f"({number(a['query_null_pp'])} by chance, {p_value(a['query_p'])})."
    ]
    if math.isfinite(a["share_target"]):
        target, query, both = (100 * a[f"share_{name}"] for name in ("target", "query", "interaction"))
        lines.append(
            f"Of what varies between the cells, the target's phase explains {number(target, 0)}%, the "
            f"query's phase {number(query, 0)}%, the two together {number(both, 0)}%."
        )
    return lines


def settings(attrs: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a test's task."""
    try:
        return dict(json.loads(str(attrs["task"])))
    except ValueError:
        return {}
