"""Saving, loading and every way a model folder can be wrong: one line, naming the cause, and no partial file."""

import json
import os
import pickle
import struct
import zlib

import pytest
import safetensors.torch
import torch

import hooks
import hooks.checkpoint
from hooks import CompressedTransformer, ModelConfig, PhaselensError
from hooks.errors import CheckpointError, ConfigError, ModelCheckError
from hooks.files import atomic_path, require_writable, write_json
from tests.hooks.own_models import SMALL, STACKS, build, difference, prompt, shapes_unchecked

pytestmark = pytest.mark.filterwarnings("ignore::hooks.transformer.BlindGapWarning")

CFG = ModelConfig(**SMALL)


@pytest.fixture(autouse=True)
def _fast_sweeps():
    with shapes_unchecked(), torch.no_grad():
        yield


@pytest.fixture
def folder(tmp_path):
    model = CompressedTransformer(CFG)
    model.name, model.task = "mine", {"task": "recall"}
    return hooks.save(model, tmp_path / "mine")


# --------------------------------------------------------------------------- round trips


def test_round_trip_keeps_weights_config_name_and_task(folder):
    model, again = hooks.load(folder), CompressedTransformer(CFG)
    assert model.content_hash() == again.content_hash()
    assert (model.cfg, model.name, model.task) == (CFG, "mine", {"task": "recall"})
    assert not model.training
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert torch.equal(model(prompt(9)), again.eval()(prompt(9)))
    assert hooks.load(str(folder)).content_hash() == model.content_hash()
    assert hooks.from_pretrained(str(folder)).content_hash() == model.content_hash()


@pytest.mark.parametrize("stack", STACKS)
def test_models_of_every_kind_survive_in_float64(tmp_path, stack):
    model = build(STACKS[stack])
    loaded = hooks.load(hooks.save(model, tmp_path / "a" / "b"))  # folders in between are made
    assert loaded.W_E.dtype == torch.float64
    assert loaded.content_hash() == model.content_hash()
    assert torch.equal(loaded(prompt(13)), model(prompt(13)))


def test_tied_weights_save_and_load(tmp_path):
    """TransformerLens#746, Megatron-Bridge#919: one branch that serves keys and values; weights in one storage."""
    model = build(tied_kv=True, payload="shared")
    loaded = hooks.load(hooks.save(model, tmp_path / "kv"))
    assert loaded.content_hash() == model.content_hash()
    assert torch.equal(loaded(prompt(9)), model(prompt(9)))
    with torch.no_grad():  # embedding and unembedding in one tensor
        model.W_U.set_(model.W_E.detach().T)
    assert model.W_U.data_ptr() == model.W_E.data_ptr()
    loaded = hooks.load(hooks.save(model, tmp_path / "embeddings"))
    assert torch.equal(loaded.W_U, model.W_E.T)
    assert difference(loaded(prompt(9)), model(prompt(9))) <= 1e-12


def test_half_precision_is_widened_on_loading(tmp_path):
    model = CompressedTransformer(CFG)
    for dtype in (torch.float16, torch.bfloat16):
        folder = hooks.save(model, tmp_path / str(dtype), dtype=dtype)
        loaded = hooks.load(folder)
        assert loaded.W_E.dtype == torch.float32
        assert torch.equal(loaded.W_E, model.W_E.to(dtype).float())
    assert model.W_E.dtype == torch.float32
    stored = safetensors.torch.load_file(tmp_path / "torch.float16" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    assert set(stored) == set(model.state_dict())
    whole = hooks.save(model, tmp_path / "whole") / "model.safetensors"
    half = tmp_path / "torch.float16" / "model.safetensors"
    assert half.stat().st_size < 0.7 * whole.stat().st_size


def test_saving_again_replaces_the_files(folder):
    model = CompressedTransformer(CFG.replace(seed=5))
    hooks.save(model, folder)
    assert hooks.load(folder).content_hash() == model.content_hash()
    assert len(list(folder.iterdir())) == 2


def test_nothing_is_pickled(folder):
    for path in folder.iterdir():
        content = path.read_bytes()
        assert not content.startswith((b"\x80", b"PK"))
    header = struct.unpack("<Q", (folder / "model.safetensors").read_bytes()[:8])[0]
    json.loads((folder / "model.safetensors").read_bytes()[8 : 8 + header])


# --------------------------------------------------------------------------- folders that are wrong


def change(folder, edit):
    path = folder / "config.json"
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


def one_line(caught):
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, PhaselensError)


