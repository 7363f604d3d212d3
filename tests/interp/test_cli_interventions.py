"""The intervention verbs of the command line, with their controls, end to end on the smallest model."""

import pytest

from interp import results
from interp.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("knockout tiny --n 72 --controls", ["knockout", "specialization", "controls"]),
        (
            "patch tiny --n 72 --unit entry --direction denoising --pairs value --controls",
            ["patch", "controls"],
        ),
        (
            "gates tiny --n 120 --cycle 1 --cycle -1 --controls",
            ["gates", "cycling", "controls", "controls_cycling"],
        ),
    ],
)
def test_verbs_save_results_that_say_where_they_came_from(line, files, folder, capsys):
    out = folder / line.split()[0]
    assert main([*line.split(), "--seed", "3", "-o", str(out)]) == 0, capsys.readouterr().err
    capsys.readouterr()
    loaded = {name: results.load(out / f"{name}.nc") for name in files}
    for dataset in loaded.values():
        assert dataset.attrs["seed"] == 3
        for name in ("model", "model_hash", "task", "version_torch", "created"):
            assert dataset.attrs[name]
    if "cycling" in loaded:
        assert loaded["cycling"]["shift"].values.tolist() == [1, -1]
        assert loaded["controls"].attrs["model_hash"] != loaded["gates"].attrs["model_hash"]
    elif "controls" in loaded:
        assert "random weights" in loaded["controls"].control.values


def test_a_second_run_leaves_nothing_of_the_first_beside_it_and_its_seed_reaches_every_result(
    tmp_path, capsys
):
    for line in ("--controls --seed 0", "--seed 7"):
        assert main(["knockout", "tiny", "--n", "24", *line.split(), "-o", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    there = sorted(file.name for file in (tmp_path / "r").iterdir())
    assert there == ["files.json", "knockout.csv", "knockout.nc", "specialization.csv", "specialization.nc"]
    loaded = [results.load(tmp_path / "r" / f"{name}.nc") for name in ("knockout", "specialization")]
    assert [one.attrs["seed"] for one in loaded] == [7, 7]
    assert loaded[1].attrs["specialization_seed"] == 7


def test_a_site_that_never_fires_is_one_line(capsys):
    assert main(["patch", "tiny", "--unit", "layer", "--site", "attn.indexer.hook_picks", "--n", "12"]) == 2
    assert "never fires" in capsys.readouterr().err
