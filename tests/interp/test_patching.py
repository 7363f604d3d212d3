"""Patching at every site: clean into clean is nothing, the whole layer-0 input is the other run."""

import dataclasses

import numpy as np
import pytest
import torch

import hooks
from hooks import SiteError
from hooks.errors import PhaselensError
from hooks.sites import SITE_AXES, site
from interp import engine, patch, phase_sweep
from interp.engine import Variant
from interp.patching import _metric, _normalised, _parts, held_values
from interp.tasks import RecallTask
from tests.interp.intervention_models import TASK, small

PICKING = dict(index_topk=3, index_heads=2, index_dim=4, sink=True, window=6)


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        pytest.param({}, "final", id="plain-final"),
        pytest.param({}, "all", id="plain-all", marks=pytest.mark.slow),
        pytest.param(PICKING, "final", id="picking-final", marks=pytest.mark.slow),
        pytest.param(PICKING, "all", id="picking-all"),
    ],
)
def test_clean_into_clean_changes_nothing_at_any_site(changes, at):
    model, prompts = small(**changes), TASK.sample(8, seed=0)
    names = [name for name in model.site_names() if name != "hook_embed"]
    assert {site(name).kind for name in names} >= (
        {"attn.indexer.hook_picks"} if changes else {"attn.hook_z"}
    )
    for kind in {site(name).kind for name in names}:
        chosen, where = _parts(model, prompts, "layer", kind, at, 2)
        held = held_values(model, prompts, [n for one in chosen for n in one.sites], at=where, progress=False)
        scores = engine.run(
            model, prompts, [Variant(u.label, u.edits(held)) for u in chosen], at=where, progress=False
        )
        assert torch.allclose(
            scores["logprob"], scores["logprob"][:1].expand_as(scores["logprob"]), atol=1e-5
        ), kind


@pytest.mark.parametrize("pairs", ["shift", "value"])
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_the_whole_layer_0_input_gives_the_other_run(pairs, direction):
    found = patch(
        small(), TASK, pairs=pairs, direction=direction, unit="layer", site="hook_resid_pre", at="all", n=24,
        only=["0"], progress=False,
    )  # fmt: skip
    for name in ("logprob", "margin", "logit_difference"):
        assert np.allclose(found[name].values[0], found[f"source_{name}"].values, atol=1e-5)
    known = np.isfinite(found.normalised.values)
    whole = (
        (found.source_logit_difference - found.base_logit_difference).values.reshape(6, -1, 4).mean(axis=1)
    )
    told = (np.abs(whole.mean(axis=0)) >= 0.1) & (np.abs(np.sign(whole).sum(axis=0)) == 6)  # of 6 prompt_ids
    assert (known == told).all()
    assert found.normalised.values[known] == pytest.approx(1, abs=1e-3)


def _scores(model, prompts):
    """Log-probability of each prompt's own answer, by (prompt_id, residue)."""
    with torch.no_grad():
        log = model(prompts.tokens)[:, -1].log_softmax(-1)
    return {
        (int(p), int(r)): float(log[i, prompts.answer[i]])
        for i, (p, r) in enumerate(zip(prompts.prompt_id, prompts.residue, strict=True))
    }


