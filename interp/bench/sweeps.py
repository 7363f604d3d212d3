"""The loop of a phase sweep in several ways: plain, recorded once and replayed, compiled, in bf16."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hooks.replay import Replay
from interp import stats
from interp.bench.knockouts import machine
from interp.bench.worker import timed
from interp.engine import MEMORY, answer_metrics, chunks
from interp.phases import by_phase, fold, model_strides
from interp.tasks.prompts import Prompts
from interp.tasks.recall import RecallTask

__all__ = ["MODEL", "bench_sweep"]

MODEL = "w8s8-2kv"

Forward = Callable[[Tensor], Tensor]


def bench_sweep(
    name: str = MODEL,
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
        JSON values; in ``ways`` by way ``seconds`` and ``cpu_seconds`` (one per repeat: all ways once, then
        all again), ``setup`` (seconds before its first sweep, once the plain way has run), ``accuracy`` by phase, and against
        the plain way ``max_difference`` of log-probabilities and
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
    makers = _ways(model, place)
    _set_up(makers["plain fp32"], tokens[0], place)  # what a process does once is no way's set-up
    forwards: dict[str, Forward] = {}
    found: dict[str, Any] = {}
    for way, make in makers.items():
        start = time.perf_counter()
        forwards[way] = _set_up(make, tokens[0], place)
        found[way] = {"setup": time.perf_counter() - start}
    logits: dict[str, list[Tensor]] = {}
    for _ in range(repeats):
        for way, forward in forwards.items():
            timing, logits[way] = timed(lambda f=forward: _sweep(f, tokens), place)
            for key in ("seconds", "cpu_seconds"):  # memory is shared: all ways are in this process
                found[way].setdefault(key, []).append(timing[key])
    half_width = _compare_ways(found, logits, prompts, batches, stride, seed)
    return {
        "kind": "sweep", "model": name, "n_per_residue": n_per_residue, "seed": seed, "batch": size,
        "batches": len(batches), "interleaved": True, "repeats": repeats, "machine": machine(threads, device),
        "ways": found, "half_width": half_width,
    }  # fmt: skip


def _ways(model: Any, place: torch.device) -> dict[str, Callable[[Tensor], Forward]]:
    def plain() -> Forward:
        return lambda batch: model(batch, last_only=True)

    def half(forward: Forward) -> Forward:
        def run(batch: Tensor) -> Tensor:
            with torch.autocast(place.type, torch.bfloat16):
                return forward(batch)

        return run

    def compiled() -> Forward:
        forward = torch.compile(plain())

        def run(batch: Tensor) -> Tensor:
            model.train()  # it leaves out the checks of values, at which a compiled pass would break off
            try:
                return forward(batch)
            finally:
                model.eval()

        return run

    ways: dict[str, Callable[[Tensor], Forward]] = {
        "plain fp32": lambda tokens: plain(),
        "plain bf16": lambda tokens: half(plain()),
    }
    if place.type == "cuda":
        ways["CUDA graph fp32"] = lambda tokens: Replay(model, plain(), tokens)
        ways["compiled fp32"] = lambda tokens: compiled()
        ways["compiled bf16"] = lambda tokens: half(compiled())
    return ways


@torch.no_grad()
def _set_up(make: Callable[[Tensor], Forward], tokens: Tensor, place: torch.device) -> Forward:
    """Make a way and run it once, to the end."""
    forward = make(tokens)
    forward(tokens)
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    return forward


@torch.no_grad()
def _sweep(forward: Forward, tokens: list[Tensor]) -> list[Tensor]:
    return [forward(batch) for batch in tokens]


def _compare_ways(
    found: dict[str, Any],
    logits: dict[str, list[Tensor]],
    prompts: Prompts,
    batches: list[range],
    stride: int,
    seed: int,
) -> float:
    """Note how far each way's numbers are from the plain way's; return the plain way's widest half interval."""
    scores = {way: _scores(each, prompts, batches) for way, each in logits.items()}
    plain = scores["plain fp32"]
    for way, (logprob, correct) in scores.items():
        entry = found[way]
        right = by_phase(fold(correct, prompts.modulus), stride) / (len(correct) // stride)
        entry["accuracy"] = right.tolist()
        entry["max_difference"] = float(np.abs(logprob - plain[0]).max())
    low, high = stats.phase_intervals(fold(plain[1], prompts.modulus), stride, seed=seed)
    widths = (high - low)[np.isfinite(high - low)]  # none where all were right, or prompts are few
    base = np.array(found["plain fp32"]["accuracy"])
    for entry in found.values():
        entry["accuracy_change"] = 100 * float(np.abs(np.array(entry["accuracy"]) - base).max())
    return 50 * float(widths.max()) if widths.size else float("nan")


def _scores(logits: list[Tensor], prompts: Prompts, batches: list[range]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability of the answer and whether it is on top, [prompt]."""
    rows = torch.cat([each[: len(batch)].float().cpu() for each, batch in zip(logits, batches, strict=True)])
    found = answer_metrics(prompts)(rows, torch.arange(len(rows)))
    return found["logprob"][:, 0].double().numpy(), found["correct"][:, 0].numpy()
