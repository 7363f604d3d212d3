"""The page on interventions, on the smallest model."""

import json
import re

import numpy as np
import pytest
import xarray as xr
from scipy.stats import binomtest

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
    assert "`python -m interp.intervention_report -n 10 --device cpu`" in text
    held = results.load(folder / "cycling-controls-tiny.nc")
    told = text.split("that by δ itself is ")[1].split("\n")[0]
    for i, shift in enumerate(("+1", "-1")):
        low, high = (float(held[f"lead_inner_{end}"].values[i]) for end in ("low", "high"))
        word = "better" if low >= 0 else "worse" if high < 0 else "not told apart"
        assert f"tiny by {shift}" in next(p for p in told.split("; ") if p.startswith(f"{word}:"))
    low, high = (cycled[f"r2_inner_{end}"].values for end in ("low", "high"))
    for i, shift in enumerate(("+1", "-1")):
        told = "supported" if low[i] >= 0.66 else "not supported" if high[i] < 0.66 else "undecided"
        told = told if np.isfinite(low[i]) else "undefined"
        verdict = text.split("by the interval, ")[1].split("\n")[0]
        assert f"tiny by {shift}" in next(p for p in verdict.split("; ") if p.startswith(f"{told}:"))


def parts(loss, serves, similarity):
    """What gate_parts returns for two KV heads and four phases, [gates, unit, …], on 100 prompts of one residue each.

    A loss of 45% is one that 45 of the 100 prompts have; where it is NaN no answer is right.
    """
    loss = np.array(loss, float)
    undefined = np.isnan(loss).any(axis=1)  # [gates, phase]
    clean = np.repeat(~undefined[:, None], 100, axis=1)  # [gates, prompt, residue]
    lost = np.arange(100)[:, None] < np.nan_to_num(loss)[:, :, None]  # [gates, unit, prompt, residue]
    value, low, high = np.moveaxis(np.array(similarity, float), -1, 0)
    cells, by_unit = ("gates", "unit", "phase"), ("gates", "unit")
    return xr.Dataset(
        {
            "accuracy": (("gates", "phase"), np.full((4, 4), 0.5)),
            "loss": (cells, loss),
            "clean_correct": (("gates", "prompt", "residue"), clean),
            "correct": (("gates", "unit", "prompt", "residue"), clean[:, None] & ~lost),
            "serves": (cells, np.array(serves, bool)),
            "similarity": (by_unit, value),
            "similarity_low": (by_unit, low),
            "similarity_high": (by_unit, high),
        },
        {"gates": ["intact", "static", "deviation", "uniform"], "unit": ["0.0", "1.0"]},
        {"stride": 4, "seed": 0},
    )


def held(special):
    """What parts_controls returns for the same heads: 0.0 above another head everywhere, nothing above moved gates."""
    shape = ("control", "gates", "unit")
    lead = np.full((2, 3, 2), 0.5)
    lead[1, 1:] = np.nan
    lead[:, :, ~np.array(special)] = np.nan
    exceeds = np.zeros(lead.shape, bool)
    exceeds[0, :, 0] = special[0]
    return xr.Dataset(
        {"lead": (shape, lead), "exceeds": (shape, exceeds)},
        {
            "control": ["another head", "moved gates"],
            "gates": ["static", "deviation", "uniform"],
            "unit": ["0.0", "1.0"],
        },
    )


def page(one, special, control=None):
    found = {
        "cycling": {}, "cycling controls": {}, "parts": {"toy": one}, "parts controls": {"toy": held(special)},
        "attribution": {}, "control": control or {},
    }  # fmt: skip
    return intervention_report.markdown(found, [], "python -m somewhere -n 7")


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
    one["accuracy"][1] = [0.0, 0.08, 0.14, 0.01]
    text = page(one, [True, True])
    assert "Made by `python -m somewhere -n 7`" in text
    rows = [line for line in text.splitlines() if line.startswith(("| KV head", "| **"))]
    told = [row.split(" | ")[1] for row in rows]
    none = "undefined (accuracy too low)"
    assert told[1:3] == ["0", "2–3"]
    assert told[4:6] == told[10:12] == [none, none]
    assert told[7:9] == [
        "0; undefined at 3 (accuracy too low)",
        "none; undefined at 3 (accuracy too low)",
    ]
    # Similarity is of effects; phases are kept or lost by accuracy, and undecided where that is at the floor.
    assert (
        "- With the static part alone, phases served: undecided: 0.0, 1.0. Undecided (0.0, 1.0): accuracy, 0 to 14% by "
        "phase, is too low for a loss, or for its interval, at a phase they served; effects on log-probability "
        "alone do not say that phases are kept. "
        "Effects: alike: 0.0; undecided: 1.0. Above the control 'another head': 0.0. Above the control 'moved gates': "
        "none." in text
    )
    assert (
        "- With the per-window deviation alone, phases served: kept: 0.0; lost: 1.0. Effects: alike: 0.0; unlike: 1.0. "
        "Above the control 'another head': 0.0." in text
    )
    assert "kept by" not in text


