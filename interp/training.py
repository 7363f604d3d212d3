"""Training: any model of tokens → logits, or a family of seeds side by side, on any task that makes batches."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from tqdm.auto import tqdm

from hooks.errors import ConfigError, PhaselensError
from hooks.files import require_writable, write_json
from hooks.running import require_device
from interp.family import Family
from interp.outputs import as_word
from interp.recipes import Recipe, recipe, recipe_names
from interp.rng import torch_rng
from interp.tasks.recall import RecallTask
from interp.training_state import (
    Progress,
    discard_state,
    drop_state,
    fingerprint,
    read_progress,
    resume_state,
    save_state,
)

__all__ = ["Recipe", "fit", "recipe", "recipe_names", "train", "train_family"]


@overload
def fit(
    model: nn.Module, recipe: Recipe, *, seed: int, device: torch.device, folder: Path | None = None,
    save_every: int = 500, progress: bool = True,
) -> Iterator[tuple[int, float, float]]: ...  # fmt: skip
@overload
def fit(
    model: nn.Module, recipe: Recipe, *, seed: Sequence[int], device: torch.device, folder: Path | None = None,
    save_every: int = 500, progress: bool = True,
) -> Iterator[tuple[int, list[float], list[float]]]: ...  # fmt: skip
def fit(
    model: nn.Module,
    recipe: Recipe,
    *,
    seed: int | Sequence[int],
    device: torch.device,
    folder: Path | None = None,
    save_every: int = 500,
    progress: bool = True,
) -> Iterator[tuple[int, Any, Any]]:
    """Train a module in place, yielding (step, loss, accuracy) now and then.

    Batches depend on (seed, step) only, so a run resumed from `folder` equals one that was never stopped. A
    family's models are trained as each would be alone: own batches, own gradient norm, and an optimiser that
    works number by number.

    Parameters
    ----------
    model : nn.Module
        Maps integer tokens [batch, pos] to logits [batch, pos, d_vocab] (or an object with ``.logits``); or a
        :class:`~interp.family.Family`.
    recipe : Recipe
        What to do.
    seed : int or sequence of int
        Of the batches; of a family one for each model, and loss and accuracy are lists then.
    device : torch.device
        Where to train; a GPU uses bf16 autocast.
    folder : Path or None
        Where the resumable state lives, one file for a whole family; an earlier state there is picked up, and
        only what comes after it is yielded. It holds all points and the time they took, see
        :func:`~interp.training_state.read_progress`.
    save_every : int
        Steps between saves.
    progress : bool
        Show a bar.

    Raises
    ------
    ConfigError
        If there is not one seed for each model.
    CheckpointError
        If the state belongs to another recipe or seed.
    """
    family = model if isinstance(model, Family) else None
    seeds = [seed] if isinstance(seed, int) else list(seed)
    if (family is None) != isinstance(seed, int) or (family and len(family.models) != len(seeds)):
        wanted = "one integer" if family is None else f"a list of {len(family.models)}, one for each model"
        raise ConfigError(f"seed={seed!r}; valid: {wanted}")
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
    run = fingerprint(recipe, seed if isinstance(seed, int) else seeds)
    done = resume_state(model, optimiser, names, folder, run) if folder else Progress()
    began, curve = time.monotonic() - done.seconds, list(done.curve)
    steps = range(done.step, recipe.steps)
    bar = tqdm(steps, initial=done.step, total=recipe.steps, disable=not progress, desc="training")
    for step in bar:
        tokens, targets = _batches(recipe, seeds, step, device)
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = forward(tokens[0] if family is None else tokens)
            logits = logits if isinstance(logits, Tensor) else logits.logits
        losses, right = _losses(logits[None] if family is None else logits, targets)
        # A model's loss depends on its own weights alone, so the gradient of the sum is each one's own.
        loss = torch.stack(losses).sum()
        own_loss: Callable[[], Tensor | None] | None = getattr(model, "auxiliary_loss", None)  # indexers' own
        auxiliary = own_loss() if own_loss else None
        optimiser.zero_grad(set_to_none=True)
        (loss if auxiliary is None else loss + auxiliary).backward()
        if family is None:
            nn.utils.clip_grad_norm_(parameters, recipe.clip)
        else:
            family.clip_gradients(recipe.clip)
        optimiser.step()
        last = step + 1 == recipe.steps
        if step % 50 == 0 or last:
            found = [float(one.detach()) for one in losses]
            share = [float(one.float().mean()) for one in right]
            bar.set_postfix(loss=f"{sum(found) / len(found):.3f}", accuracy=f"{sum(share) / len(share):.3f}")
            point = (step, found[0], share[0]) if family is None else (step, found, share)
            curve.append(list(point))
            yield point
        if folder and ((step + 1) % save_every == 0 or last):
            done = Progress(step + 1, curve, time.monotonic() - began)
            save_state(model, optimiser, names, folder, run, done)


def _batches(
    recipe: Recipe, seeds: Sequence[int], step: int, device: torch.device
) -> tuple[Int[Tensor, "model n pos"], Int[Tensor, "model n pos"]]:
    """Tokens and targets of a step, of every seed."""
    made = [
        recipe.task.training_batch(
            recipe.batch,
            generator=torch_rng(seed, "batch", step, device=device),
            n_records=max(recipe.records(step), recipe.task.n_queries),
        )
        for seed in seeds
    ]
    return torch.stack([tokens for tokens, _ in made]), torch.stack([targets for _, targets in made])


def _losses(
    logits: Float[Tensor, "model n pos d_vocab"], targets: Int[Tensor, "model n pos"]
) -> tuple[list[Float[Tensor, ""]], list[Bool[Tensor, " scored"]]]:
    """Each model's mean cross-entropy over its scored positions, and where it is right."""
    scored = targets != -100
    sizes = scored.flatten(1).sum(1).tolist()
    picked, wanted = logits[scored].float().split(sizes), targets[scored].split(sizes)
    losses = [nn.functional.cross_entropy(p, w) for p, w in zip(picked, wanted, strict=True)]
    return losses, [p.detach().argmax(-1) == w for p, w in zip(picked, wanted, strict=True)]


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
    plan = _plan(name, steps, batch)
    if start_from is not None:
        plan = dataclasses.replace(plan, lr=plan.lr / 2, warmup=50, records_share=0.0)
    place = _place(device)
    model = _build(name, seed, plan)
    if start_from is not None:
        from hooks.checkpoint import load

        _take_weights(model, load(start_from), str(start_from))
    folder = require_writable(out)
    state = _state_folder(folder, resume)
    done = _trained(
        fit(model.trainable(), plan, seed=seed, device=place, folder=state, progress=progress), state
    )
    record = {
        "command": _command(name, [seed], model.name, steps, batch)
        + (f" --start-from {start_from}" if start_from else ""),
        **_circumstances(plan, seed, place, done.seconds),
        **({"started_from": _origin(start_from)} if start_from else {}),
        "curve": _rounded(done.curve),
    }
    _close(model, folder, record, n_per_residue)
    drop_state(state)
    return folder


