"""The audit in the terminal, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Mapping

import xarray as xr
from rich.console import Console
from rich.table import Table
from rich.text import Text

from interp.audit import wording
from interp.audit.wording import interval, number, p_value

__all__ = ["show"]

_MOST_PHASES = 8  # columns of a target × query table that fit 80 characters


def show(found: Mapping[str, xr.Dataset], console: Console | None = None) -> None:
    """Print every test: verdict, accuracy by phase, target × query table, and what to know."""
    console = console or Console()
    tests = {name: dataset for name, dataset in found.items() if not name.endswith("_query")}
    told: set[str] = set()
    for name, dataset in tests.items():
        console.print(Text(f"{dataset.attrs['model']}: {dataset.attrs['test']} test", style="bold"))
        if "p_8" in dataset:
            _show_series(dataset, console)
        else:
            _show_test(dataset, found.get(f"{name}_query"), console)
            for line in wording.notes(dataset):
                if line not in told:
                    console.print(Text(line))
                told.add(line)
        console.print()


def _show_test(sweep: xr.Dataset, crossed: xr.Dataset | None, console: Console) -> None:
    a = sweep.attrs
    verdict = wording.verdict(sweep)
    console.print(Text(f"{verdict[0].upper()}{verdict[1:]}."))
    table = Table("phase", box=None, pad_edge=False)
    for head in ("accuracy (%)", "95% interval", ""):
        table.add_column(head, justify="right")
    for i, phase in enumerate(sweep["phase"].values):
        low, high = (100 * float(sweep[f"accuracy_{end}"][i]) for end in ("low", "high"))
        mark = "worst" if int(phase) == a["worst_phase"] and a["gap_pp"] else ""
        table.add_row(str(phase), number(100 * float(sweep["accuracy"][i])), interval(low, high), mark)
    console.print(table)
    residue = f", {number(a['gap_residue_pp'])} pp by residue"
    console.print(
        Text(
            f"Mean {number(100 * a['mean_accuracy'])}%, gap {number(a['gap_pp'])} pp by phase "
            f"(95% {interval(a['gap_pp_low'], a['gap_pp_high'])}; {number(a['null_gap_pp'])} by chance)"
            f"{residue}. Period {wording.period_text(a)}."
        )
    )
    placebos = [
        f"{int(q)}: {number(float(gap))} pp ({p_value(float(p))})"
        for q, gap, p in zip(
            sweep["placebo_stride"].values,
            sweep["placebo_gap_pp"].values,
            sweep["placebo_p"].values,
            strict=True,
        )
    ]
    if placebos:
        console.print(Text(f"Placebo strides: {', '.join(placebos)}."))
    if crossed is not None:
        for line in wording.cross_lines(crossed):
            console.print(Text(line))
        if crossed.sizes["phase"] <= _MOST_PHASES:
            console.print(_cross_table(crossed))


def _cross_table(crossed: xr.Dataset) -> Table:
    table = Table("query \\ target", box=None, pad_edge=False)
    for phase in crossed["phase"].values:
        table.add_column(str(phase), justify="right")
    for i, query in enumerate(crossed["query_phase"].values):
        table.add_row(str(query), *(number(100 * float(v)) for v in crossed["accuracy"].values[i]))
    return table


def _show_series(data: xr.Dataset, console: Console) -> None:
    a = data.attrs
    for label, key in (("P(8)", "p_8"), ("P(32)", "p_32")):
        gap = f", gap {number(a[f'{key}_gap_pp'])} pp between its phases" if a["period"] else ""
        told = f"period {a[f'{key}_period'] or 'none'} ({p_value(a[f'{key}_period_p'])})"
        console.print(Text(f"{label} has {told} in the docstring's length{gap}."))
