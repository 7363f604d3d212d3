"""Direct against total effects, and paths, on circuits whose weights are set by hand."""

import numpy as np
import pytest
import torch

from hooks import CompressedTransformer, ModelConfig, SiteError
from hooks.errors import PhaselensError
from interp.controls import discover_then_confirm
from interp.paths import direct_effects, path_patch
from interp.tasks.prompts import Prompts
from tests.interp.intervention_models import TASK, small

T, STRIDE, VOCAB = 8, 4, 8
A, C = 6, 7
"""The token that says "phase 2" when it stands before the last one; the answer."""


class Marked:
    """The second last token is A for targets at phase 2, token 0 for the others; the answer always is C."""

    modulus, d_vocab = STRIDE, VOCAB

    def sample(self, n, *, seed):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(1, 5, (n, T), generator=generator)
        tokens[:, -1] = 5
        residue = torch.arange(n) % STRIDE
        tokens[:, -2] = torch.where(residue == 2, A, 0)
        return Prompts(
            tokens=tokens, answer=torch.full((n,), C), target_position=residue, query_position=T - 1,
            residue=residue, prompt_id=torch.arange(n) // STRIDE, modulus=STRIDE,
        )  # fmt: skip

    def describe(self):
        return {"task": "marked"}


def blank(n_layers, n_heads):
    """Exact-window heads with all maps zero: every head averages the values of the last two tokens."""
    cfg = ModelConfig(
        n_layers=n_layers, d_model=16, n_heads=n_heads, n_kv_heads=n_heads, d_head=4, d_mlp=0, d_vocab=VOCAB,
        attention="sliding", exact_window=2, qk_norm=False, rope_dims=0,
    )  # fmt: skip
    model = CompressedTransformer(cfg).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.rsplit(".", 1)[-1].startswith("W_"):
                weight.zero_()
        for token in range(VOCAB):
            model.W_E[token, token] = 1.0  # directions 0 … 7: token ids
        model.W_E[:, 15] = 4.0  # keeps the norms nearly constant
        model.W_U[8, C] = 30.0  # direction 8 is the answer
    return model


def backed_up():
    """Head 0.0 writes the answer at phase 2; 1.0 does so as well, unless it finds direction 8 there already."""
    model = blank(2, 2)
    with torch.no_grad():
        model.blocks[0].attn.W_V[0, A, 0] = 8.0
        model.blocks[0].attn.W_O[0, 0, 8] = 1.0
        # The backup adds the same from A, and subtracts what head 0.0 has left at the final position.
        attn = model.blocks[1].attn
        attn.W_V[0, A, 0] = 8.0
        attn.W_V[0, 8, 0] = -2.0  # half of the mass is on the final position: −1 of what is there
        attn.W_O[0, 0, 8] = 1.0
    return model


def test_a_backup_head_hides_the_loss_and_direct_effects_show_it():
    model = backed_up()
    found = direct_effects(model, Marked(), n=48, replace="zero", stride=4, progress=False)
    direct, total, repair = (found[name].sel(unit="0.0").values for name in ("direct", "total", "repair"))
    assert direct[2] < -1.0
    assert abs(total[2]) < 0.25 * abs(direct[2])
    assert repair[2] > 0.75 * abs(direct[2])
    assert np.abs(np.delete(direct, 2)).max() < 1e-4  # nothing to lose at other phases
    assert found.direct_p.sel(unit="0.0").values[2] < 0.05
    assert np.isfinite(found.clean_logprob.values).all()
    # The idle heads carry nothing, either way.
    for name in ("direct", "total"):
        assert np.abs(found[name].sel(unit=["0.1", "1.1"]).values).max() < 1e-4


def two_head_path():
    """0.1 copies A to direction 9; 1.0 turns direction 9 of the final position into the answer."""
    model = blank(2, 2)
    with torch.no_grad():
        model.W_U[8, C] = 3.0
        # Direction 9 stays small: the final norm lets every change through to the logits a little.
        model.blocks[0].attn.W_V[1, A, 0] = 1.0
        model.blocks[0].attn.W_O[1, 0, 9] = 1.0
        model.blocks[1].attn.W_V[0, 9, 0] = 4.0
        model.blocks[1].attn.W_O[0, 0, 8] = 1.0
    return model


