"""The benchmark: ways agree, counts are right, files and pages say what was measured and what was missed."""

from __future__ import annotations

import copy
import io
import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

from hooks.errors import PhaselensError
from interp import cli_bench
from interp.bench import methods, page_map, worker
from interp.bench.cases import Case, Loaded
from interp.bench.ceilings import Ceilings, Work, work_of
from interp.bench.compare import compare
from interp.bench.family import bench_family
from interp.bench.files import load_bench
from interp.bench.fits import fits, power_fit
from interp.bench.knockouts import _compare_answers, bench_knockout, machine, summarise
from interp.bench.lengths import bench_lengths
from interp.bench.page import page, section
from interp.bench.processes import Worker, space_for_workers
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


def test_the_reference_is_more_exact_and_leaves_the_model_as_it_is(tiny):
    exact, ours = methods.METHODS["float64"](tiny), methods.ours(tiny)
    assert exact.dtype == torch.float64
    assert tiny.model.W_E.dtype == ours.dtype == torch.float32
    apart = (exact - ours).abs()
    assert 0 < float(apart.max()) < 1e-5
    clean = copy.deepcopy(tiny.model).double()(tiny.prompts.tokens, last_only=True)[:, -1].log_softmax(-1)
    expected = clean.gather(1, tiny.prompts.answer[:, None])[:, 0]
    torch.testing.assert_close(exact[0], expected.detach(), rtol=0, atol=1e-12)


def test_distances_from_the_reference_are_relative_above_one():
    found: dict = {name: {} for name in ("ours", "bare", "transformer_lens", "float64")}
    answers = {
        "ours": {"logprob": [[-1.0, -4.0], [-0.5, -2.0], [-3.0, -0.1]], "n_units": 2},
        "bare": {"logprob": [[0.0, 0.0]]},
        "transformer_lens": {"logprob": [[-1.0, -4.0], [-3.0, -0.3]], "units": [1]},
        "float64": {"logprob": [[-1.0, -5.0], [-0.5, -2.0], [-3.0, -0.1]]},
    }
    _compare_answers(found, answers, Case("tiny", 2, 2))
    assert found["transformer_lens"]["max_difference"] == pytest.approx(0.2)  # -0.3 for -0.1
    assert found["ours"]["from_float64"] == found["float64"]["max_difference"] == pytest.approx(0.2)  # 1 of 5
    assert found["transformer_lens"]["from_float64"] == pytest.approx(0.2)


def test_the_page_tells_rounding_from_mistakes():
    bench = made(loop=(30.0, 31.0))
    ways = bench["methods"]
    ways["float64"] = dict(ways["bare"])
    ways["ours"]["from_float64"], ways["transformer_lens"]["from_float64"] = 4e-5, 7e-5
    ways["float64"]["max_difference"] = 4e-5
    bench["summary"] = summarise(ways, Case(**bench["case"]))
    assert bench["summary"]["agree"]  # the reference is no way whose answer could be wrong
    assert "off: ours" not in section(bench)
    ways["transformer_lens"]["max_difference"] = 3e-5
    bench["summary"] = summarise(ways, Case(**bench["case"]))
    text = section(bench)
    assert "differ by up to 3.0e-05" in text
    assert "From float64 they are off: ours by 4.0e-05, TransformerLens loop by 7.0e-05." in text
    assert "--method transformer_lens --method hugging_face --method float64" in text


@pytest.mark.slow
@pytest.mark.parametrize("way", ["transformer_lens", "nnsight", "hugging_face"])
def test_every_way_agrees_on_the_hugging_face_class(way):
    loaded = Loaded.of(Case("hfv4-mix", 48, 48, unit="head", loop_units=2))
    rows = [0, *(1 + index for index in loaded.loop_units())]
    torch.testing.assert_close(methods.METHODS[way](loaded), methods.ours(loaded)[rows], rtol=1e-5, atol=1e-5)


def test_the_bare_run_runs_the_same_positions_and_replaces_nothing(tiny):
    found = methods.bare(tiny)
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


def test_the_floor_is_the_slower_of_operations_and_bytes():
    assert Ceilings(matmul=100, copy=10).floor(Work(200, 10)) == 2
    assert Ceilings(matmul=100, copy=10).floor(Work(200, 50)) == 5


