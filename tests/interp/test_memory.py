"""The budget of memory: it decides the batches, changes no number, and is announced before a run starts."""

from __future__ import annotations

import sys
import time
import weakref

import numpy as np
import pytest
import torch

from hooks.config import preset
from hooks.errors import PhaselensError
from hooks.transformer import CompressedTransformer
from interp import direct_effects, engine, patch, path_patch
from interp.batches import Plan, expected_seconds, show_seconds
from interp.bench.cases import RandomTask, deepseek_like
from interp.cli import main
from interp.engine import Variant
from interp.units import units
from tests.interp.intervention_models import TASK, small


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
        return "knockout: 6 prompts × (1 + 4) runs in 1 batch of 6; about" in capsys.readouterr().err

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


@pytest.mark.parametrize("memory", [0, -5, 1.5, float("nan"), None, "1GiB", True])
def test_a_budget_in_python_is_a_whole_number_of_bytes(model, memory):
    prompts = RandomTask(73, 20).sample(2, seed=0)
    with pytest.raises(PhaselensError, match=r"memory=.*; valid: a whole number, 1 or more"):
        engine.run(model, prompts, memory=memory, progress=False)


def test_variants_that_are_over_the_budget_together_go_through_in_parts(model, monkeypatch):
    prompts = RandomTask(73, 20).sample(3, seed=0)
    variants = zeroed(model, prompts)
    assert len(variants) == 4
    ran = []
    real = engine._run_chunk
    monkeypatch.setattr(
        engine,
        "_run_chunk",
        lambda m, tokens, p, some, at: ran.append(len(some)) or real(m, tokens, p, some, at),
    )
    sizes: list[tuple[engine.At, int]] = [("final", 1), ("all", 20)]
    for at, width in sizes:
        whole = engine.run(model, prompts, variants, at=at)
        ran.clear()
        three = engine.plan(model, 1, 20, 3 * width, 1).bytes
        cut = engine.run(model, prompts, variants, at=at, memory=three)
        assert ran[:3] == [3] * 3
        assert set(ran[3:]) == {1}
        for name in ("logprob", "margin", "correct"):
            torch.testing.assert_close(cut[name], whole[name], rtol=0, atol=1e-5)
        ran.clear()
        engine.run(
            model, prompts, variants[:2], at=at, memory=1
        )  # less than anything: one by one, all the same
        assert ran == [1] * 6


def test_parts_say_that_they_are_parts(model, capsys):
    prompts = RandomTask(73, 20).sample(3, seed=0)
    variants = zeroed(model, prompts)
    three = engine.plan(model, 1, 20, 3, 1).bytes
    engine.run(model, prompts, variants, memory=three, progress=True, label="knockout")
    said = capsys.readouterr().err
    for line in ("part 1 of 2: 3 prompts × (1 + 3) runs", "part 2 of 2: 3 prompts × (1 + 1) runs"):
        assert f"knockout, {line}" in said


def test_an_estimate_over_the_budget_says_so(model):
    least = engine.plan(model, 4, 20, 2, 1)
    assert least.describe(2).endswith(" (over the budget of 1 B)")
    assert "over the budget" not in engine.plan(model, 4, 20, 2, least.bytes).describe(2)


def test_estimates_of_long_prompts_grow_with_their_length_as_the_blocks_of_attention_do():
    long = CompressedTransformer(deepseek_like(2, d_model=64, seed=0))
    sizes = [engine.plan(long, 1, length, 0, 1).bytes for length in (1 << 14, 1 << 15, 1 << 16)]
    assert sizes[1] - sizes[0] == pytest.approx((sizes[2] - sizes[1]) / 2, rel=0.01)
    whole = [engine.plan(long, 1, n, 0, 1, whole_maps=True).bytes for n in (1 << 14, 1 << 15)]
    assert whole[1] > 3.9 * whole[0]  # maps that hooks read are formed whole
    heads, columns = long.cfg.n_heads, (1 << 14) + (1 << 12)  # exact tokens and entries at stride 4
    assert whole[0] > 4 * heads * (1 << 14) * columns