def test_the_only_path_is_found_and_no_other():
    found = path_patch(two_head_path(), Marked(), n=48, replace="zero", stride=4, progress=False)
    assert found.receiver.values.tolist() == ["0.0", "0.1", "1.0", "1.1", "logits"]
    effect = found.effect
    assert effect.sel(sender="0.1", receiver="1.0").values[2] < -0.3
    assert effect.sel(sender="1.0", receiver="logits").values[2] < -0.3
    planted = [("0.1", "1.0"), ("1.0", "logits")]
    for sender in found.sender.values:
        for receiver in found.receiver.values:
            values = effect.sel(sender=sender, receiver=receiver).values
            if (sender, receiver) in planted:
                values = np.delete(values, 2)
            behind = receiver == "logits" or sender.split(".")[0] < receiver.split(".")[0]
            assert np.isnan(values).all() == (not behind)
            if behind:
                assert np.abs(values).max() < 0.05, (sender, receiver)
    significant = np.argwhere(found.effect_p.values < 0.05)
    names = {(str(found.sender.values[s]), str(found.receiver.values[r])) for s, r, p in significant}
    assert set(planted) <= names
    split = discover_then_confirm(found)
    for sender, receiver in planted:
        assert split.confirmed.sel(sender=sender, receiver=receiver).values.tolist() == [
            False,
            False,
            True,
            False,
        ]
    assert not split.confirmed.sel(sender="1.0", receiver="0.1").any()
    assert np.isnan(split.q_discover.sel(sender="1.0", receiver="0.1")).all()


def test_direct_effects_are_what_freezing_by_hand_gives():
    """One whole pass per head with ordinary hooks, everything behind it held at its clean value."""
    model, prompts = small(), TASK.sample(24, seed=0)
    found = direct_effects(model, TASK, unit="head", replace="zero", n=24, progress=False)
    outputs = [f"blocks.{i}.{kind}" for i in range(2) for kind in ("hook_attn_out", "hook_mlp_out")]
    _, clean = model.run_with_cache(prompts.tokens, outputs)
    for layer, head in ((0, 1), (1, 3)):

        def silence(z, hook, head=head):
            z = z.clone()
            z[:, -1, head] = 0
            return z

        held = outputs[1:] if layer == 0 else outputs[3:]
        hold = [(name, lambda t, hook: clean[hook.name]) for name in held]
        with torch.no_grad():
            logits = model.run_with_hooks(prompts.tokens, [(f"blocks.{layer}.attn.hook_z", silence), *hold])
        expected = logits[:, -1].log_softmax(-1).gather(1, prompts.answer[:, None])[:, 0]
        got = torch.from_numpy(found.logprob_direct.sel(unit=f"{layer}.{head}").values).flatten()
        assert torch.allclose(got.float(), expected, atol=1e-5)


def test_a_memory_acts_directly_past_the_attention_and_the_mlp_of_its_own_layer():
    """Engram writes before attention reads: both of its layer are held, as all that is later."""
    model = CompressedTransformer(small().cfg.replace(engram=True, engram_dim=8)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # an untrained memory adds nothing
        for name, weight in model.named_parameters():
            if ".engram." in name:
                weight.copy_(torch.randn(weight.shape, generator=generator))
    prompts = TASK.sample(24, seed=0)
    found = direct_effects(model, TASK, unit="engram", replace="zero", n=24, progress=False)
    kinds = ("engram.hook_out", "hook_attn_out", "hook_mlp_out")
    outputs = [f"blocks.{i}.{kind}" for i in range(2) for kind in kinds]
    _, clean = model.run_with_cache(prompts.tokens, outputs)

    def silence(out, hook):
        out = out.clone()
        out[:, -1] = 0
        return out

    for layer in (0, 1):
        hold = [(name, lambda t, hook: clean[hook.name]) for name in outputs[3 * layer + 1 :]]
        with torch.no_grad():
            logits = model.run_with_hooks(prompts.tokens, [(outputs[3 * layer], silence), *hold])
        expected = logits[:, -1].log_softmax(-1).gather(1, prompts.answer[:, None])[:, 0]
        got = torch.from_numpy(found.logprob_direct.sel(unit=str(layer)).values).flatten()
        assert torch.allclose(got.float(), expected, atol=1e-5)
        assert float(np.abs(found.repair.sel(unit=str(layer))).max()) > 1e-3  # the layer's own parts react
    for unit in ("engram", "mlp"):
        with pytest.raises(PhaselensError, match="valid: head, kv_head, layer"):
            path_patch(model, TASK, unit=unit, n=8)


def test_in_the_last_layer_direct_is_total_but_for_the_mlp():
    model = small(d_mlp=0)
    found = direct_effects(model, TASK, unit="head", n=24, progress=False)
    last = found.sel(unit=[u for u in found.unit.values if u.startswith("1.")])
    assert np.abs(last.repair.values).max() < 1e-5


def test_masked_units_and_unknown_heads_are_refused():
    with pytest.raises(SiteError, match="masked"):
        direct_effects(small(), TASK, unit="entry_branch", n=8)
    with pytest.raises(SiteError, match=r"1\.9"):
        path_patch(small(), TASK, senders=["1.9"], n=8)
