"""The engine against one plain hooked forward pass per unit, on every kind of unit and query phase."""

import pytest
import torch

from hooks import CompressedTransformer, ModelConfig, SiteError
from interp import engine, knockout, patch
from interp.engine import Edit, Rows, Variant
from interp.patching import held_values
from interp.replacement import Replacement, calibrate
from interp.tasks import RecallTask
from interp.units import UNIT_KINDS, union, units
from tests.interp.intervention_models import into_column, plainly

TASK = RecallTask(
    n_keys=10, n_values=10, n_filler=4, n_records=5, context=24, n_queries=2, n_demonstrations=1, modulus=4
)


def build(**changes):
    cfg = ModelConfig(
        n_layers=2, d_model=16, n_heads=4, n_kv_heads=2, d_head=4, d_mlp=16, d_vocab=TASK.d_vocab,
        window=6, stride=4, exact_window=4, seed=1, sink=True,
    ).replace(**changes)  # fmt: skip
    made = CompressedTransformer(cfg).to(torch.float64).eval()  # what is left is rounding, far below 1e-6
    made.task = TASK.describe()
    return made


@pytest.fixture(scope="module")
def model():
    return build()


_OWN_MODEL = {
    "picks": {"index_topk": 3, "index_heads": 2, "index_dim": 4},
    "engram": {"engram": True, "engram_dim": 8},
}  # kinds of unit that the plain model has none of


@pytest.mark.parametrize("phase", range(4))
@pytest.mark.parametrize("at", ["final", "all"])
@pytest.mark.parametrize("kind", [k for k in UNIT_KINDS if k != "gate_offset"])
def test_every_unit_equals_a_plain_pass_at_every_query_phase(model, kind, at, phase):
    if kind in _OWN_MODEL:
        model = build(**_OWN_MODEL[kind])
        generator = torch.Generator().manual_seed(0)
        for name, p in model.named_parameters():  # an untrained n-gram memory adds nothing
            if ".engram." in name:
                p.data = torch.randn(p.shape, generator=generator, dtype=p.dtype)
    prompts = TASK.sample(8, seed=0, query_phase=phase, query_stride=4)
    found = units(model, kind, prompts)
    sample_task = _AtPhase(phase)
    value_at = None
    if found[0].replaced:
        names = [name for one in found for name in one.sites]
        value_at = calibrate(
            model, sample_task, prompts, names, replace="resample", at=at, stride=4, n=8, seed=0
        ).at
    variants = [Variant(one.label, one.edits(value_at)) for one in found]
    scores = engine.run(model, prompts, variants, at=at, progress=False)
    moved = 0.0
    for row, variant in enumerate(variants, start=1):
        expected = plainly(model, prompts, variant, at)
        assert torch.allclose(scores["logprob"][row], expected, atol=1e-9), variant.label
        moved = max(moved, float((scores["logprob"][row] - scores["logprob"][0]).abs().max()))
    assert moved > 1e-4  # the comparison is not of nothing with nothing


class _AtPhase:
    """The task with its query at one phase, so that calibration prompts have the same length."""

    modulus, d_vocab = TASK.modulus, TASK.d_vocab

    def __init__(self, phase):
        self.phase = phase

    def sample(self, n, *, seed):
        return TASK.sample(n, seed=seed, query_phase=self.phase, query_stride=4)

    def describe(self):
        return TASK.describe()


def test_gate_offsets_everywhere_equal_plain_passes(model):
    prompts = TASK.sample(8, seed=0)
    variants = [Variant(one.label, one.edits(None)) for one in units(model, "gate_offset", prompts)]
    scores = engine.run(model, prompts, variants, at="all", progress=False)
    for row, variant in enumerate(variants, start=1):
        assert torch.allclose(scores["logprob"][row], plainly(model, prompts, variant, "all"), atol=1e-9)


def test_values_do_not_depend_on_batches_or_global_generators(model):
    prompts = TASK.sample(12, seed=0)
    small = knockout(model, TASK, n=12, n_calibration=8, replace="resample", memory=1, progress=False)
    torch.manual_seed(99)
    large = knockout(model, TASK, n=12, n_calibration=8, replace="resample", progress=False)
    assert abs(small.logprob - large.logprob).max() < 1e-9
    assert len(prompts) == 12