def made(
    ours=(1.0, 1.1), bare=(1.0, 1.0), loop=(30.0, 31.0), peak=(100 << 20, 101 << 20), matmul=(100.0, 200.0)
) -> dict:
    """A benchmark's JSON with chosen times."""

    def way(seconds, **more):
        return {
            "seconds": list(seconds), "cpu_seconds": list(seconds), "peak_bytes": (list(peak) * len(ours))[: len(ours)],
            "scale": 1.0, **more,
        }  # fmt: skip

    n = len(ours)
    matmul = (list(matmul) * n)[:n]
    found = {
        "ours": way(ours),
        "bare": way(
            bare, operations=[100] * n, bytes=[10] * n, matmul=matmul, matmul_cpu=matmul, copy=[10.0] * n
        ),
        "transformer_lens": way(loop, max_difference=1e-6),
        "hugging_face": {"skipped": "it is no such model"},
    }
    case = Case("w8s8-4kv", 192, 24)
    machine = {"threads": 2, "processor": "a processor", "torch": "2"}
    return {
        "kind": "knockout", "case": case.to_dict(), "machine": machine, "repeats": n, "units": 16, "methods": found,
        "summary": summarise(found, case),
    }  # fmt: skip


def test_ratios_are_of_best_repeats():
    summary = made(ours=(2.0, 1.5), bare=(1.0, 3.0), loop=(45.0, 60.0))["summary"]
    assert summary["times_ours"] == {"transformer_lens": 30.0}
    assert summary["of_bare"] == 1.5
    assert summary["floor_seconds"] == 1.0  # 10 bytes at 10/s take longer than 100 operations at 200/s
    assert summary["of_floor"] == 1.5


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
    assert "within 2× of the bare run. Reached: 1× (wall), 1× (CPU). Of the floor it is 1× (wall)" in text
    assert (
        "within 2× of the bare run. Missed: 2.5× (wall), 2.5× (CPU). Of the floor it is 2.5× (wall)" in text
    )
    assert "Hugging Face eager loop: it is no such model." in text
    missing = text.split("## Not measured here")[1]
    assert "random-28" in missing
    assert "bench w8s8-4kv" not in missing


@pytest.mark.parametrize(
    ("model", "n", "calibration", "whole"),
    [("tiny", 5, None, (12, 12)), ("tiny", 13, 13, (24, 24)), ("w8s8-4kv", None, None, (192, 24)), ("random-2", 5, None, (5, 1))],
)  # fmt: skip
def test_prompts_are_whole_blocks_of_the_models_own_residues(model, n, calibration, whole):
    none = dict.fromkeys(("length", "unit", "method", "memory", "loop_units"))
    plan, _ = cli_bench._map_planned(
        model, {}, n=n, calibration=calibration, repeats=1, threads=1, seed=0, device="cpu", **none
    )
    assert (plan["case"]["n"], plan["case"]["n_calibration"]) == whole


@pytest.mark.parametrize(
    ("repeats", "of_bare", "told"),
    [(1, 1.1, "means nothing (one run"), (3, 0.283, "means nothing (below 0.8×"), (3, 1.1, "Reached"), (3, 2.1, "Missed")],
)  # fmt: skip
def test_a_ratio_that_means_nothing_is_not_called_reached(repeats, of_bare, told):
    bench = {
        "case": {"model": "tiny", "unit": "kv_head"}, "units": 4, "repeats": repeats,
        "summary": {"times_ours": {}, "of_bare": of_bare, "cpu_of_bare": of_bare, "of_floor": 3.0},
    }  # fmt: skip
    (line,) = page_map._targets(bench)
    assert told in line
    assert ("Reached" in line) == (told == "Reached")


def test_the_page_says_when_other_programs_took_the_cores():
    idle, busy = made(), made()
    idle["case"]["threads"] = busy["case"]["threads"] = 1
    busy["methods"]["ours"]["cpu_seconds"] = [0.1, 0.2]
    assert "busy with other programs" not in page([idle])
    assert "busy with other programs: wall time was 1 to 10 times" in page([busy])


