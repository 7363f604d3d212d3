"""Named configurations as plain fields: models of a size to train, and DeepSeek's at full size."""

from __future__ import annotations

from typing import Any

__all__ = ["FULL_SIZE", "TRAINABLE"]

_RECALL = {
    "n_layers": 4, "d_model": 128, "n_heads": 4, "d_head": 32, "d_mlp": 256, "d_vocab": 273,
}  # fmt: skip
_DEEPSEEK_STYLE = {
    **_RECALL, "n_kv_heads": 1, "gate": "vector", "tied_kv": True, "rope_dims": 16,
}  # fmt: skip
_INDEXED = {"index_heads": 8, "index_dim": 32, "inverse_rope": True, "sink": True}

# Half as wide as the rest: at d_model 128 these answer every prompt, and nothing is left to compare.
_NARROW = {"d_model": 64, "d_mlp": 128}
# Encoder: pairs (W=S=2, no overlap, no bias); decoder: ratio 1, norm(W_kv x) without a gate. Picks keep a
# third of the entries that 144 context positions give.
_ENCODER_DECODER = {
    **_DEEPSEEK_STYLE, **_INDEXED, **_NARROW, "n_layers": 8, "q_norm": False, "payload": "shared", "gate_bias": False,
    "window": (2,) * 4 + (1,) * 4, "stride": (2,) * 4 + (1,) * 4,
    "gate": ("vector",) * 4 + ("uniform",) * 4, "decoder_start": 4,
    "roles": ("full", "reuse", "reindex", "reuse", "full", "reuse", "reuse", "reuse"),
    "index_topk": (24,) * 4 + (48,) * 4, "index_style": "latent",
}  # fmt: skip

TRAINABLE: dict[str, dict[str, Any]] = {
    "full-4kv": {**_RECALL, "n_kv_heads": 4, "attention": "full"},
    "w4s4-4kv": {**_RECALL, "n_kv_heads": 4, "window": 4, "stride": 4},
    "w8s8-1kv": {**_RECALL, "n_kv_heads": 1},
    "w8s8-2kv": {**_RECALL, "n_kv_heads": 2},
    "w8s8-4kv": {**_RECALL, "n_kv_heads": 4},
    "w8s6-4kv": {**_RECALL, "n_kv_heads": 4, "stride": 6},
    "w8s4-4kv": {**_RECALL, "n_kv_heads": 4, "stride": 4},
    "w12s12-4kv": {**_RECALL, "n_kv_heads": 4, "window": 12, "stride": 12},
    "w8s8-2kv-uniform": {**_RECALL, "n_kv_heads": 2, "gate": "uniform"},
    "w8s8-2kv-nope": {**_RECALL, "n_kv_heads": 2, "rope_dims": 0},
    "dsv4-w8s4-1kv": {**_DEEPSEEK_STYLE, "stride": 4, "payload": "two_series"},
    "dsv4-csa": {
        **_DEEPSEEK_STYLE, **_INDEXED, **_NARROW, "stride": 4, "payload": "two_series", "index_topk": 12,
    },
    "v41-w2s2-1kv": {**_DEEPSEEK_STYLE, "window": 2, "stride": 2, "payload": "shared", "gate_bias": False},
    "v41-ced": {
        **_ENCODER_DECODER, "exact_precision": "fp8", "entry_precision": "fp4", "index_precision": "mxfp4",
    },
    "v41-ced-bf": _ENCODER_DECODER,
    "tiny": {
        "n_layers": 2, "d_model": 64, "n_heads": 4, "n_kv_heads": 2, "d_head": 16, "d_mlp": 128, "d_vocab": 73,
        "window": 4, "stride": 4, "exact_window": 4,
    },
}  # fmt: skip

# Layer kinds of DeepSeek-V4; the MoE and hyper-connections are not part of ModelConfig, hence d_mlp 0.
_SLIDING = {
    "attention": "sliding", "window": 4, "stride": 4, "payload": "shared", "index_topk": None, "index_heads": None,
    "index_dim": None, "rope_base": 1e4,
}  # fmt: skip
_HCA = {**_SLIDING, "attention": "chunked", "window": 128, "stride": 128, "rope_base": 1.6e5}
_DEEPSEEK = {
    "n_kv_heads": 1, "d_head": 512, "d_mlp": 0, "d_vocab": 129280, "exact_window": 128, "gate": "vector",
    "tied_kv": True, "rope_dims": 64, "inverse_rope": True, "sink": True,
}  # fmt: skip
_V4 = {
    **_DEEPSEEK, "exact_precision": "fp8+bf16", "entry_precision": "fp8+bf16", "index_precision": "mxfp4",
}  # fmt: skip


def _csa(topk: int) -> dict[str, Any]:
    return {
        **_HCA, "window": 8, "stride": 4, "payload": "two_series", "index_topk": topk, "index_heads": 64,
        "index_dim": 128,
    }  # fmt: skip


def _by_layer(layers: list[dict[str, Any]]) -> dict[str, Any]:
    return {"n_layers": len(layers), **{name: tuple(layer[name] for layer in layers) for name in layers[0]}}


def _v41_role(layer: int) -> str:
    if layer in (24, 28, 32, 36):
        return "reindex"
    return "full" if layer < 2 or layer in (2, 8, 14, 20) else "reuse"


FULL_SIZE: dict[str, dict[str, Any]] = {
    "deepseek-v4-flash": {
        **_V4, **_by_layer([_SLIDING] * 2 + [_HCA if i % 2 else _csa(512) for i in range(2, 43)]),
        "d_model": 4096, "n_heads": 64,
    },
    "deepseek-v4-pro": {
        **_V4, **_by_layer([_HCA] * 2 + [_csa(1024) if i % 2 else _HCA for i in range(2, 61)]),
        "d_model": 7168, "n_heads": 128,
    },
    "deepseek-v4.1-flash": {
        **_DEEPSEEK, "n_layers": 40, "d_model": 5120, "n_heads": 64, "q_norm": False, "payload": "shared",
        "gate_bias": False, "attention": ("sliding",) * 2 + ("chunked",) * 38,
        "window": (2,) * 20 + (1,) * 20, "stride": (2,) * 20 + (1,) * 20,
        "gate": ("vector",) * 20 + ("uniform",) * 20, "roles": tuple(_v41_role(i) for i in range(40)),
        "decoder_start": 20, "index_topk": 512, "index_heads": 32, "index_dim": 128, "index_style": "latent",
        "index_pool": (None,) * 20 + (2048,) + (None,) * 19, "exact_precision": "fp8", "entry_precision": "fp4",
        "index_precision": "mxfp4", "engram": tuple(i in (1, 14) for i in range(40)), "engram_dim": 256,
    },
}  # fmt: skip
