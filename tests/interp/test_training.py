"""Training: the schedule, resuming after a kill, and that it learns."""

import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import hooks
from hooks import PhaselensError
from interp import cli, recipes, training
from interp.family import Family
from interp.rng import torch_rng
from interp.tasks import RecallTask
from interp.training_state import read_progress

TASK = RecallTask(
    n_keys=8, n_values=8, n_filler=4, n_records=4, context=16, n_queries=2, n_demonstrations=1, modulus=4
)
RECIPE = training.Recipe(task=TASK, steps=12, batch=4, lr=1e-3, warmup=4, records_from=2, records_share=0.5)


def small(seed=0):
    cfg = hooks.preset("tiny").replace(d_vocab=TASK.d_vocab, d_model=16, d_head=4, d_mlp=16, seed=seed)
    return hooks.CompressedTransformer(cfg)


def run(model, folder=None, steps=None, stop=None):
    plan = RECIPE if steps is None else dataclasses.replace(RECIPE, steps=steps)
    out = []
    for step, loss, _ in training.fit(
        model, plan, seed=5, device=torch.device("cpu"), folder=folder, save_every=4, progress=False
    ):
        out.append((step, loss))
        if stop is not None and step >= stop:
            break
    return out


def test_rate_and_records_follow_the_schedule():
    plan = training.Recipe(steps=1000, warmup=100, lr=1.0)
    assert plan.rate(0) == pytest.approx(0.01)
    assert plan.rate(99) == pytest.approx(1.0)
    assert plan.rate(550) == pytest.approx(0.525)  # half-way down the cosine to 5%
    assert plan.rate(1000) == pytest.approx(0.05)
    assert [plan.records(s) for s in (0, 250, 500, 999)] == [16, 30, 44, 44]


def test_same_seed_same_model_and_another_seed_another():
    first, again, other = small(), small(), small(1)
    run(first), run(again), run(other)
    assert first.content_hash() == again.content_hash()
    assert first.content_hash() != other.content_hash()


