"""The verbs ``explore results zoo train`` of the command line; nothing heavy is imported until they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from interp.cli_options import NATURAL, POSITIVE, Json

__all__ = ["explore", "results", "train", "zoo"]


def explore(
    folder: Annotated[Path, Parameter(help="The only folder the explorer may open.")] = Path("reports"),
    *,
    port: Annotated[int | None, Parameter(validator=validators.Number(gte=1, lte=65535))] = None,
) -> None:
    """Open a report folder in the browser; listens on this machine only.

    Example: phaselens explore reports/w8s8-2kv
    """
    from interp import cli_run

    cli_run.explore(folder, port)


def results(
    path: Annotated[Path, Parameter(help="A .nc file of results, or a folder with some.")],
    *,
    json: Json = False,
) -> None:
    """Tell what is in a results file, and where it came from: model, task, seed, versions, commit.

    Example: phaselens results reports/w8s8-2kv/sweep.nc
    """
    from interp import cli_run

    cli_run.show_results(path, as_json=json)


def zoo(
    name: Annotated[str | None, Parameter(help="One model; all if left out.")] = None,
    *,
    cache: Annotated[
        bool,
        Parameter(help="Bytes a token in the cache, and what each saving is worth; DeepSeek's models too."),
    ] = False,
    json: Json = False,
) -> None:
    """List the bundled models: how each was made, and what every seed that was trained gave.

    Example: phaselens zoo w8s8-2kv
    """
    from interp import cli_run

    if cache:
        cli_run.show_cache(name, as_json=json)
    else:
        cli_run.show_zoo(name, as_json=json)


def train(
    name: Annotated[str, Parameter(help="A recipe: the name of a zoo model.")],
    *,
    out: Annotated[
        Path | None,
        Parameter(
            name=["--out", "-o"],
            help="Folder of the model, runs/NAME if left out; of several seeds, the folder that gets theirs, runs.",
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        Parameter(
            validator=NATURAL,
            help="Seed of weights and data, 0 if left out; repeatable: several are trained side by side.",
        ),
    ] = None,
    steps: Annotated[
        int | None, Parameter(validator=POSITIVE, help="Optimizer steps; the recipe's if left out.")
    ] = None,
    batch: Annotated[
        int | None, Parameter(validator=POSITIVE, help="Sequences a step; the recipe's if left out.")
    ] = None,
    start_from: Annotated[
        Path | None, Parameter(help="Go on from this model's weights, at half the peak rate.")
    ] = None,
    resume: Annotated[
        bool,
        Parameter(negative="--no-resume", help="Go on from the last state in the folder, if there is one."),
    ] = True,
    device: Annotated[str | None, Parameter(help="cpu, cuda or cuda:N; a GPU if there is one.")] = None,
    json: Json = False,
) -> None:
    """Train a model of the zoo again, with the recipe that made it, or several seeds of it side by side.

    Several seeds go into folders NAME (seed 0) and NAME-seedK.
    With --start-from, an indexer or a Hugging Face class: one seed at a time.

    Example: phaselens train tiny -o runs/tiny

    Example: phaselens train w8s8-2kv --seed 0 --seed 1 --seed 2 -o runs
    """
    from interp import cli_run

    cli_run.train(
        name,
        out=out,
        seeds=seed or [0],
        steps=steps,
        batch=batch,
        start_from=start_from,
        resume=resume,
        device=device,
        as_json=json,
    )