@pytest.mark.parametrize("shift", [1, 2, 3, -1, 6])
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_every_number_stands_under_the_phase_of_its_base_prompt(direction, shift):
    model, size, unit = small(), TASK.modulus, "0.1"
    prompts = TASK.sample(3 * size, seed=0)
    alone = _scores(model, prompts)
    found = patch(
        model, TASK, direction=direction, shift=shift, unit="kv_head", at="all", n=3 * size, progress=False
    )
    # The clean prompt at residue r has its corrupt partner at r + shift; whoever is the base gives the phase.
    step = shift if direction == "noising" else -shift
    held = {}
    names = ["blocks.0.attn.hook_z"]
    _, kept = model.run_with_cache(prompts.tokens, names)
    for i, key in enumerate(zip(prompts.prompt_id.tolist(), prompts.residue.tolist(), strict=True)):
        held[key] = kept[names[0]][i, :, 2:]  # query heads 2 and 3 read KV head 1
    changed = {}
    for i, (p, r) in enumerate(zip(prompts.prompt_id.tolist(), prompts.residue.tolist(), strict=True)):

        def edit(z, hook, p=p, r=r):
            z = z.clone()
            z[0, :, 2:] = held[p, (r + step) % size]
            return z

        with torch.no_grad():
            logits = model.run_with_hooks(prompts.tokens[i : i + 1], [(names[0], edit)])[0, -1]
        changed[p, r] = float(logits.log_softmax(-1)[prompts.answer[i]])
    position = {
        (int(p), int(r)): int(t)
        for p, r, t in zip(prompts.prompt_id, prompts.residue, prompts.target_position, strict=True)
    }
    for p in range(3):
        for r in range(size):
            cell = found.isel(prompt=p).sel(residue=r)
            assert int(cell.target_position) == position[p, r]
            assert int(cell.target_position) % size == r
            assert float(cell.base_logprob) == pytest.approx(alone[p, r], abs=1e-5)
            assert float(cell.source_logprob) == pytest.approx(alone[p, (r + step) % size], abs=1e-5)
            assert float(cell.logprob.sel(unit=unit)) == pytest.approx(changed[p, r], abs=1e-5)
    for phase in range(4):
        mean = np.mean([changed[p, phase] - alone[p, phase] for p in range(3)])
        assert float(found.effect_logprob.sel(unit=unit, phase=phase)) == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_a_weak_phase_is_reported_as_itself_in_both_directions(shift):
    model = hooks.load("tiny")
    task = RecallTask.for_model(model)
    clean = phase_sweep(model, task, n_per_residue=4, progress=False)
    for direction in ("noising", "denoising"):
        found = patch(
            model,
            task,
            shift=shift,
            direction=direction,
            unit="layer",
            only=["0"],
            n=4 * task.modulus,
            progress=False,
        )
        assert (found.base_correct.values == clean.correct.values).all()
        assert (found.target_position.values == clean.target_position.values).all()


def test_a_trained_model_is_moved_all_the_way_at_every_phase():
    model = hooks.load("tiny")
    task = RecallTask.for_model(model)
    found = patch(
        model, task, pairs="value", unit="layer", site="hook_resid_pre", at="all", only=["0"], n=10 * task.modulus,
        progress=False,
    )  # fmt: skip
    assert found.normalised.values == pytest.approx(1, abs=1e-3)
    assert (found.difference_low.values > 0).all()  # solved: no phase loses its ratio, whatever the scatter
    assert found.effect_logprob_p.values.max() < 0.05


def test_the_normalised_difference_is_undefined_when_both_runs_are_one():
    model = small()
    found = patch(model, TASK, pairs="value", unit="head", n=8, progress=False)
    assert np.isfinite(found.normalised.values).any()
    with torch.no_grad():
        silent = small(seed=9)
        silent.W_U.zero_()
    found = patch(silent, TASK, pairs="value", unit="head", n=8, progress=False)
    assert np.isnan(found.normalised.values).all()
    with torch.no_grad():
        silent.W_U.normal_()


def test_a_ratio_over_a_difference_that_may_be_0_is_undefined_and_others_have_an_interval():
    rng = np.random.default_rng(0)
    prompts = 40
    # Phases: noise about 0; a solved model's many logits with as many of scatter; a clear difference below the
    # floor; and a weak one that is not 0.
    whole = rng.normal([0.3, 25, 0.05, -2], [3, 8, 0.001, 1], size=(prompts, 4))
    whole[:, 0] += 0.3 - whole[:, 0].mean()  # above the floor, below its own scatter
    moved = np.stack([0.5 * whole + rng.normal(size=whole.shape), np.zeros_like(whole)])
    found = {name: values for name, (_, values) in _normalised(moved, whole, 0).items()}
    ratio, low, high = (found[f"normalised{end}"] for end in ("", "_low", "_high"))
    assert np.isnan(ratio).tolist() == [[True, False, True, False]] * 2
    assert found["difference_low"][0] < 0 < found["difference_high"][0]
    for phase in (1, 3):
        assert ratio[0, phase] == pytest.approx(moved[0, :, phase].sum() / whole[:, phase].sum())
        drawn = rng.integers(prompts, size=(4000, prompts))
        resampled = moved[0, :, phase][drawn].sum(1) / whole[:, phase][drawn].sum(1)
        width = np.ptp(np.quantile(resampled, [0.025, 0.975]))
        bounds = np.array([low[0, phase], high[0, phase]])
        assert bounds == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.15 * width)
        assert ratio[1, phase] == 0
        assert np.isnan(low[1, phase])  # all resamples agree
    few = {name: values for name, (_, values) in _normalised(moved[:, :4], whole[:4], 0).items()}
    signs = np.abs(np.sign(whole[:4]).sum(axis=0)) == 4
    assert signs.tolist() == [False, True, True, True]
    assert np.isfinite(few["normalised"][0]).tolist() == [False, True, False, True]
    assert np.isnan(few["normalised_low"]).all()


