"""Published results as audit results, every number recomputed from the published counts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from hooks.errors import StatisticsError, did_you_mean
from interp import stats
from interp.audit.assemble import add_tests
from interp.published import load_published, published_names
from interp.rng import numpy_rng

__all__ = ["from_published", "load_table", "needle_counts", "stored_name"]

_MOST_PROMPTS = 100_000
"""A residue; each prompt is drawn again and again in intervals."""
_NEEDLE_KEYS = ("name", "stride", "n_per_residue", "correct")


def load_table(name: str) -> dict[str, Any]:
    """Read a published table by name (``.json`` may be left on), or a JSON file of the same form.

    Raises
    ------
    StatisticsError
        If there is none, it is neither a needle nor a completion test, or a field of it is not what it must
        be: named with its model.
    """
    stem = name.removesuffix(".json")
    if stem in published_names():
        table = load_published(stem)
    elif Path(name).is_file():
        try:
            table = json.loads(Path(name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise StatisticsError(f"{name} cannot be read as JSON: {error}") from error
    else:
        raise StatisticsError(f"no published table {name!r}; {did_you_mean(stem, _drawable())}")
    if not isinstance(table, dict) or not (_is_needle(table) or _is_completion(table)):
        raise StatisticsError(
            f"{name!r} is not a needle test (models with correct and n_per_residue) or a completion test "
            f"(filler_tokens with p_8 and p_32); valid: {', '.join(_drawable())}"
        )
    (_check_needle if _is_needle(table) else _check_completion)(table, name)
    return table


def _drawable() -> list[str]:
    tables = {name: load_published(name) for name in published_names()}
    return [name for name, table in tables.items() if _is_needle(table) or _is_completion(table)]


def _is_needle(table: Mapping[str, Any]) -> bool:
    models = table.get("models")
    return isinstance(models, list) and any(isinstance(m, dict) and "correct" in m for m in models)


def _is_completion(table: Mapping[str, Any]) -> bool:
    return {"filler_tokens", "p_8", "p_32"} <= set(table)


def _check_needle(table: Mapping[str, Any], where: str) -> None:
    by_file: dict[str, str] = {}
    for number, model in enumerate(table["models"], start=1):
        label = f"{where}, model {number}"
        if not isinstance(model, dict):
            raise StatisticsError(
                f"{label} is {_shown(model)}; valid: {', '.join(_NEEDLE_KEYS)} as an object"
            )
        lacking = [key for key in _NEEDLE_KEYS if key not in model]
        if lacking:
            raise StatisticsError(f"{label} has no {lacking[0]}; valid: {', '.join(_NEEDLE_KEYS)}")
        name, stride, n, counts = (model[key] for key in _NEEDLE_KEYS)
        if not isinstance(name, str) or not stored_name(name):
            raise StatisticsError(f"{label}: name={_shown(name)}; valid: a text with a letter or digit")
        label = f"{where}, model {name!r}"
        first = by_file.setdefault(stored_name(name), name)
        if number > len(by_file):
            raise StatisticsError(
                f"{label}: a second model of that name (first {first!r}); give each its own"
            )
        for key, value, least, most in (("stride", stride, 2, None), ("n_per_residue", n, 1, _MOST_PROMPTS)):
            if type(value) is not int or value < least or (most is not None and value > most):
                valid = f"a whole number from {least} " + ("on" if most is None else f"to {most}")
                raise StatisticsError(f"{label}: {key}={_shown(value)}; valid: {valid}")
        if not isinstance(counts, list) or not counts or len(counts) % stride:
            raise StatisticsError(
                f"{label}: correct={_shown(counts)}; valid: one count a residue, whole cycles of stride {stride}"
            )
        wrong = [count for count in counts if type(count) is not int or not 0 <= count <= n]
        if wrong:
            raise StatisticsError(f"{label}: correct holds {_shown(wrong[0])}; valid: whole numbers 0 to {n}")


def _check_completion(table: Mapping[str, Any], where: str) -> None:
    lengths = table["filler_tokens"]
    for key in ("filler_tokens", "p_8", "p_32"):
        if not isinstance(table[key], list) or not lengths or len(table[key]) != len(lengths):
            raise StatisticsError(
                f"{where}: {key}={_shown(table[key])}; valid: a list with one number for each length"
            )
    wrong = [x for x in lengths if type(x) is not int or x < 0]
    if wrong or len(set(lengths)) < len(lengths):
        found = _shown(wrong[0]) if wrong else "a length twice"
        raise StatisticsError(
            f"{where}: filler_tokens holds {found}; valid: different whole numbers from 0 on"
        )
    for key in ("p_8", "p_32"):
        wrong = [x for x in table[key] if type(x) not in (int, float) or not 0 <= x <= 1]
        if wrong:
            raise StatisticsError(f"{where}: {key} holds {_shown(wrong[0])}; valid: probabilities 0 to 1")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def stored_name(name: str) -> str:
    """Return the name of a result's files."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-")


