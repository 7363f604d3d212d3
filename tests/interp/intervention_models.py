"""Small models with random weights for the tests of interventions."""

from __future__ import annotations

import functools

import torch

from hooks import CompressedTransformer, ModelConfig
from hooks.sites import site
from interp.engine import Edit, Rows, Variant
from interp.tasks import RecallTask

TASK = RecallTask(
    n_keys=10, n_values=10, n_filler=4, n_records=5, context=24, n_queries=2, n_demonstrations=1, modulus=4
)


@functools.cache
def small(seed: int = 1, **changes) -> CompressedTransformer:
    """Two layers of four heads, W=S=4 unless told otherwise; shared between tests, which leave it unchanged."""
    settings = dict(
        n_layers=2, d_model=16, n_heads=4, n_kv_heads=2, d_head=4, d_mlp=16, d_vocab=TASK.d_vocab,
        window=4, stride=4, exact_window=4, gate_init_std=1.0, seed=seed,
    )  # fmt: skip
    made = CompressedTransformer(ModelConfig(**{**settings, **changes})).eval()
    made.task = TASK.describe()
    return made


def plainly(model, prompts, variant, at):
    """Log-probability of the answer after one whole forward pass with ordinary hooks."""
    length, rows = prompts.tokens.shape[1], torch.arange(len(prompts))

    def hook(edit):
        axes = site(edit.site).axes

        def apply(tensor, hook):
            tensor = tensor.clone()
            if at == "all" or "pos" not in axes:
                return edit.apply(tensor, Rows(rows, torch.arange(length)))
            last = tensor.narrow(axes.index("pos"), length - 1, 1)
            last.copy_(edit.apply(last.clone(), Rows(rows, torch.tensor([length - 1]))))
            return tensor

        return apply

    with torch.no_grad():
        logits = model.run_with_hooks(prompts.tokens, fwd_hooks=[(e.site, hook(e)) for e in variant.edits])
    return logits[:, -1].log_softmax(-1).gather(1, prompts.answer[:, None])[:, 0]


def into_column(name, column):
    """A variant that gives one column of an attention map a score of 20 or all the weight."""

    def write(tensor, rows):
        if "pattern" in name:
            tensor.zero_()
        tensor[..., column] = 1.0 if "pattern" in name else 20.0
        return tensor

    return Variant(f"{name} {column}", (Edit(name, write),))
