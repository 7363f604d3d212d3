"""Time and memory of long prompts: our prefill, and the Hugging Face class on layers of the same shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from hooks.errors import PhaselensError
from interp.bench.knockouts import machine
from interp.bench.processes import Worker
from interp.rng import torch_rng

__all__ = ["READ", "bench_lengths", "linear_fit", "runner"]

READ = 64
"""Final positions that hooks read."""
LAYERS, D_MODEL, D_VOCAB = 8, 1024, 1024


def bench_lengths(
    *,
    longest: int,
    shortest: int = 1024,
    layers: int = LAYERS,
    d_model: int = D_MODEL,
    threads: int,
    seed: int = 0,
    device: str = "cpu",
    most_seconds: float = 600.0,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run one prompt of each length once, doubling from the shortest, each length in processes of their own.

    Parameters
    ----------
    longest, shortest : int
        T.
    layers, d_model : int
        Of both models.
    threads, seed : int
        Of every process; of weights and tokens.
    device : str
        Where both run.
    most_seconds : float
        A side is not run at double the length once a run took more than a third of this.
    say : function
        Told what goes on.

    Returns
    -------
    dict
        JSON values; in ``rows`` by length ``ours`` and ``hugging_face``, each with ``seconds``,
        ``cpu_seconds`` and ``peak_bytes`` or with ``stopped``; ``fits`` of ours, see :func:`linear_fit`.

    Raises
    ------
    PhaselensError
        If lengths are out of order, or no run of ours succeeds.
    """
    if not READ < shortest <= longest:
        raise PhaselensError(f"lengths from {shortest} to {longest}; valid: rising, more than {READ}")
    lengths = [shortest]
    while lengths[-1] * 2 <= longest:
        lengths.append(lengths[-1] * 2)
    stopped: dict[str, str] = {}
    rows = []
    for length in lengths:
        row: dict[str, Any] = {"length": length}
        for side in ("ours", "hugging_face"):
            if side in stopped:
                row[side] = {"stopped": stopped[side]}
                continue
            spec = {
                "side": side, "length": length, "layers": layers, "d_model": d_model, "threads": threads, "seed": seed,
                "device": device,
            }  # fmt: skip
            try:
                with Worker("length", spec) as worker:
                    row[side] = worker.ready().ask()
                say(f"T={length}: {side} {row[side]['seconds']:.1f} s")
            except PhaselensError as error:
                stopped[side] = "out of memory" if "memory" in str(error) else str(error)
                row[side] = {"stopped": stopped[side]}
                say(f"T={length}: {side} stopped: {error}")
                continue
            if row[side]["seconds"] > most_seconds / 3:
                stopped[side] = "not run (time)"
        rows.append(row)
    return {
        "kind": "lengths", "layers": layers, "d_model": d_model, "longest": longest, "machine": machine(threads, device),
        "rows": rows, "fits": _fits(rows, device), "notes": _notes(rows, most_seconds),
        "what": f"One prompt, all but its last {READ} tokens first, then those with hooks that read the streams, the heads' "
        "outputs and the patterns of every layer there.",
    }  # fmt: skip


def _fits(rows: Sequence[dict[str, Any]], device: str) -> dict[str, Any]:
    done = [(row["length"], row["ours"]) for row in rows if "seconds" in row["ours"]]
    if not done:
        raise PhaselensError(f"no length could be run: {rows[0]['ours']['stopped']}")
    if len(done) < 3:
        return {}
    lengths = [length for length, _ in done]
    return {
        name: {**linear_fit(lengths, [float(found[key]) / scale for _, found in done]), "unit": unit}
        for name, key, scale, unit in (
            ("CPU time", "cpu_seconds", 1.0, "s") if device == "cpu" else ("time", "seconds", 1.0, "s"),
            ("memory", "peak_bytes", 2.0**20, "MiB"),
        )
    }


