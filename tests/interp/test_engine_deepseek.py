"""The engine and its verbs on Hugging Face's DeepSeek-V4 class, against one plain hooked pass per unit."""

import pytest
import torch

from hooks import SiteError
from interp import engine
from interp.engine import Edit, Variant
from interp.paths import direct_effects
from interp.tasks.prompts import Prompts
from interp.units import units
from tests.hooks.deepseek_models import VOCAB, hooked, tokens
from tests.interp.intervention_models import into_column, plainly


def prompts_of(length):
    """Random tokens; 4 prompts of one block, targets at positions 0 … 3."""
    row = torch.arange(4)
    return Prompts(
        tokens=tokens(4, length), answer=row + 7, target_position=row, query_position=length - 1, residue=row,
        prompt_id=row // 4, modulus=4,
    )  # fmt: skip


class Random:
    modulus, d_vocab = 4, VOCAB

    def __init__(self, length):
        self.length = length

    def sample(self, n, *, seed):
        row = torch.arange(n)
        return Prompts(
            tokens=tokens(n, self.length, seed % 1000), answer=row % VOCAB, target_position=row % 4,
            query_position=self.length - 1, residue=row % 4, prompt_id=row // 4, modulus=4,
        )  # fmt: skip

    def describe(self):
        return {"task": "random"}


def zero(name, tensor, rows):
    return torch.zeros_like(tensor)


@pytest.mark.parametrize(
    ("at", "length"), [("final", 21), ("final", 24), ("all", 21)]
)  # 24 closes every window
@pytest.mark.parametrize("kind", ["head", "layer", "mlp", "exact_branch", "entry_branch", "target_entry"])
def test_every_unit_equals_a_plain_pass(kind, at, length):
    _, model = hooked()
    prompts = prompts_of(length)
    found = units(model, kind, prompts)[:6]
    variants = [Variant(one.label, one.edits(zero if one.replaced else None)) for one in found]
    scores = engine.run(model, prompts, variants, at=at, progress=False)
    for row, variant in enumerate(variants, start=1):
        expected = plainly(model, prompts, variant, at)
        assert torch.allclose(scores["logprob"][row], expected, atol=1e-5), variant.label
    assert float((scores["logprob"][1:] - scores["logprob"][0]).abs().max()) > 1e-4


def test_gate_offsets_equal_plain_passes():
    _, model = hooked()
    prompts = prompts_of(24)
    variants = [Variant(one.label, one.edits(None)) for one in units(model, "gate_offset", prompts)[:10]]
    scores = engine.run(model, prompts, variants, at="all", progress=False)
    for row, variant in enumerate(variants, start=1):
        assert torch.allclose(scores["logprob"][row], plainly(model, prompts, variant, "all"), atol=1e-5)


def test_clean_into_clean_changes_nothing_at_any_site():
    _, model = hooked()
    prompts = prompts_of(21)
    names = [name for name in model.site_names() if name != "hook_embed"]
    variants = [Variant(name, (Edit(name, lambda tensor, rows: tensor.clone()),)) for name in names]
    scores = engine.run(model, prompts, variants, at="final", progress=False)
    assert torch.allclose(scores["logprob"], scores["logprob"][:1].expand_as(scores["logprob"]), atol=1e-5)


def test_direct_effects_run_with_streams_mixed_between_layers():
    _, model = hooked()
    found = direct_effects(model, Random(21), unit="layer", replace="zero", n=8, stride=4, progress=False)
    last = found.sel(unit="3")
    assert abs(last.direct.values - last.total.values).max() > 0  # its own MLP is behind it
    assert abs(found.direct.values).max() > 1e-4


@pytest.mark.parametrize("kind", ["hook_pattern", "hook_attn_scores"])
def test_attention_to_what_was_let_go_is_an_error_and_never_dropped(kind):
    _, model = hooked()
    prompts = prompts_of(21)
    near, far = (into_column(f"blocks.1.attn.{kind}", column) for column in (19, 1))
    found = engine.run(model, prompts, [near], progress=False)["logprob"]
    assert torch.allclose(found[1], plainly(model, prompts, near, "final"), atol=1e-5)
    assert (found[1] - found[0]).abs().max() > 1e-4
    with pytest.raises(SiteError, match=r"to position 1, .* let go"):
        engine.run(model, prompts, [far], progress=False)
