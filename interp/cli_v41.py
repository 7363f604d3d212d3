"""Verbs on shared caches, picks and stored precision: compare, owners, periods."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from hooks.errors import PhaselensError
from interp import cli_run
from interp.cli_options import NATURAL, POSITIVE, Device, Json, Model, Out, PerResidue, Seed

__all__ = ["compare", "owners", "periods"]

_Stride = Annotated[
    int | None,
    Parameter(validator=POSITIVE, help="Phases are counted by it; the model's own if left out."),
]


def compare(
    model: Model,
    other: Annotated[str | None, Parameter(help="Another model, zoo name or folder.")] = None,
    *,
    unquantized: Annotated[bool, Parameter(help="Against itself with quantization off.")] = False,
    picks: Annotated[
        int | None,
        Parameter(validator=NATURAL, help="Against itself with so many picks a query; 0 attends everything."),
    ] = None,
    out: Out = None,
    n_per_residue: PerResidue = 64,
    seed: Seed = 0,
    stride: _Stride = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Compare the phase gaps of two models, prompt by prompt, with intervals.

    Example: phaselens compare v41-ced --unquantized
    """
    if (other is not None) + unquantized + (picks is not None) != 1:
        raise PhaselensError("give one of: OTHER (a model), --unquantized, --picks K (0 attends everything)")

    def work() -> dict[str, Any]:
        from hooks.variants import entries_seen, with_picks, without_quantization
        from interp.compare import compare as paired

        first, task = cli_run.prepare(model, device=device)
        if other is not None:
            second = cli_run.prepare(other, device=device)[0]
        elif unquantized:
            second = without_quantization(first)
        else:
            length = task.sample(task.modulus, seed=seed).tokens.shape[1]
            second = with_picks(first, picks or entries_seen(first, length))
        found = paired(first, second, task, n_per_residue=n_per_residue, seed=seed, stride=stride)
        return {"compare": found}

    cli_run.run(work, out, as_json=json)


def owners(
    model: Model,
    *,
    out: Out = None,
    n_per_residue: PerResidue = 16,
    seed: Seed = 0,
    stride: _Stride = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Drop the target's record from shared entries: what it costs owner and readers, phase by phase.

    With a folder: the results, and the matrix as figures.

    Example: phaselens owners v41-ced -o runs/owners
    """

    def work() -> dict[str, Any]:
        from interp.owners import owner_effects

        hooked, task = cli_run.prepare(model, device=device)
        return {
            "owners": owner_effects(hooked, task, n=n_per_residue * task.modulus, seed=seed, stride=stride)
        }

    if out is None:
        cli_run.show(work(), as_json=json)
        return
    from interp.outputs import output_folder
    from interp.report import draw, save_results

    with output_folder(out) as staging:
        found = work()
        names = save_results(found, staging)
        from interp.figures.owner_maps import owner_effects_map, owner_mass_map

        figures = {"effects": owner_effects_map(found["owners"]), "mass": owner_mass_map(found["owners"])}
        drawn = draw(figures, staging / "figures")
        names += sorted(file.relative_to(staging).as_posix() for file in drawn.files)
    cli_run.show(found, as_json=json, files=[out / name for name in names])
    if drawn.notice and not json:
        print(drawn.notice)


def periods(
    model: Model,
    *,
    out: Out = None,
    unit: Annotated[
        Literal["kv_head", "head", "layer"], Parameter(help="What is knocked out, one at a time.")
    ] = "head",
    n_per_residue: PerResidue = 64,
    seed: Seed = 0,
    stride: _Stride = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Find the period of every unit's effect, beside strides that mean nothing, and the gap that n could show.

    Example: phaselens periods v41-ced --stride 2
    """

    def work() -> dict[str, Any]:
        from interp.knockout import knockout
        from interp.periods import unit_periods

        hooked, task = cli_run.prepare(model, device=device)
        effects = knockout(hooked, task, unit=unit, n=n_per_residue * task.modulus, seed=seed, stride=stride)
        return {"periods": unit_periods(effects, seed=seed)}

    cli_run.run(work, out, as_json=json)
