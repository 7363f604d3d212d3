"""The replication: verdicts on synthetic results with known answers, the mapping, and one real run."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hooks.checkpoint import zoo, zoo_info, zoo_path
from hooks.errors import PhaselensError, StatisticsError
from interp import claims, cli_run, replicate, results, stats
from interp.claims import Change, Claim, Finding, Interval, Measured
from interp.cli import main
from interp.grid import run_grid
from interp.published import load_published
from interp.specialization import specialization

R = 24
ROOT = Path(__file__).parents[2]


def sweep_of(correct, stride, *, placebo=False, period=0, seed=0, task="t"):
    """A sweep with the attributes that claims read, by the statistics' own functions."""
    low, high = stats.gap_interval(correct, stride, seed=seed)
    attrs = {
        "stride": stride, "gap_pp": 100 * stats.phase_gap(correct, stride), "gap_pp_low": 100 * low,
        "gap_pp_high": 100 * high, "null_gap_pp": 100 * stats.null_gap(correct, stride, seed=seed),
        "worst_phase": int(correct.reshape(-1, stride).mean(0).argmin()), "period": period, "period_p": 0.001,
        "seed": seed, "task": task, **({"placebo": 1} if placebo else {}),
    }  # fmt: skip
    return xr.Dataset({"correct": (("prompt", "residue"), correct)}, attrs=attrs)


