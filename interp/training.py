"""The training recipe: any model of tokens → logits on any task that makes training batches.

Figures of the recipe: AdamW (0.9, 0.98), linear warm-up then cosine to 5%, clip 1.0, bf16 autocast on a GPU,
number of records raised linearly (without this curriculum several runs never leave 5% accuracy).
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from hooks.errors import CheckpointError, PhaselensError, did_you_mean
from hooks.files import atomic_path, require_writable, write_json
from hooks.running import require_device
from interp.rng import torch_rng
from interp.tasks.recall import RecallTask

__all__ = ["Recipe", "fit", "recipe", "recipe_names", "train"]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what training gives, device and seed aside.

    Parameters
    ----------
    task : RecallTask
        Makes the batches.
    steps, batch : int
        Optimiser steps; sequences a step.
    lr, warmup, final_lr : float, int, float
        Peak rate, steps of linear warm-up, fraction of the peak that the cosine ends at.
    records_from, records_share : int, float
        Records at the start, and the share of steps over which they rise to the task's own number.
    clip, weight_decay : float
        Gradient norm; AdamW's decay.
    compiled : bool
        Compile the forward pass on a GPU; not for a class that does not trace.
    """

    task: RecallTask = field(default_factory=RecallTask)
    steps: int = 4000
    batch: int = 256
    lr: float = 1e-3
    warmup: int = 300
    final_lr: float = 0.05
    records_from: int = 16
    records_share: float = 0.5
    clip: float = 1.0
    weight_decay: float = 0.01
    compiled: bool = True

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (
            self.final_lr + (1 - self.final_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        )

    def records(self, step: int) -> int:
        """Records in the context at a step."""
        top = self.task.n_records
        share = 1.0 if self.records_share == 0 else min(1.0, step / (self.records_share * self.steps))
        return min(top, self.records_from + round(share * (top - self.records_from)))

    def describe(self) -> dict[str, Any]:
        """JSON values."""
        return {**dataclasses.asdict(self), "task": self.task.describe()}


_TINY_TASK = RecallTask(
    n_keys=32, n_values=32, n_filler=8, n_records=14, context=48, n_queries=8, n_demonstrations=7, modulus=12
)
# Steps after which a model's accuracy no longer rose; the rest learns within the default's.
_STEPS = {
    "w4s4-4kv": 3500, "w8s4-4kv": 3000, "w8s6-4kv": 3500, "w8s8-4kv": 3500, "w8s8-1kv": 6000, "w8s8-2kv": 8600,
    "w8s8-2kv-nope": 6000, "w12s12-4kv": 8500, "v41-ced": 2500, "v41-ced-bf": 2500,
}  # fmt: skip
_RECIPES: dict[str, Recipe] = {
    **{name: Recipe(steps=steps) for name, steps in _STEPS.items()},
    **{name: Recipe(compiled=False, steps=1700) for name in ("hfv4-mix", "hfv4-csa")},
    "full-4kv": Recipe(task=RecallTask(n_queries=8), steps=6000, lr=2e-3, records_from=8, records_share=0.8),
    "tiny": Recipe(
        task=_TINY_TASK, steps=800, batch=64, lr=3e-3, warmup=100, records_from=14, records_share=0.0
    ),
}


def recipe_names() -> list[str]:
    """Names of models that :func:`train` can make."""
    from hooks.build import buildable

    return buildable()


def recipe(name: str) -> Recipe:
    """Return the recipe of a zoo model.

    Raises
    ------
    PhaselensError
        Listing the names that exist.
    """
    if name not in recipe_names():
        raise PhaselensError(f"no recipe for {name!r}; {did_you_mean(name, recipe_names(), 40)}")
    return _RECIPES.get(name, Recipe())


def fit(
    model: nn.Module,
    recipe: Recipe,
    *,
    seed: int,
    device: torch.device,
    folder: Path | None = None,
    save_every: int = 500,
    progress: bool = True,
) -> Iterator[tuple[int, float, float]]:
    """Train a module in place, yielding (step, loss, accuracy) now and then.

    Batches depend on (seed, step) only, so a run resumed from `folder` equals one that was never stopped.

    Parameters
    ----------
    model : nn.Module
        Maps integer tokens [batch, pos] to logits [batch, pos, d_vocab] (or an object with ``.logits``).
    recipe : Recipe
        What to do.
    seed : int
        Of the batches.
    device : torch.device
        Where to train; a GPU uses bf16 autocast.
    folder : Path or None
        Where the resumable state lives; an earlier state there is picked up.
    save_every : int
        Steps between saves.
    progress : bool
        Show a bar.
    """
    model.to(device).train()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        parameters,
        lr=recipe.lr,
        betas=(0.9, 0.98),
        weight_decay=recipe.weight_decay,
        fused=device.type == "cuda",
    )
    # One fused graph a step: several times faster on a GPU, and several runs share one better.
    forward = torch.compile(model) if recipe.compiled and device.type == "cuda" else model
    start = _resume(model, optimiser, names, folder, recipe, seed) if folder else 0
    bar = tqdm(
        range(start, recipe.steps), initial=start, total=recipe.steps, disable=not progress, desc="training"
    )
    for step in bar:
        generator = torch_rng(seed, "batch", step, device=device)
        tokens, targets = recipe.task.training_batch(
            recipe.batch, generator=generator, n_records=max(recipe.records(step), recipe.task.n_queries)
        )
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = forward(tokens)
            logits = logits if isinstance(logits, Tensor) else logits.logits
        scored = targets != -100
        picked, wanted = logits[scored].float(), targets[scored]
        loss = nn.functional.cross_entropy(picked, wanted)
        own_loss: Callable[[], Tensor | None] | None = getattr(model, "auxiliary_loss", None)  # indexers' own
        auxiliary = own_loss() if own_loss else None
        optimiser.zero_grad(set_to_none=True)
        (loss if auxiliary is None else loss + auxiliary).backward()
        nn.utils.clip_grad_norm_(parameters, recipe.clip)
        optimiser.step()
        last = step + 1 == recipe.steps
        if step % 50 == 0 or last:
            accuracy = float((picked.detach().argmax(-1) == wanted).float().mean())
            bar.set_postfix(loss=f"{float(loss.detach()):.3f}", accuracy=f"{accuracy:.3f}")
            yield step, float(loss.detach()), accuracy
        if folder and ((step + 1) % save_every == 0 or last):
            _save_state(model, optimiser, names, folder, recipe, seed, step + 1)


