"""The phase sweep: numbers recounted by hand from per-prompt values, and planted periods."""

import numpy as np
import pytest
import torch

import hooks
from hooks import CompressedTransformer, PhaselensError, preset
from interp import knockout, phase_sweep
from interp.phases import measured_stride
from interp.sweep import summarise
from interp.tasks import RecallTask
from interp.tasks.prompts import Prompts


@pytest.fixture(scope="module")
def sweep():
    return phase_sweep(hooks.load("tiny"), n_per_residue=12, seed=10_000, progress=False)


def test_per_prompt_values_are_those_of_a_plain_forward_pass(sweep):
    model = hooks.load("tiny")
    task = RecallTask.for_model(model)
    prompts = task.sample(12 * task.modulus, seed=10_000)
    with torch.no_grad():
        logits = model(prompts.tokens)[:, -1]
    for row in range(0, len(prompts), 7):
        answer = int(prompts.answer[row])
        own = logits[row, answer]
        others = torch.cat((logits[row, :answer], logits[row, answer + 1 :]))
        where = {"prompt": row // task.modulus, "residue": row % task.modulus}
        assert float(sweep.logprob.isel(where)) == pytest.approx(
            float(own - torch.log(torch.exp(logits[row].double()).sum())), abs=1e-4
        )
        assert float(sweep.margin.isel(where)) == pytest.approx(float(own - others.max()), abs=1e-4)
        assert bool(sweep.correct.isel(where)) == bool(own > others.max())
        assert int(sweep.target_position.isel(where)) == int(prompts.target_position[row])


def test_phases_pool_residues_and_gaps_are_best_minus_worst(sweep):
    correct, stride = sweep.correct.values, sweep.attrs["stride"]
    by_phase = [correct[:, phase::stride].mean() for phase in range(stride)]
    assert sweep.accuracy.values == pytest.approx(by_phase)
    assert sweep.attrs["gap_pp"] == pytest.approx(100 * (max(by_phase) - min(by_phase)))
    by_residue = correct.mean(0)
    assert sweep.attrs["gap_residue_pp"] == pytest.approx(100 * np.ptp(by_residue))
    assert sweep.attrs["worst_phase"] == int(np.argmin(by_phase))


@pytest.mark.parametrize(
    ("accuracy", "period"),
    [([1, 1, 1, 0.4], 4), ([0.9, 0.5], 2), ([1, 1, 1, 1, 1, 1, 1, 0.2], 8), ([0.7], 0)],
)
def test_planted_periods_are_found_from_the_data(accuracy, period):
    task = RecallTask()
    prompts = task.sample(48 * task.modulus, seed=3)
    rng = np.random.default_rng(0)
    level = np.array(accuracy)[prompts.target_position.numpy() % len(accuracy)].reshape(48, -1)
    correct = rng.random(level.shape) < level
    logprob = np.where(correct, -0.1, -3.0) + rng.normal(0, 0.3, level.shape)
    tables = {"correct": correct, "logprob": logprob, "margin": logprob}
    found = summarise(tables, prompts, stride=8, seed=0, attrs={})
    assert found.attrs["period"] == period


def test_the_clean_run_of_a_knockout_serves_as_the_sweep(sweep):
    model = hooks.load("tiny")
    effects = knockout(model, n=12 * 12, seed=10_000, unit="layer", n_calibration=12, progress=False)
    shared = phase_sweep(model, n_per_residue=12, seed=10_000, clean=effects, progress=False)
    assert np.array_equal(shared.correct, sweep.correct)
    assert np.allclose(shared.logprob, sweep.logprob, atol=1e-5)
    with pytest.raises(PhaselensError, match="seed=10000"):
        phase_sweep(model, n_per_residue=12, seed=1, clean=effects, progress=False)


def test_models_without_a_stride_are_measured_at_the_placebo():
    model = CompressedTransformer(preset("full-4kv"))
    assert measured_stride(model, RecallTask()) == 8
    with pytest.raises(PhaselensError, match="stride=7 does not divide"):
        measured_stride(model, RecallTask(), 7)


def test_a_model_that_cannot_do_the_task_is_one_line():
    model = CompressedTransformer(preset("tiny").replace(d_vocab=50))
    with pytest.raises(PhaselensError, match="d_vocab=50"):
        phase_sweep(model, n_per_residue=2)
    with pytest.raises(PhaselensError, match="n_per_residue=0"):
        phase_sweep(hooks.load("tiny"), n_per_residue=0)


def test_only_recall_has_a_query_that_moves():
    class Other:
        modulus, d_vocab = 24, 73

    with pytest.raises(PhaselensError, match="axis='query' moves the query of a RecallTask; Other"):
        phase_sweep(hooks.load("tiny"), Other(), axis="query")  # type: ignore[arg-type]


def test_the_stride_asked_about_is_a_candidate_period():
    """R = S = 32, as a model of stride 32 gets it: phase 7 is weak, and 32 is among what is looked for."""
    residue = torch.arange(6 * 32) % 32
    prompts = Prompts(
        tokens=torch.zeros((1, 1), dtype=torch.int64).expand(6 * 32, 200), answer=torch.zeros_like(residue),
        target_position=residue + 64, query_position=199, residue=residue,
        prompt_id=torch.arange(6 * 32) // 32, modulus=32,
    )  # fmt: skip
    logprob = np.random.default_rng(0).normal(size=(6, 32)) - 5.0 * (np.arange(32) == 7)
    tables = {"logprob": logprob, "margin": logprob, "correct": logprob > -1.0}
    attrs = summarise(tables, prompts, stride=32, seed=0, attrs={}).attrs
    assert (attrs["period"], attrs["worst_phase"]) == (32, 7)
    assert attrs["period_tested"] == [*range(2, 17), 32]