def linear_fit(lengths: Sequence[int], values: Sequence[float]) -> dict[str, Any]:
    """Least squares of intercept + slope·T/1024, weighted by 1/value² so that every length counts alike.

    Returns
    -------
    dict
        ``intercept``, ``slope`` and ``relative_residuals`` = (value − fit) / value.
    """
    x, y = np.asarray(lengths, dtype=float) / 1024, np.asarray(values, dtype=float)
    design = np.stack((np.ones_like(x), x), axis=1) / y[:, None]
    intercept, slope = np.linalg.lstsq(design, np.ones_like(y), rcond=None)[0]
    residuals = 1 - (intercept + slope * x) / y
    return {
        "intercept": float(intercept),
        "slope": float(slope),
        "relative_residuals": [float(each) for each in residuals],
    }


def _notes(rows: Sequence[dict[str, Any]], most_seconds: float) -> list[str]:
    notes = []
    for side, name in (("ours", "Ours"), ("hugging_face", "Hugging Face eager")):
        done = [row["length"] for row in rows if "seconds" in row[side]]
        end = next((row for row in rows if "stopped" in row[side]), None)
        reached = f"{name} ran up to T = {max(done):,}" if done else f"{name} did not run"
        if end is None:
            notes.append(f"{reached}, the longest asked for.")
        else:
            notes.append(
                f"{reached}; at {end['length']:,}: {end[side]['stopped']} (limit {most_seconds:.0f} s a run)."
            )
    notes.append(
        "The indexer scores every earlier entry for every query, in DeepSeek's design and here: that part of the time, "
        "alone, grows with T²."
    )
    return notes


def runner(spec: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Build one side's model in a worker and return what runs it."""
    from interp.bench.worker import timed

    device = torch.device(spec["device"])
    run = (_ours if spec["side"] == "ours" else _hugging_face)(spec)

    def tokens(length: int) -> torch.Tensor:
        return torch.randint(D_VOCAB, (1, length), generator=torch_rng(spec["seed"], "lengths")).to(device)

    if device.type == "cuda":  # the first kernels of a process are slow: its libraries are loaded with them
        run(tokens(4 * READ))
    prompt = tokens(spec["length"])
    return lambda line: timed(lambda: run(prompt), device)[0]


def _ours(spec: dict[str, Any]) -> Callable[[torch.Tensor], Any]:
    from hooks.transformer import CompressedTransformer
    from interp.bench.cases import deepseek_like

    config = deepseek_like(spec["layers"], d_model=spec["d_model"], seed=spec["seed"])
    model = CompressedTransformer(config).to(spec["device"])
    names = [
        f"blocks.{layer}.{site}"
        for layer in range(spec["layers"])
        for site in ("hook_resid_post", "attn.hook_z", "attn.hook_pattern")
    ]

    @torch.no_grad()
    def run(tokens: torch.Tensor) -> Any:
        cache = model.start_cache(1, rewind=False)
        model(tokens[:, :-READ], cache, last_only=True)
        return model.run_with_cache(tokens[:, -READ:], names, cache=cache)

    return run


def _hugging_face(spec: dict[str, Any]) -> Callable[[torch.Tensor], Any]:
    from hooks.hf_train import hf_deepseek_v4

    layers = spec["layers"]
    kinds = ["compressed_sparse_attention", "heavily_compressed_attention"]
    hf = hf_deepseek_v4(
        seed=spec["seed"], d_vocab=D_VOCAB, csa_stride=4, hca_stride=128, hidden_size=spec["d_model"],
        moe_intermediate_size=spec["d_model"], num_hidden_layers=layers, num_attention_heads=16, head_dim=128,
        q_lora_rank=512, o_groups=4, o_lora_rank=512, hc_mult=1, sliding_window=128, index_topk=512, index_n_heads=4,
        index_head_dim=64, layer_types=[kinds[i % 2] for i in range(layers)], mlp_layer_types=["moe"] * layers,
        max_position_embeddings=1 << 18,
    ).eval().to(spec["device"])  # fmt: skip

    @torch.no_grad()
    def run(tokens: torch.Tensor) -> Any:
        return hf(input_ids=tokens, use_cache=False, logits_to_keep=READ).logits

    return run