def from_published(table: Mapping[str, Any], *, seed: int = 0, brief: bool = False) -> dict[str, xr.Dataset]:
    """Turn a published table into audit results by model.

    Parameters
    ----------
    table : mapping
        As :func:`load_table` gives it.
    brief : bool
        Gaps and periods alone, to stand beside something else.
    seed : int
        Of resampling and permutations.
    """
    if _is_needle(table):
        models = table["models"]
        return {
            str(m["name"]): needle_counts(
                m, source=str(table.get("source", "")), task=str(table.get("task", "")), seed=seed,
                n_tests=None if brief else len(models),
            )
            for m in models
        }  # fmt: skip
    return {"completion": _completion(table, seed=seed)}


def needle_counts(
    model: Mapping[str, Any], *, source: str, task: str, seed: int = 0, n_tests: int | None = None
) -> xr.Dataset:
    """Recompute gaps, intervals and the period of one model from its correct answers by residue.

    With `n_tests`, the number of models tested together, everything else an audit reports too.

    Notes
    -----
    No prompts are published: they are taken as independent, that is each residue's answers are put in a
    random order of their own before prompts are resampled.
    """
    counts, n, stride = np.asarray(model["correct"]), int(model["n_per_residue"]), int(model["stride"])
    modulus = len(counts)
    rng = numpy_rng(seed, "published", str(model["name"]))
    correct = np.stack([rng.permutation(n) < count for count in counts], axis=1)
    accuracy, by = counts / n, stats.phase_means(counts / n, stride)
    residue_low, residue_high = stats.wilson(counts, n)
    gap_low, gap_high = stats.gap_interval(correct, stride, seed=seed)
    period = stats.period_of_counts(counts, n, candidates=stats.candidates_for(stride), seed=seed)
    sweep = xr.Dataset(
        {
            "correct": (("prompt", "residue"), correct),
            "accuracy": ("phase", by),
            "accuracy_residue": ("residue", accuracy),
            "accuracy_residue_low": ("residue", residue_low),
            "accuracy_residue_high": ("residue", residue_high),
        },
        coords={"residue": np.arange(modulus), "phase": np.arange(stride)},
        attrs={
            "model": str(model["name"]),
            "test": "needle",
            "task": task,
            "source": source,
            "published": 1,
            "axis": "target",
            "stride": stride,
            "placebo": 0,
            "modulus": modulus,
            "seed": seed,
            "n_per_residue": n,
            "gap_pp": 100 * float(np.ptp(by)),
            "gap_pp_low": 100 * gap_low,
            "gap_pp_high": 100 * gap_high,
            "gap_residue_pp": 100 * float(np.ptp(accuracy)),
            "mean_accuracy": float(accuracy.mean()),
            "worst_phase": int(by.argmin()),
            "period": period.period,
            "period_p": period.p,
            "period_tested": period.tested,
            "period_on": "correct",
        },
    )
    return sweep if n_tests is None else _tested(sweep, n_tests)


def _tested(sweep: xr.Dataset, n_tests: int) -> xr.Dataset:
    """Add intervals by phase and the tests, which need the answers of every prompt."""
    correct, stride, seed = sweep["correct"].values, int(sweep.attrs["stride"]), int(sweep.attrs["seed"])
    low, high = stats.phase_intervals(correct, stride, seed=seed)
    sweep = sweep.assign(accuracy_low=("phase", low), accuracy_high=("phase", high))
    return add_tests(sweep, n_tests=n_tests).drop_vars("correct")


def _completion(table: Mapping[str, Any], *, seed: int) -> xr.Dataset:
    """P(8) and P(32) by filler length, with the period of each and means by length mod period."""
    lengths = np.asarray(table["filler_tokens"])
    series = {name: np.asarray(table[name], dtype=float) for name in ("p_8", "p_32")}
    periods = {name: stats.find_period(values, lengths, seed=seed) for name, values in series.items()}
    period = periods["p_8"].period if len({p.period for p in periods.values()}) == 1 else 0
    data: dict[str, Any] = {name: ("length", values) for name, values in series.items()}
    coords: dict[str, Any] = {"length": lengths}
    attrs: dict[str, Any] = {}
    if period:
        coords["phase"] = np.arange(period)
        for name, values in series.items():
            means = np.array([values[lengths % period == k].mean() for k in range(period)])
            data[f"{name}_phase"] = ("phase", means)
            attrs[f"{name}_gap_pp"] = 100 * float(np.ptp(means))
    return xr.Dataset(
        data,
        coords=coords,
        attrs={
            "model": "DeepSeek-V4-Flash-Base",
            "test": "completion",
            "task": str(table.get("task", "")),
            "source": str(table.get("source", "")),
            "published": 1,
            "seed": seed,
            "period": period,
            **{f"{name}_period": p.period for name, p in periods.items()},
            **{f"{name}_period_p": p.p for name, p in periods.items()},
            **attrs,
        },
    )
