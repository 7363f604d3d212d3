"""The benchmark of a sweep's forward passes, and what files and pages say of a GPU."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import hooks
from interp import phase_sweep
from interp.bench.page import page, section
from interp.bench.sweeps import bench_sweep
from interp.cli import main
from tests.interp.test_bench import made


@pytest.fixture(scope="module")
def swept() -> dict:
    return bench_sweep("tiny", n_per_residue=12, repeats=2, threads=1, memory=8 << 20)


def on_gpu(bench: dict) -> dict:
    bench = copy.deepcopy(bench)
    bench["machine"]["gpu"] = "a GPU"
    if "case" in bench:
        bench["case"]["device"] = "cuda"
    return bench


def test_the_plain_way_is_the_sweep(swept):
    expected = phase_sweep(hooks.load("tiny"), n_per_residue=12, seed=0, progress=False)
    assert swept["batches"] > 1  # the last batch is filled up, and what fills it is not counted
    assert swept["ways"]["plain fp32"]["accuracy"] == pytest.approx(expected.accuracy.values.tolist())
    widths = expected.accuracy_high.values - expected.accuracy_low.values
    assert swept["half_width"] == pytest.approx(50 * np.nanmax(widths))


def test_bf16_is_told_from_fp32(swept):
    plain, half = swept["ways"]["plain fp32"], swept["ways"]["plain bf16"]
    assert plain["max_difference"] == plain["accuracy_change"] == 0
    assert half["max_difference"] > 1e-4
    assert len(half["seconds"]) == len(half["cpu_seconds"]) == 2


def test_ways_take_turns(monkeypatch):
    order = []

    def ways(model, place):
        def way(name):
            return lambda tokens: lambda batch: order.append(name) or torch.zeros(len(batch), 1, 512)

        return {name: way(name) for name in ("plain fp32", "other")}

    monkeypatch.setattr("interp.bench.sweeps._ways", ways)
    found = bench_sweep("tiny", n_per_residue=1, repeats=3, threads=1)
    assert found["batches"] == 1
    # The plain way warms the process up; then each way is set up by one batch.
    assert order == ["plain fp32", "plain fp32", "other", *["plain fp32", "other"] * 3]
    assert "3 repeats, all ways in turn" in section(found)


@pytest.mark.parametrize(
    ("seconds", "setup", "said"),
    [
        (2.0, 0.0, "plain bf16: no faster."),
        (0.5, 1.25, "saves 0.5 s of 1 s a sweep; has paid for its set-up after 3 sweep(s)."),
    ],
)
def test_the_page_says_whether_a_way_pays(swept, seconds, setup, said):
    bench = copy.deepcopy(swept)
    bench["ways"]["plain fp32"].update(seconds=[1.0], setup=0.0)
    bench["ways"]["plain bf16"].update(seconds=[seconds], setup=setup)
    assert said in section(bench)


@pytest.mark.parametrize("width", [None, float("nan")])
def test_no_interval_is_said_in_words(swept, width):
    assert "no intervals at this n" in section({**swept, "half_width": width})


def test_pages_name_the_gpu_and_its_command(swept):
    text = page([on_gpu(made()), on_gpu(swept)])
    assert "16 kv_head units, on a GPU" in text
    assert "--device cuda`" in text
    assert "one a GPU, 2 thread(s)" in text
    missing = text.split("## Not measured here")[1]
    assert "bench w8s8-4kv" in missing  # on a GPU is not on a CPU
    assert "--device cuda" not in missing
    assert "--device cuda" in page([made()]).split("## Not measured here")[1]


def test_a_device_that_is_not_there_is_one_line(capsys):
    assert main(["bench", "sweep", "--device", "cuda:99"]) == 2
    assert "cuda:99" in capsys.readouterr().err
