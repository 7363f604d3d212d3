"""The whole model as loops over positions, entries, heads, offsets and channels, from the mathematics alone.

Nothing here calls the code under test: it reads the fields of a configuration and the weights by name.
Indexers, roles and stored precisions have a reference of their own (``tests.hooks.shared_models``).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

NAN = float("nan")


def logits(model: Any, tokens: list[int]) -> Tensor:
    """Logits [pos, d_vocab] of one prompt."""
    return run(model, tokens)["logits"]


def run(model: Any, tokens: list[int]) -> dict[str, Tensor]:
    """Logits and the value of every hook site of one prompt, without the batch axis.

    Slots of a window that lie before the first token have no payload and no gate logit: NaN.
    """
    cfg, weights = model.cfg, {name: tensor.detach() for name, tensor in model.state_dict().items()}
    seen: dict[str, Tensor] = {}
    stream = [weights["W_E"][token] for token in tokens]
    seen["hook_embed"] = torch.stack(stream)
    for index in range(cfg.n_layers):
        block = f"blocks.{index}"
        seen[f"{block}.hook_resid_pre"] = torch.stack(stream)
        normed = [rms(x, weights[f"{block}.ln1.weight"]) for x in stream]
        added = attention(normed, cfg, index, weights, seen)
        stream = [x + a for x, a in zip(stream, added, strict=True)]
        seen[f"{block}.hook_attn_out"] = torch.stack(added)
        seen[f"{block}.hook_resid_mid"] = torch.stack(stream)
        if cfg.d_mlp:
            added = [mlp(rms(x, weights[f"{block}.ln2.weight"]), weights, f"{block}.mlp") for x in stream]
            stream = [x + a for x, a in zip(stream, added, strict=True)]
            seen[f"{block}.hook_mlp_out"] = torch.stack(added)
        seen[f"{block}.hook_resid_post"] = torch.stack(stream)
    seen["logits"] = torch.stack([rms(x, weights["ln_final.weight"]) @ weights["W_U"] for x in stream])
    return seen


def field(cfg: Any, name: str, layer: int) -> Any:
    """One value of a field that may have one per layer."""
    value = getattr(cfg, name)
    value = value[layer] if isinstance(value, tuple) else value
    return cfg.d_head if name == "rope_dims" and value is None else value


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum() / len(x) + 1e-6) * weight


def mlp(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    gate = x @ weights[f"{name}.W_gate"]
    return (gate / (1 + torch.exp(-gate)) * (x @ weights[f"{name}.W_in"])) @ weights[f"{name}.W_out"]


def turned(x: Tensor, position: int, dims: int, base: float) -> Tensor:
    """Multiply the last `dims` channels, pair by pair as complex numbers, by e^(i·position·frequency)."""
    values = x.tolist()
    start = len(values) - dims
    for pair in range(dims // 2):
        angle = position * base ** (-2 * pair / dims)
        a, b = start + 2 * pair, start + 2 * pair + 1
        z = complex(values[a], values[b]) * complex(math.cos(angle), math.sin(angle))
        values[a], values[b] = z.real, z.imag
    return torch.tensor(values, dtype=x.dtype)


def softmax(values: list[float]) -> list[float]:
    finite = [v for v in values if v != -math.inf]
    if not finite:
        return [0.0] * len(values)
    powers = [0.0 if v == -math.inf else math.exp(v - max(finite)) for v in values]
    return [p / sum(powers) for p in powers]


def attention(
    xs: list[Tensor], cfg: Any, index: int, weights: dict[str, Tensor], seen: dict[str, Tensor]
) -> list[Tensor]:
    """Attention outputs [d_model] by position."""
    at, length, kind = f"blocks.{index}.attn", len(xs), field(cfg, "attention", index)
    heads, share = cfg.n_heads, cfg.n_heads // cfg.n_kv_heads
    normed, sink = field(cfg, "qk_norm", index), field(cfg, "sink", index)
    dims, base = field(cfg, "rope_dims", index), field(cfg, "rope_base", index)

    q = [[x @ weights[f"{at}.W_Q"][h] for h in range(heads)] for x in xs]
    seen[f"{at}.hook_q"] = stacked(q)
    rot_q = [
        [turned(rms(v, weights[f"{at}.q_norm.weight"]) if normed else v, t, dims, base) for v in row]
        for t, row in enumerate(q)
    ]
    seen[f"{at}.hook_rot_q"] = stacked(rot_q)

    rot_k, value = exact_tokens(xs, cfg, index, weights, seen)
    entry_k, entry_v = entries(xs, cfg, index, weights, seen) if kind == "chunked" else ([], [])
    seen_scores = torch.full((heads, length, length + len(entry_k) + sink), -torch.inf, dtype=xs[0].dtype)
    pattern, z, result, out = torch.zeros_like(seen_scores), [], [], []
    for t in range(length):
        z.append([])
        result.append([])
        for h in range(heads):
            g = h // share
            scores = [-math.inf] * (length + len(entry_k) + sink)
            for p in range(t + 1):
                if reads_exactly(cfg, index, t, p):
                    scores[p] = float(rot_q[t][h] @ rot_k[p][g]) / math.sqrt(cfg.d_head)
            for j in range(len(entry_k)):
                if last_token(cfg, index, j) <= t:
                    scores[length + j] = float(rot_q[t][h] @ entry_k[j][g]) / math.sqrt(cfg.d_head)
            if sink:
                scores[-1] = float(weights[f"{at}.sink"][h])
            mass = softmax(scores)
            mixed = torch.zeros(cfg.d_head, dtype=xs[0].dtype)
            for p in range(t + 1):
                if mass[p]:
                    mixed = mixed + mass[p] * value[p][g]
            for j in range(len(entry_k)):
                if mass[length + j]:
                    mixed = mixed + mass[length + j] * entry_v[j][g]
            if field(cfg, "inverse_rope", index):
                mixed = turned(mixed, -t, dims, base)
            seen_scores[h, t] = torch.tensor(scores, dtype=seen_scores.dtype)
            pattern[h, t] = torch.tensor(mass, dtype=pattern.dtype)
            z[t].append(mixed)
            result[t].append(mixed @ weights[f"{at}.W_O"][h])
        out.append(sum(result[t], torch.zeros(cfg.d_model, dtype=xs[0].dtype)))
    seen[f"{at}.hook_attn_scores"], seen[f"{at}.hook_pattern"] = seen_scores, pattern
    seen[f"{at}.hook_z"], seen[f"{at}.hook_result"] = stacked(z), stacked(result)
    return out


def reads_exactly(cfg: Any, index: int, query: int, position: int) -> bool:
    """Whether a query may read the exact token at a position at or before it."""
    kind, window = field(cfg, "attention", index), field(cfg, "exact_window", index)
    if kind == "full":
        return True
    if kind == "chunked" and field(cfg, "tail", index) == "open":
        stride = field(cfg, "stride", index)
        return position // stride == query // stride
    return query - position < window


def last_token(cfg: Any, index: int, entry: int) -> int:
    return (entry + 1) * field(cfg, "stride", index) - 1


def exact_tokens(
    xs: list[Tensor], cfg: Any, index: int, weights: dict[str, Tensor], seen: dict[str, Tensor]
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Exact keys as scored and values as read, by position and KV head; empty without an exact branch."""
    at = f"blocks.{index}.attn"
    if not any(reads_exactly(cfg, index, t, t) for t in range(len(xs))):
        return [], []
    k = [[x @ weights[f"{at}.W_K"][g] for g in range(cfg.n_kv_heads)] for x in xs]
    rot_k = []
    for t, row in enumerate(k):
        if field(cfg, "qk_norm", index):
            row = [rms(v, weights[f"{at}.k_norm.weight"]) for v in row]
        dims, base = field(cfg, "rope_dims", index), field(cfg, "rope_base", index)
        rot_k.append([turned(v, t, dims, base) for v in row])
    value = rot_k
    if not field(cfg, "tied_kv", index):
        value = [[x @ weights[f"{at}.W_V"][g] for g in range(cfg.n_kv_heads)] for x in xs]
    for name, rows in (("hook_k", k), ("hook_rot_k", rot_k), ("hook_v", value)):
        seen[f"{at}.{name}"] = stacked(rows)
    return rot_k, value


