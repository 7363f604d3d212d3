"""What takes over when a unit is gone, held to runs with the units zeroed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hooks
from hooks.errors import PhaselensError
from interp.backup import takes_over
from interp.tasks import RecallTask


@pytest.fixture(scope="module")
def model():
    return hooks.load("tiny")


@pytest.fixture(scope="module")
def task(model):
    return RecallTask.for_model(model)


def logprob(model, prompts, gone: list[str]) -> np.ndarray:
    """Log-probability of the answer with KV heads zeroed at the final position, [row]."""
    share = model.cfg.n_heads // model.cfg.n_kv_heads

    def zero(layer):
        def hook(z, hook):
            z = z.clone()
            for label in gone:
                at, head = map(int, label.split("."))
                if at == layer:
                    z[:, -1, head * share : (head + 1) * share] = 0.0
            return z

        return hook

    hooked = [(f"blocks.{layer}.attn.hook_z", zero(layer)) for layer in range(model.cfg.n_layers)]
    with torch.no_grad():
        logits = model.run_with_hooks(prompts.tokens, fwd_hooks=hooked)[:, -1].double().log_softmax(-1)
    return logits.gather(-1, prompts.answer[:, None])[:, 0].numpy()


def test_it_is_the_loss_before_minus_the_loss_once_the_unit_is_gone(model, task):
    n = 6 * task.modulus
    found = takes_over(model, task, gone="1.0", replace="zero", n=n, progress=False)
    assert [str(u) for u in found["unit"].values] == ["0.0", "0.1", "1.1"]
    prompts = task.sample(n, seed=0)
    phase = (prompts.target_position % 4).numpy()
    clean, alone = logprob(model, prompts, []), logprob(model, prompts, ["1.0"])
    for unit in ("0.0", "0.1", "1.1"):
        before = logprob(model, prompts, [unit]) - clean
        after = logprob(model, prompts, ["1.0", unit]) - alone
        for p in range(4):
            at = found.sel(unit=unit, phase=p)
            assert float(at["before"]) == pytest.approx(before[phase == p].mean(), abs=1e-4)
            assert float(at["after"]) == pytest.approx(after[phase == p].mean(), abs=1e-4)
            assert float(at["takes_over"]) == pytest.approx((before - after)[phase == p].mean(), abs=1e-4)
    assert found.attrs["gone"] == "1.0"
    assert ((found["takes_over_p"] >= 0) & (found["takes_over_p"] <= 1)).all()


def test_a_unit_that_does_not_exist_is_named(model, task):
    with pytest.raises(PhaselensError, match=r"9\.9"):
        takes_over(model, task, gone="9.9", n=2 * task.modulus, progress=False)
