"""Output folders appear whole or not at all."""

from __future__ import annotations

import hashlib
import json

import pytest

from hooks.errors import CheckpointError
from interp.outputs import output_folder, write_json


def tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_new_folder_appears_with_its_parents(tmp_path):
    with output_folder(tmp_path / "a" / "b") as staging:
        (staging / "one.txt").write_text("1")
        assert not (tmp_path / "a" / "b").exists()
    assert tree(tmp_path) == ["a/b/files.json", "a/b/one.txt"]
    (run,) = json.loads((tmp_path / "a/b/files.json").read_text())["runs"]
    assert list(run) == ["one.txt"]


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
        for name in ("same.txt", "sub/gone.txt", "edited.txt"):
            (staging / name).write_text("first")
    (out / "notes.txt").write_text("mine")
    (out / "edited.txt").write_text("mine now")
    with output_folder(out) as staging:
        (staging / "same.txt").write_text("second")
    assert tree(tmp_path) == ["r/edited.txt", "r/files.json", "r/notes.txt", "r/same.txt"]
    assert (out / "same.txt").read_text() == "second"
    assert not (out / "sub").exists()


def test_nothing_outside_the_folder_or_behind_a_link_is_ever_removed(tmp_path):
    out, elsewhere = tmp_path / "r", tmp_path / "elsewhere"
    write(out, sweep="0")
    elsewhere.mkdir()
    for place in (tmp_path / "outside.txt", elsewhere / "keep.txt", out / "own.txt"):
        place.write_text("x")
    (out / "link").symlink_to(elsewhere)
    (out / "alias.txt").symlink_to(elsewhere / "keep.txt")
    told = json.loads((out / "files.json").read_text())
    digest = hashlib.sha256(b"x").hexdigest()
    names = ["../outside.txt", str(tmp_path / "outside.txt"), "link/keep.txt", "alias.txt", "own.txt", "a\0b"]
    told["runs"][0] |= dict.fromkeys(names, digest)
    (out / "files.json").write_text(json.dumps(told))
    write(out, sweep="1")
    assert not (out / "own.txt").exists()  # the same digest, inside: it would have removed the others
    assert (tmp_path / "outside.txt").exists()
    assert (elsewhere / "keep.txt").exists()
    assert (out / "alias.txt").is_symlink()


@pytest.mark.parametrize(
    "text",
    ['{"my": "list"}', "not json", '{"made_by": "phaselens", "runs": [3]}', '{"made_by": "phaselens", "runs": [[1]]}', "[]"],
)  # fmt: skip
def test_another_program_s_list_or_a_damaged_one_is_found_before_any_work(tmp_path, text):
    (tmp_path / "files.json").write_text(text)
    with pytest.raises(CheckpointError, match="not made by phaselens or is damaged"), output_folder(tmp_path):
        pytest.fail("work has begun")
    assert tree(tmp_path) == ["files.json"]
    assert (tmp_path / "files.json").read_text() == text


def test_a_report_json_of_another_program_removes_nothing(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("mine")
    (tmp_path / "report.json").write_text('{"meta": {"format": 2}, "files": {"src/a.py": {}}}')
    write(tmp_path, sweep="0")
    assert tree(tmp_path) == ["files.json", "report.json", "src/a.py", "sweep.nc"]


@pytest.mark.parametrize("blocked", ["sweep.nc/", "figures"])
def test_a_name_that_is_taken_is_found_before_anything_changes(tmp_path, blocked):
    out = tmp_path / "r"
    write(out, old="0")
    place = out / blocked.rstrip("/")
    place.mkdir() if blocked.endswith("/") else place.write_text("mine")
    before = {name: (out / name).read_bytes() for name in ("files.json", "old.nc")}
    with (
        pytest.raises(
            CheckpointError, match=f"{blocked.rstrip('/')} is a fi|{blocked.rstrip('/')} is a folder"
        ),
        output_folder(out) as staging,
    ):
        (staging / "figures").mkdir()
        for name in ("old.nc", "sweep.nc", "figures/a.svg"):
            (staging / name).write_text("1")
    assert {name: (out / name).read_bytes() for name in before} == before
    assert tree(tmp_path) == sorted(
        f"r/{name}" for name in [*before, *([] if place.is_dir() else ["figures"])]
    )


def test_a_run_that_is_replaced_goes_whole(tmp_path):
    for number, names in enumerate((["knockout.nc", "figures/old.svg"], ["knockout.nc"])):
        with output_folder(tmp_path / "r") as staging:
            (staging / "figures").mkdir()
            for name in names:
                (staging / name).write_text(str(number))
        if number == 0:
            (tmp_path / "r" / "notes.txt").write_text("mine")
    assert tree(tmp_path / "r") == ["files.json", "knockout.nc", "notes.txt"]
    assert (tmp_path / "r" / "knockout.nc").read_text() == "1"


def write(folder, **files):
    with output_folder(folder) as staging:
        for name, text in files.items():
            (staging / f"{name}.nc").write_text(text)


def test_runs_that_share_no_file_stand_side_by_side(tmp_path):
    out, zero = tmp_path / "r", hashlib.sha256(b"0").hexdigest()
    write(out, sweep="0")
    write(out, knockout="0", controls="0")
    assert json.loads((out / "files.json").read_text()) == {
        "made_by": "phaselens",
        "runs": [{"sweep.nc": zero}, {"controls.nc": zero, "knockout.nc": zero}],
    }
    write(out, knockout="7")
    assert tree(out) == ["files.json", "knockout.nc", "sweep.nc"]
    with output_folder(out) as staging:
        for name in ("sweep", "knockout", "extra"):
            (staging / f"{name}.nc").write_text("0")
        write_json({"files": ["sweep.nc"], "notice": ""}, staging / "report.json")
    assert tree(out) == ["extra.nc", "knockout.nc", "report.json", "sweep.nc"]
    told = json.loads((out / "report.json").read_text())
    assert told["files"] == ["sweep.nc"]
    assert told["digests"] == dict.fromkeys(["extra.nc", "knockout.nc", "sweep.nc"], zero)
    write(out, patch="1")
    assert tree(out) == ["extra.nc", "files.json", "knockout.nc", "patch.nc", "report.json", "sweep.nc"]
    write(out, sweep="2")  # the report goes with it
    assert tree(out) == ["files.json", "patch.nc", "sweep.nc"]
