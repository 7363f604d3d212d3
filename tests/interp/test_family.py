"""Models of one shape stacked into one pass."""

from __future__ import annotations

import pytest
import torch

from hooks.config import preset
from hooks.errors import ConfigError
from hooks.transformer import CompressedTransformer
from interp.family import family_logits


def test_a_stacked_pass_equals_one_pass_per_model():
    models = [CompressedTransformer(preset("tiny").replace(seed=seed)) for seed in range(3)]
    tokens = torch.randint(73, (4, 21), generator=torch.Generator().manual_seed(0))
    got = family_logits(models, tokens)
    with torch.no_grad():
        expected = torch.stack([model(tokens)[:, -1] for model in models])
    assert float((expected[0] - expected[1]).abs().max()) > 0.1
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert all(not model.training for model in models)


def test_other_shapes_indexers_and_empty_families_are_refused():
    tiny = CompressedTransformer(preset("tiny"))
    other = CompressedTransformer(preset("tiny").replace(d_mlp=64))
    indexed = CompressedTransformer(preset("tiny").replace(index_topk=3))
    tokens = torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(ConfigError, match="more than its seed"):
        family_logits([tiny, other], tokens)
    with pytest.raises(ConfigError, match="indexer"):
        family_logits([indexed], tokens)
    with pytest.raises(ConfigError, match="one or more"):
        family_logits([], tokens)
