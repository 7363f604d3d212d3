"""Saving, loading and every way a model folder can be wrong: one line, naming the cause."""

import json

import pytest
import torch

import hooks
import hooks.checkpoint
from hooks import CompressedTransformer, ModelConfig, PhaselensError
from hooks.errors import CheckpointError, ConfigError, ModelCheckError

CFG = ModelConfig(
    n_layers=2,
    d_model=8,
    n_heads=2,
    n_kv_heads=1,
    d_head=4,
    d_mlp=8,
    d_vocab=7,
    window=4,
    stride=4,
    exact_window=4,
)


@pytest.fixture
def folder(tmp_path):
    model = CompressedTransformer(CFG)
    model.name, model.task = "mine", {"task": "recall"}
    return hooks.save(model, tmp_path / "mine")


def test_round_trip_keeps_weights_config_name_and_task(folder):
    model = hooks.load(folder)
    again = CompressedTransformer(CFG)
    assert model.content_hash() == again.content_hash()
    assert (model.cfg, model.name, model.task) == (CFG, "mine", {"task": "recall"})
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_half_precision_is_widened_on_loading(tmp_path):
    model = CompressedTransformer(CFG)
    loaded = hooks.load(hooks.save(model, tmp_path / "half", dtype=torch.float16))
    assert loaded.W_E.dtype == torch.float32
    assert torch.equal(loaded.W_E, model.W_E.half().float())


def change(folder, edit):
    path = folder / "config.json"
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("edit", "error", "says"),
    [
        (lambda c: c["config"].update(strid=3), ConfigError, "strid"),
        (lambda c: c["config"].pop("n_heads"), ConfigError, "n_heads"),
        (lambda c: c["config"].update(window=2), ConfigError, "window >= stride"),
        (lambda c: c["config"].update(d_model=16), CheckpointError, "shape"),
        (lambda c: c["config"].update(n_layers=3), CheckpointError, "missing"),
        (lambda c: c["config"].update(n_layers=1), CheckpointError, "belongs to no part"),
        (lambda c: c.pop("phaselens"), CheckpointError, "valid"),
    ],
)
def test_configurations_that_do_not_fit(folder, edit, error, says):
    change(folder, edit)
    with pytest.raises(error, match=says) as caught:
        hooks.load(folder)
    assert "\n" not in str(caught.value)


def test_truncated_foreign_and_absent_weights(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"not weights", b""):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="truncated or not"):
            hooks.load(folder)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors"):
        hooks.load(folder)


def test_nan_in_weights_is_named(tmp_path):
    model = CompressedTransformer(CFG)
    with torch.no_grad():
        model.blocks[1].attn.W_O[0, 0, 0] = torch.nan
    with pytest.raises(ModelCheckError, match=r"blocks\.1\.attn\.W_O"):
        hooks.load(hooks.save(model, tmp_path / "nan"))


def test_unknown_name_lists_the_zoo():
    with pytest.raises(CheckpointError, match="w8s8-4kv"):
        hooks.load("w8s8-5kv")


def test_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PhaselensError, match="cannot write"):
        hooks.save(CompressedTransformer(CFG), tmp_path / "file" / "model")


@pytest.mark.parametrize("name", hooks.zoo())
def test_zoo_models_load_within_their_size(name):
    path = hooks.checkpoint.zoo_path(name)
    assert sum(p.stat().st_size for p in path.iterdir()) < 8_000_000
    info = hooks.checkpoint.zoo_info(name)
    assert info["command"].startswith("phaselens train ")
    assert info["seeds"]
    assert hooks.load(name).task["task"] == "recall"


def test_the_zoo_is_small_enough_to_ship():
    size = sum(p.stat().st_size for name in hooks.zoo() for p in hooks.checkpoint.zoo_path(name).iterdir())
    assert size < 45_000_000
