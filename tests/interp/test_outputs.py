"""Output folders appear whole or not at all."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import xarray as xr

from hooks.errors import CheckpointError
from interp.outputs import output_folder, to_plain, write_json


def tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_new_folder_appears_with_its_parents(tmp_path):
    with output_folder(tmp_path / "a" / "b") as staging:
        (staging / "one.txt").write_text("1")
        assert not (tmp_path / "a" / "b").exists()
    assert tree(tmp_path) == ["a/b/files.json", "a/b/one.txt"]
    assert json.loads((tmp_path / "a/b/files.json").read_text()) == {"runs": [["one.txt"]]}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_behind_on_an_error(tmp_path, error):
    with pytest.raises(error), output_folder(tmp_path / "a" / "b") as staging:
        (staging / "one.txt").write_text("1")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_an_existing_folder_as_it_was(tmp_path):
    (tmp_path / "kept.txt").write_text("old")
    with pytest.raises(ValueError), output_folder(tmp_path) as staging:
        (staging / "kept.txt").write_text("new")
        raise ValueError
    assert tree(tmp_path) == ["kept.txt"]
    assert (tmp_path / "kept.txt").read_text() == "old"
    assert not [p for p in tmp_path.parent.iterdir() if p.name.startswith(f".{tmp_path.name}")]


def test_a_rerun_replaces_its_own_files_and_keeps_foreign_ones(tmp_path):
    out = tmp_path / "r"
    with output_folder(out) as staging:
        (staging / "sub").mkdir()
        for name in ("same.txt", "sub/gone.txt"):
            (staging / name).write_text("first")
        write_json(
            {"files": ["same.txt", "sub/gone.txt", "../outside.txt", "/etc/hostname"]},
            staging / "report.json",
        )
    (tmp_path / "outside.txt").write_text("mine")
    (out / "notes.txt").write_text("mine")
    with output_folder(out) as staging:
        (staging / "same.txt").write_text("second")
    assert tree(tmp_path) == ["outside.txt", "r/files.json", "r/notes.txt", "r/same.txt"]
    assert (out / "same.txt").read_text() == "second"
    assert not (out / "sub").exists()


@pytest.mark.parametrize("manifests", ["files files", "files report", "report files", "report report"])
def test_a_run_that_is_replaced_goes_whole(tmp_path, manifests):
    for number, (kind, names) in enumerate(
        zip(manifests.split(), (["knockout.nc", "figures/old.svg"], ["knockout.nc"]), strict=True)
    ):
        with output_folder(tmp_path / "r") as staging:
            (staging / "figures").mkdir()
            for name in names:
                (staging / name).write_text(str(number))
            if kind == "report":
                write_json({"files": [*names, "report.json"]}, staging / "report.json")
        if number == 0:
            (tmp_path / "r" / "notes.txt").write_text("mine")
    assert tree(tmp_path / "r") == sorted([f"{manifests.split()[1]}.json", "knockout.nc", "notes.txt"])
    assert (tmp_path / "r" / "knockout.nc").read_text() == "1"


@pytest.mark.parametrize("below", ["", "/deep/down"])
def test_a_file_in_the_way_is_named(tmp_path, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="file"), output_folder(f"{tmp_path}/file{below}"):
        pytest.fail("work began")
    assert tree(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_written_leaves_no_parents(tmp_path, monkeypatch):
    mkdir = os.mkdir

    def refuse(path, *args, **kwargs):
        if os.fspath(path).startswith(str(tmp_path / "a" / ".b")):
            raise PermissionError(13, "Permission denied")
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(CheckpointError, match="Permission denied"), output_folder(tmp_path / "a" / "b"):
        pytest.fail("work began")
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_as_plain_values_has_no_prompt_axis_and_no_nan():
    dataset = xr.Dataset(
        {"accuracy": ("phase", [0.5, np.nan]), "correct": (("prompt", "phase"), np.ones((3, 2), bool))},
        {"phase": [0, 1]},
        {"stride": 2, "names": ["a", "b"], "gap_pp": np.float64("nan")},
    )
    plain = to_plain(dataset)
    assert json.loads(json.dumps(plain, allow_nan=False)) == {
        "attrs": {"stride": 2, "names": ["a", "b"], "gap_pp": None},
        "coords": {"phase": {"dims": ["phase"], "values": [0, 1]}},
        "variables": {"accuracy": {"dims": ["phase"], "values": [0.5, None]}},
    }


def write(folder, **files):
    with output_folder(folder) as staging:
        for name, text in files.items():
            (staging / f"{name}.nc").write_text(text)


def test_runs_that_share_no_file_stand_side_by_side(tmp_path):
    out = tmp_path / "r"
    write(out, sweep="0")
    write(out, knockout="0", controls="0")
    assert json.loads((out / "files.json").read_text()) == {
        "runs": [["sweep.nc"], ["controls.nc", "knockout.nc"]]
    }
    write(out, knockout="7")
    assert tree(out) == ["files.json", "knockout.nc", "sweep.nc"]
    with output_folder(out) as staging:
        for name in ("sweep", "knockout"):
            (staging / f"{name}.nc").write_text("9")
        write_json({"files": ["sweep.nc", "knockout.nc"]}, staging / "report.json")
    assert tree(out) == ["knockout.nc", "report.json", "sweep.nc"]
    write(out, patch="1")
    assert tree(out) == ["files.json", "knockout.nc", "patch.nc", "report.json", "sweep.nc"]
