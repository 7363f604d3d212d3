"""What a hook returns fits the place it is put in: one rule at every site of every model and both backends."""

from __future__ import annotations

import pytest
import torch

from hooks.errors import SiteError
from tests.hooks.deepseek_models import hooked
from tests.hooks.shared_models import MIXES, VOCAB, build, small

TWO_VALUED = "picks of a reindex layer reused, latent of two heads"

SHAPES = [
    lambda x: x[:, :-1],
    lambda x: x[:1],  # broadcast, if nobody looked
    lambda x: x.transpose(0, 1),
    lambda x: x.reshape(-1),  # as many numbers in other axes
    lambda x: x[None],
    lambda x: x.amax(),
]
KINDS = [
    lambda x: x.int() if x.is_floating_point() else x.float(),
    lambda x: x > 0,
    lambda x: x.to(torch.complex64),
    lambda x: x.to("meta"),
    lambda x: 0.0,
]
"""What does not fit a site of two prompts: by shape, by what the numbers are."""


def _own(mix, **changes):
    return build(small(mix, **changes))


def _ids(batch, length):
    return torch.arange(batch * length).reshape(batch, length) % VOCAB


def _in_place(x):
    x.unsqueeze_(0)


@pytest.mark.parametrize("mix", ["encoder-decoder", "own indexers, overlap", "with a memory"])
def test_every_site_refuses_what_does_not_fit(mix):
    model = _own(mix) if mix in MIXES else _own(TWO_VALUED, engram=True)
    ids = _ids(2, 11)
    kinds = {name.split(".", 2)[-1]: name for name in reversed(model.site_names())}
    with torch.no_grad():
        clean, (_, shown) = model(ids), model.run_with_cache(ids)
        for number, name in enumerate(kinds.values()):
            for edit in (SHAPES[number % len(SHAPES)], KINDS[number % len(KINDS)]):
                with pytest.raises(SiteError) as error:
                    model.run_with_hooks(ids, [(name, lambda x, hook, edit=edit: edit(x))])
                assert str(error.value).startswith(f"{name}: a hook returned a")
                assert f"shape {list(shown[name].shape)} on cpu" in str(error.value)
        with pytest.raises(SiteError, match=r"hook_resid_mid: .*shape \[1, 2, 11"):
            model.run_with_hooks(ids, [("blocks.1.hook_resid_mid", lambda x, hook: _in_place(x))])
        assert torch.equal(model(ids), clean)


def test_however_a_hook_got_there():
    model = _own(TWO_VALUED)
    ids = _ids(1, 13)
    point = model.blocks[1].attn.hook_z
    for add in (
        lambda fn: model.add_hook("blocks.1.attn.hook_z", fn),
        lambda fn: point.add_hook(fn),
        lambda fn: point.add_perma_hook(fn),
    ):
        add(lambda z, hook: z[:, :3])
        with torch.no_grad(), pytest.raises(SiteError, match=r"blocks\.1\.attn\.hook_z: .*\[1, 3, 4, 8\]"):
            model(ids)
        model.reset_hooks(including_permanent=True)
    with model.hooks(bwd_hooks=[("blocks.1.attn.hook_z", lambda g, hook: g[:, :3])], must_fire=False):
        logits = model(ids)
        with pytest.raises(SiteError, match=r"\[1, 3, 4, 8\]"):
            logits.sum().backward()


def test_other_widths_of_numbers_are_read_in_the_models():
    ids = _ids(2, 11)
    for model in (_own(TWO_VALUED), hooked(topk=2)[1]):
        with torch.no_grad():
            for kind, width in [("hook_z", torch.bfloat16), ("indexer.hook_picks", torch.int32)]:
                name = next(n for n in model.site_names() if n.endswith(kind))
                same = model.run_with_hooks(ids, [(name, lambda x, hook: x // 2)])
                other = model.run_with_hooks(ids, [(name, lambda x, hook, w=width: (x // 2).to(w))])
                assert torch.equal(same, other)
                assert not torch.equal(same, model(ids))


def test_tracing_refuses_what_hooks_refuse():
    from hooks import trace_deepseek_v4

    plain, model = hooked(topk=2)
    traced = trace_deepseek_v4(plain)
    ids = _ids(2, 11)
    kinds = ("hook_attn_out", "attn.hook_z", "attn.compressor.key.hook_gate_logits", "attn.indexer.hook_picks",
             "attn.hook_rot_k", "attn.hook_pattern", "attn.hook_result")  # fmt: skip
    for number, name in enumerate(["hook_embed", *(f"blocks.1.{kind}" for kind in kinds)]):
        edit = [*SHAPES, *KINDS][number % 11]
        said = []
        for run in (
            lambda: model.run_with_hooks(ids, [(name, lambda x, hook: edit(x))]),  # noqa: B023
            lambda: traced.run_with_edits(ids, {name: edit}),  # noqa: B023
        ):
            with torch.no_grad(), pytest.raises(SiteError) as error:
                run()
            said.append(str(error.value))
        assert said[0] == said[1], name
