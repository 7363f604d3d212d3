"""The numbers on shared caches, picks and stored precision in docs/: python -m interp.v41_report -o docs/v41.md.

Seeds are confirmatory (:data:`interp.stats.CONFIRMATORY_SEED`): they were never used while developing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from interp import results, stats
from interp.compare import compare
from interp.knockout import knockout
from interp.owners import owner_effects
from interp.periods import unit_periods
from interp.sweep import phase_sweep
from interp.tasks.recall import RecallTask
from interp.v41_page import markdown

__all__ = ["kept_result", "main", "markdown", "measure"]

MODEL, TWIN, PICKING = "v41-ced", "v41-ced-bf", "dsv4-csa"
REPLAYS = (1, 4, 16, 46)
"""Tokens replayed through the decoder; (4 decoder layers − 1)·(16 − 1) + 1 = 46 are exact."""


def measure(
    n: int, *, n_owners: int, seed: int, device: str, folder: Path | None = None, only: str | None = None
) -> dict[str, Any]:
    """Measure everything on the page.

    Parameters
    ----------
    n, n_owners : int
        Prompts per residue; for the owner → reuse matrix, whose every variant is a whole pass.
    seed : int
        Of the prompts.
    device : str
        Where models run.
    folder : path, optional
        Results are kept there, and taken from there where they are of the same models, prompts and seed.
    only : str, optional
        Measure this part alone ("owners" or "rest") into `folder`, and return nothing.
    """
    import hooks
    from hooks.checkpoint import zoo_info
    from hooks.variants import entries_seen, with_picks, without_quantization

    models = {name: hooks.load(name, device=device) for name in (MODEL, TWIN, PICKING)}
    tasks = {name: RecallTask.for_model(model) for name, model in models.items()}
    model, task = models[MODEL], tasks[MODEL]

    def kept(name: str, of: Any, count: int, make: Callable[[], xr.Dataset], **others: str) -> xr.Dataset:
        wanted = {"model_hash": of.content_hash(), "seed": seed, "n_per_residue": count, **others}
        return kept_result(None if folder is None else folder / f"{name}.nc", make, wanted)

    owners = None
    if only != "rest":
        owners = kept(
            "owners", model, n_owners,
            lambda: owner_effects(model, task, n=n_owners * task.modulus, seed=seed, progress=False),
        )  # fmt: skip
    if only == "owners":
        return {}

    def knocked(name: str, unit: str) -> xr.Dataset:
        each, size = models[name], n * tasks[name].modulus
        return kept(
            f"{unit}-{name}", each, n,
            lambda: knockout(each, tasks[name], unit=unit, n=size, seed=seed, progress=False),
        )  # fmt: skip

    layers = {name: knocked(name, "layer") for name in models}
    heads = knocked(MODEL, "head")
    length = task.sample(task.modulus, seed=seed).tokens.shape[1]

    def compared(first: str, label: str, second: Any, other: xr.Dataset | None = None) -> xr.Dataset:
        return kept(
            f"compare-{first}-{label}", models[first], n,
            lambda: compare(
                models[first], second, n_per_residue=n, seed=seed, known=(layers[first], other), progress=False
            ),
            other_model_hash=second.content_hash(),
        )  # fmt: skip

    every = entries_seen(model, length)
    pairs = [
        compared(MODEL, "unquantized", without_quantization(model)),
        compared(MODEL, "twin", models[TWIN], layers[TWIN]),
        *(compared(name, "all-entries", with_picks(each, every)) for name, each in models.items()),
    ]
    if only is not None:
        return {}
    replayed = task.sample(2 * task.modulus, seed=seed)
    notes = {name: str(zoo_info(name).get("note", "")) for name in models}
    return {
        "seed": seed,
        "command": f"python -m interp.v41_report -n {n} --n-owners {n_owners}"
        + ("" if device == "cpu" else f" --device {device}"),
        "notes": {name: note for name, note in notes.items() if note},
        "sweeps": {
            name: (
                phase_sweep(models[name], tasks[name], n_per_residue=n, seed=seed, clean=one),
                unit_periods(one, seed=seed),
            )
            for name, one in layers.items()
        },
        "periods": [unit_periods(layers[MODEL], seed=seed), unit_periods(heads, seed=seed)],
        "compared": pairs,
        "every_entry": every,
        "owners": owners,
        "replays": [model.prefill_error(replayed.tokens.to(device), replay) for replay in REPLAYS],
        "n_replay": len(replayed),
    }


def kept_result(
    path: Path | None, make: Callable[[], xr.Dataset], wanted: Mapping[str, object]
) -> xr.Dataset:
    """Load a result whose attributes are the wanted ones; else make it, and save it if there is a path."""
    if path is not None and path.is_file():
        found = results.load(path)
        if all(found.attrs.get(key) == value for key, value in wanted.items()):
            return found
    found = make()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        results.save(found, path)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="Measure shared caches, picks and stored precision.")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/v41.md"))
    parser.add_argument("-n", "--n-per-residue", type=int, default=48)
    parser.add_argument("--n-owners", type=int, default=24, help="prompts per residue for the owner matrix")
    parser.add_argument("--seed", type=int, default=stats.CONFIRMATORY_SEED)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--results", type=Path, help="folder that keeps results, and spares measuring them again"
    )
    parser.add_argument(
        "--only", choices=("owners", "rest"), help="measure a part into --results, write no page"
    )
    given = parser.parse_args(argv)
    if given.only is not None and given.results is None:
        parser.error("--only needs --results")
    found = measure(
        given.n_per_residue, n_owners=given.n_owners, seed=given.seed, device=given.device,
        folder=given.results, only=given.only,
    )  # fmt: skip
    if not found:
        return
    with results.atomic_path(given.out) as path:
        path.write_text(markdown(found), encoding="utf-8")


if __name__ == "__main__":
    main()
