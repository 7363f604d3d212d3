"""Resumable grids: what counts as done, kills, processes side by side, shards."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

from hooks.errors import CheckpointError, PhaselensError
from interp import cli_run, grid, results
from interp.cli import main
from interp.cli_grid import _part
from interp.grid import LOCKS, Cell, Outcome, cells, finish, run_grid, shard, write_summary

N = 2  # prompts per residue; tiny has 12 residues


def load(model, padding):
    return cli_run.prepare(model, device="cpu", padding=padding)


def states(outcomes):
    return [outcome.state for outcome in outcomes]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder with one finished cell, for copying."""
    folder = tmp_path_factory.mktemp("first")
    assert states(run_grid(cells(["tiny"], verbs=["knockout"], n_per_residue=N), folder, load=load)) == [
        "made"
    ]
    return folder


def names(folder: Path) -> list[str]:
    """Everything in the folder but its locks."""
    return sorted(file.name for file in folder.iterdir() if file.name != LOCKS)


@pytest.fixture(scope="module")
def short(first, tmp_path_factory):
    """Its file with one variable of many, which is quicker to read."""
    (file,) = first.glob("*.nc")
    return results.save(results.load(file)[["effect_pp"]], tmp_path_factory.mktemp("short") / file.name)


@pytest.fixture
def made(short, tmp_path):
    shutil.copy(short, tmp_path)
    return cells(["tiny"], verbs=["knockout"], n_per_residue=N), tmp_path


# --------------------------------------------------------------------------- cells and shards


def test_cells_are_every_combination_once_in_files_of_their_own():
    chosen = cells(
        ["tiny", "a/b", "a-b", "tiny"], verbs=["sweep", "knockout"], seeds=[0, 1, 0], paddings=["prefix", "in_sequence"]
    )  # fmt: skip
    assert len(chosen) == 3 * 2 * 2 * 2
    assert len({cell.file for cell in chosen}) == len(chosen)
    files = [cell.file for cell in chosen if cell.model == "tiny" and cell.seed == 1]
    assert "tiny_sweep_prefix_n64_seed1.nc" in files
    assert all(re.fullmatch(r"[\w.-]+", cell.file) for cell in chosen)


def test_settings_that_change_a_result_change_its_file():
    base = Cell("tiny", "knockout", 0)
    others = [
        Cell("tiny", "knockout", 0, n_per_residue=65), Cell("tiny", "knockout", 0, unit="head"),
        Cell("tiny", "knockout", 0, padding="prefix"), Cell("x" * 300, "knockout", 0), Cell("x" * 299, "knockout", 0),
    ]  # fmt: skip
    assert len({cell.file for cell in [base, *others]}) == 6
    assert max(len(cell.file) for cell in others) <= 83


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_shards_cover_all_cells_exactly_once_in_whatever_order_they_are_named(count):
    chosen = cells(["b", "a", "c"], verbs=["sweep", "knockout"], seeds=range(4))
    parts = [shard(chosen, i, count) for i in range(count)]
    assert sorted(cell for part in parts for cell in part) == sorted(chosen)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    reordered = [shard(chosen[::-1], i, count) for i in range(count)]
    assert [set(part) for part in reordered] == [set(part) for part in parts]


@pytest.mark.parametrize("text", ["2/2", "-1/2", "1", "a/b", "1/0", "0/0", "1/2/3"])
def test_a_wrong_shard_is_named(text):
    with pytest.raises(PhaselensError, match=re.escape(f"--shard '{text}'") + ".*0/4"):
        _part(text)
    assert _part("1/2") == (1, 2)


def test_an_empty_grid_and_an_unknown_verb_are_refused():
    with pytest.raises(PhaselensError, match="without cells"):
        cells([])
    with pytest.raises(PhaselensError, match=r"'swep' cannot be a cell.*sweep"):
        cells(["tiny"], verbs=["swep"])


# --------------------------------------------------------------------------- what counts as done