def model(accuracy, *, n=64, name="m", units=None, draw=0, **options):
    """A model of known accuracy (0 to 1) by phase; `units`: accuracy by phase without each unit."""
    rng = np.random.default_rng(draw)
    stride = len(accuracy)
    uniform = rng.random((n, R))
    clean = uniform < np.tile(accuracy, R // stride)
    after = np.stack([uniform < np.tile(row, R // stride) for row in (units or [accuracy])])
    knockout = xr.Dataset(
        {
            "correct": (("unit", "prompt", "residue"), after), "clean_correct": (("prompt", "residue"), clean),
            "logprob": (("unit", "prompt", "residue"), np.where(after, -0.1, -3.0)),
            "clean_logprob": (("prompt", "residue"), np.where(clean, -0.1, -3.0)),
        },
        coords={"unit": [f"0.{i}" for i in range(len(after))]}, attrs={"stride": stride},
    )  # fmt: skip
    served = specialization(knockout)
    knockout = knockout.assign(served.data_vars).assign_attrs(served.attrs)
    return Measured(name, sweep_of(clean, stride, **options), knockout)


def verdicts(claim):
    return [finding.verdict for finding in claim.findings]


def sweep_stub(correct, stride=8):
    return xr.Dataset({"correct": (("prompt", "residue"), correct)}, attrs={"stride": stride, "seed": 0})


WEAK = [0.95] * 7 + [0.2]
FLAT = [0.9] * 8


# --------------------------------------------------------------------------- intervals and verdicts


def test_intervals_without_spread_get_the_bound_of_so_many_prompts():
    nan = (math.nan, math.nan)
    for n, low in ((12, 75.75), (64, 94.34)):  # Wilson: n / (n + 1.96²)
        assert Interval.of(100.0, nan, n).low == pytest.approx(low, abs=0.01)
        assert Interval.of(100.0, nan, n).high == pytest.approx(100)
        assert Interval.of(0.0, nan, n).high == pytest.approx(100 - low, abs=0.01)
    assert math.isnan(Interval.of(33.0, nan, 64).low)
    assert math.isnan(Interval.of(100.0, nan, 9).low)  # too few for any interval
    assert Interval.of(5.0, (1.0, 9.0), 64) == Interval(5.0, 1.0, 9.0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(6, 20, "supported"), (4, 20, "undecided"), (1, 9, "not supported"), (1, 10.5, "undecided"),
     (math.nan, math.nan, "undecided")],
)  # fmt: skip
def test_a_verdict_is_where_the_interval_lies(low, high, verdict):
    assert claims.decide(Interval(7, low, high), above=5, below=10) == verdict


@pytest.mark.parametrize(
    ("over", "found", "verdict"),
    [
        ("every", "yy", "supported"), ("every", "yn", "not supported"), ("every", "yu", "undecided"),
        ("every", "un", "not supported"), ("any", "un", "undecided"), ("any", "yn", "supported"),
        ("any", "nn", "not supported"), ("every", "", "undecided"), ("any", "", "undecided"),
    ],
)  # fmt: skip
def test_a_claim_is_decided_by_all_its_findings(over, found, verdict):
    words = {"y": "supported", "n": "not supported", "u": "undecided"}
    claim = Claim("c", "r", tuple(Finding("m", "", words[c]) for c in found), over)
    assert claim.verdict == verdict
    assert claim.verdict_at(12) == verdict + (" at n = 12" if verdict == "undecided" else "")
    assert claim.counts() == (found.count("y"), found.count("n"), found.count("u"))


# --------------------------------------------------------------------------- claims with known answers


def test_a_gap_is_seen_a_flat_model_has_none_and_few_prompts_decide_nothing():
    always = model([1.0] * 8)
    found = claims.gap_claim([model(WEAK), always, model(FLAT, n=12, draw=3), model([1.0] * 8, n=12)])
    assert verdicts(found) == ["supported", "not supported", "undecided", "undecided"]
    assert found.verdict == "not supported"
    full = [
        model(accuracy, placebo=True, n=n, draw=3)
        for accuracy, n in ((WEAK, 64), ([1.0] * 8, 64), (FLAT, 12))
    ]
    assert claims.gap_claim(full).findings == ()
    assert verdicts(claims.full_attention_claim(full)) == ["not supported", "supported", "undecided"]


def gapped(monkeypatch, p, **intervals):
    """Models by name whose gap has such an interval and p, whatever is in their sweep, with a number for a table."""
    tables = {name: np.full((64, R), float(i)) for i, name in enumerate(intervals)}

    def gap_of(by, seed):
        return Interval(*list(intervals.values())[round(by.flat[0]) // 100])

    monkeypatch.setattr(claims, "_gap_of", gap_of)
    monkeypatch.setattr(stats, "gap_test", lambda by, **_: p)
    return {name: Measured(name, sweep_stub(table), xr.Dataset()) for name, table in tables.items()}


@pytest.mark.parametrize("p", [0.001, 0.3])
def test_a_model_has_a_gap_by_one_rule_in_every_claim(p, monkeypatch):
    """A significant gap surely below 10 pp is none, for chunked models and full attention alike."""
    few = (8, math.nan, math.nan)
    models = gapped(monkeypatch, p, small=(5.8, 3.9, 7.4), wide=(25, 12, 40), open=(8, 2, 15), few=few)
    seen = "supported" if p < 0.05 else "undecided"
    assert verdicts(claims.gap_claim(models.values())) == ["not supported", seen, seen, "undecided"]
    assert [m.name for m in claims._with_gap(models.values())] == (["wide", "open"] if p < 0.05 else [])
    full = [Measured(m.name, m.sweep.assign_attrs(placebo=1), m.knockout) for m in models.values()]
    none = "not supported" if p < 0.05 else "undecided"
    assert verdicts(claims.full_attention_claim(full)) == ["supported", none, none, "undecided"]


def test_a_gap_is_closed_only_where_it_was_and_surely_shrank(monkeypatch):
    models = gapped(
        monkeypatch, 0.001, small=(5.8, 3.9, 7.4), wide=(25, 12, 40), open=(8, 2, 15), none=(1, 0, 5)
    )
    apart = {"wide none": (-24.0, -39.0, -9.0), "open none": (-7.0, -14.5, 2.0), "wide open": (-17.0, -30.0, -4.0),
             "open wide": (17.0, 4.0, 30.0)}  # fmt: skip
    monkeypatch.setattr(claims, "difference", lambda a, b, stride: Interval(*apart[f"{a.name} {b.name}"]))
    pairs = [(models["small"], models["none"])] + [tuple(models[m] for m in pair.split()) for pair in apart]
    found = claims.closing_claim(pairs)
    assert [one.subject for one in found.findings] == [
        "wide → none",
        "open → none",
        "wide → open",
        "open → wide",
    ]
    assert verdicts(found) == ["not supported", "undecided", "undecided", "supported"]
    assert "by the first rule" in found.rule


def test_models_without_a_gap_rarely_seem_to_have_one():
    """Of 40 flat models at most 5, the upper end of the binomial interval of 5%, though residues of a phase agree."""
    rng = np.random.default_rng(1)
    flat = []
    for _ in range(40):
        correct = np.tile(rng.random((16, 8)) < rng.uniform(0.3, 0.95), 3)
        sweep = xr.Dataset({"correct": (("prompt", "residue"), correct)}, attrs={"stride": 8, "seed": 0})
        flat.append(Measured("m", sweep, xr.Dataset()))
    assert claims.gap_claim(flat).counts()[0] <= 5


def test_the_period_must_be_the_stride():
    found = [model(WEAK, period=period) for period in (8, 4, 16, 0, 6, 5)]
    told = ["supported", "undecided", "undecided", "undecided", "not supported", "not supported"]
    assert verdicts(claims.period_claim(found)) == told


def test_the_worst_phase_against_the_boundary_phase():
    found = claims.boundary_claim(
        [
            model(WEAK),
            model([0.95, 0.2] + [0.95] * 6),
            model([0.4] * 2 + [0.9] * 4 + [0.4] * 2, n=24),
            model(FLAT),
        ]
    )
    assert verdicts(found) == ["supported", "not supported", "undecided"]  # a flat model has no worst phase
    assert "surely below it: 1" in found.findings[1].measured
    extreme = claims.boundary_claim([model([1.0] * 7 + [0.0])])
    assert verdicts(extreme) == ["supported"]


@pytest.mark.parametrize(("accuracy", "n_trials"), [([0.5] * 7 + [0.45], 60), ([0.5] * 8, 60)])
def test_a_boundary_that_is_no_better_than_others_is_rarely_said_to_be(accuracy, n_trials, monkeypatch):
    """By the least of noisy means it was, in 11% and 13%; now in at most the binomial interval of 2.5%."""
    monkeypatch.setattr(claims, "_phase_gap", lambda m: ("supported", ""))
    rng = np.random.default_rng(4)
    models = []
    for _ in range(n_trials):
        sweep = sweep_stub(rng.random((64, R)) < np.tile(accuracy, 3))
        models.append(Measured("m", sweep, xr.Dataset()))
    yes, no, _ = claims.boundary_claim(models).counts()
    assert no <= 4
    assert yes <= 4
    worse = [
        Measured("m", sweep_stub(rng.random((64, R)) < np.tile([0.2] + [0.5] * 7, 3)), xr.Dataset())
        for _ in range(20)
    ]
    assert claims.boundary_claim(worse).counts()[1] >= 16  # 30 pp below the boundary: power of 80% or more


def test_a_gap_at_the_boundary_alone_is_no_gap_inside():
    found = claims.inside_claim([model([1.0] * 7 + [0.2]), model([0.3, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.1])])
    assert verdicts(found) == ["not supported", "supported"]


def test_more_heads_close_the_gap_or_do_not():
    few = model(WEAK, name="few")
    found = claims.closing_claim(
        [
            (few, model(WEAK, draw=1)),
            (few, model([1.0] * 8)),
            (model(WEAK, n=12), model([1.0] * 8, n=12)),
            (model(FLAT), few),
        ]
    )
    assert verdicts(found) == [
        "supported",
        "not supported",
        "undecided",
    ]  # a model without a gap has none to close


def direction(*pairs, by=-30.0):
    """A published change by so many pp, and 5 more from the other seed, tested on pairs."""
    return claims.direction_claim(Change("x", (("a", 60.0), ("b", 65.0)), ("c", 60.0 + by), pairs, "note"))


def test_a_change_is_held_against_the_papers_direction():
    wide, narrow, again = model([0.95] * 7 + [0.1]), model([0.95] * 7 + [0.8], draw=3), model(WEAK, draw=4)
    found = direction((wide, narrow), (narrow, wide), (wide, again))
    assert verdicts(found) == ["supported", "not supported", "undecided"]
    assert verdicts(direction((wide, narrow), by=30.0)) == ["not supported"]
    four = model([0.95] * 4, draw=5)  # another stride: residues are the same for both
    assert verdicts(direction((wide, four))) == ["supported"]
    with pytest.raises(StatisticsError, match="another task"):
        direction((wide, model(WEAK, task="other")))
    with pytest.raises(
        StatisticsError, match="64 × 24 and 32 × 24 prompts × residues; valid: results on the same"
    ):
        direction((wide, model(WEAK, n=32)))


def test_a_change_names_its_published_runs_and_the_gap_it_is_about():
    found = direction()
    assert "residue gaps on both sides" in found.rule
    assert "“a” 60.0 → “c” 30.0 (−30.0 pp); “b” 65.0 → “c” 30.0 (−35.0 pp)" in found.rule
    assert found.note == "note"
    with pytest.raises(StatisticsError, match="one direction"):
        direction(by=2.0)


def test_a_model_without_a_gap_has_none_that_narrows():
    flat, better, wide = model([0.5] * 8, draw=6), model([1.0] * 8), model(WEAK)
    found = direction((flat, better), (better, wide))
    assert verdicts(found) == ["undecided", "undecided"]
    assert all("no gap that could narrow" in finding.measured for finding in found.findings)
    assert verdicts(direction((flat, wide), by=30.0)) == ["supported"]  # a gap may widen from nothing


def test_the_difference_of_gaps_is_paired_and_by_residue():
    first, second = model(WEAK), model([0.95] * 6 + [0.5, 0.2], draw=1)
    (finding,) = direction((first, second)).findings
    gaps = [np.ptp(m.correct.mean(0)) for m in (first, second)]
    told = float(finding.measured.split("difference ")[1].split()[0].replace("−", "-"))
    assert told == pytest.approx(100 * (gaps[1] - gaps[0]), abs=0.051)


def test_gaps_without_spread_are_bounded_as_differences_are():
    """12 prompts that all show it: π ≥ 73.5% of them do, and the gap may be as low as π − (1 − π) = 47 pp."""
    gap = claims.gap_interval(np.tile(np.arange(4) > 0, (12, 6)), 4, seed=0)
    assert gap.value == 100
    assert gap.low <= 100 * (2 * 0.025 ** (1 / 12) - 1)


def test_one_prompt_decides_nothing():
    one = model(WEAK, n=1, period=8)
    for claim in (claims.gap_claim([one]), claims.period_claim([one]), claims.heads_claim([one]),
                  claims.uncovered_claim([one]), direction((one, one))):  # fmt: skip
        assert claim.counts()[:2] == (0, 0)
    assert "not tested: 1 prompts" in claims.period_claim([one]).findings[0].measured
    assert claims.boundary_claim([one]).findings == claims.inside_claim([one]).findings == ()


def without(phases):
    return [0.05 if phase in phases else 0.95 for phase in range(8)]


def test_specialized_heads_and_phases_served_by_none():
    sharing = model([0.95] * 8, units=[without({0, 1}), without({7}), without({3, 4, 5})])
    broad = model([0.95] * 8, units=[without(range(8)), without(())])
    few = model([0.95] * 8, n=10, units=[[0.55] * 2 + [0.95] * 6])
    heads = claims.heads_claim([sharing, broad, few])
    assert verdicts(heads) == ["supported", "not supported", "undecided"]
    assert heads.findings[0].measured == "0.0 → 0–1; 0.1 → 7; 0.2 → 3–5"
    bare = claims.uncovered_claim([sharing, broad])
    assert verdicts(bare) == ["supported", "not supported"]
    assert bare.findings[0].measured == "surely by none: 2, 6; surely by one: 3–5, 7–1"
    assert bare.verdict == "supported"


def test_losses_are_those_of_the_counts_and_undefined_below_twenty_right():
    m = model([0.9] * 7 + [0.05], n=32, units=[[0.9] * 6 + [0.3, 0.05]])
    found = claims.losses_with_bounds(m)
    clean = m.knockout["clean_correct"].values.reshape(-1, 8).sum(0)
    after = m.knockout["correct"].values[0].reshape(-1, 8).sum(0)
    assert clean[7] < 20
    assert np.isnan(found[0, 7]).all()
    assert found[0, :7, 0] == pytest.approx(100 * (clean - after)[:7] / clean[:7])
    assert found[0, 6, 1] < found[0, 6, 0] < found[0, 6, 2]
    assert (found[0, 0, 0], found[0, 0, 1]) == (0, 0)
    assert found[0, 0, 2] == pytest.approx(100 * (1 - 32 / (32 + 1.96**2)), abs=0.01)


def test_a_loss_without_spread_is_bounded_by_the_prompts_that_had_something_to_lose():
    """Of 40 prompts 12 answer phase 0, and the unit loses or keeps all: Wilson of 12, low end 12 / (12 + 1.96²)."""
    clean = np.tile(np.array([[True, True]]), (40, R // 2))
    clean[12:, ::2] = False  # phase 0 of stride 2
    after = clean & np.tile([False, True], R // 2)
    found = claims.loss_bounds(clean, after[None], 2, seed=0)
    assert found[0, 0] == pytest.approx([100, 100 * 12 / (12 + 1.96**2), 100], abs=0.01)
    assert found[0, 1] == pytest.approx([0, 0, 100 * (1 - 40 / (40 + 1.96**2))], abs=0.01)
    clean[9:, ::2] = False  # 9 prompts with 12 right answers each are too few for any interval
    assert np.isnan(claims.loss_bounds(clean, (clean & after)[None], 2, seed=0)[0, 0, 1:]).all()


# --------------------------------------------------------------------------- runs


def test_every_published_run_has_a_counterpart_of_its_shape():
    published = [run["name"] for run in load_published("controlled_runs")["runs"]]
    assert [one.published for one in replicate.COUNTERPARTS] == published
    for one in replicate.COUNTERPARTS:
        config = json.loads((zoo_path(one.model) / "config.json").read_text())["config"]
        assert (config["n_layers"], config["d_model"], config["n_heads"]) == (4, 128, 4)  # as the page says
        heads = int(one.published.partition(" KV")[0].split()[-1])
        if heads != config["n_kv_heads"]:
            assert f"{config['n_kv_heads']} KV heads, not {heads}" in one.differences
        if one.published.startswith("W"):
            assert one.published.startswith(f"W{config['window']}/S{config['stride']},")
        assert (config["attention"] == "full") == one.published.startswith("full")
        assert (config["rope_dims"] == 0) == ("no RoPE" in one.published)
        assert (config["gate"] == "uniform") == ("uniform" in one.published)
        assert config["tied_kv"] == ("DeepSeek" in one.published)
    named = [name for _, _, pairs, _ in replicate.CHANGES for pair in pairs for name in pair]
    named += [name for pair in replicate.MORE_HEADS for name in pair]
    assert set(named) | set(replicate.ALSO) <= set(zoo())
    assert {*replicate.BASES, *(changed for _, changed, _, _ in replicate.CHANGES)} <= set(published)


def test_a_model_that_went_on_from_another_is_paired_with_that_one_alone():
    for _, _, pairs, _ in replicate.CHANGES:
        for base, changed in pairs:
            start = zoo_info(changed).get("started_from")
            assert start is None or start["command"] == zoo_info(base)["command"]


def test_numbers_by_residue_are_the_published_ones_kind():
    correct = np.random.default_rng(0).random((40, R)) < np.linspace(0.2, 0.9, R)
    mean, worst, gap, null = replicate.by_residue(correct, seed=0)
    by = 100 * correct.mean(0)
    assert (mean.value, worst.value, gap.value) == pytest.approx((by.mean(), by.min(), by.max() - by.min()))
    for one in (mean, worst, gap):
        assert one.low < one.value
        assert one.low < one.high
    assert 0 < null < gap.value


def test_an_unknown_model_is_named(tmp_path):
    with pytest.raises(PhaselensError, match=r"'tiny' is not part of the replication.*full-4kv"):
        replicate.replicate(tmp_path, load=lambda *_: pytest.fail("work began"), models=["tiny"])


def check_outputs(folder, n):
    page = (folder / "replication.md").read_text()
    assert f"`phaselens replicate --n-per-residue {n} --seed 5 --padding prefix --model w8s8-1kv" in page
    rows = list(csv.DictReader((folder / "runs.csv").open()))
    assert [row["model"] for row in rows] == ["w8s8-1kv", "w8s8-1kv", "w8s8-4kv"]
    assert rows[0]["published_gap_pp"] == "75.3"
    assert rows[0]["mean_low"] == ""  # two prompts have no interval
    sweep = results.load(folder / "cells" / f"w8s8-4kv_sweep_prefix_n{n}_seed5.nc")
    assert float(rows[2]["mean"]) == pytest.approx(100 * sweep["correct"].values.mean())
    found = list(csv.DictReader((folder / "claims.csv").open()))
    assert {row["verdict"] for row in found if "gap" in row["claim"].lower()} <= {"undecided"}


@pytest.mark.slow
def test_a_run_on_two_small_models(tmp_path):
    """The whole way on real runs of small models, in the places of two that take longer."""
    from hooks.config import preset
    from hooks.transformer import CompressedTransformer

    def load(name, padding):
        trained, task = cli_run.prepare("tiny", device="cpu", padding=padding)
        return (trained if name == "w8s8-1kv" else CompressedTransformer(preset("tiny")).eval()), task

    first = replicate.replicate(tmp_path, load=load, models=["w8s8-1kv", "w8s8-4kv"], n_per_residue=2, seed=5)
    assert {one.state for one in first.outcomes} == {"made"}
    check_outputs(tmp_path, 2)
    chosen = [one.cell for one in first.outcomes]
    again = run_grid(chosen, tmp_path / "cells", load=load, dry_run=True)
    assert {one.state for one in again} == {"done"}  # which a second call would start from


@pytest.mark.slow
def test_a_real_run_on_two_models(tmp_path, capsys):
    line = f"replicate --model w8s8-1kv --model w8s8-4kv --n-per-residue 2 --seed 5 -o {tmp_path}"
    assert main(line.split()) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= 80
    check_outputs(tmp_path, 2)


def test_the_page_in_the_docs_is_of_the_present_claims():
    """Rules and texts stand in it as the code has them now; a changed rule needs a new page."""
    text = (ROOT / "docs" / "replication.md").read_text()
    models = [model(WEAK), model(FLAT, placebo=True)]
    made = [
        claims.gap_claim(models), claims.full_attention_claim(models), claims.period_claim(models),
        claims.boundary_claim(models), claims.inside_claim(models), claims.closing_claim([(models[0], models[0])]),
        claims.heads_claim(models), claims.uncovered_claim(models),
    ]  # fmt: skip
    for claim in made:
        assert f"## {claim.text}\n\nRule: {claim.rule}.\n" in text


def test_a_model_that_fails_is_told_on_the_page(tmp_path):
    def load(name, padding):
        raise PhaselensError(f"no {name}")

    found = replicate.replicate(tmp_path, load=load, models=["full-4kv"])
    assert [one.state for one in found.outcomes] == ["failed", "failed"]
    assert (found.runs, found.claims) == ((), ())
    assert "no full-4kv" in (tmp_path / "replication.md").read_text()


def test_quick_and_a_number_of_prompts_are_refused_together(tmp_path, capsys):
    assert main(f"replicate --quick --n-per-residue 100 -o {tmp_path}".split()) == 2
    assert "--quick and --n-per-residue 100" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
