"""Terminal tables of the verbs on shared caches, picks and precision: compare, periods, owners."""

from __future__ import annotations

import numpy as np
import xarray as xr
from rich.console import Group, RenderableType
from rich.text import Text

from interp.figures.base import number, require, unit_order
from interp.figures.chance import untested
from interp.figures.table import _MOST_UNITS, _of, _p, _table, _titled
from interp.specialization import arcs_text
from interp.stats import MIN_CLEAN_CORRECT, SIGNIFICANCE, unanswered

__all__ = ["compare_table", "owner_table", "period_table", "table_of"]

_WIDEST_OWNERS = 4  # phases that fit beside the pairs at 80 columns
_UNITS = (("pp", "change_pp", 1), ("nats", "change", 3))


def table_of(dataset: xr.Dataset) -> RenderableType | None:
    """Return the table of a result of compare, periods or owners; None for any other."""
    there = set(map(str, dataset.data_vars))
    if {"change_pp", "change", "mean_logprob"} <= there:
        return compare_table(dataset)
    if {"follows", "detectable", "gap", "by_phase"} <= there:
        return period_table(dataset)
    if {"effect_logprob", "mass", "picked"} <= there:
        return owner_table(dataset)
    return None


def compare_table(found: xr.Dataset) -> RenderableType:
    """Return gaps of both models and the widening with its interval, in pp and nats; then the change by phase."""
    require(found, [f"{name}{end}" for _, name, _ in _UNITS for end in ("", "_low", "_high")], kind="compare")
    a = found.attrs
    gaps = _table(["gap, best minus worst phase", "first", "second", "widening", "95% interval"])
    undefined = False
    for unit, _, digits in _UNITS:
        low, high = a[f"widening_{unit}_low"], a[f"widening_{unit}_high"]
        undefined |= not np.isfinite([low, high]).all()
        gaps.add_row(
            "accuracy (pp)" if unit == "pp" else "log p(answer) (nats)",
            *(number(gap, digits) for gap in a[f"gap_{unit}"]),
            number(a[f"widening_{unit}"], digits, sign=True), _between(low, high, digits),
        )  # fmt: skip
    by = _table(["phase", "first %", "second %", "pp", "95% interval", "nats", "95% interval"])
    for i, phase in enumerate(found["phase"].values):
        cells = [number(100 * float(value), 1) for value in found["accuracy"].values[:, i]]
        for _, name, digits in _UNITS:
            value, low, high = (float(found[f"{name}{end}"].values[i]) for end in ("", "_low", "_high"))
            undefined |= not np.isfinite([low, high]).all()
            cells += [number(value, digits, sign=True), _between(low, high, digits)]
        by.add_row(str(int(phase)), *cells)
    names = [str(name) for name in found["model"].values]
    lines = [
        f"First: {names[0]}; second: {names[1]}; the same {found['correct'][0].size} prompts, paired. The interval of "
        "the widening is of the true difference, whichever phases are best and worst. One that holds 0 supports no "
        "difference."
    ]
    why = "too few prompts, or all change alike" if undefined else ""
    return Group(
        _titled(f"Phase gaps of two models{_of(found)}", gaps),
        Text(),
        _titled("Change by phase, second minus first", by, lines, undefined=why),
    )


