"""Small models of every variant that has no indexer, and what tests of them share."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import torch
from torch import Tensor

from hooks.config import ModelConfig
from hooks.sites import site
from hooks.transformer import CompressedTransformer
from tests.hooks.shared_models import build as with_random_weights

VOCAB = 13
SMALL: dict[str, Any] = {
    "d_model": 12, "n_heads": 4, "n_kv_heads": 2, "d_head": 6, "d_mlp": 10, "d_vocab": VOCAB, "n_layers": 2,
    "window": 4, "stride": 4, "exact_window": 4,
}  # fmt: skip

AXES: dict[str, tuple[Any, ...]] = {
    "attention": ("chunked", "chunked", "full", "sliding"),
    "size": ((4, 4), (6, 4), (8, 6), (3, 2), (1, 1)),
    "exact": ("none", "open", 1, 3, 5),
    "gate": ("scalar", "vector", "uniform"),
    "payload": ("per_offset", "shared", "two_series"),
    "tied_kv": (False, True),
    "gate_bias": (True, False),
    "qk_norm": (True, False),
    "rope_dims": (None, 4, 0),
    "inverse_rope": (False, True),
    "sink": (False, True),
}
"""What a layer can be; "size" is (window, stride)."""


def layer_fields(choice: dict[str, Any]) -> dict[str, Any]:
    """Fields of one layer; a combination that cannot exist becomes the nearest that can."""
    fields = {name: value for name, value in choice.items() if name not in ("size", "exact")}
    fields["window"], fields["stride"] = choice["size"]
    if choice["payload"] == "two_series":
        fields["window"] = 2 * fields["stride"]
    chunked = choice["attention"] == "chunked"
    fields["tail"] = "open" if chunked and choice["exact"] == "open" else "window"
    nothing = 0 if chunked else 2
    fields["exact_window"] = choice["exact"] if isinstance(choice["exact"], int) else nothing
    return fields


def random_layers(number: int, seed: int) -> list[dict[str, Any]]:
    """Random layers, always the same ones."""
    draw = random.Random(seed)
    return [{name: draw.choice(values) for name, values in AXES.items()} for _ in range(number)]


def pairs_of(choice: dict[str, Any]) -> set[Any]:
    """Every two things that a layer is at once."""
    return set(itertools.combinations(choice.items(), 2))


def layers_with_every_pair() -> list[dict[str, Any]]:
    """A few dozen layers among which any two values of two fields meet; greedy, so not the fewest."""
    candidates = random_layers(1500, seed=0)
    missing, chosen = set().union(*map(pairs_of, candidates)), []
    while missing:
        chosen.append(max(candidates, key=lambda choice: len(pairs_of(choice) & missing)))
        missing -= pairs_of(chosen[-1])
    return chosen


def stacked(*layers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Fields of a model of these layers, one on top of the other."""
    names = {name: None for fields in layers for name in fields}
    defaults = {field: ModelConfig.__dataclass_fields__[field].default for field in names} | SMALL
    by_layer = {name: tuple(fields.get(name, defaults[name]) for fields in layers) for name in names}
    return {**SMALL, "n_layers": len(layers), **by_layer, **changes}


# Variants of a layer, several to a model: what holds for the whole model holds for each of them. Both of the first
# two have exact windows of 1, S−1, S and S+1 tokens.
_TIED = {"tied_kv": True, "gate": "vector", "rope_dims": 4, "inverse_rope": True, "sink": True}
_S3 = {"window": 3, "stride": 3}
STACKS: dict[str, dict[str, Any]] = {
    "side by side": stacked(
        {**_S3, "exact_window": 1},
        {**_S3, **_TIED, "payload": "shared", "exact_window": 2},
        {**_S3, "gate": "uniform", "qk_norm": False, "rope_dims": 0, "exact_window": 3},
        {**_S3, "payload": "shared", "gate_bias": False, "sink": True},
    ),
    "overlapping": stacked(
        {**_S3, "window": 4, "gate_bias": False},
        {**_S3, **_TIED, "window": 6, "payload": "two_series", "exact_window": 1},
        {**_S3, "window": 5, "gate": "uniform", "sink": True, "exact_window": 2},
        {**_S3, "window": 8, "gate": "vector", "payload": "shared", "exact_window": 3},
    ),
    "open tails, no exact branch": stacked(
        {**_S3, "tail": "open", "window": 4},
        {**_S3, "exact_window": 0, "sink": True, "gate": "vector"},
        {**_S3, "exact_window": 0, "window": 5, "tied_kv": True, "qk_norm": False},
    ),
    "full, sliding and W8/S6": stacked(
        {"attention": "full"},
        {"attention": "sliding", "exact_window": 3, "sink": True},
        {"window": 8, "stride": 6, "exact_window": 5, "payload": "shared"},
    ),
}


def build(fields: dict[str, Any] | None = None, **changes: Any) -> CompressedTransformer:
    """A float64 model, in eval mode, whose every weight is random and large enough to matter."""
    return with_random_weights(ModelConfig(**{**SMALL, **(fields or {}), **changes}))


def prompt(length: int, batch: int = 1, seed: int = 0) -> Tensor:
    """Random token ids [batch, length]; a longer prompt of the same seed begins with the shorter one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(VOCAB, (batch,), generator=generator) for _ in range(length)], dim=1)


def difference(got: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; equal infinities do not differ, and what `expected` leaves open is NaN."""
    assert got.shape == expected.shape, (got.shape, expected.shape)
    gap = (got.detach() - expected.detach()).abs().masked_fill((got == expected) | expected.isnan(), 0.0)
    assert not gap.isnan().any()
    return float(gap.max()) if gap.numel() else 0.0


def axis_of(name: str) -> int | None:
    """Axis along which the values of several calls follow on one another; None for attention maps."""
    axes = site(name).axes
    if "key" in axes:
        return None
    return axes.index("pos" if "pos" in axes else "entry")


@contextmanager
def shapes_unchecked() -> Iterator[None]:
    """Leave run-time shape checks out of long sweeps: they take most of the time, and other tests have them.

    Functions defined inside of functions are decorated whenever they are made, which costs more than they do.
    """
    before, decorate = jaxtyping.config.jaxtyping_disable, jaxtyping.jaxtyped
    jaxtyping.config.update("jaxtyping_disable", True)
    jaxtyping.jaxtyped = lambda **_: lambda function: function
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
        jaxtyping.jaxtyped = decorate