def test_zero_is_zero_and_mean_over_one_prompt_is_nothing(model):
    prompts = TASK.sample(4, seed=0).select(torch.tensor([1, 1, 1, 1]))

    class Same:
        modulus, d_vocab = TASK.modulus, TASK.d_vocab

        def sample(self, n, *, seed):
            return prompts

        def describe(self):
            return {}

    found = units(model, "head", prompts)
    names = [name for one in found for name in one.sites]
    for at in ("final", "all"):
        mean = calibrate(model, Same(), prompts, names, replace="mean", at=at, stride=4, n=4, seed=0)
        scores = engine.run(model, prompts, [Variant(u.label, u.edits(mean.at)) for u in found], at=at)
        assert torch.allclose(
            scores["logprob"], scores["logprob"][:1].expand_as(scores["logprob"]), atol=1e-9
        )


def test_clean_into_clean_changes_nothing_and_the_whole_stream_gives_the_other_run(model):
    base, source = TASK.sample_pairs(8, seed=0, kind="shift", shift=1)
    clean = engine.run(model, base, progress=False)["logprob"][0]
    other = engine.run(model, source, progress=False)["logprob"][0]
    for pairs, expected in ((base, clean), (source, other)):
        held = torch.nn.functional.embedding(pairs.tokens, model.W_E)
        edit = Edit("blocks.0.hook_resid_pre", lambda t, rows, held=held: held[rows.prompt])
        got = engine.run(model, base, [Variant("stream", (edit,))], at="all", progress=False)["logprob"][1]
        assert torch.allclose(got, expected, atol=1e-9)


def test_names_that_never_fire_raise(model):
    edit = Edit("blocks.0.attn.indexer.hook_picks", lambda t, rows: t)
    with pytest.raises(SiteError, match="never fires"):
        engine.run(model, TASK.sample(4, seed=0), [Variant("x", (edit,))])
    with pytest.raises(SiteError, match=r"0\.7"):
        knockout(model, TASK, unit="head", only=["0.7"], n=4, progress=False)


def test_kv_head_is_its_query_heads(model):
    effects = knockout(model, TASK, n=8, n_calibration=8, replace="zero", progress=False)
    assert effects.unit.values.tolist() == ["0.0", "0.1", "1.0", "1.1"]
    prompts = TASK.sample(8, seed=0)

    def silence(z, hook):
        z = z.clone()
        z[:, -1, 2:] = 0.0
        return z

    with torch.no_grad():
        logits = model.run_with_hooks(prompts.tokens, fwd_hooks=[("blocks.1.attn.hook_z", silence)])
    expected = logits[:, -1].log_softmax(-1).gather(1, prompts.answer[:, None])[:, 0]
    assert torch.allclose(
        torch.from_numpy(effects.logprob.sel(unit="1.1").values).flatten(), expected, atol=1e-9
    )


def test_patching_the_same_phase_is_refused_and_whole_layers_move_toward_the_source(model):
    with pytest.raises(Exception, match="shift=4"):
        patch(model, TASK, shift=4, n=8)
    result = patch(model, TASK, unit="head", n=8, progress=False)
    assert result.effect_logprob.dims == ("unit", "phase")
    assert result.sizes["unit"] == 8


def test_all_heads_silenced_is_no_attention_and_the_rest_stays(model):
    """Identity 5, at once and everywhere."""
    prompts = TASK.sample(8, seed=0)
    zero = lambda name, tensor, rows: torch.zeros_like(tensor)  # noqa: E731
    heads = Variant("all", union(units(model, "head", prompts)).edits(zero))
    none = Variant("none", tuple(Edit(f"blocks.{i}.hook_attn_out", lambda t, rows: 0 * t) for i in range(2)))
    for at in ("final", "all"):
        scores = engine.run(model, prompts, [heads, none], at=at, progress=False)
        assert torch.allclose(scores["logprob"][1], scores["logprob"][2], atol=1e-9)
        assert float((scores["logprob"][1] - scores["logprob"][0]).abs().max()) > 1e-3


def test_a_zeroed_entry_still_draws_mass_where_a_masked_branch_does_not(model):
    prompts = TASK.sample(8, seed=0)
    names = [f"blocks.0.attn.hook_entry_{part}" for part in "kv"]
    zeroed = Variant("zeroed", tuple(Edit(name, lambda t, rows: 0 * t) for name in names))
    masked = Variant("masked", units(model, "entry_branch", prompts)[0].edits(None))
    scores = engine.run(model, prompts, [zeroed, masked], at="all", progress=False)["logprob"]
    assert float((scores[1] - scores[2]).abs().max()) > 1e-3


