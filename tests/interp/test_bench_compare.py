"""What --compare flags and what it lets pass; what bench refuses before it measures anything."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from hooks.errors import PhaselensError
from interp.bench.compare import compare
from interp.bench.files import load_bench
from interp.bench.lengths import _repeated, doubling
from interp.bench.page import section
from interp.cli import main
from tests.interp.test_bench import long, made

EARLIER = sorted(Path(__file__).parents[2].joinpath("docs/performance").glob("*.json"))
MACHINE = {"processor": "a processor", "threads": 2, "torch": "2"}


def ways(*times) -> dict:
    """A benchmark of a family whose two ways took chosen CPU times; wall times say nothing."""
    names = ("one after the other", "side by side")
    found = {
        name: {"seconds": [1.0] * len(t), "cpu_seconds": list(t)}
        for name, t in zip(names, times, strict=True)
    }
    return {
        "kind": "family", "models": 3, "names": ["a", "b", "c"], "n": 96, "seed": 0, "repeats": 3, "machine": dict(MACHINE),
        "ways": found, "ratio": 1.0, "cpu_ratio": 1.0, "max_difference": 0.0, "what": "Logits.",
    }  # fmt: skip


def noisy(rng: np.random.Generator, repeats: int, slower: float = 1.0, noise: float = 0.05) -> dict:
    drawn = np.exp(noise * rng.standard_normal((2, repeats)))
    return ways(slower * drawn[0], drawn[1])


@pytest.mark.parametrize(("repeats", "slowdown"), [(3, 1.3), (5, 1.2)])
def test_noise_passes_and_slowdowns_do_not(repeats, slowdown):
    """5% noise: of equal code at most 5% of comparisons raise an alarm, of slower code at least 80% do."""
    rng = np.random.default_rng(0)
    alarms = [bool(compare(noisy(rng, repeats), noisy(rng, repeats)).worse) for _ in range(400)]
    assert np.mean(alarms) <= 0.05
    caught = [
        any(
            line.startswith("one after")
            for line in compare(noisy(rng, repeats, slowdown), noisy(rng, repeats)).worse
        )
        for _ in range(200)
    ]
    assert np.mean(caught) >= 0.8


def test_loud_noise_raises_no_more_alarms():
    rng = np.random.default_rng(1)
    alarms = [bool(compare(noisy(rng, 3, noise=0.3), noisy(rng, 3, noise=0.3)).worse) for _ in range(400)]
    assert np.mean(alarms) <= 0.08  # 5% nominal; the upper end of what 400 draws of it give


THREE = {"ours": (1.0, 1.02, 0.98), "bare": (1.0, 1.0, 1.0), "loop": (30.0, 31.0, 30.5)}


@pytest.mark.parametrize(
    ("new", "flagged"),
    [
        ({}, []),
        ({"ours": (1.05, 1.06, 1.07)}, []),  # below 10%
        ({"ours": (1.0, 1.5, 2.0)}, []),  # within its own noise
        ({"ours": (1.3, 1.32, 1.28)}, ["ours: 1.3 times the bare run (median), before 1: 1.30 times as slow"]),
        # A machine that is four times as slow as a whole, and one on which the bare run alone is.
        ({"ours": (4.0, 4.1, 3.9), "bare": (4.0,) * 3, "loop": (120.0, 124.0, 122.0), "matmul": (25.0,) * 3}, []),
        ({"ours": (4.0, 4.1, 3.9), "bare": (4.0,) * 3, "loop": (120.0, 124.0, 122.0)}, ["bare: 4 times its matrix"]),
        ({"peak": (110 << 20,)}, [f"{name}: 110 MiB at least" for name in ("ours", "bare", "transformer_lens")]),
    ],
)  # fmt: skip
def test_a_map_is_held_against_its_bare_run(new, flagged):
    old = made(**THREE, matmul=(100.0,) * 3)
    lines = compare(made(**{**THREE, "matmul": (100.0,) * 3, **new}), old).worse
    assert len(lines) == len(flagged)
    assert all(line.startswith(start) for line, start in zip(lines, flagged, strict=True))


def test_cpu_time_counts_on_a_cpu_and_wall_time_on_a_gpu():
    then, now = ways((1.0, 1.01, 1.02), (1.0, 1.0, 1.0)), ways((2.0, 2.01, 2.02), (1.0, 1.0, 1.0))
    (line,) = compare(now, then).worse
    assert line == "one after the other: 2.01 CPU s (median), before 1.01: 1.99 times as slow"
    for bench in (now, then):
        bench["machine"]["gpu"] = "a GPU"
    assert compare(now, then).worse == []
    now["ways"]["side by side"]["seconds"] = [3.0, 3.0, 3.0]
    assert compare(now, then).worse == ["side by side: 3 s (median), before 1: 3.00 times as slow"]


def test_the_bare_run_counts_by_cpu_rates_of_products():
    """Other programs halve the wall rate of a product, and hide nothing."""
    then = made(**THREE, matmul=(100.0,) * 3)
    now = made(**{**THREE, "bare": (1.5, 1.5, 1.5), "ours": (1.5, 1.52, 1.48)}, matmul=(50.0,) * 3)
    now["methods"]["bare"]["matmul_cpu"] = [100.0] * 3
    assert [line.split(":")[0] for line in compare(now, then).worse] == ["bare"]
    del then["methods"]["bare"]["matmul_cpu"]  # a file from before it was measured
    found = compare(now, then)
    assert found.worse == []
    assert any(note.startswith("bare: not compared, 0 repeats then and 3 now") for note in found.notes)


def test_what_no_longer_runs_is_reported():
    now, then = made(**THREE), made(**THREE)
    now["methods"]["transformer_lens"] = {"skipped": "no such hook"}
    assert compare(now, then).worse == ["transformer_lens ran before and does not any more: no such hook"]
    del now["methods"]["transformer_lens"]
    assert "transformer_lens: not run this time" in compare(now, then).notes
    done = {"seconds": [1.0] * 3, "cpu_seconds": [1.0] * 3, "peak_bytes": [1.0] * 3}
    ran, stopped = long([[1.0] * 3], hf=[done]), long([[1.0] * 3])
    assert compare(stopped, ran).worse == [
        "hugging_face at T = 1,024 ran before and does not any more: out of memory"
    ]


def test_lengths_run_once_are_named_and_not_judged():
    then, now = long([[1.0, 1.0, 1.0], [9.0]]), long([[1.5, 1.5, 1.5], [18.0]])
    found = compare(now, then)
    assert found.worse == ["ours at T = 1,024: 1.5 CPU s (median), before 1: 1.50 times as slow"]
    assert any(
        note.startswith("ours at T = 2,048: not compared, 1 repeats then and 1 now") for note in found.notes
    )


def test_every_kind_can_be_held_against_an_earlier_run_of_its_own():
    stage = {"stage": "import", "seconds": [1.0] * 3, "cpu_seconds": [1.0] * 3, "share": 0.5}
    drawing = {"stage": "export figures", "seconds": [1.0] * 3, "cpu_seconds": [0.1] * 3, "share": 0.5}
    then = {
        "kind": "profile", "model": "m", "n_per_residue": 4, "seed": 0, "machine": MACHINE, "stages": [stage, drawing],
    }  # fmt: skip
    now = copy.deepcopy(then)
    now["stages"][0]["cpu_seconds"] = [2.0] * 3
    now["stages"][1] |= {"seconds": [3.0] * 3}  # another program draws: its CPU time is not ours
    assert compare(now, then).worse == [
        "import: 2 CPU s (median), before 1: 2.00 times as slow",
        "export figures: 3 s (median), before 1: 3.00 times as slow",
    ]
    way = {"seconds": [1.0] * 3, "cpu_seconds": [1.0] * 3}
    then = {
        "kind": "sweep", "model": "m", "n_per_residue": 4, "seed": 0, "machine": MACHINE, "ways": {"plain fp32": way},
    }  # fmt: skip
    now = copy.deepcopy(then)
    now["ways"]["plain fp32"]["cpu_seconds"] = [1.2] * 3
    assert compare(now, then).worse == ["plain fp32: 1.2 CPU s (median), before 1: 1.20 times as slow"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b["case"].update(n=24), "n=24, this one 192"),
        (lambda b: b["machine"].update(processor="another"), "machine.processor='another', this one 'a processor'"),
        (lambda b: b["machine"].update(gpu="a GPU"), "machine.gpu='a GPU', this one None"),
        (lambda b: b.update(kind="family"), "is a family benchmark, this one knockout"),
    ],
)  # fmt: skip
def test_only_equal_settings_on_one_machine_are_compared(change, said):
    other = copy.deepcopy(made(**THREE))
    change(other)
    with pytest.raises(PhaselensError, match=said):
        compare(made(**THREE), other)


def test_two_repeats_are_too_few_and_another_torch_is_told():
    with pytest.raises(
        PhaselensError, match=r"2 repeat\(s\) with times, it takes 3; make it again with --repeats 3"
    ):
        compare(made(**THREE), made())
    other = made(**THREE)
    other["machine"]["torch"] = "1"
    assert "torch was 1 then and is 2 now" in compare(made(**THREE), other).notes


@pytest.fixture
def nothing_runs(monkeypatch):
    """Any measurement fails the test."""

    def fail(*args, **kwargs):
        raise AssertionError("measured")

    for name in (
        "knockouts.bench_knockout",
        "lengths.bench_lengths",
        "profile.profile_report",
        "family.bench_family",
    ):
        monkeypatch.setattr(f"interp.bench.{name}", fail)
    monkeypatch.setattr("interp.bench.sweeps.bench_sweep", fail)


def told(capsys, *words: str) -> str:
    """The one line with which bench refuses."""
    assert main(["bench", *words]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def without(bench: dict, *path: str) -> dict:
    bench = json.loads(json.dumps(bench))
    part = bench
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    return bench


def altered(bench: dict, value, *path: str) -> dict:
    bench = json.loads(json.dumps(bench))
    part = bench
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return bench


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"kind": "knockout"}, "it lacks 'machine'"),
        (altered(made(**THREE), [0.0] * 3, "methods", "bare", "matmul"), "'methods.bare.matmul' is 0.0"),
        (altered(made(**THREE), [0.0] * 3, "methods", "bare", "matmul_cpu"), "'methods.bare.matmul_cpu' is 0.0"),
        (altered(made(**THREE), [1, float("nan"), 1], "methods", "ours", "seconds"), "'methods.ours.seconds' is nan"),
        (altered(made(**THREE), [1, -1, 1], "methods", "ours", "seconds"), "'methods.ours.seconds' is -1"),
        (altered(made(**THREE), "x", "methods", "ours", "scale"), "'methods.ours.scale' is 'x'"),
        (without(made(**THREE), "methods", "bare", "matmul"), "it lacks 'methods.bare.matmul'"),
        (without(made(**THREE), "case"), "it lacks 'case'"),
        (without(made(**THREE), "methods", "transformer_lens", "max_difference"), "'methods.transformer_lens.max_diff"),
        ({**made(**THREE), "repeats": 2}, "'methods.ours.seconds' has 3 of 2 repeats"),
        ({**long([[1.0]]), "layers": "many"}, "'layers' is 'many'"),
        ({**long([[1.0]]), "rows": []}, "'rows' is no list with values"),
        ({**long([[1.0]]), "rows": 5}, "'rows' is no list"),
        (without(ways((1.0,), (1.0,)), "ways", "side by side", "cpu_seconds"), "it lacks 'ways.side by side.cpu_sec"),
    ],
)  # fmt: skip
def test_a_compare_file_is_checked_before_anything_runs(content, said, tmp_path, capsys, nothing_runs):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))
    line = told(capsys, "tiny", "--compare", str(path))
    assert said in line
    assert "give a file of phaselens bench" in line


def test_what_cannot_be_compared_is_told_before_anything_runs(tmp_path, capsys, nothing_runs):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(made(**THREE)))
    assert "is a knockout benchmark, this one sweep" in told(capsys, "sweep", "--compare", str(path))
    assert "model='w8s8-4kv', this one 'tiny'" in told(capsys, "tiny", "--compare", str(path))
    assert "--repeats 2 with --compare; valid: 3 or more" in told(
        capsys, "tiny", "--repeats", "2", "--compare", str(path)
    )
    assert "cannot read" in told(capsys, "tiny", "--compare", str(tmp_path / "none.json"))


def test_a_result_does_not_replace_what_it_is_held_against(tmp_path, capsys, nothing_runs):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(made(**THREE)))
    there = str(tmp_path / "." / "bench.json")
    assert "valid: two files" in told(capsys, "w8s8-4kv", "--compare", str(path), "-o", there)


def test_where_the_result_goes_is_checked_before_anything_runs(tmp_path, capsys, nothing_runs):
    assert "is a folder; valid: the name of a JSON file" in told(capsys, "tiny", "-o", str(tmp_path))
    (tmp_path / "file").write_text("")
    assert "cannot write to" in told(capsys, "tiny", "-o", str(tmp_path / "file" / "bench.json"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "--device", "cpu"), "--device does not apply to bench report; valid: --n, --repeats, --threads, --seed"),
        (("lengths", "--n", "24"), "--n does not apply to bench lengths; valid: --length, --repeats"),
        (("family", "--memory", "1GiB"), "--memory does not apply to bench family"),
        (("sweep", "--loop-units", "4"), "--loop-units does not apply to bench sweep"),
        (("sweep", "--method", "nnsight"), "--method does not apply to bench sweep"),
        (("lengths", "--unit", "head"), "--unit does not apply to bench lengths"),
        (("family", "--calibration", "24"), "--calibration does not apply to bench family"),
        (("w8s8-4kv", "--length", "512"), "--length does not apply to bench w8s8-4kv; valid: --n"),
        (("lengths", "--length", "512"), "--length 512 of lengths; valid: 1024 or more"),
    ],
)  # fmt: skip
def test_an_option_that_would_change_nothing_is_refused(words, said, capsys, nothing_runs):
    assert said in told(capsys, *words)


def test_bare_lengths_have_a_length_of_their_own(monkeypatch, capsys):
    asked = {}
    monkeypatch.setattr(
        "interp.bench.lengths.bench_lengths", lambda **given: asked.update(given) or long([[1.0]])
    )
    assert main(["bench", "lengths", "--repeats", "4"]) == 0
    assert asked["longest"] == 32768
    assert asked["repeats"] == 4
    assert "## Long prompts" in capsys.readouterr().out
    assert doubling(1024, 5000) == [1024, 2048, 4096, 5000]


@pytest.mark.parametrize(
    ("seconds", "repeats", "kept", "warmed"),
    [
        ([9.0, 1.0, 2.0, 3.0], None, [1.0, 2.0, 3.0], True),  # the first, below 10 s, warms up
        ([9.0, 1.0], 1, [1.0], True),
        ([11.0], None, [11.0], False),
        ([11.0, 12.0], 2, [11.0, 12.0], False),
    ],
)
def test_short_runs_are_warmed_up_and_repeated(seconds, repeats, kept, warmed, monkeypatch):
    left = iter(seconds)

    class Made:
        def __init__(self, kind, spec):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            pass

        def ready(self):
            return self

        def ask(self):
            return {"seconds": next(left), "cpu_seconds": 1.0, "peak_bytes": 5.0}

    monkeypatch.setattr("interp.bench.lengths.Worker", Made)
    found = _repeated({}, repeats)
    assert (found["seconds"], found["warmed"]) == (kept, warmed)
    assert next(left, None) is None


def test_a_comparison_ends_with_code_1_and_its_lines(tmp_path, monkeypatch, capsys):
    path = tmp_path / "bench.json"
    then, now = ways((1.0,) * 3, (1.0,) * 3), ways((2.0,) * 3, (1.0,) * 3)
    for bench in (then, now):
        bench["names"] = ["w8s8-2kv", "w8s8-2kv-seed1", "w8s8-2kv-seed2"]
    path.write_text(json.dumps(then))
    monkeypatch.setattr("interp.bench.family.bench_family", lambda **given: now)
    monkeypatch.setattr("interp.bench.knockouts.machine", lambda *args: dict(MACHINE))
    with pytest.raises(SystemExit) as ended:
        main(["bench", "family", "--compare", str(path)])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "phaselens: worse than before: one after the other: 2 CPU s (median), before 1" in said
    assert "note: 2 compared" in said


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.stem)
def test_earlier_files_are_read_and_shown(path):
    bench = load_bench(path)
    text = section(bench)
    assert text.startswith("## ")
    assert "nan" not in text
    raw = json.loads(path.read_text())
    if bench["kind"] == "knockout":  # what an earlier version called floor and ceiling
        old = raw["methods"].get("floor") or raw["methods"]["bare"]
        assert bench["methods"]["bare"]["seconds"] == old["seconds"]
        best = min(raw["methods"]["ours"]["seconds"]) / min(old["seconds"])
        assert bench["summary"]["of_bare"] == pytest.approx(best)
