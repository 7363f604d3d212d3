"""Time and memory of long prompts: our prefill, and the Hugging Face class on layers of the same shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hooks.errors import PhaselensError
from interp.bench.fits import fits
from interp.bench.knockouts import machine
from interp.bench.processes import Worker, space_for_workers
from interp.rng import torch_rng

__all__ = ["D_MODEL", "LAYERS", "LONGEST", "READ", "SHORTEST", "bench_lengths", "doubling", "runner"]

READ = 64
"""Final positions that hooks read."""
LAYERS, D_MODEL, D_VOCAB = 8, 1024, 1024
SHORTEST, LONGEST = 1024, 32768
REPEATS = 3
BRIEF = 10.0
"""Seconds; a first run that took less was to warm up, one that took longer counts and is not repeated unasked."""


def bench_lengths(
    *,
    longest: int = LONGEST,
    shortest: int = SHORTEST,
    repeats: int | None = None,
    layers: int = LAYERS,
    d_model: int = D_MODEL,
    threads: int,
    seed: int = 0,
    device: str = "cpu",
    most_seconds: float = 600.0,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run one prompt of each length, doubling from the shortest, each side and length in a process of its own.

    A first run below 10 seconds warms up and is followed by those that count. The runs of one side follow each
    other: the two together would halve the memory either could reach.

    Parameters
    ----------
    longest, shortest : int
        T; the longest is run even where doubling would pass it by.
    repeats : int or None
        Runs that count; None: 3, and once where a run takes 10 seconds or more.
    layers, d_model : int
        Of both models.
    threads, seed : int
        Of every process; of weights and tokens.
    device : str
        Where both run. On a CPU each process may use the memory that is free when this starts.
    most_seconds : float
        A side is not run at the next length once a run took more than a third of this.
    say : function
        Told what goes on.

    Returns
    -------
    dict
        JSON values; in ``rows`` by length ``ours`` and ``hugging_face``, each with ``warmed`` and, one value
        per repeat, ``seconds``, ``cpu_seconds`` and ``peak_bytes``; or with ``stopped``. ``fits`` of ours, see
        :func:`interp.bench.fits.fits`.

    Raises
    ------
    PhaselensError
        If lengths are out of order, or no run of ours succeeds.
    """
    lengths = doubling(shortest, longest)
    space = space_for_workers(device)
    spec = {"layers": layers, "d_model": d_model, "threads": threads, "seed": seed, "device": device, **space}
    stopped: dict[str, str] = {}
    rows = []
    for length in lengths:
        row: dict[str, Any] = {"length": length}
        for side in ("ours", "hugging_face"):
            if side not in stopped:
                try:
                    row[side] = _repeated({**spec, "side": side, "length": length}, repeats)
                    say(f"T={length}: {side} {min(row[side]['seconds']):.3g} s")
                except PhaselensError as error:
                    stopped[side] = "out of memory" if _for_memory(str(error)) else str(error)
                    say(f"T={length}: {side} stopped: {error}")
            if side not in row:
                row[side] = {"stopped": stopped[side]}
            elif max(row[side]["seconds"]) > most_seconds / 3:
                stopped[side] = "not run (time)"
        rows.append(row)
    if "stopped" in rows[0]["ours"]:
        raise PhaselensError(f"no length could be run: {rows[0]['ours']['stopped']}")
    return {
        "kind": "lengths", "layers": layers, "d_model": d_model, "longest": longest, "seed": seed,
        "asked_repeats": repeats, "most_seconds": most_seconds, "machine": machine(threads, device) | space,
        "rows": rows, "fits": fits(rows, gpu=device != "cpu"),
    }  # fmt: skip


def doubling(shortest: int, longest: int) -> list[int]:
    """Lengths from the shortest on, each double the one before, and the longest.

    Raises
    ------
    PhaselensError
        If the longest is below the shortest, or that leaves nothing before the positions that are read.
    """
    if longest < shortest:
        raise PhaselensError(f"--length {longest} of lengths; valid: {shortest} or more")
    if shortest <= READ:
        raise PhaselensError(
            f"lengths from {shortest} on; valid: more than {READ}, the positions that are read"
        )
    lengths = [shortest]
    while lengths[-1] * 2 <= longest:
        lengths.append(lengths[-1] * 2)
    return lengths if lengths[-1] == longest else [*lengths, longest]


def _repeated(spec: dict[str, Any], repeats: int | None) -> dict[str, Any]:
    """Run one side at one length in a process of its own."""
    with Worker("length", spec) as worker:
        first = worker.ready().ask()
        warmed = first["seconds"] < BRIEF
        wanted = repeats or (REPEATS if warmed else 1)
        runs = [] if warmed else [first]
        runs += [worker.ask() for _ in range(wanted - len(runs))]
    return {"warmed": warmed, **{key: [run[key] for run in runs] for key in first}}


def _for_memory(reason: str) -> bool:
    return any(word in reason for word in ("memory", "bad_alloc"))


def runner(spec: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Build one side's model in a worker and return what runs it."""
    from interp.bench.worker import timed

    device = torch.device(spec["device"])
    run = (_ours if spec["side"] == "ours" else _hugging_face)(spec)

    def tokens(length: int) -> torch.Tensor:
        return torch.randint(D_VOCAB, (1, length), generator=torch_rng(spec["seed"], "lengths")).to(device)

    run(tokens(4 * READ))  # the first kernels of a process are slow: its libraries are loaded with them
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
