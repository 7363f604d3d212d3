"""Small models of every role and stride mix, and their forward pass written out token by token.

:func:`brute_force` shares nothing with the library but the block formats of stored precision, which have their own
tests against every code point.
"""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from hooks.config import ModelConfig
from hooks.quantize import fake_quantize
from hooks.transformer import CompressedTransformer

VOCAB = 19
_SMALL = dict(
    d_model=24, n_heads=4, n_kv_heads=1, d_head=8, d_mlp=16, d_vocab=VOCAB, exact_window=3, rope_dims=4,
    tied_kv=True, gate="vector", payload="shared", inverse_rope=True, sink=True, index_heads=3, index_dim=6,
)  # fmt: skip
_TWO_VALUED = dict(tied_kv=False, n_kv_heads=2, gate="scalar", payload="per_offset", sink=False)

MIXES: dict[str, dict[str, Any]] = {
    "encoder-decoder": dict(
        n_layers=8, roles=("full", "reuse", "reindex", "reuse") * 2, window=(2,) * 4 + (1,) * 4,
        stride=(2,) * 4 + (1,) * 4, gate=("vector",) * 4 + ("uniform",) * 4, gate_bias=False, q_norm=False,
        decoder_start=4, index_topk=(2,) * 4 + (3,) * 4, index_style="latent", index_block=2,
        index_pool=(None,) * 4 + (2,) + (None,) * 3,
    ),
    "own indexers, overlap": dict(n_layers=2, window=4, stride=2, payload="two_series", index_topk=2),
    "picks shared over a sliding layer": dict(
        **_TWO_VALUED, n_layers=4, attention=("chunked", "sliding", "chunked", "chunked"),
        roles=("full", "full", "reindex", "reuse"), window=3, stride=2, index_topk=1,
    ),
    "picks of a reindex layer reused, latent of two heads": dict(
        **_TWO_VALUED, n_layers=3, roles=("full", "reindex", "reuse"), window=3, stride=3, index_topk=2,
        index_style="latent", index_pool=(1, None, None), index_block=2, qk_norm=False,
    ),
    "all entries, stride 1": dict(
        n_layers=3, roles=("full", "reuse", "reuse"), window=1, stride=1, gate="uniform", index_heads=None,
        index_dim=None,
    ),
    "dense indexer, strides 1 and 4": dict(
        n_layers=4, roles=("full", "reuse", "full", "reuse"), window=(1, 1, 4, 4), stride=(1, 1, 4, 4),
        exact_window=4,
    ),
}  # fmt: skip
STORED: dict[str, Any] = dict(
    exact_precision="fp8",
    entry_precision="fp4",
    index_precision="mxfp4",
    d_head=32,
    index_dim=32,
    rope_dims=8,
)


def small(mix: str, *, stored: bool = False, seed: int = 0, **changes: Any) -> ModelConfig:
    """Configuration of a mix, optionally with every cache at V4.1's precision."""
    fields = {**_SMALL, **MIXES[mix], **(STORED if stored else {}), **changes, "seed": seed}
    return ModelConfig(**fields)


def build(cfg: ModelConfig) -> CompressedTransformer:
    """Build in float64 with every weight random and large enough to matter; a copy that may be changed."""
    return copy.deepcopy(_built(cfg))


