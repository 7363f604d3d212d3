"""What every own model must satisfy before it is used: finite weights, gates, maps and heads that add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hooks.errors import ModelCheckError
from hooks.rng import torch_rng
from hooks.running import in_mode

if TYPE_CHECKING:
    from hooks.transformer import CompressedTransformer

__all__ = ["check_model"]


@torch.no_grad()
def check_model(model: CompressedTransformer) -> None:
    """Verify a model on a short random prompt.

    Gates sum to 1, attention maps sum to 1 (with the sink), per-head results sum to the attention output, and
    every number is finite.

    Raises
    ------
    ModelCheckError
        Naming the tensor or site that failed, and by how much.
    """
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ModelCheckError(f"weight {name} holds NaN or infinite values; the model cannot be used")
    layers = range(model.cfg.n_layers)
    widest = max((g.window + g.stride for i in layers if (g := model.geometry(i))), default=4)
    generator = torch_rng(model.cfg.seed, "check")
    tokens = torch.randint(model.cfg.d_vocab, (1, min(2 * widest + 1, 300)), generator=generator)
    ends = ("hook_gate", "hook_pattern", "attn.hook_result", "hook_attn_out")
    names = [name for name in model.site_names() if name.endswith(ends)]
    with in_mode(model, training=False):
        _, cache = model.run_with_cache(tokens.to(model.device), names)
    for layer in layers:
        _check_layer(model, layer, cache)


def _check_layer(model: CompressedTransformer, layer: int, cache: dict[str, Tensor]) -> None:
    prefix, kind = f"blocks.{layer}.", model.cfg.layer(layer)
    for name, tensor in cache.items():
        if name.startswith(prefix) and "compressor" in name:
            total = tensor.sum(2)
            _require_close(name, "gates summed over offsets", total, torch.ones_like(total))
    total = cache[f"{prefix}attn.hook_pattern"].sum(-1)
    readable = (total > 0).to(total.dtype)
    if kind.has_exact_branch or kind.sink:
        readable = torch.ones_like(total)
    name = f"{prefix}attn.hook_pattern"
    _require_close(name, "attention summed over keys and sink", total, readable)
    result, out = cache[f"{prefix}attn.hook_result"].sum(2), cache[f"{prefix}hook_attn_out"]
    _require_close(f"{prefix}attn.hook_result", "head results summed", result, out)


def _require_close(name: str, what: str, got: Tensor, expected: Tensor) -> None:
    if not torch.allclose(got.float(), expected.float(), rtol=1e-3, atol=1e-3):
        worst = float((got - expected).abs().max())
        raise ModelCheckError(f"{name}: {what} miss what they must add up to by {worst:.3g}")