def train_family(
    name: str,
    *,
    out: str | Path,
    seeds: Sequence[int],
    device: str | None = None,
    resume: bool = True,
    steps: int | None = None,
    batch: int | None = None,
    progress: bool = True,
    n_per_residue: int = 72,
) -> list[Path]:
    """Make several seeds of a zoo model from scratch, side by side in one process.

    Each gives what :func:`train` gives, up to rounding.

    Parameters
    ----------
    name : str
        One of :func:`recipe_names`, without an indexer and not of the Hugging Face class.
    out : path
        Folder that gets one folder per seed: NAME for seed 0, NAME-seedK for another. The resumable state of
        them all lives in the first one's ``state`` folder until training ends.
    seeds : sequence of int
        Seeds of weights and batches, each once.
    device, resume, steps, batch, progress, n_per_residue
        As in :func:`train`.

    Returns
    -------
    list of Path
        The folders, in order of `seeds`, each with config.json, model.safetensors, training.json.

    Raises
    ------
    ConfigError
        For no seed, a seed given twice, or a model that cannot be stacked.
    PhaselensError
        As :func:`train` does.
    """
    seeds = list(seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={seeds}; valid: one seed or more, each once")
    if len(seeds) == 1:
        folder = Path(out) / _name(name, seeds[0])
        return [
            train(
                name, out=folder, seed=seeds[0], device=device, resume=resume, steps=steps, batch=batch,
                progress=progress, n_per_residue=n_per_residue,
            )
        ]  # fmt: skip
    plan, place = _plan(name, steps, batch), _place(device)
    family = Family([_build(name, seed, plan) for seed in seeds])
    folders = [require_writable(Path(out) / model.name) for model in family.models]
    state = _state_folder(folders[0], resume)
    done = _trained(fit(family, plan, seed=seeds, device=place, folder=state, progress=progress), state)
    command = _command(name, seeds, ".", steps, batch)
    shared = _circumstances(plan, 0, place, done.seconds)
    for k, (model, folder) in enumerate(zip(family.write_back(), folders, strict=True)):
        curve = _rounded([step, losses[k], shares[k]] for step, losses, shares in done.curve)
        record = {"command": command, **shared, "seed": seeds[k], "seeds": seeds, "curve": curve}
        _close(model, folder, record, n_per_residue)
    drop_state(state)
    return folders


def _plan(name: str, steps: int | None, batch: int | None) -> Recipe:
    plan = recipe(name)
    return dataclasses.replace(plan, steps=steps or plan.steps, batch=batch or plan.batch)


def _place(device: str | None) -> torch.device:
    return require_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _name(name: str, seed: int) -> str:
    return name if seed == 0 else f"{name}-seed{seed}"


def _build(name: str, seed: int, plan: Recipe) -> Any:
    """An untrained model that knows its name and task."""
    from hooks.build import build

    model = build(name, seed=seed)
    model.name, model.task = _name(name, seed), plan.task.describe()
    return model


def _state_folder(folder: Path, resume: bool) -> Path:
    state = require_writable(folder / "state")
    if not resume:
        discard_state(state)
    return state


def _trained(steps: Iterable[Any], state: Path) -> Progress:
    """Train to the end; the record is the state's, which knows of what went before a kill."""
    for _ in steps:
        pass
    return read_progress(state)


def _rounded(curve: Iterable[list[Any]]) -> list[list[float]]:
    return [[step, round(loss, 4), round(accuracy, 4)] for step, loss, accuracy in curve]


def _command(name: str, seeds: Sequence[int], out: str, steps: int | None, batch: int | None) -> str:
    return " ".join(
        [f"phaselens train {name}", *(f"--seed {seed}" for seed in seeds), f"-o {as_word(out)}"]
        + ([f"--steps {steps}"] if steps else [])
        + ([f"--batch {batch}"] if batch else [])
    )


def _circumstances(plan: Recipe, seed: int, place: torch.device, seconds: float) -> dict[str, Any]:
    """What a model's record says about its training, once that has ended."""
    return {
        "recipe": plan.describe(),
        "seed": seed,
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "seconds": round(seconds, 1),
    }


def _close(model: Any, folder: Path, record: dict[str, Any], n_per_residue: int) -> None:
    """Measure a trained model and save it, in fp16 unless that costs accuracy, with its record."""
    from hooks.checkpoint import save

    model.eval()
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