@pytest.mark.slow  # of a family likewise, in the quick form below
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path):
    whole = small()
    run(whole)
    script = f"""
import sys, time, torch
sys.path.insert(0, {os.getcwd()!r})
from interp import training
from tests.interp import test_training as t
original = training.save_state
def slowly(*arguments):
    original(*arguments)
    print("saved", flush=True)
    time.sleep(60)
training.save_state = slowly
t.run(t.small(), folder=__import__("pathlib").Path({str(tmp_path)!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "saved\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]
    resumed = small(7)  # other weights: everything comes from the state
    resumed.cfg = whole.cfg
    run(resumed, folder=tmp_path)
    assert resumed.content_hash() == whole.content_hash()


FOREIGN = ("thesis.txt", "sub/notes.txt", "state.safetensors.bak")


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_files_of_others_in_the_state_folder_stay(seeds, resume, tmp_path):
    state = tmp_path / "tiny" / "state"
    for name in FOREIGN:
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(name)
    left = state / ".state.safetensors.abc123.safetensors"  # of a save that was killed
    left.write_text("half")
    training.train_family(
        "tiny", out=tmp_path, seeds=seeds, steps=2, batch=2, resume=resume, device="cpu", progress=False, n_per_residue=0
    )  # fmt: skip
    assert {str(p.relative_to(state)): p.read_text() for p in state.rglob("*") if p.is_file()} == {
        name: name for name in FOREIGN
    }


@pytest.mark.parametrize("seeds", [[3], [3, 4]])
@pytest.mark.parametrize("killed", ["midway", "in the closing"])
def test_a_killed_training_keeps_its_record(killed, seeds, tmp_path, monkeypatch):
    plan = dataclasses.replace(recipes._RECIPES["tiny"], steps=6, batch=1)
    task = dataclasses.replace(TASK, n_keys=32, n_values=32, n_filler=8)
    monkeypatch.setitem(recipes._RECIPES, "tiny", dataclasses.replace(plan, task=task))
    options = {"seeds": seeds, "device": "cpu", "progress": False, "n_per_residue": 0}
    monkeypatch.setattr(training, "fit", functools.partial(training.fit, save_every=2))
    whole = training.train_family("tiny", out=tmp_path / "whole", **options)
    counted = []

    def stop(*arguments):
        if killed == "midway":
            save(*arguments)
        counted.append(read_progress(tmp_path / "killed" / name / "state").seconds)
        raise KeyboardInterrupt

    save, name = training.save_state, "tiny-seed3"
    with monkeypatch.context() as patched:
        patched.setattr(training, "save_state" if killed == "midway" else "_close", stop)
        with pytest.raises(KeyboardInterrupt):
            training.train_family("tiny", out=tmp_path / "killed", **options)
    resumed = training.train_family("tiny", out=tmp_path / "killed", **options)
    for one, other in zip(whole, resumed, strict=True):
        told, record = (json.loads((folder / "training.json").read_text()) for folder in (one, other))
        assert [step for step, _, _ in record["curve"]] == [0, 5]
        assert record["curve"] == told["curve"]
        assert record["seconds"] >= round(counted[0], 1)
    assert counted[0] > 0


def test_states_of_earlier_versions_are_resumed(tmp_path):
    run(small(), folder=tmp_path)
    path = tmp_path / "state.safetensors"
    with safe_open(path, framework="pt") as file:
        found = file.metadata()
        metadata = {"run": found["run"], "step": "11"}
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert [step for step, _, _ in json.loads(found["curve"])] == [0, 11]
    save_file(tensors, path, metadata=metadata)
    assert [step for step, _ in run(small(), folder=tmp_path)] == [11]


def test_a_state_of_another_run_is_refused(tmp_path):
    run(small(), folder=tmp_path)
    with pytest.raises(PhaselensError, match="another recipe or seed"):
        run(small(), folder=tmp_path, steps=20)


def test_train_writes_a_model_with_its_command_and_nothing_else(tmp_path, monkeypatch):
    plan = dataclasses.replace(recipes._RECIPES["tiny"], steps=2, batch=2)
    monkeypatch.setitem(recipes._RECIPES, "tiny", plan)
    folder = training.train(
        "tiny", out=tmp_path / "tiny", seed=3, device="cpu", progress=False, n_per_residue=6
    )
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors", "training.json"]
    record = json.loads((folder / "training.json").read_text())
    assert record["command"] == "phaselens train tiny --seed 3 -o tiny-seed3"
    assert len(record["accuracy_by_phase"]) == 4
    onward = training.train(
        "tiny", out=tmp_path / "onward", device="cpu", progress=False, n_per_residue=0, start_from=folder
    )
    record = json.loads((onward / "training.json").read_text())
    assert record["started_from"]["seed"] == 3
    assert record["recipe"]["lr"] == plan.lr / 2


def test_unknown_names_and_devices_are_one_line(tmp_path):
    with pytest.raises(PhaselensError, match="tiny"):
        training.train("tyni", out=tmp_path)
    with pytest.raises(PhaselensError, match="cpu"):
        training.train("tiny", out=tmp_path, device="quantum")


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def run_family(models, seeds, plan=RECIPE, folder=None, save_every=4):
    family = Family(models)
    found = list(
        training.fit(
            family,
            plan,
            seed=seeds,
            device=torch.device("cpu"),
            folder=folder,
            save_every=save_every,
            progress=False,
        )
    )
    return family.write_back(), found


def test_a_family_trains_as_each_of_its_models_alone(monkeypatch):
    norms = []
    clip = Family.clip_gradients
    monkeypatch.setattr(Family, "clip_gradients", lambda self, most: norms.append(clip(self, most)))
    plan = dataclasses.replace(training.recipe("tiny"), steps=3, batch=4, warmup=0, clip=2.45)
    seeds = [4, 0, 2]
    before = [hooks.CompressedTransformer(hooks.preset("tiny").replace(seed=s)) for s in seeds]
    alone = [hooks.CompressedTransformer(hooks.preset("tiny").replace(seed=s)) for s in seeds]
    curves = [
        list(training.fit(model, plan, seed=s, device=torch.device("cpu"), progress=False))
        for model, s in zip(alone, seeds, strict=True)
    ]
    start = [weights(model) for model in before]
    together, found = run_family(before, seeds, plan)
    # The clip bites for some models at some steps and not for others, so that neither way of it goes unseen.
    bites = torch.stack(norms) > plan.clip
    assert bites.any(), norms
    assert not bites.all(), norms
    for member, (one, other) in enumerate(zip(together, alone, strict=True)):
        torch.testing.assert_close(weights(one), weights(other), rtol=0, atol=1e-5)
        assert float((weights(one) - start[member]).abs().max()) > 1e-3
        for (step, loss, accuracy), (step_alone, loss_alone, accuracy_alone) in zip(
            found, curves[member], strict=True
        ):
            assert (step, accuracy[member]) == (step_alone, accuracy_alone)
            assert loss[member] == pytest.approx(loss_alone, abs=1e-5)


def test_batches_of_a_family_are_those_of_its_seeds():
    tokens, targets = training._batches(RECIPE, [7, 5], 9, torch.device("cpu"))
    for member, seed in enumerate([7, 5]):
        alone = TASK.training_batch(4, generator=torch_rng(seed, "batch", 9), n_records=4)
        assert torch.equal(tokens[member], alone[0])
        assert torch.equal(targets[member], alone[1])


def test_a_killed_family_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    whole, _ = run_family([small(0), small(1)], [0, 1])
    save = training.save_state

    def killed(*arguments):
        save(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(training, "save_state", killed)
        with pytest.raises(KeyboardInterrupt):
            run_family([small(0), small(1)], [0, 1], folder=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]
    with pytest.raises(PhaselensError, match="another recipe or seed"):
        run_family([small(1), small(0)], [1, 0], folder=tmp_path)
    with pytest.raises(PhaselensError, match="another recipe or seed"):
        run(small(), folder=tmp_path)
    batches = []
    make = training._batches
    monkeypatch.setattr(training, "_batches", lambda *a: batches.append(a[2]) or make(*a))
    resumed, _ = run_family([small(7), small(8)], [0, 1], folder=tmp_path)  # weights come from the state
    assert batches == list(range(4, 12))
    for one, other in zip(resumed, whole, strict=True):
        assert torch.equal(weights(one), weights(other))


def test_the_state_of_a_single_run_keeps_its_form(tmp_path):
    run(small(), folder=tmp_path)
    with safe_open(tmp_path / "state.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["run"]) == {"recipe": RECIPE.describe(), "seed": 5}
        names = {name for name, _ in small().named_parameters()}
        assert {f"model.{name}" for name in names} < set(file.keys())


@pytest.mark.parametrize(("seed", "models"), [(5, 2), ([1], 2), ([1, 2, 3], 2), ([5], None)])
def test_seeds_and_models_that_do_not_match_are_refused(seed, models):
    model = small() if models is None else Family([small(k) for k in range(models)])
    with pytest.raises(PhaselensError, match="seed="):
        next(training.fit(model, RECIPE, seed=seed, device=torch.device("cpu"), progress=False))


def test_several_seeds_on_the_command_line_make_a_folder_each(tmp_path, monkeypatch, capsys):
    plan = dataclasses.replace(recipes._RECIPES["tiny"], warmup=1)
    monkeypatch.setitem(recipes._RECIPES, "tiny", plan)
    swept = []

    def sweep(model, n_per_residue):
        swept.append((model.name, n_per_residue))
        return [50.0], [50.25]

    monkeypatch.setattr(training, "_closing_sweep", sweep)
    options = ["--steps", "3", "--batch", "2", "--device", "cpu"]
    assert (
        cli.main(["train", "tiny", "--seed", "0", "--seed", "3", "-o", str(tmp_path / "runs"), *options]) == 0
    )
    assert f"Model: {tmp_path}/runs/tiny-seed3 " in capsys.readouterr().out
    assert swept == [("tiny", 72), ("tiny-seed3", 72)]
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["tiny", "tiny-seed3"]
    assert cli.main(["train", "tiny", "--seed", "3", "-o", str(tmp_path / "alone"), *options, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["training"]
    for seed, name in ((0, "tiny"), (3, "tiny-seed3")):
        folder = tmp_path / "runs" / name
        assert sorted(p.name for p in folder.iterdir()) == [
            "config.json",
            "model.safetensors",
            "training.json",
        ]
        record = json.loads((folder / "training.json").read_text())
        assert record["command"] == "phaselens train tiny --seed 0 --seed 3 -o . --steps 3 --batch 2"
        assert (record["seed"], record["seeds"]) == (seed, [0, 3])
    assert alone["command"] == "phaselens train tiny --seed 3 -o tiny-seed3 --steps 3 --batch 2"
    assert set(record) - set(alone) == {"seeds"}
    assert record["recipe"] == alone["recipe"]
    assert record["accuracy_by_phase"] == [50.0]
    one, other = hooks.load(tmp_path / "runs" / "tiny-seed3"), hooks.load(tmp_path / "alone")
    assert (one.name, one.cfg, one.task) == (other.name, other.cfg, other.task)
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-3, atol=1e-5)  # stored as fp16
    first = hooks.load(tmp_path / "runs" / "tiny")
    assert float((weights(one) - weights(first)).abs().max()) > 0.1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["tiny", "--seed", "0", "--seed", "1", "--start-from", "tiny"], "one by one"),
        (["dsv4-csa", "--seed", "0", "--seed", "1"], "indexer.*one by one"),
        (["tiny", "--seed", "2", "--seed", "2"], "each once"),
        (["tiny", "--seed", "2", "--seed", "-1"], ">= 0"),
    ],
)
def test_families_that_cannot_be_are_one_line(words, line, tmp_path, capsys):
    assert cli.main(["train", *words, "-o", str(tmp_path / "runs"), "--device", "cpu"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert re.search(line, told)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_hugging_face_model_is_refused_as_a_family(tmp_path):
    with pytest.raises(PhaselensError, match=r"HookedDeepseekV4.*one by one"):
        training.train_family("hfv4-csa", out=tmp_path / "runs", seeds=[0, 1], device="cpu")
    assert not (tmp_path / "runs").exists()


def test_a_family_without_seeds_is_refused(tmp_path):
    with pytest.raises(PhaselensError, match="one seed or more"):
        training.train_family("tiny", out=tmp_path / "runs", seeds=[], device="cpu")
    assert not (tmp_path / "runs").exists()


def test_a_family_of_one_is_that_model(tmp_path, monkeypatch):
    plan = dataclasses.replace(recipes._RECIPES["tiny"], steps=1, batch=2)
    monkeypatch.setitem(recipes._RECIPES, "tiny", plan)
    options = {"device": "cpu", "progress": False, "n_per_residue": 0}
    (folder,) = training.train_family("tiny", out=tmp_path, seeds=[1], **options)
    alone = training.train("tiny", out=tmp_path / "alone", seed=1, **options)
    assert folder == tmp_path / "tiny-seed1"
    assert hooks.load(folder).content_hash() == hooks.load(alone).content_hash()


@pytest.mark.slow
def test_tiny_learns_in_minutes(tmp_path):
    began = time.monotonic()
    folder = training.train("tiny", out=tmp_path / "tiny", device="cpu", progress=False)
    accuracy = json.loads((folder / "training.json").read_text())["accuracy_by_phase"]
    assert sum(a > 95 for a in accuracy) >= 3
    assert time.monotonic() - began < 1200
