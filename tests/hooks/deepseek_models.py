"""Small random DeepSeek-V4 models for tests: all three layer kinds, weights large enough to matter."""

from __future__ import annotations

import functools
from typing import Any

import torch
from transformers.models.deepseek_v4 import DeepseekV4Config, DeepseekV4ForCausalLM

SLIDING, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
VOCAB = 50


def v4(
    csa: int = 4, hca: int = 8, *, layers: tuple[str, ...] = (SLIDING, CSA, HCA, CSA), **sizes: Any
) -> Any:
    """Build a plain Hugging Face model; float32, evaluation mode, every weight random."""
    settings: dict[str, Any] = dict(
        vocab_size=VOCAB, hidden_size=24, moe_intermediate_size=16, num_hidden_layers=len(layers),
        num_attention_heads=4, head_dim=12, q_lora_rank=16, num_experts_per_tok=2, n_routed_experts=3,
        layer_types=list(layers), compress_rates={CSA: csa, HCA: hca}, hc_mult=2, hc_sinkhorn_iters=4,
        sliding_window=6, o_groups=2, o_lora_rank=8, index_n_heads=16, index_head_dim=8, index_topk=64,
        partial_rotary_factor=1 / 3, mlp_layer_types=["hash_moe"] + ["moe"] * (len(layers) - 1),
        attn_implementation="eager",
    )  # fmt: skip
    model = DeepseekV4ForCausalLM(DeepseekV4Config(**{**settings, **sizes})).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("tid2eid"):
                tensor.copy_(torch.randint(settings["n_routed_experts"], tensor.shape, generator=generator))
            elif tensor.ndim > 1:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 1.5 * tensor.shape[-1] ** -0.5)
            elif name.endswith("sinks"):
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return model


@functools.cache
def hooked(csa: int = 4, hca: int = 8, topk: int = 64) -> tuple[Any, Any]:
    """Return (plain model, hooked model); shared between tests, which must leave both unchanged."""
    from hooks import hook_deepseek_v4

    plain = v4(csa, hca, index_topk=topk)
    return plain, hook_deepseek_v4(plain)


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random ids."""
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))
