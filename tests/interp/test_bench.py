"""The benchmark: ways agree, counts are right, regressions are found, pages say what was missed."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from hooks.errors import PhaselensError
from interp.bench import methods
from interp.bench.cases import Case, Loaded
from interp.bench.ceilings import Ceilings, Work, work_of
from interp.bench.compare import load_bench, regressions
from interp.bench.knockouts import bench_knockout, summarise
from interp.bench.lengths import linear_fit
from interp.bench.page import page
from interp.bench.profile import Stopwatch
from interp.cli import main
from interp.memory import parse_bytes, show_bytes


@pytest.fixture(scope="module")
def tiny() -> Loaded:
    return Loaded.of(Case("tiny", 24, 24))


@pytest.mark.parametrize("way", ["transformer_lens", "nnsight"])
def test_every_way_gives_the_engines_numbers(tiny, way):
    expected = methods.ours(tiny)
    assert expected.shape == (1 + len(tiny.units), 24)
    assert float((expected[1:] - expected[0]).abs().max()) > 1e-2  # knockouts do something
    torch.testing.assert_close(methods.METHODS[way](tiny), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["transformer_lens", "nnsight", "hugging_face"])
def test_every_way_agrees_on_the_hugging_face_class(way):
    loaded = Loaded.of(Case("hfv4-mix", 48, 48, unit="head", loop_units=2))
    rows = [0, *(1 + index for index in loaded.loop_units())]
    torch.testing.assert_close(methods.METHODS[way](loaded), methods.ours(loaded)[rows], rtol=1e-5, atol=1e-5)


def test_the_floor_runs_the_same_positions_and_replaces_nothing(tiny):
    found = methods.floor(tiny)
    clean = methods.ours(tiny)[0]
    torch.testing.assert_close(found, clean.expand_as(found), rtol=1e-5, atol=1e-5)


def test_hugging_face_eager_is_refused_for_other_models(tiny):
    with pytest.raises(PhaselensError, match="no Hugging Face model; valid for: hfv4-mix"):
        methods.hugging_face(tiny)


def test_work_is_counted_from_shapes():
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    assert work_of(lambda: a @ b) == Work(2 * 3 * 5 * 7, 4 * (15 + 35 + 21))
    q = torch.ones(2, 4, 6, 8)  # batch 2, heads 4, 6 queries and keys of 8
    attention = work_of(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    assert attention.operations == 2 * 2 * 4 * 6 * 6 * (8 + 8)
    assert work_of(lambda: a + a) == Work(0, 0)


def test_a_ceiling_is_the_slower_of_operations_and_bytes():
    assert Ceilings(matmul=100, copy=10).seconds(Work(200, 10)) == 2
    assert Ceilings(matmul=100, copy=10).seconds(Work(200, 50)) == 5


def made(ours=(1.0, 1.1), floor=(1.0, 1.0), loop=(30.0, 31.0), peak=(100, 101)) -> dict:
    """A benchmark's JSON with chosen times."""

    def way(seconds, **more):
        return {
            "seconds": list(seconds),
            "cpu_seconds": list(seconds),
            "peak_bytes": list(peak),
            "scale": 1.0,
            **more,
        }

    found = {
        "ours": way(ours),
        "floor": way(floor, operations=[100, 100], bytes=[10, 10], matmul=[100.0, 200.0], copy=[10.0, 10.0]),
        "transformer_lens": way(loop, max_difference=1e-6),
        "hugging_face": {"skipped": "it is no such model"},
    }
    case = Case("w8s8-4kv", 192, 24)
    machine = {"threads": 2, "processor": "a processor", "torch": "2"}
    return {
        "kind": "knockout", "case": case.to_dict(), "machine": machine, "repeats": 2, "units": 16, "methods": found,
        "summary": summarise(found, case),
    }  # fmt: skip


def test_ratios_are_of_best_repeats():
    summary = made(ours=(2.0, 1.5), floor=(1.0, 3.0), loop=(45.0, 60.0))["summary"]
    assert summary["times_ours"] == {"transformer_lens": 30.0}
    assert summary["of_floor"] == 1.5
    assert summary["ceiling_seconds"] == 1.0  # 10 bytes at 10/s take longer than 100 operations at 200/s
    assert summary["of_ceilings"] == 1.5


@pytest.mark.parametrize(
    ("new", "flagged"),
    [
        ({}, []),
        ({"ours": (1.05, 1.3)}, []),  # overlaps with what was seen before
        ({"ours": (1.2, 1.3)}, ["ours: 1.20 to 1.30 times the floor, before 1.00 to 1.10"]),
        (
            {"ours": (4.0, 4.4), "floor": (4.0, 4.0), "loop": (120.0, 124.0)},
            ["floor: 4.00"],
        ),  # floor vs its ceiling
        ({"peak": (110, 111)}, ["ours: 0 MiB at least", "floor: 0 MiB", "transformer_lens: 0 MiB"]),
    ],
)
def test_a_regression_is_what_no_repeat_before_was_as_slow_as(new, flagged):
    lines = regressions(made(**new), made())
    assert len(lines) == len(flagged)
    assert all(line.startswith(start) for line, start in zip(lines, flagged, strict=True))


