"""Gradient × difference against central differences, exact where the model is linear, and its rank agreement."""

import numpy as np
import pytest
import torch

import hooks
from hooks import SiteError
from hooks.errors import PhaselensError
from interp.attribution import attribution, rank_agreement
from interp.tasks import RecallTask
from tests.interp.intervention_models import TASK, small


@pytest.mark.parametrize("unit", ["head", "gate_offset"])
def test_it_is_the_slope_of_a_small_step_towards_the_replacement(unit):
    model = small().to(torch.float64)
    try:
        prompts = TASK.sample(4, seed=0)
        found = attribution(model, TASK, unit=unit, replace="zero", score="logprob", n=4, progress=False)
        label, step = "0.2", 1e-4
        names = ["blocks.0.attn.hook_z"] if unit == "head" else [
            f"blocks.0.attn.compressor.{branch}.hook_gate" for branch in ("key", "value")
        ]  # fmt: skip

        def towards(size):
            def edit(tensor, hook):
                changed = tensor.clone()
                if unit == "head":
                    changed[:, -1, 2] = 0
                else:
                    changed[:, :, 2] = 0
                    changed = changed / changed.sum(2, keepdim=True)
                return tensor + size * (changed - tensor)

            with torch.no_grad():
                logits = model.run_with_hooks(prompts.tokens, [(name, edit) for name in names])[:, -1]
            return logits.log_softmax(-1).gather(1, prompts.answer[:, None])[:, 0]

        slope = (towards(step) - towards(-step)) / (2 * step)
        got = found.attributed_prompt.sel(unit=label).values.ravel()
        assert got == pytest.approx(slope.numpy(), abs=1e-6)
        assert np.abs(got).max() > 1e-5
        whole = towards(1.0) - towards(0.0)
        assert found.true_prompt.sel(unit=label).values.ravel() == pytest.approx(whole.numpy(), abs=1e-6)
    finally:
        model.to(torch.float32)


def test_rank_agreement_by_hand():
    a = np.arange(8.0).reshape(2, 1, 4).repeat(12, axis=1)
    assert rank_agreement(a, a**3, 4)[0] == pytest.approx(1)
    assert rank_agreement(a, -a, 4)[0] == pytest.approx(-1)
    assert np.isnan(rank_agreement(a, 0 * a, 4)[0])
    assert np.isnan(rank_agreement(a[:, :5], a[:, :5], 4)[1])


def test_a_trained_model_ranks_alike_and_saturation_is_flagged():
    model = hooks.load("tiny")
    task = RecallTask.for_model(model)
    found = attribution(model, task, n=12 * task.modulus, progress=False)
    assert found.attrs["rank_correlation"] > 0.5
    assert found.attrs["rank_correlation_low"] <= found.attrs["rank_correlation"]
    prompts = task.sample(12 * task.modulus, seed=0)
    with torch.no_grad():
        p = model(prompts.tokens)[:, -1].softmax(-1).gather(1, prompts.answer[:, None])[:, 0]
    for phase in range(4):
        share = float((p[prompts.target_position % 4 == phase] > 0.99).double().mean())
        assert found.saturated.values[phase] == pytest.approx(share, abs=0.03)
    assert found.saturated.values.max() > 0.5


def test_what_has_no_gradient_is_refused():
    with pytest.raises(SiteError, match="no gradient"):
        attribution(small(), TASK, unit="entry_branch", n=4)
    with pytest.raises(PhaselensError, match="score"):
        attribution(small(), TASK, score="kl", n=4)
