"""Seeds of one shape: stacked into one pass, against one pass after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from interp.bench.knockouts import machine
from interp.bench.worker import timed
from interp.family import family_logits
from interp.tasks.recall import RecallTask

__all__ = ["bench_family"]

FAMILY = ("w8s8-2kv", "w8s8-2kv-seed1", "w8s8-2kv-seed2")


def bench_family(
    *, n: int, repeats: int, threads: int, seed: int, device: str = "cpu", names: Sequence[str] = FAMILY
) -> dict[str, Any]:
    """Time the clean runs of a family's sweep, in this process, the two ways in turn.

    Parameters
    ----------
    n : int
        Prompts, a multiple of R.
    repeats, threads, seed : int
        As everywhere.
    device : str
        Where they run.
    names : sequence of str
        Models of the zoo, of one shape.

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

    @torch.no_grad()
    def separate() -> torch.Tensor:
        return torch.stack([model(tokens, last_only=True)[:, 0] for model in models])

    def stacked() -> torch.Tensor:
        return family_logits(models, tokens)

    ways: dict[str, Any] = {}
    difference = float((separate() - stacked()).abs().max())
    for _ in range(repeats):
        for name, run in (("one after the other", separate), ("side by side", stacked)):
            for key, value in timed(run, place)[0].items():
                ways.setdefault(name, {}).setdefault(key, []).append(value)

    def ratio(key: str) -> float:
        return min(ways["one after the other"][key]) / min(ways["side by side"][key])

    return {
        "kind": "family", "models": len(names), "names": list(names), "n": len(tokens), "repeats": repeats,
        "machine": machine(threads, device), "ways": ways, "ratio": ratio("seconds"), "cpu_ratio": ratio("cpu_seconds"),
        "max_difference": difference, "what": f"Final-position logits of {', '.join(names)} on {len(tokens)} prompts.",
    }  # fmt: skip
