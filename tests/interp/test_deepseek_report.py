"""What a report and an audit say of the Hugging Face models agrees, and branches are knocked out as stated."""

import numpy as np
import pytest
import torch

import hooks
from interp import stats
from interp.audit import audit
from interp.branches import branch_effects
from interp.deepseek_report import agreement
from interp.reading import value_path
from interp.sweep import phase_sweep
from interp.tasks import RecallTask
from interp.tasks.prompts import Prompts
from interp.units import units
from tests.hooks.deepseek_models import hooked, tokens

SEED = stats.CONFIRMATORY_SEED


def measured(n):
    model = hooks.load("hfv4-mix")
    sweep = phase_sweep(
        model, RecallTask.for_model(model), n_per_residue=n, seed=SEED, stride=4, progress=False
    )
    audited = audit("hfv4-mix", n_per_residue=n, seed=SEED, stride=4, query_phases=(), progress=False)
    return sweep, audited["recall"]


def test_report_and_audit_answer_alike():
    """The quick form: two prompts a residue."""
    sweep, audited = measured(2)
    apart = agreement(sweep, audited)
    assert apart["answers"] == 0
    assert apart["accuracy"] < 1e-9
    assert sweep["logprob"].values == pytest.approx(audited["logprob"].values, abs=1e-4)


@pytest.mark.slow
def test_report_and_audit_agree_on_period_gap_and_interval():
    sweep, audited = measured(24)
    assert sweep.attrs["period"] == audited.attrs["period"] == 4
    assert sweep.attrs["gap_pp"] > 15
    apart = agreement(sweep, audited)
    assert apart["answers"] == 0
    assert max(apart["gap"], apart["interval"], apart["accuracy"]) < 1e-9
    assert audited.attrs["found"] == 1


def test_paths_of_a_head_sum_to_its_output_in_the_class():
    """Sliding, CSA and HCA layers; no single residual stream, so no logit."""
    _, model = hooked()
    row = torch.arange(4)
    prompts = Prompts(
        tokens=tokens(4, 21), answer=row, target_position=row + 8, query_position=20, residue=row,
        prompt_id=row // 4, modulus=4,
    )  # fmt: skip
    for layer in (0, 1, 2):
        found = value_path(model, prompts, layer=layer, head=1, row=2)
        _, kept = model.run_with_cache(prompts.tokens[2:3], [f"blocks.{layer}.attn.hook_result"])
        result = kept[f"blocks.{layer}.attn.hook_result"][0, -1, 1].detach().numpy()
        assert np.allclose(found.output.values.sum(0), result, atol=1e-4)
        assert found.attrs["residual"] < 1e-4
        assert found.attrs["logit_defined"] == 0
        assert np.isnan(found.logit.values).all()
        windows = {0: None, 1: 8, 2: 8}
        offsets = set(found.offset.values.tolist()) - {-1}
        assert offsets == (set(range(windows[layer])) if windows[layer] else set())


class Random:
    modulus, d_vocab = 4, 50

    def sample(self, n, *, seed):
        row = torch.arange(n)
        return Prompts(
            tokens=tokens(n, 24, seed % 1000), answer=row % 50, target_position=8 + row % 4, query_position=23,
            residue=row % 4, prompt_id=row // 4, modulus=4,
        )  # fmt: skip

    def describe(self):
        return {"task": "random"}


def test_branches_are_the_units_of_every_kind_and_gaps_are_paired():
    _, model = hooked()
    found = branch_effects(model, Random(), n=48, seed=0, stride=4)
    kinds = [str(unit).split()[0] for unit in found["unit"].values]
    assert [kinds.count(kind) for kind in ("layer", "exact_branch", "entry_branch", "target_entry", "picks")] == [
        4, 4, 3, 3, 2,
    ]  # fmt: skip
    # One of them, by a plain hooked pass: the entries of the HCA layer masked at the final position.
    prompts = Random().sample(48, seed=0)

    def hide(scores, hook):
        scores[:, :, -1, 24:27] = -torch.inf  # stride 8: three entries
        return scores

    logits = model.run_with_hooks(prompts.tokens, fwd_hooks=[("blocks.2.attn.hook_attn_scores", hide)])[:, -1]
    right = (logits.argmax(-1) == prompts.answer).reshape(-1, 4).numpy()
    assert (found["correct"].sel(unit="entry_branch 2").values == right).all()
    gap = 100 * np.ptp(right.mean(0))
    assert float(found["gap_pp"].sel(unit="entry_branch 2")) == pytest.approx(gap)
    clean = 100 * np.ptp(found["clean_accuracy"].values)
    assert float(found["gap_change"].sel(unit="entry_branch 2")) == pytest.approx(gap - clean)


def test_striking_a_target_from_the_picks_hides_it_from_that_layer_alone():
    """Every entry is picked, so it equals masking the target's entries there."""
    _, model = hooked()
    prompts = Random().sample(8, seed=1)
    picks = {one.label: one for one in units(model, "picks", prompts)}
    masked = {one.label: one for one in units(model, "target_entry", prompts)}
    assert list(picks) == ["1", "3"]
    from interp import engine
    from interp.engine import Variant

    for at in ("final", "all"):
        variants = [Variant(label, kinds[label].edits(None)) for kinds in (picks, masked) for label in picks]
        scores = engine.run(model, prompts, variants, at=at, progress=False)["logprob"]
        assert torch.allclose(scores[1:3], scores[3:5], atol=1e-5)
        assert float((scores[1:3] - scores[0]).abs().max()) > 1e-4
