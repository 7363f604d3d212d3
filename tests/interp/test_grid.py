"""Resumable grids: what counts as done, kills, processes side by side, shards."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from hooks.errors import CheckpointError, PhaselensError
from interp import cli_run, grid, results
from interp.cell_lock import Held, Holder, hold
from interp.cli import main
from interp.cli_grid import _part
from interp.grid import Cell, cells, run_grid, shard, write_summary

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


@pytest.fixture(scope="module")
def short(first, tmp_path_factory):
    """Its file with one variable of many, which is quicker to read."""
    (file,) = first.iterdir()
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
    assert sorted(file.name for file in folder.iterdir()) == [chosen[0].file]


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
    assert sorted(file.name for file in folder.iterdir()) == [chosen[0].file]
    assert states(again) == ["made"]
    assert told in again[0].reason
    assert any("made again" in line and told in line for line in lines)
    assert results.equal(results.load(folder / chosen[0].file), whole)


def test_a_sweep_takes_the_clean_run_of_the_finished_knockout(first, tmp_path, monkeypatch):
    folder = shutil.copytree(first, tmp_path / "grid")
    monkeypatch.setattr("interp.engine.run", lambda *_, **__: pytest.fail("the model ran again"))
    found = run_grid(cells(["tiny"], verbs=["sweep"], n_per_residue=N), folder, load=load)
    assert states(found) == ["made"]
    correct = results.load(folder / found[0].cell.file)["correct"].values
    knocked = results.load(folder / "tiny_knockout-kv_head_in_sequence_n2_seed0.nc")
    assert (correct == knocked["clean_correct"].values).all()
    assert found[0].numbers["gap_pp"] == pytest.approx(
        100 * np.ptp(correct.reshape(N, 3, 4).mean(axis=(0, 1)))
    )


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
    assert list(folder.iterdir()) == []


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
    (lock,) = folder.glob(".*.lock")
    (folder / f".{lock.stem.removeprefix('.').removesuffix('.nc')}.{'a1' * 6}.nc").write_text("half a file")
    times = {file.name: file.stat().st_mtime_ns for file in done}
    assert states(run_grid(THREE, folder, load=load)) == ["done", "made", "made"]
    assert {name: (folder / name).stat().st_mtime_ns for name in times} == times
    assert sorted(file.name for file in folder.iterdir()) == sorted(cell.file for cell in THREE)


def test_two_processes_side_by_side_never_make_a_cell_twice(tmp_path):
    folder, log = tmp_path / "grid", tmp_path / "log"
    both = [start(folder, log, 0.4) for _ in range(2)]
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    names = log.read_text().splitlines()
    assert sorted(names) == sorted(cell.file for cell in THREE)  # each once
    assert sorted(file.name for file in folder.iterdir()) == sorted(names)


# --------------------------------------------------------------------------- locks


def test_a_lock_keeps_others_out_and_says_who_has_it(tmp_path):
    lock = tmp_path / ".lock"
    with hold(lock), pytest.raises(Held, match=f"process {os.getpid()} on"), hold(lock):
        pytest.fail("held twice")
    with pytest.raises(ZeroDivisionError), hold(lock):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_free_once_its_process_is_dead_or_its_pid_another_process(tmp_path):
    lock = tmp_path / ".lock"
    ended = subprocess.Popen(["true"])
    ended.wait()
    me = Holder.me()
    for host, pid, began in (
        (me.host, ended.pid, 0), (me.host, me.pid, me.started - 1), (me.host, ended.pid, 5),
    ):  # fmt: skip
        lock.write_text(json.dumps({"host": host, "pid": pid, "started": began}))
        with hold(lock):
            assert json.loads(lock.read_text())["pid"] == os.getpid()
    lock.write_text("damaged")
    with hold(lock):
        pass
    assert not lock.exists()


def test_a_lock_of_another_host_is_never_taken(tmp_path):
    lock = tmp_path / ".lock"
    lock.write_text(json.dumps({"host": socket.gethostname() + "-other", "pid": 2**22 + 1, "started": 0}))
    with pytest.raises(Held, match="delete"), hold(lock):
        pytest.fail("taken")
    assert lock.exists()


def test_a_cell_held_elsewhere_is_busy(made):
    chosen, folder = made
    (folder / chosen[0].file).unlink()
    with hold(folder / f".{chosen[0].file}.lock"):
        (found,) = run_grid(chosen, folder, load=load)
    assert found.state == "busy"
    assert str(os.getpid()) in found.reason


TAKE = """
import sys, time
from pathlib import Path
from interp.cell_lock import Held, hold
folder = Path(sys.argv[1])
while not (folder / "go").exists():
    pass
wins = 0
for i in range(40):
    try:
        with hold(folder / f"lock{i}"):
            (folder / f"inside{i}").touch(exist_ok=False)  # an error if another is inside
            time.sleep(0.001)
            (folder / f"inside{i}").unlink()
    except Held:
        pass
"""


def test_many_that_find_a_dead_process_lock_at_once_do_not_get_in_together(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    for i in range(40):
        stale = {"host": socket.gethostname(), "pid": ended.pid, "started": 0}
        (tmp_path / f"lock{i}").write_text(json.dumps(stale))
    racing = [
        subprocess.Popen([sys.executable, "-c", TAKE, str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    time.sleep(0.5)
    (tmp_path / "go").touch()
    told = [process.communicate(timeout=60)[1] for process in racing]
    assert told == ["", "", "", ""]
    assert [file.name for file in tmp_path.iterdir()] == ["go"]