def test_a_limit_of_memory_stands_beside_the_times():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (900 << 30, hard))
    try:
        limited = made() | {"machine": machine(2)}
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert "address space of a process limited to 900 GiB" in page([limited])
    assert "address space" not in page([made()])


def test_workers_may_use_the_memory_that_is_free(monkeypatch):
    """On Linux without a limit the kernel would end other programs for one that needs more."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < space_for_workers("cpu")["address_space_bytes"] <= total
    limits = []
    monkeypatch.setattr(worker, "limit_address_space", limits.append)
    monkeypatch.setattr(worker, "_length", lambda spec: lambda line: {})
    worker.main("length", '{"threads": 1, "address_space_bytes": 5}', io.StringIO(), io.StringIO())
    assert limits == [5]
    code = "from interp.bench.processes import *; limit_address_space(1 << 30); print(len(bytearray({})))"
    fits, fails = (
        subprocess.run([sys.executable, "-c", code.format(size)], capture_output=True, text=True, check=False)
        for size in ("1 << 26", "1 << 31")
    )
    assert fits.stdout == "67108864\n"
    assert "MemoryError" in fails.stderr


@pytest.mark.slow
def test_a_process_that_needs_more_fails_alone():
    spec = {
        "side": "hugging_face", "length": 16384, "layers": 1, "d_model": 64, "threads": 1, "seed": 0, "device": "cpu",
        "address_space_bytes": 4 << 30,  # 16 heads' patterns of T² alone are 16 GiB
    }  # fmt: skip
    with Worker("length", spec) as process, pytest.raises(PhaselensError, match="memory"):
        process.ready().ask()


@pytest.mark.slow
def test_lengths_are_run_on_both_sides():
    found = bench_lengths(longest=200, shortest=128, repeats=2, layers=2, d_model=64, threads=1)
    assert [row["length"] for row in found["rows"]] == [128, 200]
    assert all(len(row[side]["seconds"]) == 2 for row in found["rows"] for side in ("ours", "hugging_face"))
    assert found["machine"]["address_space_bytes"] > 0
    assert "--length 200 --repeats 2" in section(found)


def test_powers_of_a_length_are_found_and_shared_out():
    exact = power_fit([1024, 2048, 4096], [3.0, 5.0, 9.0], highest=1)
    assert exact["coefficients"] == pytest.approx([1, 2])
    assert exact["shares"] == pytest.approx([1 / 9, 8 / 9])
    assert np.allclose(exact["relative_residuals"], 0)
    bent = power_fit([1024, 2048, 4096], [1.0, 4.0, 16.0], highest=1)["relative_residuals"]
    assert max(map(abs, bent)) > 0.1
    lengths = [1024 << k for k in range(8)]
    curve = power_fit(lengths, [0.5 + 2 * t + 0.01 * t**2 for t in (1, 2, 4, 8, 16, 32, 64, 128)], highest=2)
    assert curve["coefficients"] == pytest.approx([0.5, 2, 0.01])
    whole = 0.5 + 256 + 163.84
    assert curve["shares"] == pytest.approx([0.5 / whole, 256 / whole, 163.84 / whole])


def long(seconds: list[list[float]], *, hf: list[dict] | None = None) -> dict:
    """A benchmark of lengths with chosen times of ours, one list per length from 1024 on."""
    stopped = [{"stopped": "out of memory"}] * len(seconds)
    rows = [
        {
            "length": 1024 << k, "hugging_face": other,
            "ours": {"seconds": each, "cpu_seconds": each, "peak_bytes": [k + 1.0] * len(each), "warmed": len(each) > 1},
        }
        for k, (each, other) in enumerate(zip(seconds, hf or stopped, strict=True))
    ]  # fmt: skip
    machine = {"threads": 2, "processor": "a processor", "torch": "2"}
    return {
        "kind": "lengths", "layers": 8, "d_model": 1024, "longest": rows[-1]["length"], "seed": 0, "asked_repeats": None,
        "most_seconds": 600.0, "machine": machine, "rows": rows, "fits": fits(rows, gpu=False),
    }  # fmt: skip


def test_the_page_says_what_ran_at_each_length_and_how_it_grows():
    text = section(long([[1.01 + 1, 1.01], [2.04], [4.16], [8.64]]))  # t + 0.01·t²
    assert "Fit of our CPU time: 0 + 1·(T/1024) + 0.01·(T/1024)² s" in text
    assert "At T = 8,192 it is made of: 0% the constant, 93% T, 7% T²" in text  # 8 and 0.64 of 8.64
    assert "Fit of our memory: " in text
    assert "(T/1024)² MiB" not in text
    assert "4 experts of width 1024 of which each token uses 2" in text
    assert "1.01 … 2.01" in text
    assert "a single number is of one run" in text
    assert "Each side ran once at each length." in section(long([[1.0], [2.0]]))


def test_a_stage_inside_another_counts_in_its_own(monkeypatch):
    now, cpu = iter([0.0, 1.0, 3.0, 6.0, 10.0]), iter([0.0, 0.5, 0.75, 1.75, 3.75])
    monkeypatch.setattr("interp.bench.profile.time.perf_counter", lambda: next(now))
    monkeypatch.setattr("interp.bench.profile.time.process_time", lambda: next(cpu))
    watch = Stopwatch()
    watch.wrap("outer", watch.wrap("inner", lambda: None))()
    assert watch.seconds == {"outer": 2.0 + 4.0, "inner": 3.0}
    assert watch.cpu_seconds == {"outer": 0.25 + 2.0, "inner": 1.0}


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
    found = bench_knockout(case, repeats=3, methods=["transformer_lens"], say=said.append)
    order = [line.split(": ")[1].split()[0] for line in said if line.startswith("repeat")]
    assert order == ["ours", "bare", "transformer_lens"] * 3
    assert found["summary"]["agree"]
    loop = found["methods"]["transformer_lens"]
    assert loop["max_difference"] <= 1e-5
    assert loop["scale"] == (24 + 24 * 5) / (24 + 24 * 2)  # 4 units, of which 1 ran
    assert all(len(way["seconds"]) == 3 for way in found["methods"].values())
    assert all(min(way["peak_bytes"]) > 50 << 20 for way in found["methods"].values())
    assert compare(found, json.loads(json.dumps(found))).worse == []
    assert found["machine"]["address_space_bytes"] > 0


def test_a_model_that_does_not_exist_is_one_line(capsys):
    assert main(["bench", "no-such-model", "--repeats", "1"]) == 2
    assert "no-such-model" in capsys.readouterr().err


def test_a_way_that_fails_in_the_middle_leaves_the_others(monkeypatch):
    class Failing:
        """A process whose loop has no memory left when it comes to it."""

        def __init__(self, kind, spec):
            self.name = spec["method"]

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            pass

        def ready(self):
            return self

        def ask(self, line="go"):
            if self.name == broken:
                raise PhaselensError("out of memory")
            if line == "answers":
                return {"logprob": [[-1.0]] * 5, "units": [0, 1, 2, 3], "n_units": 4}
            yardstick = (
                {"operations": 1, "bytes": 1, "matmul": 1.0, "copy": 1.0} if self.name == "bare" else {}
            )
            return {"seconds": 1.0, "cpu_seconds": 1.0, "peak_bytes": 1, **yardstick}

    monkeypatch.setattr("interp.bench.knockouts.Worker", Failing)
    case, methods = Case("tiny", 24, 24), ["transformer_lens", "nnsight"]
    broken = "nnsight"
    found = bench_knockout(case, repeats=2, methods=methods)
    assert found["methods"]["nnsight"] == {"skipped": "out of memory"}
    assert found["methods"]["transformer_lens"]["seconds"] == [1.0, 1.0]
    assert "nnsight loop: out of memory." in section(found)
    broken = "bare"
    with pytest.raises(PhaselensError, match="bare: out of memory"):
        bench_knockout(case, repeats=2, methods=methods)


def test_a_family_is_not_trained_on_a_processor():
    found = bench_family(n=24, repeats=1, threads=1, seed=0)
    assert set(found["ways"]) == {"one after the other", "side by side"}
    assert "training" not in section({**found, "seed": 0})
