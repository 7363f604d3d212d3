"""The resumable state of a training run, of one model or of a family: one file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hooks.errors import CheckpointError
from hooks.files import atomic_path
from interp.recipes import Recipe

__all__ = [
    "Progress",
    "discard_state",
    "drop_state",
    "fingerprint",
    "read_progress",
    "resume_state",
    "save_state",
]

_FILE = "state.safetensors"
_TEMPORARIES = f".{_FILE}.*.safetensors"
"""What a kill in the middle of a save leaves, see :func:`hooks.files.atomic_path`."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come, and its record until there.

    Attributes
    ----------
    step : int
        Steps that are done.
    curve : list
        [step, loss, accuracy] now and then; of a family the latter two are lists.
    seconds : float
        Time spent on these steps, in all processes together.
    """

    step: int = 0
    curve: list[list[Any]] = field(default_factory=list)
    seconds: float = 0.0


def discard_state(folder: Path) -> None:
    """Remove the state and what killed saves left of it; other files in the folder are not ours."""
    for path in (folder / _FILE, *folder.glob(_TEMPORARIES)):
        path.unlink(missing_ok=True)


def drop_state(folder: Path) -> None:
    """Remove the state, and its folder if nothing else is in it."""
    discard_state(folder)
    with contextlib.suppress(OSError):
        folder.rmdir()


def fingerprint(recipe: Recipe, seed: int | list[int]) -> str:
    """What a state belongs to; a family's is that of all its seeds, in order."""
    return json.dumps({"recipe": recipe.describe(), "seed": seed}, sort_keys=True)


def save_state(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    names: Sequence[str],
    folder: Path,
    run: str,
    progress: Progress,
) -> None:
    """Weights, optimiser moments and record in one safetensors file, so that a kill can never pair two steps."""
    from safetensors.torch import save_file

    tensors = {f"model.{k}": v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    # Parameters that never had a gradient (a hard top-k indexer's) have no moments.
    for index, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"adam.{key}.{names[index]}"] = value.detach().cpu().contiguous()
    metadata = {
        "run": run, "step": str(progress.step), "curve": json.dumps(progress.curve), "seconds": repr(progress.seconds),
    }  # fmt: skip
    with atomic_path(folder / _FILE) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def resume_state(
    model: nn.Module, optimiser: torch.optim.Optimizer, names: Sequence[str], folder: Path, run: str
) -> Progress:
    """Load an earlier state, if there is one, into model and optimiser and return how far it had come.

    Raises
    ------
    CheckpointError
        If it belongs to another run.
    """
    from safetensors import safe_open

    path = folder / _FILE
    if not path.exists():
        return Progress()
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("run") != run:
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
    return _progress(metadata)


def read_progress(folder: Path) -> Progress:
    """How far the run has come whose state is in a folder."""
    from safetensors import safe_open

    with safe_open(folder / _FILE, framework="pt") as file:
        return _progress(file.metadata())


def _progress(metadata: dict[str, str]) -> Progress:
    # States of earlier versions hold no record: theirs starts with the steps that follow.
    curve, seconds = json.loads(metadata.get("curve", "[]")), float(metadata.get("seconds", "0"))
    return Progress(int(metadata["step"]), curve, seconds)
