"""The nnsight backend against the hooked one: equal activations, equal effects, and its own refusals."""

from __future__ import annotations

import pytest
import torch

from hooks.errors import ConfigError, ModelCheckError, PhaselensError, SiteError
from tests.hooks.deepseek_models import hooked, tokens, v4

TOLERANCE = 2e-5
"""Largest difference between the backends; activations differ only in how per-head results are summed."""


@pytest.fixture(scope="module")
def both():
    from hooks import trace_deepseek_v4

    plain, model = hooked(topk=2)
    return plain, model, trace_deepseek_v4(plain)


def _edit(kind):
    """Return one deterministic edit, as a function of the activation alone."""

    def edit(tensor):
        if kind.endswith("picks"):
            return torch.where(tensor > 0, tensor - 1, tensor)
        generator = torch.Generator().manual_seed(11)
        return tensor + torch.randn(tensor.shape, generator=generator)

    return edit


def test_unedited_logits_are_the_plain_models(both):
    plain, model, traced = both
    ids = tokens(2, 19)
    with torch.no_grad():
        expected = plain(ids).logits
        assert torch.equal(traced.run_with_edits(ids, {}), expected)
        # The wrapped copy neither changes the given model nor the hooked one.
        assert torch.equal(plain(ids).logits, expected)
        assert torch.equal(model(ids), expected)


def test_both_backends_see_the_same_activations(both):
    _, model, traced = both
    ids = tokens(2, 19)
    assert traced.site_names() == model.site_names()
    with torch.no_grad():
        _, want = model.run_with_cache(ids)
    got = traced.activations(ids, model.site_names())
    assert set(got) == set(want)
    for name, tensor in want.items():
        if name.endswith("hook_result"):
            torch.testing.assert_close(got[name], tensor, atol=TOLERANCE, rtol=0)
        else:
            assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_equal_interventions_have_equal_effects(both, layer):
    plain, model, traced = both
    ids = tokens(2, 23)
    names = [n for n in model.site_names() if n.startswith(f"blocks.{layer}.")] + ["hook_embed"] * (
        layer == 0
    )
    with torch.no_grad():
        clean = plain(ids).logits
        for name in names:
            edit = _edit(name)
            want = model.run_with_hooks(ids, fwd_hooks=[(name, lambda t, hook, edit=edit: edit(t))])
            got = traced.run_with_edits(ids, {name: edit})
            torch.testing.assert_close(
                got, want, atol=TOLERANCE, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )
            assert float((want - clean).abs().max()) > 1e-3, name


def test_several_edits_at_once_and_observers_beside_them(both):
    _, model, traced = both
    ids = tokens(1, 19)
    names = ["blocks.0.attn.hook_z", "blocks.1.attn.compressor.key.hook_gate", "blocks.2.attn.hook_v",
             "blocks.3.attn.hook_pattern"]  # fmt: skip
    seen = {}
    edits = {name: _edit(name) for name in names}
    edits["blocks.3.attn.hook_z"] = lambda z: seen.update(z=z)
    with torch.no_grad():
        hooks = [(name, lambda t, hook, name=name: edits[name](t)) for name in names]
        with model.hooks(hooks):
            want, held = model.run_with_cache(ids, ["blocks.3.attn.hook_z"])
    torch.testing.assert_close(traced.run_with_edits(ids, edits), want, atol=TOLERANCE, rtol=1e-4)
    torch.testing.assert_close(seen["z"], held["blocks.3.attn.hook_z"], atol=TOLERANCE, rtol=1e-4)


def test_what_cannot_be_traced_is_refused(both):
    from hooks import trace_deepseek_v4

    _, _, traced = both
    ids = tokens(1, 19)
    with pytest.raises(SiteError, match="layer 0 lacks it"):
        traced.activations(ids, ["blocks.0.attn.hook_entry_k"])
    with pytest.raises(PhaselensError, match="3 tokens close no window of stride 4"):
        traced.activations(ids[:, :3], ["blocks.1.attn.compressor.key.hook_gate"])
    assert traced.activations(ids[:, :3], ["blocks.1.attn.hook_z"])["blocks.1.attn.hook_z"].shape == (
        1,
        3,
        4,
        12,
    )
    with pytest.raises(PhaselensError, match="ragged"):
        traced.run_with_edits([[1, 2], [3]], {})
    with pytest.raises(ModelCheckError, match="NaN or infinite"):
        traced.run_with_edits(ids, {"hook_embed": lambda t: t * torch.inf})
    with pytest.raises(ConfigError, match="not a DeepseekV4ForCausalLM"):
        trace_deepseek_v4(torch.nn.Linear(2, 2))


def test_operations_that_are_gone_are_named(monkeypatch):
    import hooks.tracing as tracing

    monkeypatch.setattr(tracing, "_ATTENTION_OPS", ("attention_interface_7",))
    with pytest.raises(ModelCheckError, match="no operation 'attention_interface_7'"):
        tracing.trace_deepseek_v4(v4())


def test_picks_set_by_an_edit_follow_the_hooked_models_rule(both):
    """Future entries are emptied in both backends alike; entries that do not exist raise, one line."""
    _, model, traced = both
    ids, name = tokens(1, 16), "blocks.1.attn.indexer.hook_picks"
    other = ids.clone()
    other[0, -1] = (ids[0, -1] + 1) % 50
    with torch.no_grad():
        want = model.run_with_hooks(ids, fwd_hooks=[(name, lambda picks, hook: torch.full_like(picks, 3))])
        got, changed = (
            traced.run_with_edits(each, {name: lambda picks: torch.full_like(picks, 3)})
            for each in (ids, other)
        )
    torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=1e-4)
    assert torch.equal(got[:, :15], changed[:, :15])
    for bad in (99, -2):
        with pytest.raises(SiteError, match=rf"{name}: pick {bad} does not exist; valid: -1 \(empty\) to 3"):
            traced.run_with_edits(ids, {name: lambda picks, b=bad: torch.full_like(picks, b)})


def test_models_can_be_saved_after_tracing(both, tmp_path):
    # nnsight puts a method `save` on every object, modules included.
    import hooks

    _, model, _ = both
    assert hooks.save(model, tmp_path / "m") == tmp_path / "m"
    assert (tmp_path / "m" / "model.safetensors").exists()
