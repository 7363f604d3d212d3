"""Two models on the same prompts."""

import numpy as np
import pytest

from hooks.errors import StatisticsError
from interp.compare import compare
from interp.knockout import knockout
from tests.interp.intervention_models import TASK, small


def test_differences_are_those_of_two_plain_runs():
    first, second = small(), small(seed=2)
    found = compare(first, second, TASK, n_per_residue=12, seed=3, progress=False)
    prompts = TASK.sample(48, seed=3)
    means = []
    for model in (first, second):
        logits = model(prompts.tokens)[:, -1].double().log_softmax(-1)
        logprob = logits.gather(1, prompts.answer[:, None])[:, 0].detach().numpy()
        means.append([logprob[prompts.residue.numpy() == phase].mean() for phase in range(4)])
    assert found["mean_logprob"].values == pytest.approx(np.array(means), abs=1e-5)
    assert found["change"].values == pytest.approx(np.subtract(means[1], means[0]), abs=1e-5)
    gaps = [max(row) - min(row) for row in means]
    assert found.attrs["gap_nats"] == pytest.approx(gaps, abs=1e-5)
    assert found.attrs["widening_nats"] == pytest.approx(gaps[1] - gaps[0], abs=1e-5)
    assert found.attrs["widening_nats_low"] < found.attrs["widening_nats"] < found.attrs["widening_nats_high"]
    assert found.attrs["other_model_hash"] == second.content_hash() != found.attrs["model_hash"]


def test_a_model_and_itself_differ_by_nothing_and_have_no_interval():
    found = compare(small(), small(), TASK, n_per_residue=12, progress=False)
    assert found.attrs["widening_nats"] == 0
    assert np.isnan(found.attrs["widening_nats_low"])
    assert not found["change"].values.any()


def test_models_of_different_tasks_are_refused():
    with pytest.raises(StatisticsError, match="models of one task"):
        compare(small(), small(d_vocab=TASK.d_vocab + 1), TASK, n_per_residue=2)


def test_clean_runs_that_are_known_are_not_run_again():
    first, second = small(), small(seed=2)
    options = dict(n_per_residue=3, seed=5, progress=False)
    knocked = [knockout(m, TASK, unit="layer", n=12, seed=5, progress=False) for m in (first, second)]
    ran = compare(first, second, TASK, **options)
    taken = compare(first, second, TASK, known=(knocked[0], knocked[1]), **options)
    assert taken["logprob"].values == pytest.approx(ran["logprob"].values, abs=1e-5)
    assert (taken["correct"].values == ran["correct"].values).all()
    with pytest.raises(StatisticsError, match="the clean run has model_hash"):
        compare(first, second, TASK, known=(knocked[1], None), **options)
