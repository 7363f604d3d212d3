"""Terminal tables: 80 columns, what each unit serves, and "–" with a footnote for what is undefined."""

from __future__ import annotations

import io

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from interp.figures import FigureError
from interp.figures.table import effect_table, report_table, show, sweep_table
from tests.interp.figures import data


def printed(*results, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(*results)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def row(lines: list[str], label: str) -> list[str]:
    return next(line for line in lines if line.split()[:1] == [label]).split()


def test_the_main_table_says_who_serves_what():
    lines = printed(report_table(data.sweep(), data.knockout(), data.specialization(), data.gates()))
    assert max(map(len, lines)) <= 80
    assert row(lines, "3") == ["3", "10.0", "5.0", "to", "15.0", "worst"]
    assert "Gap 90.0 pp (95% 85.0 to 94.0); 3.5 pp if phases meant nothing." in lines
    assert row(lines, "1.0") == [
        "1.0",
        "1–2",
        "−99%",
        "at",
        "2",
        "<",
        "0.001",
        "0.50",
        "<",
        "0.001",
        "1",
        "/",
        "2",
    ]
    assert row(lines, "0.0")[1] == "3–0"  # a cyclic run
    assert "Served by no unit: no phase." in lines
    # 0.1 serves nothing but has a significant effect; 1.1 has neither and is only counted
    assert row(lines, "0.1")[:2] == ["0.1", "none"]
    assert not [line for line in lines if line.startswith("1.1")]
    assert "1 more unit serve nothing and change nothing significantly." not in lines
    assert "1 more unit serves nothing and changes nothing significantly." in lines


def test_undefined_is_a_dash_with_a_footnote():
    lines = printed(effect_table(data.knockout()))
    assert row(lines, "1.1") == ["1.1", "0", "0", "−2", "–"]
    assert lines[-1] == "– undefined: fewer than 20 clean answers right."
    complete = printed(effect_table(data.knockout().fillna(0.0)))
    assert not [line for line in complete if "undefined" in line]


def test_a_period_that_was_not_looked_for_is_not_called_absent():
    few = data.sweep(period=0, period_p=0.3, stride=8, period_tested=list(range(2, 8)))
    assert "Period found in the data: none of 2 to 7, 8 not testable (p 0.300)." in printed(sweep_table(few))
    assert "Period found in the data: none (p 0.300)." in printed(
        sweep_table(data.sweep(period=0, period_p=0.3))
    )


def test_phases_no_unit_serves_are_named():
    special = data.specialization()
    special["uncovered"][:] = [True, False, False, True]
    assert "Served by no unit: phases 3–0." in printed(report_table(data.sweep(), data.knockout(), special))


def test_many_phases_show_the_extremes():
    effect = xr.Dataset(
        {"effect": (("unit", "phase"), np.arange(-30.0, 2.0).reshape(1, 32))},
        {"unit": ["0.0"]},
        {"stride": 32},
    )
    assert row(printed(effect_table(effect)), "0.0") == ["0.0", "−30%", "at", "0", "1%", "at", "31"]


@pytest.mark.parametrize(
    ("result", "holds"),
    [
        (data.sweep(), "Accuracy by phase, toy"),
        (data.knockout(), "Effect of knocking out one unit"),
        (data.specialization(), "What knocking out one unit does"),
        (data.gates(), "Effective number of offsets (1 to W = 4), toy"),
        (xr.Dataset({"logit": ("layer", [1.0, 2.0])}), "other"),
    ],
)
def test_every_result_can_be_shown(result, holds):
    out = io.StringIO()
    show("other", result, Console(file=out, width=80))
    assert holds in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_a_foreign_result_is_named():
    with pytest.raises(FigureError, match="not a phase_sweep result: accuracy"):
        report_table(data.gates(), data.knockout(), data.specialization())


def test_a_query_sweep_is_no_table_of_the_targets_phases():
    queries = data.sweep(modulus=4, axis="query", period=0, period_p=float("nan"))
    lines = printed(sweep_table(queries))
    text = " ".join(" ".join(lines).split())
    assert "Accuracy by query phase, toy" in text
    assert "Query gap 90.0 pp" in text
    assert "Period: not tested" in text
    assert "Period found" not in text
