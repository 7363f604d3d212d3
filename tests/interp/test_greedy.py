"""Sets of units removed at once, and the greedy smallest set."""

import itertools

import numpy as np
import pytest
import torch

from hooks.errors import PhaselensError
from interp import engine, greedy, knockout
from interp.greedy import smallest_set, together
from interp.units import units
from tests.interp.intervention_models import TASK, small


def test_a_set_is_all_its_edits_at_once():
    model, prompts = small(), TASK.sample(8, seed=0)
    found = {one.label: one for one in units(model, "head", prompts)}
    chosen = [found["0.1"], found["0.3"], found["1.0"]]
    zero = lambda name, tensor, rows: torch.zeros_like(tensor)  # noqa: E731
    got = engine.run(model, prompts, [together(chosen, zero)], progress=False)["logprob"][1]

    def silence(z, hook):
        z = z.clone()
        z[:, -1, [1, 3] if "blocks.0" in hook.name else [0]] = 0
        return z

    with torch.no_grad():
        logits = model.run_with_hooks(prompts.tokens, [(f"blocks.{i}.attn.hook_z", silence) for i in (0, 1)])
    expected = logits[:, -1].log_softmax(-1).gather(1, prompts.answer[:, None])[:, 0]
    assert torch.allclose(got, expected, atol=1e-6)
    sets = knockout(
        model, TASK, unit="head", sets=[["0.1", "0.3", "1.0"]], replace="zero", n=8, progress=False
    )
    assert sets.unit.values.tolist() == ["0.1+0.3+1.0"]
    assert torch.allclose(torch.from_numpy(sets.logprob.values[0]).flatten(), expected, atol=1e-6)


def test_greedy_finds_the_planted_pair_and_drops_what_it_does_not_need(monkeypatch):
    """Only removing 0.1 and 1.2 together breaks the phase; 0.0 costs a little on its own and joins first."""
    torch.manual_seed(0)
    noise = torch.rand(200)

    def run(model, prompts, variants, **_):
        rows = []
        for labels in [set(), *(set(v.label.split("+")) for v in variants)]:
            p = 0.95 - 0.3 * ("0.0" in labels) - 0.2 * ("0.1" in labels)
            p = 0.05 if {"0.1", "1.2"} <= labels else p
            rows.append(noise[: len(prompts)] < p)
        correct = torch.stack(rows)
        return {"correct": correct, "logprob": correct.float() - 1, "margin": correct.float()}

    monkeypatch.setattr(greedy.engine, "run", run)
    found = smallest_set(small(), TASK, phase=2, below=30, unit="head", replace="zero", n=400)
    assert found.label.values.tolist()[:2] == ["", "0.0"]
    assert set(found.attrs["units"].split("+")) == {"0.1", "1.2"}
    assert found.attrs["reached"] == 1
    # no single unit does it
    for one in itertools.chain(["0.0", "0.1", "1.2"]):
        alone = smallest_set(small(), TASK, phase=2, below=30, unit="head", replace="zero", n=400, only=[one])
        assert alone.attrs["reached"] == 0


def test_phases_and_percentages_are_checked():
    with pytest.raises(PhaselensError, match="phase=4"):
        smallest_set(small(), TASK, phase=4)
    with pytest.raises(PhaselensError, match="below=0"):
        smallest_set(small(), TASK, phase=1, below=0)


def test_what_too_few_base_prompts_confirm_is_undefined():
    """Under 6 confirming base prompts no sign-flip test could reach 5%: nothing is called reached."""
    options = {"phase": 0, "replace": "zero", "progress": False}
    few = smallest_set(small(), TASK, n=10 * TASK.modulus, **options)
    assert (few.attrs["n_confirm"], few.attrs["n_confirm_ids"]) == (5, 5)
    assert np.isnan([few.attrs["reached"], few.attrs["accuracy_final_confirm"]]).all()
    for name in ("accuracy_confirm", "accuracy_confirm_low", "accuracy_confirm_high"):
        assert np.isnan(few[name].values).all()
    assert np.isfinite(few.accuracy_discover.values).all()
    enough = smallest_set(small(), TASK, n=12 * TASK.modulus, **options)
    assert enough.attrs["n_confirm_ids"] == 6
    assert enough.attrs["reached"] in (0, 1)
    assert np.isfinite(enough.accuracy_confirm_low.values).all()