def entries(
    xs: list[Tensor], cfg: Any, index: int, weights: dict[str, Tensor], seen: dict[str, Tensor]
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Key and value entries as read, by entry and KV head."""
    at = f"blocks.{index}.attn"
    window, stride = field(cfg, "window", index), field(cfg, "stride", index)
    dims, base = field(cfg, "rope_dims", index), field(cfg, "rope_base", index)
    count = 0
    while last_token(cfg, index, count) < len(xs):
        count += 1
    read = []
    for branch in ("key",) if field(cfg, "tied_kv", index) else ("key", "value"):
        name, rows = f"{at}.compressor.{branch}", []
        for j in range(count):
            tokens = [last_token(cfg, index, j) - window + 1 + i for i in range(window)]
            slots = [xs[token] if token >= 0 else None for token in tokens]
            row = []
            for g in range(cfg.n_kv_heads):
                parts = pool(slots, cfg, index, weights, name, g)
                finished = parts["hook_pooled"]
                if branch == "key":
                    if field(cfg, "qk_norm", index):
                        finished = rms(finished, weights[f"{name}.norm.weight"])
                    finished = turned(finished, j * stride, dims, base)
                row.append({**parts, "hook_entry": finished})
            rows.append(row)
        read.append([[parts["hook_entry"] for parts in row] for row in rows])
        for site in rows[0][0] if rows else ():
            # [entry, kv_head, offset, channel] → [entry, offset, kv_head, channel]
            values = torch.stack([torch.stack([parts[site] for parts in row]) for row in rows])
            seen[f"{name}.{site}"] = values.transpose(1, 2) if values.ndim == 4 else values
    keys, values = read[0], read[-1]
    if keys:
        seen[f"{at}.hook_entry_k"], seen[f"{at}.hook_entry_v"] = stacked(keys), stacked(values)
    return keys, values


def pool(
    slots: list[Tensor | None], cfg: Any, index: int, weights: dict[str, Tensor], name: str, group: int
) -> dict[str, Tensor]:
    """One window of one KV head: gate logits, gates, payloads [offset, channel] and their sum [channel]."""
    window, kind = len(slots), field(cfg, "gate", index)
    width = cfg.d_head if kind == "vector" else 1
    # Which of the maps an offset uses: its own, the only one, or that of its half of the window.
    which = {
        "per_offset": lambda i: i, "shared": lambda i: 0, "two_series": lambda i: 0 if i < window // 2 else 1
    }[field(cfg, "payload", index)]  # fmt: skip
    payload = [
        [NAN] * cfg.d_head if x is None else (x @ weights[f"{name}.W_payload"][which(i), :, group]).tolist()
        for i, x in enumerate(slots)
    ]
    gate_logits = [[NAN] * width for _ in slots]
    for i, x in enumerate(slots):
        if x is None or kind == "uniform":
            continue
        logit = x @ weights[f"{name}.W_gate"][which(i), :, group]
        if field(cfg, "gate_bias", index):
            logit = logit + weights[f"{name}.b_gate"][i, group]
        gate_logits[i] = logit.tolist()
    there = [i for i, x in enumerate(slots) if x is not None]
    gate = [[0.0] * width for _ in slots]
    for channel in range(width):
        shares = (
            [1 / len(there)] * len(there)
            if kind == "uniform"
            else softmax([gate_logits[i][channel] for i in there])
        )
        for i, part in zip(there, shares, strict=True):
            gate[i][channel] = part
    pooled = [
        sum(gate[i][channel if width > 1 else 0] * payload[i][channel] for i in there)
        for channel in range(cfg.d_head)
    ]
    dtype = weights["W_E"].dtype
    parts = {"hook_gate": gate, "hook_payload": payload, "hook_pooled": pooled}
    if kind != "uniform":
        parts = {"hook_gate_logits": gate_logits, **parts}
    return {site: torch.tensor(value, dtype=dtype) for site, value in parts.items()}


def stacked(rows: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(row) for row in rows])
