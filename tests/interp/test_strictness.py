"""What is asked for is what is measured, or one line says why not: strides, units, axes, numbers, files."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import hooks
import interp
from hooks.checkpoint import zoo_path
from hooks.errors import PhaselensError
from interp import gate_profile, knockout, patch, phase_sweep, smallest_set
from interp.cli import main
from interp.phases import measured_stride
from interp.tasks import RecallTask


@pytest.fixture(scope="module")
def tiny():
    return hooks.load("tiny")


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(zoo_path("tiny"), tmp_path / "model")


def rewritten(folder, change) -> None:
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    change(stored)
    path.write_text(json.dumps(stored))


def with_stride(model, stride):
    made = hooks.CompressedTransformer(model.cfg.replace(window=stride, stride=stride))
    made.task = model.task
    return made


# ---- strides


@pytest.mark.parametrize("stride", [5, 7, 9, 10, 11])
def test_a_stride_that_shares_no_axis_is_measured_at_its_own(tiny, stride):
    model = with_stride(hooks.load("w8s8-2kv"), stride)
    task = RecallTask.for_model(model)
    assert task.modulus % stride == 0
    assert task.modulus <= 48
    assert phase_sweep(model, task, n_per_residue=1, progress=False).sizes["phase"] == stride


def test_a_task_that_the_stride_does_not_divide_is_refused(tiny):
    model = with_stride(tiny, 5)
    with pytest.raises(PhaselensError, match=r"\(5\) divides modulus=12"):
        phase_sweep(model, RecallTask.for_model(tiny), n_per_residue=1, progress=False)
    assert measured_stride(model, RecallTask.for_model(tiny), 4) == 4


def test_an_axis_that_does_not_exist_is_refused(tiny):
    with pytest.raises(PhaselensError, match="axis='foo'; valid: target, query"):
        phase_sweep(tiny, n_per_residue=1, axis="foo", progress=False)
    attrs = phase_sweep(tiny, n_per_residue=4, axis="query", progress=False).attrs
    assert attrs["period"] == 0
    assert np.isnan(attrs["period_p"])


# ---- units


def test_gate_offsets_are_edited_where_entries_close(tiny):
    asked = knockout(tiny, unit="gate_offset", n=24, progress=False)
    everywhere = knockout(tiny, unit="gate_offset", at="all", n=24, progress=False)
    assert asked.attrs["at"] == "all"
    assert float(np.abs(asked["logprob"] - asked["clean_logprob"]).max()) > 1
    np.testing.assert_array_equal(asked["logprob"], everywhere["logprob"])
    found = smallest_set(tiny, phase=0, below=50, unit="gate_offset", n=48, progress=False)
    assert (np.diff(found["accuracy_discover"]) < 0).any()


def test_units_that_a_model_has_are_named(tiny):
    with pytest.raises(PhaselensError, match="has no picks to knock out; valid: kv_head, head, layer, mlp"):
        knockout(tiny, unit="picks", n=12, progress=False)


@pytest.mark.parametrize("n", [0, -5])
@pytest.mark.parametrize("verb", [knockout, patch, gate_profile])
def test_no_prompt_at_all_is_refused(tiny, verb, n):
    with pytest.raises(PhaselensError, match=f"n={n} prompts; valid: 1 or more"):
        verb(tiny, n=n, progress=False)


@pytest.mark.parametrize("verb", ["knockout", "patch"])
def test_heads_are_chosen_on_the_command_line(verb, capsys):
    words = [verb, "tiny", "--n", "12", "--unit", "head", "--json"]
    assert main([*words, "--only", "0.3"]) == 0
    assert json.loads(capsys.readouterr().out)[verb]["coords"]["unit"]["values"] == ["0.3"]
    assert main([*words, "--only", "0.4"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "'0.4'" in err
    assert "0.3" in err


def test_cycling_by_nothing_is_refused(tiny, capsys):
    for shift in (0, 4):
        assert main(["gates", "tiny", "--n", "12", "--cycle", str(shift)]) == 2
        assert f"--cycle {shift} moves no gate at stride 4" in capsys.readouterr().err
    with pytest.raises(PhaselensError, match="whole number"):
        interp.cycle_gates(tiny, 1.5)


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (60, "No cell can be told from chance at n = 5; 6 prompts a residue are the least."),
        (120, "* p < 0.05"),
    ],
)
def test_patching_is_shown_by_unit_and_phase(n, said, capsys):
    assert main(["patch", "tiny", "--n", str(n), "--pairs", "value", "--unit", "layer"]) == 0
    out = capsys.readouterr().out
    assert said in out
    assert out.splitlines()[1].split() == ["unit", "0", "1", "2", "3"]
    assert out.splitlines()[2].split()[0] in (
        "0",
        "1",
    )  # the strongest first, none hidden where none was tested
    assert "nothing significantly" not in out


# ---- numbers


def test_without_an_entry_nothing_is_effective(tiny):
    # W = S = 128 never closes in prompts this short.
    found = gate_profile(with_stride(tiny, 128), RecallTask.for_model(tiny), n=12, stride=4, progress=False)
    assert np.isnan(found["static_key"]).all()
    assert np.isnan(found["per_window_key"]).all()


# ---- files


@pytest.mark.parametrize("key", ["stride", "window", "exact_window", "rope_dims", "n_layers"])
def test_a_saved_config_holds_every_key(folder, key):
    rewritten(folder, lambda stored: stored["config"].pop(key))
    with pytest.raises(PhaselensError, match=f"configuration key '{key}' is missing"):
        hooks.load(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("name", 5, "'name'"), ("task", "recall", "'task'"), ("config", [], "'config'")],
)
def test_a_saved_description_has_the_right_kinds(folder, key, value, message):
    rewritten(folder, lambda stored: stored.update({key: value}))
    with pytest.raises(PhaselensError, match=message):
        hooks.load(folder)


def test_a_stored_task_holds_every_key(folder, tmp_path, capsys):
    rewritten(folder, lambda stored: stored["task"].pop("n_records"))
    assert main(["sweep", str(folder), "-o", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "lacks 'n_records'" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "value"), [("window", 10**9), ("d_model", 10**9), ("d_mlp", 10**9), ("n_layers", 60)]
)
def test_sizes_are_compared_before_anything_is_allocated(folder, key, value):
    change = {"window": {"window": value, "stride": value}, "d_model": {"d_model": value}}.get(
        key, {key: value}
    )
    rewritten(folder, lambda stored: stored["config"].update(change))
    with pytest.raises(PhaselensError, match=r"has shape|is missing"):
        hooks.load(folder)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
def test_whole_numbers_are_no_weights(folder, dtype):
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "W_E": weights["W_E"].to(dtype)}, folder / "model.safetensors")
    with pytest.raises(PhaselensError, match="'W_E' has type"):
        hooks.load(folder)


@pytest.mark.parametrize("device", ["cudaa", "cuda:99", "meta:x"])
def test_a_device_that_is_not_there(device):
    with pytest.raises(PhaselensError, match=f"no device '{device}' here; valid: cpu"):
        hooks.load("tiny", device=device)


def test_training_that_cannot_start_leaves_no_folder(tmp_path, capsys):
    out = tmp_path / "made"
    assert (
        main(["train", "tiny", "--start-from", str(tmp_path / "nodir"), "-o", str(out), "--steps", "1"]) == 2
    )
    assert "nodir" in capsys.readouterr().err
    assert not out.exists()


def test_more_than_memory_holds_is_one_line(capsys):
    assert main(["sweep", "tiny", "--n-per-residue", str(10**11)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "not enough memory" in err


def test_text_tasks_are_public():
    assert interp.NeedleTask.__name__ == "NeedleTask"
    assert interp.CompletionTask.__name__ == "CompletionTask"