@pytest.mark.parametrize(
    ("edit", "error", "says"),
    [
        (lambda c: c["config"].update(strid=3), ConfigError, "unknown configuration key 'strid'; valid: stride"),
        (lambda c: c["config"].pop("n_heads"), ConfigError, "'n_heads' is missing; required: n_layers"),
        (lambda c: c["config"].update(window=2), ConfigError, "window >= stride"),
        (lambda c: c["config"].update(gate="hard"), ConfigError, "valid: scalar, vector, uniform"),
        (lambda c: c.update(config=[1]), ConfigError, "is not a table"),
        (lambda c: c.update(extra=1), ConfigError, "unknown key 'extra'; valid: name, config, task"),
        (lambda c: c.pop("config"), ConfigError, "lacks the key 'config'"),
        (lambda c: c.pop("name"), ConfigError, "lacks the key 'name'"),
        (lambda c: c.update(phaselens=99), CheckpointError, "format 99; this version reads 1"),
        (lambda c: c["config"].update(d_model=16), CheckpointError, r"has shape \[13, 12\].*needs \[13, 16\]"),
        (lambda c: c["config"].update(n_layers=3), CheckpointError, r"weight 'blocks\.2\..*' is missing"),
        (lambda c: c["config"].update(n_layers=1), CheckpointError, r"weight 'blocks\.1\..*' belongs to no part"),
        (lambda c: c["config"].update(tied_kv=True), CheckpointError, "belongs to no part"),
        (lambda c: c.pop("phaselens"), CheckpointError, "model of type 'unknown'; valid: phaselens folders"),
        (lambda c: (c.pop("phaselens"), c.update(model_type="llama")), CheckpointError, "type 'llama'"),
    ],
)  # fmt: skip
def test_configurations_that_do_not_fit(folder, edit, error, says):
    change(folder, edit)
    with pytest.raises(error, match=says) as caught:
        hooks.load(folder)
    one_line(caught)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "null", "\x00\x01"])
def test_a_config_that_is_not_json(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json'.*JSON") as caught:
        hooks.load(folder)
    one_line(caught)


def test_truncated_foreign_and_absent_weights(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    contents = (
        *(whole[:n] for n in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1)),
        b"not weights",
        pickle.dumps({"W_E": [1.0]}),
        b"\xff" * 64,
    )
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="truncated or not a safetensors file") as caught:
            hooks.load(folder)
        one_line(caught)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors") as caught:
        hooks.load(folder)
    one_line(caught)


def test_a_safetensors_file_of_something_else(folder):
    safetensors.torch.save_file({"lm_head.weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="weight 'W_E' is missing") as caught:
        hooks.load(folder)
    one_line(caught)
    safetensors.torch.save_file({}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="weight 'W_E' is missing"):
        hooks.load(folder)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_in_weights_is_named(tmp_path, value):
    model = CompressedTransformer(CFG)
    with torch.no_grad():
        model.blocks[1].attn.W_O[0, 0, 0] = value
    with pytest.raises(ModelCheckError, match=r"blocks\.1\.attn\.W_O") as caught:
        hooks.load(hooks.save(model, tmp_path / "nan"))
    one_line(caught)


def test_unknown_names_list_the_zoo(tmp_path):
    for name in ("w8s8-5kv", str(tmp_path / "nowhere"), ""):
        with pytest.raises(CheckpointError, match=r"tiny|holds no config"):
            hooks.load(name)
    with pytest.raises(CheckpointError, match=r"valid: .*w8s8-4kv") as caught:
        hooks.load("w8s8-5kv")
    one_line(caught)
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        hooks.load(tmp_path)
    for find in (hooks.checkpoint.zoo_path, hooks.checkpoint.zoo_info):
        with pytest.raises(CheckpointError, match="in the zoo; valid: "):
            find("w8s8-5kv")


def test_the_hub_is_not_there():
    with pytest.raises(CheckpointError, match="cannot fetch 'nobody/nothing' from the hub") as caught:
        hooks.from_pretrained("nobody/nothing")
    one_line(caught)


# --------------------------------------------------------------------------- no partial files


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "model", tmp_path / "file"):
        with pytest.raises(
            CheckpointError, match=r"cannot write to .*; choose a folder you may write to"
        ) as caught:
            hooks.save(CompressedTransformer(CFG), path)
        one_line(caught)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("fails", ["safetensors.torch.save_file", "hooks.files.os.replace"])
def test_a_save_that_fails_leaves_what_was_there(folder, monkeypatch, fails):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def broken(*args, **kwargs):
        raise OSError("the disk is full")

    monkeypatch.setattr(fails, broken)
    with pytest.raises(OSError, match="disk is full"):
        hooks.save(CompressedTransformer(CFG.replace(seed=9)), folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_files_are_renamed_when_they_are_complete(tmp_path):
    target = tmp_path / "value.json"
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        assert not target.exists()
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    write_json(target, {"γ": 1})
    assert json.loads(target.read_text(encoding="utf-8")) == {"γ": 1}
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask
    assert require_writable(tmp_path / "new" / "folder").is_dir()


# --------------------------------------------------------------------------- the zoo


@pytest.mark.parametrize("name", hooks.zoo())
def test_zoo_models_load_within_their_size(name):
    path = hooks.checkpoint.zoo_path(name)
    assert sum(p.stat().st_size for p in path.iterdir()) < 8_000_000
    info = hooks.checkpoint.zoo_info(name)
    assert info["command"].startswith("phaselens train ")
    assert info["seeds"]
    model = hooks.load(name)
    assert model.task["task"] == "recall"
    assert model.name == name


def test_the_zoo_is_small_enough_to_ship():
    files = [p for name in hooks.zoo() for p in hooks.checkpoint.zoo_path(name).iterdir()]
    shipped = sum(len(zlib.compress(p.read_bytes())) for p in files)  # a wheel is a zip
    assert shipped < 45_000_000
