"""Tables of compare, periods and owners: what is printed is the answer, and undefined is said."""

import io

import numpy as np
import xarray as xr
from rich.console import Console

from interp.figures.table import show
from tests.interp.figures.test_table import row


def shown(result) -> list[str]:
    out = io.StringIO()
    show("result", result, Console(file=out, width=80))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    return lines


def compared(**attrs) -> xr.Dataset:
    ends = {"": 0.0, "_low": -1.0, "_high": 1.0}
    data = {f"change_pp{end}": ("phase", [1.5 + by, -8.0 + by]) for end, by in ends.items()}
    data |= {f"change{end}": ("phase", [0.125 + by / 10, -0.25 + by / 10]) for end, by in ends.items()}
    return xr.Dataset(
        {
            **data,
            "accuracy": (("model", "phase"), [[1.0, 0.4], [0.98, 0.32]]),
            "mean_logprob": (("model", "phase"), [[-0.1, -3.0], [-0.2, -3.25]]),
            "correct": (("model", "prompt", "residue"), np.ones((2, 3, 4), bool)),
        },
        {"model": ["one", "one, not quantized"], "phase": [0, 1]},
        {
            "model": "one", "gap_pp": [60.0, 66.0], "gap_nats": [2.9, 3.05], "widening_pp": 6.0,
            "widening_pp_low": 2.5, "widening_pp_high": 9.75, "widening_nats": 0.15, "widening_nats_low": -0.05,
            "widening_nats_high": 0.35,
        } | attrs,
    )  # fmt: skip


def test_compare_prints_gaps_widening_and_intervals_in_both_units():
    lines = shown(compared())
    text = "\n".join(lines)
    assert row(lines, "accuracy")[2:] == ["60.0", "66.0", "+6.0", "2.5", "to", "9.8"]
    assert row(lines, "log")[3:] == ["2.900", "3.050", "+0.150", "−0.050", "to", "0.350"]
    assert row(lines, "1") == [
        "1",
        "40.0",
        "32.0",
        "−8.0",
        "−9.0",
        "to",
        "−7.0",
        "−0.250",
        "−0.350",
        "to",
        "−0.150",
    ]
    assert "the same 12 prompts" in text
    assert "undefined" not in text
    no_interval = shown(compared(widening_pp_low=np.nan, widening_pp_high=np.nan))
    assert row(no_interval, "accuracy")[-1] == "–"
    assert no_interval[-1].startswith("– undefined: ")


def periods(n: int) -> xr.Dataset:
    """Clean and n units; unit 0.1 follows stride 2, and of unit 0.0 nothing varies."""
    units = ["clean", *(f"{i // 8}.{i % 8}" for i in range(n))]
    p = np.linspace(0.9, 0.5, n + 1)
    p[2], period = 0.004, np.zeros(n + 1, int)
    period[2] = 2
    detectable = np.full(n + 1, 0.25)
    detectable[1] = 0.0
    return xr.Dataset(
        {
            "period": ("unit", period), "p": ("unit", p), "period_p": ("unit", p / 2), "follows": ("unit", period == 2),
            "by_phase": (("unit", "phase"), np.stack([period * 0.0, period * -0.75], axis=1)),
            "gap": ("unit", np.where(period == 2, 1.5, 0.0)), "detectable": ("unit", detectable),
            "score": (("unit", "candidate"), np.stack([period / 4, period * 0.0], axis=1)),
        },
        {"unit": units, "candidate": [2, 3]},
        {"model": "one", "stride": 2, "power": 0.8, "n_prompts": 16, "scored": "logprob"},
    )  # fmt: skip


def test_periods_prints_each_unit_and_who_follows():
    lines = shown(periods(4))
    assert row(lines, "0.1") == ["0.1", "2", "0.004", "1.500", "0.250", "0.500", "1", "yes"]
    assert row(lines, "0.0") == ["0.0", "none", "0.800", "0.000", "–", "0.000", "0"]
    assert row(lines, "clean")[1] == "none"
    assert any(line.startswith("Follows stride 2: 0.1 (p < 0.05 after Holm over 4 units).") for line in lines)
    assert lines[-1] == "– undefined: nothing varies."


def test_many_units_are_counted_not_listed():
    lines = shown(periods(30))
    assert row(lines, "0.1")
    assert (
        sum(line.split()[:1] != [] and "." in line.split()[0][:2] for line in lines if line[:1].isdigit())
        == 24
    )
    assert "6 more units, of higher p, are in the saved result." in lines


def owners(clean_right: int) -> xr.Dataset:
    """Ten prompts of 4 residues; phase 1 answers `clean_right` of its 20."""
    clean = np.ones((10, 4), bool)
    clean[:, 1::2] = (np.arange(20) < clean_right).reshape(2, 10).T
    return xr.Dataset(
        {
            "effect_logprob": (("unit", "phase"), [[-0.5, 0.01], [-6.25, -0.75]]),
            "effect_logprob_p": (("unit", "phase"), [[0.2, 0.9], [0.001, 0.03]]),
            "effect_pp": (("unit", "phase"), [[-5.0, 0.0], [-97.0, -2.0]]),
            "mass": (("unit", "layer", "phase"), np.zeros((2, 1, 2))), "picked": (("layer", "phase"), np.ones((1, 2))),
            "clean_correct": (("prompt", "residue"), clean), "clean_accuracy": ("phase", [1.0, clean_right / 20]),
        },
        {"unit": ["0→0", "0→all"], "owner": ("unit", [0, 0]), "reader": ("unit", [0, -1]), "phase": [0, 1]},
        {"model": "one", "stride": 2},
    )  # fmt: skip


def test_owners_prints_pairs_by_phase_and_says_where_nothing_can_be_lost():
    lines = shown(owners(20))
    assert row(lines, "0→all") == ["0→all", "−6.25*", "−0.75*", "−97", "−2"]
    assert row(lines, "0→0") == ["0→0", "−0.50", "0.01", "−5", "0"]
    assert "undefined" not in "\n".join(lines)
    few = shown(owners(2))
    assert row(few, "0→all") == ["0→all", "−6.25*", "−0.75*", "−97", "–"]
    assert "Unchanged accuracy (%) by phase: 100.0  10.0." in few
    assert few[-1] == "– undefined: fewer than 20 answers right at phase 1, so nothing to lose."


def test_owners_of_many_phases_show_the_largest_loss():
    wide = owners(20)
    wide = wide.drop_vars("clean_correct").isel(phase=[0, 1, 0, 1, 0, 1]).assign_coords(phase=np.arange(6))
    right = np.arange(6) > 0  # nothing at phase 0
    wide = wide.assign(clean_correct=(("prompt", "residue"), np.tile(right, (20, 1))))
    assert row(shown(wide), "0→all") == ["0→all", "−6.25*", "at", "0", "–"]
