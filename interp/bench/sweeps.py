"""The loop of a phase sweep in several ways: plain, recorded once and replayed, compiled, in bf16."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp import stats
from interp.bench.knockouts import machine
from interp.bench.worker import timed
from interp.engine import MEMORY, answer_metrics, chunks
from interp.phases import by_phase, fold, model_strides
from interp.tasks.prompts import Prompts
from interp.tasks.recall import RecallTask

__all__ = ["Replay", "bench_sweep"]

Forward = Callable[[Tensor], Tensor]


class Replay:
    """Final-position logits through a CUDA graph: kernels are recorded once and launched together.

    Parameters
    ----------
    model : CompressedTransformer
        In training mode, which leaves out the checks that wait for the device.
    tokens : integer tensor [batch, pos]
        Of the shape that all later calls have.
    """

    def __init__(self, model: Any, tokens: Tensor) -> None:
        self._tokens = tokens.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries and the allocator settle before anything is recorded
            for _ in range(3):
                model(self._tokens, last_only=True)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = model(self._tokens, last_only=True)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits [batch, 1, d_vocab]."""
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._logits.clone()


def bench_sweep(
    name: str = "w8s8-2kv",
    *,
    n_per_residue: int,
    repeats: int,
    threads: int,
    seed: int = 0,
    device: str = "cpu",
    memory: int = MEMORY,
) -> dict[str, Any]:
    """Time the forward passes of one phase sweep and compare what they say.

    Parameters
    ----------
    name : str
        A model of the zoo.
    n_per_residue, repeats, threads, seed : int
        As everywhere.
    device : str
        A GPU adds the ways that only it has: CUDA graphs and compilation.
    memory : int
        Budget of activations in bytes; decides the batch. Batches are of one size: the last is filled up.

    Returns
    -------
    dict
        JSON values; in ``ways`` by way ``seconds`` (one per repeat), ``setup`` (seconds before the first
        sweep), ``accuracy`` by phase, and against the plain way ``max_difference`` of log-probabilities and
        ``accuracy_change`` (percentage points, largest over phases); ``half_width`` is the widest half
        interval of the plain way's accuracies, in percentage points; NaN if none has an interval.
    """
    from hooks import load

    torch.set_num_threads(threads)
    model = load(name, device=device)
    task = RecallTask.for_model(model)
    prompts = task.sample(n_per_residue * task.modulus, seed=seed)
    count, length = prompts.tokens.shape
    batches = chunks(model, count, length, 0, memory)
    place, stride = torch.device(device), max(model_strides(model))
    size = len(batches[0])
    tokens = [
        prompts.tokens[[min(i, batch.stop - 1) for i in range(batch.start, batch.start + size)]].to(place)
        for batch in batches
    ]
    model.train()
    found: dict[str, Any] = {}
    plain: np.ndarray | None = None
    half_width, logits = float("nan"), []
    for way, make in _ways(model, place).items():
        start = time.perf_counter()
        with torch.no_grad():
            forward = make(tokens[0])
            forward(tokens[0])
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        entry: dict[str, Any] = {"setup": time.perf_counter() - start, "seconds": []}
        for _ in range(repeats):
            timing, logits = timed(lambda f=forward: _sweep(f, tokens), place)
            entry["seconds"].append(timing["seconds"])
        logprob, correct = _scores(logits, prompts, batches)
        plain = logprob if plain is None else plain
        entry["accuracy"] = (
            by_phase(fold(correct, task.modulus), stride) / (len(correct) // stride)
        ).tolist()
        entry["max_difference"] = float(np.abs(logprob - plain).max())
        found[way] = entry
        if way == "plain fp32":
            low, high = stats.phase_intervals(fold(correct, task.modulus), stride, seed=seed)
            widths = (high - low)[np.isfinite(high - low)]  # none where all were right, or prompts are few
            half_width = 50 * float(widths.max()) if widths.size else half_width
    base = np.array(found["plain fp32"]["accuracy"])
    for entry in found.values():
        entry["accuracy_change"] = 100 * float(np.abs(np.array(entry["accuracy"]) - base).max())
    return {
        "kind": "sweep", "model": name, "n_per_residue": n_per_residue, "batch": size, "batches": len(batches),
        "repeats": repeats, "machine": machine(threads, device), "ways": found, "half_width": half_width,
    }  # fmt: skip


def _ways(model: Any, place: torch.device) -> dict[str, Callable[[Tensor], Forward]]:
    def plain(tokens: Tensor) -> Forward:
        return lambda batch: model(batch, last_only=True)

    def half(forward: Forward) -> Forward:
        def run(batch: Tensor) -> Tensor:
            with torch.autocast(place.type, torch.bfloat16):
                return forward(batch)

        return run

    ways: dict[str, Callable[[Tensor], Forward]] = {
        "plain fp32": plain,
        "plain bf16": lambda tokens: half(plain(tokens)),
    }
    if place.type == "cuda":
        ways["CUDA graph fp32"] = lambda tokens: Replay(model, tokens)
        ways["compiled fp32"] = lambda tokens: torch.compile(plain(tokens))
        ways["compiled bf16"] = lambda tokens: half(torch.compile(plain(tokens)))
    return ways


@torch.no_grad()
def _sweep(forward: Forward, tokens: list[Tensor]) -> list[Tensor]:
    return [forward(batch) for batch in tokens]


def _scores(logits: list[Tensor], prompts: Prompts, batches: list[range]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability of the answer and whether it is on top, [prompt]."""
    rows = torch.cat([each[: len(batch)].float().cpu() for each, batch in zip(logits, batches, strict=True)])
    found = answer_metrics(prompts)(rows, torch.arange(len(rows)))
    return found["logprob"][:, 0].double().numpy(), found["correct"][:, 0].numpy()
