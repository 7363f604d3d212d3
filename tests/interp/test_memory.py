"""The budget of memory: it decides the batches, changes no number, and is announced before a run starts."""

from __future__ import annotations

import sys

import pytest
import torch

from hooks.config import preset
from hooks.transformer import CompressedTransformer
from interp import engine
from interp.bench.cases import RandomTask
from interp.cli import main
from interp.engine import Variant
from interp.units import units


@pytest.fixture(scope="module")
def model() -> CompressedTransformer:
    return CompressedTransformer(preset("tiny"))


def zeroed(model, prompts) -> list[Variant]:
    def zero(name, tensor, rows):
        return torch.zeros_like(tensor)

    return [Variant(unit.label, unit.edits(zero)) for unit in units(model, "kv_head", prompts)]


def test_batches_cover_every_prompt_and_their_estimate_stays_in_the_budget(model):
    one = engine.plan(model, 1, 40, 4, 1).bytes  # a batch never has less than one prompt
    for memory in (one, 3 * one, 3 * one + 1, 100 * one):
        planned = engine.plan(model, 10, 40, 4, memory)
        assert [i for batch in planned.batches for i in batch] == list(range(10))
        assert len(planned.batches[0]) == min(10, memory // one)
        assert planned.bytes <= memory


def test_a_run_is_cut_by_the_budget_and_gives_the_same_numbers(model, monkeypatch):
    prompts = RandomTask(73, 20).sample(6, seed=0)
    variants = zeroed(model, prompts)
    sizes = []
    real = engine._run_chunk
    monkeypatch.setattr(
        engine, "_run_chunk", lambda m, tokens, *more: sizes.append(len(tokens)) or real(m, tokens, *more)
    )
    whole = engine.run(model, prompts, variants)
    cut = engine.run(model, prompts, variants, memory=2 * engine.plan(model, 1, 20, len(variants), 1).bytes)
    assert sizes == [6, 2, 2, 2]
    torch.testing.assert_close(cut["logprob"], whole["logprob"], rtol=0, atol=1e-5)


def test_an_estimate_comes_before_the_run(model, capsys, monkeypatch):
    prompts = RandomTask(73, 20).sample(6, seed=0)
    monkeypatch.setattr(engine, "_run_chunk", lambda *given: pytest.fail("started") if not seen() else stop())

    def seen() -> bool:
        return "knockout: 6 prompts × (1 + 4) runs, 1 batches of 6, about" in capsys.readouterr().err

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(model, prompts, zeroed(model, prompts), progress=True, label="knockout")


@pytest.mark.parametrize(
    ("verb", "module"),
    [
        ("knockout", "interp.knockout"),
        ("sweep", "interp.sweep"),
        ("patch", "interp.patching"),
        ("report", "interp.report"),
    ],
)
def test_the_verbs_pass_the_budget_on(verb, module, monkeypatch, tmp_path):
    __import__(module)
    given = {}

    def noted(*args, **options):
        given.update(options)
        raise KeyboardInterrupt

    name = {"sweep": "phase_sweep"}.get(verb, verb)
    monkeypatch.setattr(sys.modules[module], name, noted)
    monkeypatch.setattr("interp.cli_run.prepare", lambda *args, **options: (None, None))
    assert main([verb, "tiny", "--memory", "3MiB", "-o", str(tmp_path / "out")]) == 130
    assert given["memory"] == 3 << 20
    assert not (tmp_path / "out").exists()


def test_a_wrong_budget_is_one_line(capsys):
    assert main(["knockout", "tiny", "--memory", "lots"]) == 2
    assert capsys.readouterr().err == "phaselens: memory='lots'; valid: 1MiB or more, e.g. 512MiB, 4GiB\n"