def test_phases_are_kept_or_lost_by_the_intervals_of_losses():
    """Of 100 prompts 45 lost: 35 to 55% (binomial), on both sides of 40; 90: 82 to 95; 20: 13 to 29; 35: 26 to 45."""
    one = parts(
        loss=[
            [[90, 90, 0, 0], [0, 0, 90, 90]],
            [[45, 90, 0, 0], [0, 0, 90, 90]],
            [[90, 20, 0, 0], [0, 0, 35, 90]],
            [[0] * 4, [0] * 4],
        ],
        serves=[
            [[1, 1, 0, 0], [0, 0, 1, 1]],
            [[1, 1, 0, 0], [0, 0, 1, 1]],
            [[1, 0, 0, 0], [0, 0, 0, 1]],
            [[0] * 4, [0] * 4],
        ],
        similarity=np.full((4, 2, 3), 1.0),
    )
    text = page(one, [True, True])
    open_ = "the interval of a loss reaches to both sides of 40%."
    assert (
        f"With the static part alone, phases served: kept: 1.0; undecided: 0.0. Undecided (0.0): {open_}"
        in text
    )
    assert f"phases served: lost: 0.0; undecided: 1.0. Undecided (1.0): {open_}" in text
    rows = [line.split(" | ")[2] for line in text.splitlines() if line.startswith("| KV head")]
    told = [[[float(x) for x in re.findall(r"\d+", cell)] for cell in row.split("; ")] for row in rows]
    for (phase, value, low, high), (at, lost) in zip(
        told[2] + told[5], [(0, 45), (1, 90), (2, 35), (3, 90)], strict=True
    ):
        bounds = binomtest(lost, 100).proportion_ci(method="wilson")
        assert (phase, value) == (at, lost)
        assert (low, high) == pytest.approx((100 * bounds.low, 100 * bounds.high), abs=2.5)


def spreads(own, placebo, random, exceeds):
    axes = ("control", "unit")
    return xr.Dataset(
        {
            "spread": (axes, [[0.0, own], [placebo, 0], [random, 0]]),
            "null_spread": (axes, [[0.02, 0.026]] * 3),
            "exceeds": (axes, [[False, exceeds], [False, False], [False, False]]),
        },
        {"control": ["own", "placebo 3", "random weights"], "unit": ["0.0", "0.1"]},
        {"stride": 8, "model": "plain"},
    )


@pytest.mark.parametrize(
    ("own", "exceeds", "said"),
    [
        (0.012, False, "in 2 of 2 runs. The largest spread there is larger than those of the placebo stride and of random "
         "weights in 1 of 2 runs: that comparison alone would not clear the model, and it is by the permuted phases "
         "that its effects are within chance."),
        (0.004, False, "in 2 of 2 runs. The largest spread there is larger than those of the placebo stride and of random "
         "weights in 0 of 2 runs."),
        (0.5, True, "in 1 of 2 runs (above in knockout, seed 1). The largest spread there is larger than those of the "
         "placebo stride and of random weights in 1 of 2 runs."),
    ],
)  # fmt: skip
def test_controls_are_told_in_words(own, exceeds, said):
    flat = np.zeros((4, 2, 4))
    runs = {
        "knockout, seed 1": spreads(own, 0.008, 0.005, exceeds),
        "patch, seed 2": spreads(0.001, 0.008, 0.005, False),
    }
    text = page(parts(flat, flat, np.full((4, 2, 3), np.nan)), [False, False], runs)
    assert f"At its own stride no unit is above the bar {said}" in text
    assert f"| knockout, seed 1 | own | {own:.3f} | 0.026 | {50 * exceeds} |" in text
    # 1 − 0.95² is the chance that one of two runs passes.
    chance = "1 or more of 2 runs pass a bar of 95% with probability 0.10; of the controls, which cannot have phases, 0 of 4"
    assert (chance in text) == exceeds


def test_without_a_specialised_head_there_is_no_verdict():
    flat = np.zeros((4, 2, 4))
    one = parts(flat, flat, np.full((4, 2, 3), np.nan))
    assert "No head is specialised under intact gates" in page(one, [False, False])