def period_table(found: xr.Dataset) -> RenderableType:
    """Return the period, p, gap and detectable gap of every unit's effect; the quietest are counted alone."""
    require(found, ["period", "p", "gap", "detectable", "follows", "score", "by_phase"], kind="unit_periods")
    stride, unit = int(found.attrs["stride"]), "nats" if found.attrs.get("scored") == "logprob" else "logits"
    table = _table(
        ["unit", "period", "p", f"gap ({unit})", "detectable", f"share at {stride}", "lowest", "follows"]
    )
    labels = [str(label) for label in found["unit"].values]
    p = found["p"].values.astype(float)
    order = [i for i in unit_order(labels) if labels[i] != "clean"]
    shown = set(sorted(order, key=lambda i: p[i])[:_MOST_UNITS])
    undefined = False
    for i in [*(i for i, label in enumerate(labels) if label == "clean"), *(i for i in order if i in shown)]:
        one = found.isel(unit=i)
        still = float(one["detectable"]) == 0
        undefined |= still
        table.add_row(
            labels[i], str(int(one["period"]) or "none"), _p(p[i]), number(float(one["gap"]), 3),
            "–" if still else number(float(one["detectable"]), 3),
            number(float(one["score"].sel(candidate=stride)), 3), str(int(one["by_phase"].values.argmin())),
            "yes" if bool(one["follows"]) and labels[i] != "clean" else "",
            style="bold" if bool(one["follows"]) else "",
        )  # fmt: skip
    follow = [labels[i] for i in order if bool(found["follows"].values[i])]
    lines = [
        f"Follows stride {stride}: {', '.join(follow) or 'no unit'} (p < {SIGNIFICANCE} after Holm over {len(order)} "
        "units). Clean is the unchanged run; units are the change that knocking them out makes.",
        f"Detectable: a gap between one phase and the others that is found with "
        f"{100 * float(found.attrs['power']):.0f}% power at n = {int(found.attrs['n_prompts'])} prompts a residue. "
        "Share: of the variance, adjusted for the number of phases. Lowest: the phase at which it costs most.",
    ]
    if len(shown) < len(order):
        lines.append(f"{len(order) - len(shown)} more units, of higher p, are in the saved result.")
    why = "nothing varies" if undefined else ""
    return _titled(f"Period of each unit's effect{_of(found)}", table, lines, undefined=why)


def owner_table(found: xr.Dataset) -> RenderableType:
    """Return what a dropped record costs each pair of owner and reader, phase by phase."""
    require(found, ["effect_logprob", "effect_pp", "clean_accuracy", "clean_correct"], kind="owner_effects")
    nats = found["effect_logprob"].transpose("unit", "phase").values.astype(float)
    p = found["effect_logprob_p"].values if "effect_logprob_p" in found else np.full(nats.shape, np.nan)
    lost = unanswered(found["clean_correct"].values, nats.shape[1])
    pp = np.where(lost, np.nan, found["effect_pp"].transpose("unit", "phase").values)
    wide = nats.shape[1] <= _WIDEST_OWNERS
    phases = [f"nats, {i}" for i in range(nats.shape[1])] + ["pp by phase"]
    table = _table(["owner→reader", *(phases if wide else ["largest loss (nats)", "pp there"])])
    for i, unit in enumerate(found["unit"].values):
        cells = [number(v, 2) + ("*" if q < SIGNIFICANCE else "") for v, q in zip(nats[i], p[i], strict=True)]
        if wide:
            table.add_row(str(unit), *cells, "  ".join(number(v) for v in pp[i]))
        else:
            at = int(nats[i].argmin())
            table.add_row(str(unit), f"{cells[at]} at {at}", number(pp[i, at]))
    clean = "  ".join(number(100 * float(v), 1) for v in found["clean_accuracy"].values)
    tested = f"* p < {SIGNIFICANCE} after correction for pairs and phases."
    lines = [
        "The target's record dropped from an owner's entries as one layer reads them, or where they are stored (all).",
        untested(p, found) or tested,
        f"Unchanged accuracy (%) by phase: {clean}.",
    ]
    why = ""
    if lost.any():
        plural = "s" if lost.sum() > 1 else ""
        why = f"fewer than {MIN_CLEAN_CORRECT} answers right at phase{plural} {arcs_text(lost)}, so nothing to lose"
    return _titled(f"Dropped from a shared cache, by phase{_of(found)}", table, lines, undefined=why)


def _between(low: float, high: float, digits: int) -> str:
    if not np.isfinite([low, high]).all():
        return "–"
    return f"{number(low, digits)} to {number(high, digits)}"