@pytest.mark.parametrize("unit", ["head", "kv_head", "mlp", "position", "entry", "offset"])
def test_each_part_equals_one_plain_hooked_pass(unit):
    model = small(window=6)
    base, source = TASK.sample_pairs(8, seed=0, kind="value")
    found = patch(model, TASK, pairs="value", unit=unit, n=8, progress=False)
    kind = {
        "position": "hook_resid_pre",
        "entry": "attn.hook_entry_v",
        "offset": "attn.compressor.value.hook_gate",
    }
    label = {
        "head": "1.2",
        "kv_head": "1.1",
        "mlp": "0",
        "position": "1.+1",
        "entry": "0.+0",
        "offset": "0.3",
    }[unit]
    name = f"blocks.{label[0]}." + kind.get(unit, "hook_mlp_out" if unit == "mlp" else "attn.hook_z")
    names = (
        [name]
        if unit in ("head", "kv_head", "mlp", "position")
        else [name, name.replace("value", "key").replace("_v", "_k")]
    )
    _, theirs = model.run_with_cache(source.tokens, names)

    def edit(tensor, hook):
        tensor, new = tensor.clone(), theirs[hook.name]
        for row in range(8):
            target = int(base.target_position[row])
            if unit == "head":
                tensor[row, -1, 2] = new[row, -1, 2]
            elif unit == "kv_head":
                tensor[row, -1, 2:] = new[row, -1, 2:]
            elif unit == "mlp":
                tensor[row, -1] = new[row, -1]
            elif unit == "position":
                tensor[row, target + 1] = new[row, target + 1]
            elif unit == "entry":
                tensor[row, target // 4] = new[row, target // 4]
            else:
                tensor[row, :, 3] = new[row, :, 3]
        return tensor

    with torch.no_grad():
        logits = model.run_with_hooks(base.tokens, [(one, edit) for one in names])[:, -1]
        plain = model(base.tokens)[:, -1]
    expected = logits.log_softmax(-1).gather(1, source.answer[:, None])[:, 0]
    got = torch.from_numpy(found.logprob.sel(unit=label).values).flatten()
    assert torch.allclose(got, expected, atol=1e-5)
    assert not torch.allclose(logits, plain, atol=1e-6)
    kl = torch.nn.functional.kl_div(logits.log_softmax(-1), plain.softmax(-1), reduction="none").sum(-1)
    assert torch.allclose(torch.from_numpy(found.kl.sel(unit=label).values).flatten(), kl, atol=1e-5)


def test_sites_that_never_fire_and_axes_they_lack_are_named():
    with pytest.raises(SiteError, match="never fires"):
        patch(small(), TASK, unit="layer", site="attn.indexer.hook_picks", n=8)
    with pytest.raises(SiteError, match="no axis 'entry'"):
        patch(small(), TASK, unit="entry", site="attn.hook_z", n=8)
    with pytest.raises(SiteError, match="hook_zz"):
        patch(small(), TASK, unit="layer", site="attn.hook_zz", n=8)
    with pytest.raises(SiteError, match="never fires"):
        patch(small(attention="sliding"), TASK, unit="offset", stride=4, n=8)
    with pytest.raises(PhaselensError, match="direction"):
        patch(small(), TASK, direction="up", n=8)
    assert "attn.hook_z" in SITE_AXES


def test_two_right_tokens_are_one_answer_in_the_logit_difference():
    base, source = TASK.sample_pairs(8, seed=0, kind="value")
    chat = [dataclasses.replace(p, alternative=(p.answer + 1) % TASK.d_vocab) for p in (base, source)]
    logits = torch.randn(8, 3, TASK.d_vocab, generator=torch.Generator().manual_seed(0))
    found = _metric(*chat)(logits, torch.arange(8))["logit_difference"]
    p = logits.double().softmax(-1).numpy()
    for i in range(8):
        mine, theirs = (p[i][:, [int(q.answer[i]), int(q.alternative[i])]].sum(-1) for q in chat)
        if base.answer[i] != source.answer[i]:
            assert found[i].numpy() == pytest.approx(np.log(theirs / mine), abs=1e-5)
