"""Seeds of one shape: measured and trained side by side, against one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from interp.bench.knockouts import machine
from interp.bench.worker import timed
from interp.family import Family, family_logits
from interp.recipes import Recipe, recipe
from interp.tasks.recall import RecallTask
from interp.training import fit

__all__ = ["bench_family"]

FAMILY = ("w8s8-2kv", "w8s8-2kv-seed1", "w8s8-2kv-seed2")
STEPS, BATCH = 10, 64
"""Training steps that are timed, after one to warm up, and sequences a step of each model."""


def bench_family(
    *,
    n: int,
    repeats: int,
    threads: int,
    seed: int,
    device: str = "cpu",
    names: Sequence[str] = FAMILY,
    train: bool | None = None,
) -> dict[str, Any]:
    """Time the clean runs of a family's sweep, on a GPU steps of its training too, in this process, the two ways in turn.

    Parameters
    ----------
    n : int
        Prompts, a multiple of R.
    repeats, threads, seed : int
        As everywhere.
    device : str
        Where they run.
    names : sequence of str
        Models of the zoo, of one shape; training starts from scratch, with the recipe of the first.
    train : bool, optional
        Whether to time training; on a GPU only, if left out: elsewhere a step takes half a minute.

    Returns
    -------
    dict
        JSON values.
    """
    from hooks import load

    torch.set_num_threads(threads)
    models = [load(name, device=device) for name in names]
    task = RecallTask.for_model(models[0])
    tokens = task.sample(-(-n // task.modulus) * task.modulus, seed=seed).tokens.to(device)
    place = torch.device(device)
    train = place.type != "cpu" if train is None else train

    @torch.no_grad()
    def separate() -> torch.Tensor:
        return torch.stack([model(tokens, last_only=True)[:, 0] for model in models])

    def stacked() -> torch.Tensor:
        return family_logits(models, tokens)

    ways: dict[str, Any] = {}
    difference = float((separate() - stacked()).abs().max())
    plan = dataclasses.replace(recipe(names[0].partition("-seed")[0]), steps=STEPS + 1, batch=BATCH)
    apart = 0.0
    for _ in range(repeats):
        for name, run in (("one after the other", separate), ("side by side", stacked)):
            _note(ways, name, timed(run, place)[0])
        if not train:
            continue
        weights = []
        for name, beside in (("one after the other", False), ("side by side", True)):
            timing, found = _train(models[0].cfg, len(names), plan, place, beside=beside)
            _note(ways, f"training, {name}", timing)
            weights.append(found)
        apart = max(apart, float((weights[0] - weights[1]).abs().max()))

    def ratio(key: str, before: str = "") -> float:
        return min(ways[f"{before}one after the other"][key]) / min(ways[f"{before}side by side"][key])

    trained = f"; {STEPS} training steps of as many seeds from scratch, {BATCH} sequences each a step"
    training = {} if not train else {
        "training_steps": STEPS, "training_batch": BATCH, "training_ratio": ratio("seconds", "training, "),
        "training_cpu_ratio": ratio("cpu_seconds", "training, "), "training_max_difference": apart,
    }  # fmt: skip
    return {
        "kind": "family", "models": len(names), "names": list(names), "n": len(tokens), "repeats": repeats,
        "machine": machine(threads, device), "ways": ways, "ratio": ratio("seconds"), "cpu_ratio": ratio("cpu_seconds"),
        "max_difference": difference, **training,
        "what": f"Final-position logits of {', '.join(names)} on {len(tokens)} prompts{trained if training else ''}.",
    }  # fmt: skip


def _note(ways: dict[str, Any], name: str, timing: dict[str, float]) -> None:
    for key, value in timing.items():
        ways.setdefault(name, {}).setdefault(key, []).append(value)


def _train(
    cfg: Any, count: int, plan: Recipe, device: torch.device, *, beside: bool
) -> tuple[dict[str, float], torch.Tensor]:
    """Train seeds 0 … count−1: the time of every step but the first, and all weights after the last."""
    from hooks.transformer import CompressedTransformer

    models = [CompressedTransformer(cfg.replace(seed=seed)) for seed in range(count)]
    runs: list[Iterator[Any]]
    if beside:
        family = Family(models)
        runs = [fit(family, plan, seed=range(count), device=device, progress=False)]
    else:
        family = None
        runs = [
            fit(model, plan, seed=seed, device=device, progress=False) for seed, model in enumerate(models)
        ]
    for run in runs:
        next(run)  # the first step, which on a GPU compiles
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    timing, _ = timed(lambda: [list(run) for run in runs], device)
    if family is not None:
        family.write_back()
    return timing, torch.cat([p.detach().cpu().flatten() for model in models for p in model.parameters()])
