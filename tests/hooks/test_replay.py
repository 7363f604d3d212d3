"""Which runs are recorded on a GPU; `phaselens bench sweep --device cuda` compares their numbers with plain ones."""

from __future__ import annotations

import pytest
import torch

import hooks
from hooks import CompressedTransformer
from hooks.config import preset
from hooks.replay import _repeats, fastest
from tests.hooks.deepseek_models import hooked

TOKENS = torch.randint(73, (2, 21), generator=torch.Generator().manual_seed(0))


def test_a_processor_runs_plainly_however_many_batches_there_are():
    model = CompressedTransformer(preset("tiny"))

    def run(tokens):
        return model(tokens, last_only=True)

    assert fastest(model, run, TOKENS, batches=1000) is run


def test_only_what_repeats_the_same_kernels_is_recorded():
    tiny = CompressedTransformer(preset("tiny"))
    assert _repeats(tiny)
    with tiny.hooks(fwd_hooks=[("blocks.0.attn.hook_z", lambda tensor, hook: tensor)]):
        assert not _repeats(tiny)
        tiny(TOKENS)  # a hook that never fires is an error
    assert _repeats(tiny)
    for module in (tiny.blocks[0], tiny.blocks[0].hook_resid_pre):  # hooks of PyTorch's own run at no replay
        for add in (module.register_forward_hook, module.register_forward_pre_hook):
            handle = add(lambda *given: None)
            assert not _repeats(tiny)
            handle.remove()
    assert _repeats(tiny)
    assert not _repeats(CompressedTransformer(preset("tiny").replace(index_topk=3)))
    assert not _repeats(hooked()[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_name_their_place(bad):
    logits = torch.zeros(2, 1, 5)
    logits[1, 0, 3] = bad
    with pytest.raises(hooks.errors.ModelCheckError, match=r"first at .* = \[1, 0, 3\]"):
        CompressedTransformer.require_finite(logits)