def test_donors_depend_on_the_seed_and_the_prompt_alone_and_share_its_residue(model):
    few, many = TASK.sample(8, seed=0), TASK.sample(24, seed=0)
    found = [
        calibrate(
            model, TASK, prompts, ["blocks.0.attn.hook_z"], replace="resample", at="final", stride=4, n=20, seed=5,
            memory=memory,
        )
        for prompts, memory in ((few, 1), (many, 1 << 30))
    ]  # fmt: skip
    assert torch.equal(found[0].choice, found[1].choice[:8])
    assert torch.equal(found[1].choice % 4, many.residue)
    assert len(found[1].choice.unique()) > 4
    a, b = (one.values["blocks.0.attn.hook_z"] for one in found)
    assert torch.allclose(a, b, atol=1e-9)


def test_resampling_from_oneself_is_nothing(model):
    """Identity 7: with every prompt its own donor no unit does anything."""
    prompts = TASK.sample(8, seed=0)
    found = units(model, "kv_head", prompts)
    held = held_values(
        model, prompts, ["blocks.0.attn.hook_z", "blocks.1.attn.hook_z"], at="all", progress=False
    )
    own = Replacement(
        "resample", {n: held(n, None, Rows(torch.arange(8), torch.arange(prompts.tokens.shape[1])))
                     for n in ("blocks.0.attn.hook_z", "blocks.1.attn.hook_z")}, torch.arange(8),
    )  # fmt: skip
    scores = engine.run(model, prompts, [Variant(u.label, u.edits(own.at)) for u in found], at="all")[
        "logprob"
    ]
    assert torch.allclose(scores, scores[:1].expand_as(scores), atol=1e-9)


def test_an_ablation_reaches_the_row_it_is_meant_for_and_no_other(model):
    """circuit-tracer#105: rows 0 and 2 of a batch stay bit for bit what they were."""
    prompts = TASK.sample(4, seed=0)

    def edit(z, rows):
        z[rows.prompt == 1, :, 1] = 0
        return z

    scores = engine.run(model, prompts, [Variant("one", (Edit("blocks.0.attn.hook_z", edit),))], at="final")
    clean, changed = scores["logprob"]
    assert clean[1] != changed[1]
    for row in (0, 2, 3):
        assert clean[row] == pytest.approx(float(changed[row]), abs=1e-12)


@pytest.mark.parametrize("kind", ["hook_pattern", "hook_attn_scores"])
def test_attention_to_what_was_let_go_is_an_error_and_never_dropped(model, kind):
    prompts = TASK.sample(8, seed=0)
    last = prompts.query_position
    near, far = (into_column(f"blocks.1.attn.{kind}", column) for column in (last - 1, last - 4))
    found = engine.run(model, prompts, [near], progress=False)["logprob"]
    assert torch.allclose(found[1], plainly(model, prompts, near, "final"), atol=1e-6)
    assert (found[1] - found[0]).abs().max() > 1e-3
    assert (plainly(model, prompts, far, "final") - found[0]).abs().max() > 1e-3  # a plain pass can read it
    with pytest.raises(
        SiteError, match=rf"position {last - 4}, .* let go; valid: positions from {last - 3} on"
    ):
        engine.run(model, prompts, [far], progress=False)


def test_only_edits_that_repeat_the_same_operations_may_be_recorded(model, monkeypatch):
    offered = []

    def noting(model, run, *inputs, batches):
        offered.append(batches)
        return run

    monkeypatch.setattr(engine, "fastest", noting)
    prompts = TASK.sample(8, seed=0)
    for kind in ("head", "target_entry"):  # a mask reads every prompt's target on the CPU
        found = units(model, kind, prompts)
        names = [name for one in found if one.replaced for name in one.sites]
        value_at = calibrate(
            model, TASK, prompts, names, replace="mean", at="final", stride=4, n=4, seed=0
        ).at
        for told in (True, False):
            variants = [Variant(one.label, one.edits(value_at, repeatable=told)) for one in found]
            engine.run(model, prompts, variants, progress=False)
    engine.run(model, prompts, progress=False)
    assert offered == [1, 1]  # the heads that said so, and the clean run