def test_a_done_cell_is_not_made_again_and_holds_what_the_verb_gives(first, monkeypatch):
    from interp.knockout import knockout

    chosen, folder = cells(["tiny"], verbs=["knockout"], n_per_residue=N), first
    dataset = results.load(folder / chosen[0].file)
    plain = knockout(*load("tiny", "in_sequence"), n=12 * N, seed=0, progress=False)
    assert (dataset["correct"].values == plain["correct"].values).all()
    assert {"serves", "p_selective", "uncovered"} <= set(dataset)
    monkeypatch.setattr("interp.grid._measure", lambda *_: pytest.fail("made again"))
    assert states(run_grid(chosen, folder, load=load)) == ["done"]
    assert names(folder) == [chosen[0].file]


def damage(path):
    blob = bytearray(path.read_bytes())
    dataset = results.load(path)
    at = bytes(blob).find(np.ascontiguousarray(dataset["effect_pp"].values).tobytes())
    assert at > 0
    blob[at + 3] ^= 1
    path.write_bytes(blob)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def alter(**attrs):
    return lambda path: results.save(results.load(path).assign_attrs(**attrs), path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (damage, "content hash"),
        (truncate, "truncated or damaged"),
        (lambda path: path.write_text("mine"), "not a netCDF-4 file"),
        (alter(model_hash="0"), "of another model_hash"),
        (alter(task="{}"), "of another task"),
        (alter(n_per_residue=3), "of another n_per_residue"),
        (alter(replace="zero"), "of another replace"),
    ],
)
def test_a_broken_or_foreign_file_is_made_again_and_said_so(made, change, told, monkeypatch):
    chosen, folder = made
    whole = results.load(folder / chosen[0].file)
    monkeypatch.setattr("interp.grid._measure", lambda *_: whole)
    change(folder / chosen[0].file)
    looked = run_grid(chosen, folder, load=load, dry_run=True)
    assert states(looked) == ["missing"]
    assert told in looked[0].reason
    lines = []
    again = run_grid(chosen, folder, load=load, tell=lines.append)
    assert names(folder) == [chosen[0].file]
    assert states(again) == ["made"]
    assert told in again[0].reason
    assert any("made again" in line and told in line for line in lines)
    assert results.equal(results.load(folder / chosen[0].file), whole)


def test_a_cell_that_fails_leaves_the_others_alone(tmp_path, capsys):
    line = f"grid tiny no-such-model --verb knockout --n-per-residue {N} -o {tmp_path}"
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert "1 of 2 cells failed" in captured.err.splitlines()[-1]
    assert max(map(len, captured.out.replace(str(tmp_path), "").splitlines())) <= 80
    assert re.search(r"^no-such-model +knockout +0 +FAILED$", captured.out, re.MULTILINE)
    assert re.search(r"^tiny +knockout +0 +\d+ +made", captured.out, re.MULTILINE)
    with (tmp_path / "summary.csv").open() as stream:
        rows = {row["model"]: row for row in csv.DictReader(stream)}
    assert (rows["tiny"]["state"], rows["tiny"]["gap_pp"]) == ("made", "")
    assert rows["no-such-model"]["state"] == "failed"
    assert "no-such-model" in rows["no-such-model"]["reason"]


def test_an_unforeseen_error_is_one_cell_too(made, monkeypatch, capsys):
    chosen, folder = made
    (folder / chosen[0].file).unlink()

    def broken(*_):
        raise RuntimeError("out of memory\nsomewhere")

    monkeypatch.setattr("interp.grid._measure", broken)
    (found,) = run_grid(chosen, folder, load=load)
    assert (found.state, found.reason) == ("failed", "out of memory somewhere")
    assert "Traceback" in capsys.readouterr().err
    assert names(folder) == []


