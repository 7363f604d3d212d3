"""The page on interventions, on the smallest model."""

import json

import numpy as np
import pytest
import xarray as xr

from interp import intervention_report, results


@pytest.mark.slow
def test_the_page_states_every_number_with_its_n_and_what_is_missing(tmp_path, monkeypatch):
    for name, value in {
        "CYCLED": ("tiny", "no-such"),
        "PARTS": "no-such",
        "RANKED": ("tiny",),
        "CONTROL": "-",
    }.items():
        monkeypatch.setattr(intervention_report, name, value)
    page, folder = tmp_path / "page.md", tmp_path / "results"
    intervention_report.main(["-o", str(page), "--results", str(folder), "-n", "10"])
    text = page.read_text(encoding="utf-8")
    cycled = results.load(folder / "cycling-tiny.nc")
    assert cycled.attrs["seed"] == 10_000
    assert json.loads(cycled.attrs["task"])["task"] == "recall"
    for i, shift in enumerate(("+1", "-1")):
        value = cycled.r2.values[i]
        assert f"| tiny | {shift} | {value:.2f} (" in text or f"| tiny | {shift} | undefined" in text
    for unit in ("head", "gate_offset"):
        found = results.load(folder / f"attribution-tiny-{unit}.nc")
        assert f"| tiny | {unit} | {found.attrs['rank_correlation']:.2f} (" in text
    assert "not in the zoo: no-such" in text
    low, high = (cycled[f"r2_inner_{end}"].values for end in ("low", "high"))
    for i, shift in enumerate(("+1", "-1")):
        told = "supported" if low[i] >= 0.66 else "not supported" if high[i] < 0.66 else "undecided"
        told = told if np.isfinite(low[i]) else "undefined"
        verdict = text.split("by the interval, ")[1].split("\n")[0]
        assert f"tiny by {shift}" in next(p for p in verdict.split("; ") if p.startswith(f"{told}:"))


def parts(loss, serves, similarity):
    """What gate_parts returns for two KV heads and four phases, [gates, unit, …]."""
    value, low, high = np.moveaxis(np.array(similarity, float), -1, 0)
    cells, by_unit = ("gates", "unit", "phase"), ("gates", "unit")
    return xr.Dataset(
        {
            "accuracy": (("gates", "phase"), np.full((4, 4), 0.5)),
            "loss": (cells, np.array(loss, float)),
            "serves": (cells, np.array(serves, bool)),
            "similarity": (by_unit, value),
            "similarity_low": (by_unit, low),
            "similarity_high": (by_unit, high),
        },
        {"gates": ["intact", "static", "deviation", "uniform"], "unit": ["0.0", "1.0"]},
    )


def test_what_cannot_be_measured_under_forced_gates_is_undefined_and_not_a_loss():
    nan = np.nan
    one = parts(
        loss=[
            [[90, 0, 0, 0], [0, 0, 90, 90]],
            [[nan] * 4, [nan] * 4],
            [[80, 0, 0, nan], [0, 0, 5, nan]],
            [[nan] * 4, [nan] * 4],
        ],
        serves=[
            [[1, 0, 0, 0], [0, 0, 1, 1]],
            [[0] * 4, [0] * 4],
            [[1, 0, 0, 0], [0, 0, 0, 0]],
            [[0] * 4, [0] * 4],
        ],
        similarity=[
            [[1, 1, 1], [1, 1, 1]],
            [[0.8, 0.7, 0.9], [0.2, -0.5, 0.8]],
            [[0.9, 0.8, 1.0], [0.1, -0.2, 0.4]],
            [[0.3, nan, nan], [-0.2, -0.5, 0.2]],
        ],
    )
    found = {"cycling": {}, "parts": {"toy": one}, "attribution": {}, "control": {}}
    text = intervention_report.markdown(found, [])
    rows = [line for line in text.splitlines() if line.startswith(("| KV head", "| **"))]
    told = [row.split(" | ")[1] for row in rows]
    none = "undefined (accuracy too low)"
    assert told[1:3] == ["0", "2–3"]
    assert told[4:6] == told[10:12] == [none, none]
    assert told[7:9] == [
        "0; undefined at 3 (accuracy too low)",
        "none; undefined at 3 (accuracy too low)",
    ]
    assert (
        "- With the static part alone: kept by 0.0; undecided by 1.0. By phases served: 0 kept, 0 lost, 2 undefined."
        in text
    )
    assert (
        "- With the per-window deviation alone: kept by 0.0; lost by 1.0. By phases served: 1 kept, 1 lost, "
        "0 undefined." in text
    )


def test_without_a_specialised_head_there_is_no_verdict():
    flat = np.zeros((4, 2, 4))
    one = parts(flat, flat, np.full((4, 2, 3), np.nan))
    found = {"cycling": {}, "parts": {"toy": one}, "attribution": {}, "control": {}}
    assert "No head is specialised under intact gates" in intervention_report.markdown(found, [])
