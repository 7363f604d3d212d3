"""The resumable state of a training run, of one model or of a family: one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from hooks.errors import CheckpointError
from hooks.files import atomic_path
from interp.recipes import Recipe

__all__ = ["fingerprint", "resume_state", "save_state"]


def fingerprint(recipe: Recipe, seed: int | list[int]) -> str:
    """What a state belongs to; a family's is that of all its seeds, in order."""
    return json.dumps({"recipe": recipe.describe(), "seed": seed}, sort_keys=True)


def save_state(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    names: Sequence[str],
    folder: Path,
    run: str,
    step: int,
) -> None:
    """Weights and optimiser moments in one safetensors file, so that a kill can never pair two steps."""
    from safetensors.torch import save_file

    tensors = {f"model.{k}": v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    # Parameters that never had a gradient (a hard top-k indexer's) have no moments.
    for index, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"adam.{key}.{names[index]}"] = value.detach().cpu().contiguous()
    with atomic_path(folder / "state.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"step": str(step), "run": run})


def resume_state(
    model: nn.Module, optimiser: torch.optim.Optimizer, names: Sequence[str], folder: Path, run: str
) -> int:
    """Load an earlier state, if there is one, into model and optimiser and return its step.

    Raises
    ------
    CheckpointError
        If it belongs to another run.
    """
    from safetensors import safe_open

    path = folder / "state.safetensors"
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        if metadata["run"] != run:
            raise CheckpointError(
                f"{str(path)!r} belongs to another recipe or seed; choose another folder or --no-resume"
            )
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    moments: dict[int, dict[str, Tensor]] = {}
    for index, name in enumerate(names):
        if f"adam.step.{name}" in tensors:
            moments[index] = {key: tensors[f"adam.{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(metadata["step"])