def test_dry_run_and_shards_touch_nothing_that_is_not_theirs(tmp_path, capsys):
    folder = tmp_path / "grid"
    line = f"grid tiny --verb knockout --seed 0 --seed 1 --n-per-residue {N} -o {folder}"
    assert main([*line.split(), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("to make") == 2
    assert not folder.exists()
    assert main([*line.split(), "--shard", "1/2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cells"]
    assert [(one["seed"], one["state"]) for one in found] == [(0, "elsewhere"), (1, "made")]
    assert sorted(file.name for file in folder.glob("*.nc")) == [found[1]["file"]]
    assert main([*line.split(), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert (out.count("to make"), out.count("done")) == (1, 1)


def test_the_last_of_the_shards_writes_the_summary_of_all(tmp_path):
    chosen = cells(["tiny"], verbs=["knockout"], seeds=[0, 1], n_per_residue=N)
    parts = [run_grid(chosen, tmp_path, load=load, part=(index, 2)) for index in range(2)]
    assert states(parts[0]) == ["made", "elsewhere"]
    (tmp_path / chosen[1].file).rename(tmp_path / "away")  # the first ends while the second is still at work
    assert states(finish(parts[0], tmp_path, load=load)) == ["made", "elsewhere"]
    (tmp_path / "away").rename(tmp_path / chosen[1].file)
    assert states(finish(parts[1], tmp_path, load=load)) == ["done", "made"]
    busy = [parts[0][0], Outcome(chosen[1], "busy", "another process is making it")]
    for late in (parts[0], busy):  # or, of two that do the same, the one that waited ends last
        found = finish(late, tmp_path, load=load)
        assert states(found) == ["made", "done"]
        rows = list(csv.DictReader((tmp_path / "summary.csv").open()))
        assert [row["state"] for row in rows] == ["made", "done"]
        assert all(row["selective_units"] for row in rows)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(CheckpointError, match="choose a folder"):
        run_grid(cells(["tiny"]), file, load=lambda *_: pytest.fail("work began"))


def test_undefined_numbers_are_empty_in_the_summary(tmp_path):
    found = run_grid(cells(["tiny"], verbs=["sweep"], n_per_residue=N), tmp_path, load=load)
    assert np.isnan(found[0].numbers["gap_pp_low"])  # two prompts have no interval
    (row,) = csv.DictReader(write_summary(found, tmp_path).open())
    assert row["gap_pp_low"] == ""
    assert float(row["gap_pp"]) >= 0


# --------------------------------------------------------------------------- processes

THREE = cells(["tiny"], verbs=["knockout"], seeds=range(3), n_per_residue=N)


def work(folder, log, delay):
    """What a process of its own does: the grid, noting what it measures."""
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    measure = grid._measure

    def noted(cell, *rest):
        with log.open("a") as stream:
            stream.write(cell.file + "\n")
        time.sleep(delay)
        return measure(cell, *rest)

    grid._measure = noted
    run_grid(THREE, folder, load=load)


def start(folder, log, delay):
    process = multiprocessing.get_context("fork").Process(target=work, args=(folder, log, delay))
    process.start()
    return process


def test_a_killed_run_leaves_nothing_half_written_and_the_next_goes_on(tmp_path):
    folder, log = tmp_path / "grid", tmp_path / "log"
    first = start(folder, log, 0.3)
    deadline = time.monotonic() + 120
    while not (log.exists() and len(log.read_text().splitlines()) >= 2):  # one done, one under way
        assert time.monotonic() < deadline
        assert first.is_alive()
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    done = sorted(folder.glob("*.nc"))
    for file in done:
        results.load(file)
    assert len(done) == 1
    under_way = log.read_text().splitlines()[1]
    (folder / f".{under_way.removesuffix('.nc')}.{'a1' * 6}.nc").write_text("half a file")
    times = {file.name: file.stat().st_mtime_ns for file in done}
    assert states(run_grid(THREE, folder, load=load)) == ["done", "made", "made"]
    assert {name: (folder / name).stat().st_mtime_ns for name in times} == times
    assert names(folder) == sorted(cell.file for cell in THREE)


def test_two_processes_side_by_side_never_make_a_cell_twice(tmp_path):
    folder, log = tmp_path / "grid", tmp_path / "log"
    both = [start(folder, log, 0.4) for _ in range(2)]
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    begun = log.read_text().splitlines()
    assert sorted(begun) == sorted(cell.file for cell in THREE)  # each once
    assert names(folder) == sorted(begun)


def test_a_cell_held_elsewhere_is_busy(made):
    chosen, folder = made
    (folder / chosen[0].file).unlink()
    (folder / LOCKS).mkdir()
    with FileLock(folder / LOCKS / chosen[0].file):
        (found,) = run_grid(chosen, folder, load=load)
    assert (found.state, found.reason) == ("busy", "another process is making it")
    assert states(run_grid(chosen, folder, load=load)) == ["made"]