VERBS = {
    "patch": (
        lambda m, **o: patch(m, TASK, unit="layer", site="attn.hook_pattern", at="all", **o),
        "blocks.0.attn.hook_pattern",
        lambda m: 2 * LENGTH,
    ),
    "direct": (
        lambda m, **o: direct_effects(m, TASK, replace="zero", **o),
        "blocks.0.hook_mlp_out",
        lambda m: 16,
    ),
    "paths": (
        lambda m, **o: path_patch(m, TASK, unit="layer", replace="zero", at="all", **o),
        "blocks.0.hook_mlp_out",
        lambda m: 2 * LENGTH,
    ),
}
LENGTH = TASK.sample(1, seed=0).tokens.shape[1]


@pytest.mark.parametrize("verb", VERBS)
def test_patching_and_paths_hold_what_the_budget_allows(verb, monkeypatch):
    """Of what is held for a run no more prompts are alive than run at once; the numbers stay."""
    measure, site, variants = VERBS[verb]
    model, live, most = small(), 0, 0
    real = engine.activations

    def forget(count):
        nonlocal live
        live -= count

    def counted(*given, **options):
        nonlocal live, most
        for chunk, kept in real(*given, **options):
            if site in kept:
                live += len(chunk)
                most = max(most, live)
                weakref.finalize(kept[site], forget, len(chunk))
            yield chunk, kept

    monkeypatch.setattr(engine, "activations", counted)
    whole = measure(model, n=24, progress=False)
    assert most == 24
    most = 0
    one = engine.plan(model, 1, LENGTH, variants(model), 1).bytes
    cut = measure(model, n=24, progress=False, memory=5 * one)
    assert 1 <= most <= 5
    for name in whole.data_vars:
        if name.endswith(("logprob", "change", "logprob_direct", "logprob_total", "effect")):
            np.testing.assert_allclose(cut[name].values, whole[name].values, atol=1e-5)


def test_what_is_held_counts_against_the_budget(model):
    prompts = RandomTask(73, 20).sample(12, seed=0)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]
    per_prompt = 2 * 4 * model.cfg.n_heads * 20 * (20 + 20 // 4)  # fp32, exact columns and entries
    run = engine.plan(model, 1, 20, 2 * 20, 1).bytes
    memory = 3 * run + 3 * per_prompt
    found = list(engine.portions(model, prompts, names, 2, at="all", memory=memory, progress=False))
    assert found == [range(i, i + 3) for i in (0, 3, 6, 9)]
    assert len(next(engine.portions(model, prompts, names, 2, at="all", memory=memory - 1))) == 2


def test_chosen_rows_keep_their_numbers(model):
    prompts = RandomTask(73, 20).sample(6, seed=0)
    whole = engine.run(model, prompts, zeroed(model, prompts))["logprob"]
    some = engine.run(model, prompts, zeroed(model, prompts), rows=range(2, 5))["logprob"]
    torch.testing.assert_close(some, whole[:, 2:5], rtol=0, atol=1e-5)
    chunks = [chunk for chunk, _ in engine.activations(model, prompts, ["hook_embed"], rows=range(2, 5))]
    assert chunks == [range(2, 5)]


class _Placed(CompressedTransformer):
    place = torch.device("cpu")

    @property
    def device(self):
        return self.place


def test_an_estimate_of_time_is_what_the_run_takes_and_costs_little(monkeypatch):
    planned = Plan([range(0, 300), range(300, 500)], 1, 1)
    slow, tokens, ran = _Placed(preset("tiny")), torch.zeros(500, 4, dtype=torch.long), []

    def forward(tokens, *, last_only):
        ran.append(len(tokens))
        time.sleep(0.002 * len(tokens))
        return torch.zeros(len(tokens), 1, 3)

    monkeypatch.setattr(slow, "forward", forward)
    seconds = expected_seconds(slow, tokens, planned, 6.0)
    assert seconds == pytest.approx(6 * 500 * 0.002, rel=0.3)
    assert sum(ran) <= 0.03 * 6 * 500
    assert expected_seconds(slow, tokens, planned, 0.5) is None  # it would be felt
    ran.clear()
    slow.place = torch.device("cuda")
    assert expected_seconds(slow, tokens, planned, 6.0) is None  # a whole batch is too much
    assert not ran
    assert planned.describe(3, seconds).startswith(
        "500 prompts × (1 + 3) runs in 2 batches of 300; about 1 B, "
    )


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.034, "0.034 s"), (7.04, "7 s"), (61.4, "61 s"), (90, "2 min"), (7000, "1.9 h")]
)
def test_durations_have_two_digits_and_a_unit(seconds, shown):
    assert show_seconds(seconds) == shown
