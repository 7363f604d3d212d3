"""Small models with random weights for the tests of interventions."""

from __future__ import annotations

import functools

from hooks import CompressedTransformer, ModelConfig
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