@functools.cache
def _built(cfg: ModelConfig) -> CompressedTransformer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CompressedTransformer(cfg).double().eval()
    generator = torch.Generator().manual_seed(cfg.seed + 1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            values = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            if name.endswith("weight"):
                p.copy_(1 + 0.2 * values)
            elif "W_" in name and name != "W_E":
                p.copy_(values * 1.3 * (p.shape[1] if p.ndim > 2 else p.shape[0]) ** -0.5)
            else:
                p.copy_(values)
    return model


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    """Random token ids."""
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


# --------------------------------------------------------------------------- by hand


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def _rope(x: Tensor, position: int, dims: int, base: float, sign: int = 1) -> Tensor:
    out = x.clone()
    start = x.shape[-1] - dims
    for i in range(dims // 2):
        angle = torch.tensor(sign * position * base ** (-2 * i / dims), dtype=torch.float64)
        a, b = x[..., start + 2 * i], x[..., start + 2 * i + 1]
        out[..., start + 2 * i] = a * angle.cos() - b * angle.sin()
        out[..., start + 2 * i + 1] = b * angle.cos() + a * angle.sin()
    return out


def _stored(x: Tensor, precision: str | None) -> Tensor:
    return x if precision is None else fake_quantize(x, precision)


class _Layer:
    """Weights of one layer by their name within it."""

    def __init__(self, model: CompressedTransformer, index: int) -> None:
        prefix = f"blocks.{index}."
        self.cfg, self.kind = model.cfg, model.cfg.layer(index)
        self.weights = {
            k.removeprefix(prefix): v for k, v in model.state_dict().items() if k.startswith(prefix)
        }

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[name]

    def pool(self, h: Tensor, branch: str, j: int) -> Tensor:
        """Pooled entry j [G, D] of the normed stream h [T, m]."""
        window, stride = self.kind.window, self.kind.stride
        payload = self[f"{branch}.W_payload"]
        maps = len(payload)
        logits, values = [], []
        for i in range(window):
            token = (j + 1) * stride - window + i
            if token < 0:
                continue
            series = i if maps == window else 0 if maps == 1 else int(i >= window // 2)
            values.append(torch.einsum("m,mgd->gd", h[token], payload[series]))
            if self.kind.gate == "uniform":
                logits.append(torch.zeros(payload.shape[2], 1, dtype=h.dtype))
                continue
            logit = torch.einsum("m,mgc->gc", h[token], self[f"{branch}.W_gate"][series])
            if self.kind.gate_bias:
                logit = logit + self[f"{branch}.b_gate"][i]
            logits.append(logit)
        gate = torch.stack(logits).softmax(0)
        return (gate * torch.stack(values)).sum(0)


def brute_force(model: CompressedTransformer, ids: Tensor) -> dict[str, Any]:
    """Logits [T, V] of one sequence, and by layer the picks and blocks of every query."""
    cfg, length = model.cfg, len(ids)
    state = model.state_dict()
    x = state["W_E"][ids]
    picks: dict[int, list[list[int]]] = {}
    pools: dict[int, list[list[int]]] = {}
    owned: dict[int, tuple[list[Tensor], list[Tensor], list[Tensor]]] = {}
    latest: list[list[int]] | None = None
    for index in range(cfg.n_layers):
        layer, kind = _Layer(model, index), cfg.layer(index)
        h = _rms(x, layer["ln1.weight"])
        if kind.attention == "chunked":
            if kind.role == "full":
                owned[index] = _entries(layer, h)
                latest = None
            assert kind.owner is not None
            keys, values, index_keys = owned[kind.owner]
            if kind.index_heads is not None and kind.index_topk is not None:
                scores = [_index_scores(layer, h, t, index_keys) for t in range(length)]
                if kind.index_pool is not None:
                    pools[index] = [_best_blocks(s, kind.index_pool, kind.index_block) for s in scores]
                inside = pools.get(kind.owner) if kind.role == "reindex" else None
                block = cfg.layer(kind.owner).index_block
                picks[index] = latest = [
                    _best(s, kind.index_topk, None if inside is None else inside[t], block)
                    for t, s in enumerate(scores)
                ]
        else:
            keys, values = [], []
        out = []
        for t in range(length):
            read = range((t + 1) // kind.stride) if keys or values else range(0)
            if latest is not None and kind.attention == "chunked":
                read = [j for j in latest[t] if j in read]
            out.append(_attend(layer, h, t, [keys[j] for j in read], [values[j] for j in read]))
        x = x + torch.stack(out)
        if cfg.d_mlp:
            n = _rms(x, layer["ln2.weight"])
            hidden = torch.nn.functional.silu(n @ layer["mlp.W_gate"]) * (n @ layer["mlp.W_in"])
            x = x + hidden @ layer["mlp.W_out"]
    return {"logits": _rms(x, state["ln_final.weight"]) @ state["W_U"], "picks": picks, "pools": pools}


def _entries(layer: _Layer, h: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    kind = layer.kind
    keys, values, index_keys = [], [], []
    for j in range(len(h) // kind.stride):
        latent = layer.pool(h, "attn.compressor.key", j)
        if kind.qk_norm:
            latent = _rms(latent, layer["attn.compressor.key.norm.weight"])
        key = _stored(_rope(latent, j * kind.stride, kind.rope_dims, kind.rope_base), kind.entry_precision)
        keys.append(key)
        values.append(
            key if kind.tied_kv else _stored(layer.pool(h, "attn.compressor.value", j), kind.entry_precision)
        )
        if kind.index_heads is None:
            continue
        if kind.index_style == "latent":
            raw = _rms(latent.flatten() @ layer["attn.indexer.W_K"], layer["attn.indexer.k_norm.weight"])
        else:
            raw = layer.pool(h, "attn.indexer.compressor", j)[0]
            raw = _rms(raw, layer["attn.indexer.compressor.norm.weight"])
        dims = min(kind.rope_dims, len(raw))
        index_keys.append(_stored(_rope(raw, j * kind.stride, dims, kind.rope_base), kind.index_precision))
    return keys, values, index_keys


def _index_scores(layer: _Layer, h: Tensor, t: int, index_keys: list[Tensor]) -> list[float]:
    kind = layer.kind
    maps, weights = layer["attn.indexer.W_Q"], h[t] @ layer["attn.indexer.W_weight"]
    heads, _, width = maps.shape
    scores = []
    for j in range((t + 1) // kind.stride):
        score = 0.0
        for head in range(heads):
            q = _rope(h[t] @ maps[head], t, min(kind.rope_dims, width), kind.rope_base)
            q = _stored(q, kind.index_precision)
            score += float(weights[head] * (width * heads) ** -0.5 * max(0.0, float(q @ index_keys[j])))
        scores.append(score)
    return scores


def _best(scores: list[float], k: int, blocks: list[int] | None, block: int) -> list[int]:
    allowed = [j for j in range(len(scores)) if blocks is None or j // block in blocks]
    return sorted(allowed, key=lambda j: (-scores[j], j))[:k]


def _best_blocks(scores: list[float], size: int, block: int) -> list[int]:
    if not scores:
        return []
    newest = (len(scores) - 1) // block
    others = sorted(range(newest), key=lambda b: (-max(scores[b * block : (b + 1) * block]), b))
    return [newest, *others][:size]


def _attend(layer: _Layer, h: Tensor, t: int, entry_keys: list[Tensor], entry_values: list[Tensor]) -> Tensor:
    kind, cfg = layer.kind, layer.cfg
    keys, values = [], []
    for s in range(max(0, t + 1 - kind.exact_window), t + 1):
        key = torch.einsum("m,gmd->gd", h[s], layer["attn.W_K"])
        if kind.qk_norm:
            key = _rms(key, layer["attn.k_norm.weight"])
        key = _stored(_rope(key, s, kind.rope_dims, kind.rope_base), kind.exact_precision)
        keys.append(key)
        values.append(
            key
            if kind.tied_kv
            else _stored(torch.einsum("m,gmd->gd", h[s], layer["attn.W_V"]), kind.exact_precision)
        )
    keys, values = keys + entry_keys, values + entry_values
    out = torch.zeros(cfg.d_model, dtype=h.dtype)
    for head in range(cfg.n_heads):
        group = head // (cfg.n_heads // cfg.n_kv_heads)
        q = h[t] @ layer["attn.W_Q"][head]
        if kind.q_norm:
            q = _rms(q, layer["attn.q_norm.weight"])
        q = _rope(q, t, kind.rope_dims, kind.rope_base)
        scores = [q @ key[group] * cfg.d_head**-0.5 for key in keys]
        if kind.sink:
            scores.append(layer["attn.sink"][head])
        if not scores:
            continue
        weights = torch.stack(scores).softmax(0)
        z = sum((w * v[group] for w, v in zip(weights, values, strict=False)), torch.zeros_like(q))
        if kind.inverse_rope:
            z = _rope(z, t, kind.rope_dims, kind.rope_base, sign=-1)
        out = out + z @ layer["attn.W_O"][head]
    return out
