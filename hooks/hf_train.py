"""Small DeepSeek-V4 models of the Hugging Face class, ready to be trained from scratch."""

from __future__ import annotations

from typing import Any

import torch

from hooks.deepseek.model import HookedDeepseekV4
from hooks.errors import ConfigError, did_you_mean
from hooks.rng import torch_rng

__all__ = ["PATTERNS", "build_deepseek_v4", "hf_deepseek_v4"]

_SLIDING, _CSA, _HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
PATTERNS: dict[str, tuple[str, ...]] = {
    "mix": (_SLIDING, _CSA, _HCA, _CSA),
    "csa": (_SLIDING, _CSA, _SLIDING, _CSA),
}
"""Layer kinds by name."""


def hf_deepseek_v4(
    pattern: str = "mix",
    *,
    seed: int = 0,
    d_vocab: int = 273,
    csa_stride: int = 4,
    hca_stride: int = 16,
    **sizes: Any,
) -> Any:
    """Build an untrained ``DeepseekV4ForCausalLM``, small enough for recall tasks.

    Hidden size 128, four layers, 4 heads of 32 with half of the channels rotary, 2 output groups, 4 experts
    of which 2 are used, 2 hyper-connection streams, a window of 16; index top-k above the entry count, since
    no gradient reaches the indexer.

    Parameters
    ----------
    pattern : str
        A key of :data:`PATTERNS`.
    seed : int
        Of the weights and of the token-to-expert table of the first layer.
    d_vocab : int
        Vocabulary; 273 is the recall task's.
    csa_stride, hca_stride : int
        Strides of the two compressors.
    **sizes
        Other ``DeepseekV4Config`` fields, e.g. ``hidden_size``, ``index_topk``.

    Raises
    ------
    ConfigError
        For an unknown pattern.
    """
    from transformers.models.deepseek_v4 import DeepseekV4Config, DeepseekV4ForCausalLM

    if pattern not in PATTERNS:
        raise ConfigError(f"unknown layer pattern {pattern!r}; {did_you_mean(pattern, PATTERNS)}")
    layers = list(PATTERNS[pattern])
    settings: dict[str, Any] = dict(
        vocab_size=d_vocab, hidden_size=128, moe_intermediate_size=128, num_hidden_layers=len(layers),
        num_attention_heads=4, head_dim=32, partial_rotary_factor=0.5, q_lora_rank=64, o_groups=2,
        o_lora_rank=64, n_routed_experts=4, num_experts_per_tok=2, hc_mult=2, sliding_window=16,
        index_n_heads=4, index_head_dim=32, index_topk=4096, layer_types=layers,
        compress_rates={_CSA: csa_stride, _HCA: hca_stride},
        mlp_layer_types=["hash_moe"] + ["moe"] * (len(layers) - 1), bos_token_id=None, eos_token_id=None,
        attn_implementation="eager",
    )  # fmt: skip
    config = DeepseekV4Config(**{**settings, **sizes})
    # The class draws its weights from the global generator; what the caller had there comes back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DeepseekV4ForCausalLM(config)
    _fill_expert_tables(model, seed)
    return model


def _fill_expert_tables(model: Any, seed: int) -> None:
    """Give every token distinct random experts: the class's zeros send all tokens to expert 0, twice."""
    for index, layer in enumerate(model.model.layers):
        table = getattr(layer.mlp.gate, "tid2eid", None)
        if table is not None:
            generator = torch_rng(seed, "tid2eid", index)
            order = torch.rand(table.shape[0], model.config.n_routed_experts, generator=generator).argsort(1)
            table.copy_(order[:, : table.shape[1]])


def build_deepseek_v4(pattern: str = "mix", *, seed: int = 0, **sizes: Any) -> HookedDeepseekV4:
    """Build and hook an untrained model; train its :meth:`~HookedDeepseekV4.trainable`.

    Parameters
    ----------
    pattern, seed, **sizes
        As in :func:`hf_deepseek_v4`.
    """
    return HookedDeepseekV4(hf_deepseek_v4(pattern, seed=seed, **sizes), name=f"hfv4-{pattern}")