def test_only_equal_settings_are_compared():
    other = copy.deepcopy(made())
    other["case"]["n"] = 24
    with pytest.raises(PhaselensError, match="n=24, this one 192"):
        regressions(made(), other)


@pytest.mark.parametrize("text", ["{", "[]", '{"kind": "else"}'])
def test_a_file_that_is_no_benchmark_is_one_line(text, tmp_path, capsys):
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(PhaselensError):
        load_bench(path)
    assert main(["bench", "tiny", "--compare", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_page_says_what_was_reached_and_what_was_missed():
    text = page([made(loop=(30.0, 31.0)), made(ours=(2.5, 2.6), loop=(30.0, 31.0))])
    assert "at least 20× below the TransformerLens loop. Reached: 30×" in text
    assert "at least 20× below the TransformerLens loop. Missed: 12×" in text
    torn = made(loop=(30.0, 31.0))
    torn["summary"]["cpu_times_ours"]["transformer_lens"] = 19.0  # wall times of a busy machine prove nothing
    assert "Missed: 30× (wall), 19× (CPU)" in page([torn])
    assert "within 2× of the floor. Reached: 1×" in text
    assert "within 2× of the floor. Missed: 2.5×" in text
    assert "Hugging Face eager loop: it is no such model." in text
    missing = text.split("## Not measured here")[1]
    assert "random-28" in missing
    assert "bench w8s8-4kv" not in missing


def test_the_page_says_when_other_programs_took_the_cores():
    idle, busy = made(), made()
    idle["case"]["threads"] = busy["case"]["threads"] = 1
    busy["methods"]["ours"]["cpu_seconds"] = [0.1, 0.2]
    assert "busy with other programs" not in page([idle])
    assert "busy with other programs: wall time was 1 to 10 times" in page([busy])


def test_a_limit_of_memory_stands_beside_the_times():
    code = (
        "import json, resource; resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30));"
        "from interp.bench.knockouts import machine; print(json.dumps(machine(2)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    limited, free = made() | {"machine": json.loads(done.stdout)}, made()
    assert "address space limited to 24 GiB" in page([limited])
    assert "address space" not in page([free])


def test_linear_fit_and_its_residuals():
    exact = linear_fit([1024, 2048, 4096], [3.0, 5.0, 9.0])
    assert exact["intercept"] == pytest.approx(1)
    assert exact["slope"] == pytest.approx(2)
    assert np.allclose(exact["relative_residuals"], 0)
    bent = linear_fit([1024, 2048, 4096], [1.0, 4.0, 16.0])["relative_residuals"]
    assert max(map(abs, bent)) > 0.1


def test_a_stage_inside_another_counts_in_its_own(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr("interp.bench.profile.time.perf_counter", lambda: next(now))
    watch = Stopwatch()
    watch.wrap("outer", watch.wrap("inner", lambda: None))()
    assert watch.seconds == {"outer": 2.0 + 4.0, "inner": 3.0}


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("512m", 512 << 20), ("1.5 GB", 3 << 29), ("1048576", 1 << 20)]
)
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "many", "1KiB", "-2GiB", "2 apples"])
def test_wrong_sizes_are_refused(text):
    with pytest.raises(PhaselensError, match="valid: 1MiB or more"):
        parse_bytes(text)


def test_sizes_are_shown():
    assert [show_bytes(n) for n in (12, 1536, 5 << 20, 3 << 30)] == ["12 B", "1.5 KiB", "5 MiB", "3 GiB"]


@pytest.mark.slow
def test_processes_run_interleaved_and_their_answers_are_compared():
    said: list[str] = []
    case = Case("tiny", 24, 24, loop_units=1)
    found = bench_knockout(case, repeats=2, methods=["transformer_lens"], say=said.append)
    order = [line.split(": ")[1].split()[0] for line in said if line.startswith("repeat")]
    assert order == ["ours", "floor", "transformer_lens"] * 2
    assert found["summary"]["agree"]
    loop = found["methods"]["transformer_lens"]
    assert loop["max_difference"] <= 1e-5
    assert loop["scale"] == (24 + 24 * 5) / (24 + 24 * 2)  # 4 units, of which 1 ran
    assert all(len(way["seconds"]) == 2 for way in found["methods"].values())
    assert all(min(way["peak_bytes"]) > 50 << 20 for way in found["methods"].values())
    assert regressions(found, json.loads(json.dumps(found))) == []


def test_a_model_that_does_not_exist_is_one_line(capsys):
    assert main(["bench", "no-such-model", "--repeats", "1"]) == 2
    assert "no-such-model" in capsys.readouterr().err