def train(
    name: str,
    *,
    out: str | Path,
    seed: int = 0,
    device: str | None = None,
    resume: bool = True,
    steps: int | None = None,
    batch: int | None = None,
    start_from: str | Path | None = None,
    progress: bool = True,
    n_per_residue: int = 72,
) -> Path:
    """Make a zoo model from scratch.

    Parameters
    ----------
    name : str
        One of :func:`recipe_names`.
    out : path
        Folder for the model; the resumable state lives in its ``state`` folder until training ends.
    seed : int
        Seed of weights and batches.
    device : str or None
        None is a GPU if there is one.
    resume : bool
        Go on from an earlier state; False starts over.
    steps : int or None
        Other than the recipe's.
    batch : int or None
        Other than the recipe's.
    start_from : path or None
        Go on from this model's weights, at half the recipe's peak rate and without its curriculum.
    progress : bool
        Show a bar.
    n_per_residue : int
        Prompts per residue of the closing phase sweep; 0 leaves it out. At 72 and stride 8 one prompt is
        0.46 pp of its phase, below the 0.5 pp that fp16 may cost.

    Returns
    -------
    Path
        The folder: config.json, model.safetensors, training.json.

    Raises
    ------
    PhaselensError
        For an unknown name or device, an unwritable folder, or a state of another run.
    """
    plan = recipe(name)
    plan = dataclasses.replace(plan, steps=steps or plan.steps, batch=batch or plan.batch)
    if start_from is not None:
        plan = dataclasses.replace(plan, lr=plan.lr / 2, warmup=50, records_share=0.0)
    place = require_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    from hooks.build import build
    from hooks.checkpoint import load, save

    model = build(name, seed=seed)
    if start_from is not None:
        _take_weights(model, load(start_from), str(start_from))
    folder = require_writable(out)
    state = require_writable(folder / "state")
    if not resume:
        for path in state.iterdir():
            path.unlink()
    model.name, model.task = name if seed == 0 else f"{name}-seed{seed}", plan.task.describe()
    began, curve = time.monotonic(), []
    for step, loss, accuracy in fit(
        model.trainable(), plan, seed=seed, device=place, folder=state, progress=progress
    ):
        curve.append([step, round(loss, 4), round(accuracy, 4)])
    model.eval()
    record = {
        "command": " ".join(
            [f"phaselens train {name} --seed {seed} -o {model.name}"]
            + ([f"--steps {steps}"] if steps else [])
            + ([f"--batch {batch}"] if batch else [])
            + ([f"--start-from {start_from}"] if start_from else [])
        ),
        "recipe": plan.describe(),
        "seed": seed,
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - began, 1),
        **({"started_from": _origin(start_from)} if start_from else {}),
        "curve": curve,
    }
    stored = torch.float16
    if n_per_residue:
        record["accuracy_by_phase"], record["accuracy_by_phase_fp16"] = _closing_sweep(model, n_per_residue)
        worst = max(
            abs(a - b)
            for a, b in zip(record["accuracy_by_phase"], record["accuracy_by_phase_fp16"], strict=True)
        )
        stored = torch.float16 if worst <= 0.5 else torch.float32
    record["stored_as"] = str(stored).removeprefix("torch.")
    save(model, folder, dtype=stored)
    write_json(folder / "training.json", record)
    for path in state.iterdir():
        path.unlink()
    state.rmdir()
    return folder


