"""Training: the schedule, resuming after a kill, and that it learns."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import hooks
from hooks import PhaselensError
from interp import training
from interp.tasks import RecallTask

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


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path):
    whole = small()
    run(whole)
    script = f"""
import sys, time, torch
sys.path.insert(0, {os.getcwd()!r})
from interp import training
from tests.interp import test_training as t
original = training._save_state
def slowly(*arguments):
    original(*arguments)
    print("saved", flush=True)
    time.sleep(60)
training._save_state = slowly
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


def test_a_state_of_another_run_is_refused(tmp_path):
    run(small(), folder=tmp_path)
    with pytest.raises(PhaselensError, match="another recipe or seed"):
        run(small(), folder=tmp_path, steps=20)


def test_train_writes_a_model_with_its_command_and_nothing_else(tmp_path, monkeypatch):
    plan = dataclasses.replace(training._RECIPES["tiny"], steps=2, batch=2)
    monkeypatch.setitem(training._RECIPES, "tiny", plan)
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


@pytest.mark.slow
def test_tiny_learns_in_minutes(tmp_path):
    began = time.monotonic()
    folder = training.train("tiny", out=tmp_path / "tiny", device="cpu", progress=False)
    accuracy = json.loads((folder / "training.json").read_text())["accuracy_by_phase"]
    assert sum(a > 95 for a in accuracy) >= 3
    assert time.monotonic() - began < 1200
