"""The intervention verbs of the command line, with their controls, end to end on the smallest model."""

import numpy as np
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
            "gates tiny --n 120 --cycle 1 --cycle -1 --parts --controls",
            ["gates", "cycling", "gate_parts", "controls", "controls_cycling", "controls_parts"],
        ),
    ],
)
def test_verbs_save_results_that_say_where_they_came_from(line, files, folder, capsys):
    out = folder / line.split()[0]
    assert main([*line.split(), "--seed", "3", "-o", str(out)]) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    loaded = {name: results.load(out / f"{name}.nc") for name in files}
    for dataset in loaded.values():
        assert dataset.attrs["seed"] == 3
        for name in ("model", "model_hash", "task", "version_torch", "created"):
            assert dataset.attrs[name]
    if "cycling" in loaded:
        assert loaded["cycling"]["shift"].values.tolist() == [1, -1]
        held = loaded["controls"]
        assert held.attrs["control_model_hash"] != loaded["gates"].attrs["model_hash"]
        own = held.sel(control="own")
        assert (own.profile_key.values == loaded["gates"].profile_key.values).all()
        # Each control gives a decision that could have gone either way: none is undefined throughout.
        assert held.exceeds_key.any()
        assert np.isfinite(loaded["controls_cycling"].lead_inner_low).all()
        assert np.isfinite(loaded["controls_parts"].lead_low.sel(gates="static")).any("unit").all()
        for title in (
            "Controls of gate profiles",
            "Gates cycled",
            "Controls of gate cycling",
            "forced gates",
        ):
            assert title in told
        assert "Controls of gate parts" in told
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


@pytest.mark.parametrize("shift", ["99", "4", "0", "-4"])
def test_a_cycle_that_comes_round_is_one_line(shift, capsys):
    assert main(["gates", "tiny", "--cycle", shift]) == 2
    told = capsys.readouterr().err
    assert f"--cycle {shift} " in told
    assert "valid: ±1 to ±3" in told


def test_a_site_that_never_fires_is_one_line(capsys):
    assert main(["patch", "tiny", "--unit", "layer", "--site", "attn.indexer.hook_picks", "--n", "12"]) == 2
    assert "never fires" in capsys.readouterr().err