def _take_weights(model: Any, source: Any, name: str) -> None:
    """Copy every weight of `model` from a source that may have more (a gate, say), never fewer."""
    own, theirs = model.state_dict(), source.state_dict()
    for key, value in own.items():
        if key not in theirs or theirs[key].shape != value.shape:
            raise PhaselensError(
                f"training cannot start from {name!r}: it has no {key} of shape {tuple(value.shape)}; "
                "valid: a model with all weights of the one to train"
            )
    model.load_state_dict({key: theirs[key] for key in own})


def _origin(folder: str | Path) -> dict[str, Any]:
    """How the model that training went on from was made."""
    path = Path(folder) / "training.json"
    return json.loads(path.read_text()) if path.exists() else {"folder": str(folder)}


def _closing_sweep(model: Any, n_per_residue: int) -> tuple[list[float], list[float]]:
    """Accuracy by phase in percent, with the weights as trained and as rounded to fp16."""
    from interp.sweep import phase_sweep

    def accuracy() -> list[float]:
        sweep = phase_sweep(
            model, RecallTask.for_model(model), n_per_residue=n_per_residue, seed=0, progress=False
        )
        return [round(100 * float(a), 2) for a in sweep.accuracy]

    exact = accuracy()
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.half().to(p.dtype))
        rounded = accuracy()
        for name, p in model.named_parameters():
            p.copy_(kept[name])
    return exact, rounded


def _fingerprint(recipe: Recipe, seed: int) -> str:
    return json.dumps({"recipe": recipe.describe(), "seed": seed}, sort_keys=True)


def _save_state(model, optimiser, names, folder: Path, recipe: Recipe, seed: int, step: int) -> None:
    """Weights and optimiser moments in one safetensors file, so that a kill can never pair two steps."""
    from safetensors.torch import save_file

    tensors = {f"model.{k}": v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    # Parameters that never had a gradient (a hard top-k indexer's) have no moments.
    for index, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"adam.{key}.{names[index]}"] = value.detach().cpu().contiguous()
    with atomic_path(folder / "state.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"step": str(step), "run": _fingerprint(recipe, seed)})


def _resume(model, optimiser, names, folder: Path, recipe: Recipe, seed: int) -> int:
    """Load an earlier state into model and optimiser and return its step."""
    from safetensors import safe_open

    path = folder / "state.safetensors"
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        if metadata["run"] != _fingerprint(recipe, seed):
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
