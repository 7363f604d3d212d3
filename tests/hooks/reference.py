"""A transformer of the same mathematics, written as loops over positions, entries, heads and offsets.

Nothing here calls the code under test; it only reads weights by name and the configuration.
"""

import math

import torch


def rms(x, weight):
    return x / torch.sqrt((x * x).mean() + 1e-6) * weight


def turn(x, position, dims, base):
    """Rotate the last `dims` channels, pair by pair, as complex numbers."""
    x = x.clone()
    start = len(x) - dims
    for pair in range(dims // 2):
        angle = position * base ** (-2 * pair / dims)
        z = complex(math.cos(angle), math.sin(angle))
        a, b = start + 2 * pair, start + 2 * pair + 1
        re, im = float(z.real), float(z.imag)
        x[a], x[b] = x[a] * re - x[b] * im, x[a] * im + x[b] * re
    return x


def softmax(values):
    top = max(values)
    powers = [torch.exp(v - top) for v in values]
    total = sum(powers)
    return [p / total for p in powers]


def entry(xs, j, layer, weights, prefix, group):
    """One pooled entry of one KV head: sum over offsets of gate times payload, channel by channel."""
    w, s = layer.window, layer.stride
    payload_map = weights[f"{prefix}.W_payload"]
    maps = payload_map.shape[0]
    offsets = [i for i in range(w) if (j + 1) * s - w + i >= 0]
    payloads, logits = [], []
    for i in offsets:
        x = xs[(j + 1) * s - w + i]
        which = {1: 0, w: i}.get(maps, i // s)
        payloads.append(x @ payload_map[which, :, group])
        if layer.gate != "uniform":
            logit = x @ weights[f"{prefix}.W_gate"][which, :, group]
            if layer.gate_bias:
                logit = logit + weights[f"{prefix}.b_gate"][i, group]
            logits.append(logit)
    pooled = torch.zeros_like(payloads[0])
    for channel in range(len(pooled)):
        if layer.gate == "uniform":
            gates = [1 / len(offsets)] * len(offsets)
        else:
            gates = softmax([v[channel if len(v) > 1 else 0] for v in logits])
        pooled[channel] = sum(g * p[channel] for g, p in zip(gates, payloads, strict=True))
    return pooled


def attention(xs, layer, cfg, weights, prefix):
    share = cfg.n_heads // cfg.n_kv_heads
    outs = []
    for t, x in enumerate(xs):
        out = torch.zeros(cfg.d_model, dtype=x.dtype)
        for h in range(cfg.n_heads):
            g = h // share
            q = x @ weights[f"{prefix}.W_Q"][h]
            q = rms(q, weights[f"{prefix}.q_norm.weight"]) if layer.qk_norm else q
            q = turn(q, t, layer.rope_dims, layer.rope_base)
            keys, values = [], []
            for p in range(t + 1):
                readable = {
                    "full": True,
                    "sliding": p > t - layer.exact_window,
                    "chunked": p // layer.stride == t // layer.stride
                    if layer.tail == "open"
                    else p > t - layer.exact_window,
                }[layer.attention]
                if readable and layer.has_exact_branch:
                    k = xs[p] @ weights[f"{prefix}.W_K"][g]
                    k = rms(k, weights[f"{prefix}.k_norm.weight"]) if layer.qk_norm else k
                    k = turn(k, p, layer.rope_dims, layer.rope_base)
                    keys.append(k)
                    values.append(k if layer.tied_kv else xs[p] @ weights[f"{prefix}.W_V"][g])
            if layer.attention == "chunked":
                for j in range((t + 1) // layer.stride):
                    k = entry(xs, j, layer, weights, f"{prefix}.compressor.key", g)
                    k = rms(k, weights[f"{prefix}.compressor.key.norm.weight"]) if layer.qk_norm else k
                    k = turn(k, j * layer.stride, layer.rope_dims, layer.rope_base)
                    keys.append(k)
                    values.append(
                        k if layer.tied_kv else entry(xs, j, layer, weights, f"{prefix}.compressor.value", g)
                    )
            scores = [q @ k / math.sqrt(cfg.d_head) for k in keys]
            if layer.sink:
                scores.append(weights[f"{prefix}.sink"][h])
            z = torch.zeros(cfg.d_head, dtype=x.dtype)
            if scores:
                for a, v in zip(softmax(scores), values, strict=False):
                    z = z + a * v
            if layer.inverse_rope:
                z = turn(z, -t, layer.rope_dims, layer.rope_base)
            out = out + z @ weights[f"{prefix}.W_O"][h]
        outs.append(out)
    return outs


def logits(model, tokens):
    """Logits [pos, d_vocab] of one prompt, position by position."""
    cfg, weights = model.cfg, {k: v.detach() for k, v in model.state_dict().items()}
    stream = [weights["W_E"][t] for t in tokens]
    for index in range(cfg.n_layers):
        layer, block = cfg.layer(index), f"blocks.{index}"
        normed = [rms(x, weights[f"{block}.ln1.weight"]) for x in stream]
        added = attention(normed, layer, cfg, weights, f"{block}.attn")
        stream = [x + a for x, a in zip(stream, added, strict=True)]
        if cfg.d_mlp:
            for t, x in enumerate(stream):
                y = rms(x, weights[f"{block}.ln2.weight"])
                gate = y @ weights[f"{block}.mlp.W_gate"]
                hidden = gate / (1 + torch.exp(-gate)) * (y @ weights[f"{block}.mlp.W_in"])
                stream[t] = x + hidden @ weights[f"{block}.mlp.W_out"]
    return torch.stack([rms(x, weights["ln_final.weight"]) @ weights["W_U"] for x in stream])
