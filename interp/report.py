"""The main job: measure one model phase by phase, and write results, figures and one page that links them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr
from tqdm.auto import tqdm

from hooks.errors import CheckpointError
from interp import results as storage
from interp.outputs import MANIFEST, as_word, output_folder, to_plain, write_json

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from hooks.sites import HookedModel
    from interp.figures.export import Exported
    from interp.tasks import RecallTask

__all__ = ["FORMATS", "draw", "figures", "load_results", "report", "save_results"]

FORMATS = ("pdf", "svg", "html", "png")
MEMORY = 1 << 30
"""Default budget for activations, in bytes: the engine's, which takes long to import."""
_BRANCH_BLOCKS = 24
"""Prompts per residue, at most, on which layers, windows, entries and picks are knocked out besides."""
PARTS = ("sweep", "knockout", "specialization", "gates", "cycling", "patch")


def report(
    model: HookedModel,
    *,
    out: str | os.PathLike[str],
    task: RecallTask | None = None,
    n_per_residue: int = 64,
    seed: int = 0,
    unit: Literal["kv_head", "head", "layer"] = "kv_head",
    formats: Sequence[str] = FORMATS,
    memory: int = MEMORY,
    progress: bool = True,
) -> dict[str, xr.Dataset]:
    """Run sweep, knockout, gates and specialization of one model and write them to a folder.

    Parameters
    ----------
    model : HookedModel
        What to measure.
    out : path
        The folder: ``sweep``, ``knockout``, ``specialization``, ``gates`` and ``branches`` as ``.nc`` and ``.csv``, a
        folder ``figures``, ``report.json`` and ``index.html``. It appears whole or not at all.
    task : RecallTask, optional
        The prompts; the model's own recall settings if left out.
    n_per_residue : int
        Prompts per residue, for sweep and knockout alike.
    seed : int
        Seed of the prompts.
    unit : str
        What is knocked out, one at a time.
    formats : sequence of str
        Of the figures.
    memory : int
        Budget for activations, in bytes.
    progress : bool
        Show the stages on a terminal.

    Returns
    -------
    dict of str to Dataset
        The results by name; ``gates`` only if the model has a chunked layer with gates, ``branches``
        (:func:`interp.branches.branch_effects`) only if its layers differ in how they compress.

    Raises
    ------
    PhaselensError
        If the folder cannot be written, or the model cannot do the task.
    """
    with output_folder(out) as staging:
        found = _measure(model, task, n_per_residue, seed, unit, memory, progress)
        files = save_results(found, staging)
        built = figures(found)
        drawn = draw(built, staging / "figures", formats=formats)
        files += sorted(file.relative_to(staging).as_posix() for file in drawn.files)
        _write_index(found, built, staging, files, drawn.notice)
    return found


def _measure(
    model: HookedModel,
    task: RecallTask | None,
    n_per_residue: int,
    seed: int,
    unit: Any,
    memory: int,
    progress: bool,
) -> dict[str, xr.Dataset]:
    from interp.branches import branch_effects, is_mixed
    from interp.knockout import knockout
    from interp.specialization import specialization
    from interp.sweep import phase_sweep
    from interp.tasks import RecallTask

    task = task or RecallTask.for_model(model)
    found: dict[str, xr.Dataset] = {}
    stages = tqdm(total=5, disable=None if progress else True, leave=False, bar_format="{desc} {n}/{total}")
    with stages:
        stages.set_description("knockout")
        effects = knockout(model, task, unit=unit, n=n_per_residue * task.modulus, seed=seed, memory=memory)
        stages.update()
        stages.set_description("sweep")
        found["sweep"] = phase_sweep(model, task, n_per_residue=n_per_residue, seed=seed, clean=effects)
        found["knockout"] = effects
        stages.update()
        stages.set_description("specialization")
        found["specialization"] = specialization(
            found["knockout"], stride=int(found["sweep"].attrs["stride"]), seed=seed
        )
        stages.update()
        stages.set_description("gates")
        if any(model.geometry(layer) for layer in range(model.cfg.n_layers)):
            from interp.gates import gate_profile

            found["gates"] = gate_profile(model, task, seed=seed, memory=memory)
        stages.update()
        if is_mixed(model):
            stages.set_description("branches")
            stride, n = int(found["sweep"].attrs["stride"]), min(n_per_residue, _BRANCH_BLOCKS) * task.modulus
            found["branches"] = branch_effects(model, task, n=n, seed=seed, stride=stride, memory=memory)
        stages.update()
    return found


# --------------------------------------------------------------------------- files


def save_results(found: Mapping[str, xr.Dataset], folder: Path) -> list[str]:
    """Write every Dataset as netCDF and CSV and return the file names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name, dataset in found.items():
        storage.save(dataset, folder / f"{name}.nc")
        storage.to_csv(dataset, folder / f"{name}.csv")
        names += [f"{name}.nc", f"{name}.csv"]
    return names


def load_results(folder: str | os.PathLike[str]) -> dict[str, xr.Dataset]:
    """Read the results that a report, or one verb, wrote to a folder.

    Raises
    ------
    CheckpointError
        If there is no such folder or it holds none.
    """
    folder = Path(folder)
    found = {name: storage.load(folder / f"{name}.nc") for name in PARTS if (folder / f"{name}.nc").is_file()}
    if not found:
        reason = "holds no results" if folder.is_dir() else "is not a folder"
        raise CheckpointError(
            f"{str(folder)!r} {reason} ({', '.join(f'{name}.nc' for name in PARTS)}); "
            f"make some with: phaselens report w8s8-2kv -o {as_word(folder)}"
        )
    return found


def figures(found: Mapping[str, xr.Dataset]) -> dict[str, go.Figure]:
    """Build every figure that the results allow, by name."""
    from interp.figures import (
        accuracy_by_residue,
        cycling_figure,
        effect_heatmap,
        effective_offsets,
        gate_profiles,
        patching_map,
    )
    from interp.figures.gate_units import pairable

    drawn: dict[str, go.Figure] = {}
    if "sweep" in found:
        drawn["accuracy"] = accuracy_by_residue(found["sweep"])
    if "knockout" in found:
        drawn["knockout"] = effect_heatmap(found["knockout"], found.get("specialization"))
    if "gates" in found and found["gates"].sizes["unit"]:
        drawn["gates"] = gate_profiles(found["gates"], pairable(found["gates"], found.get("knockout")))
        drawn["offsets"] = effective_offsets(found["gates"])
    if "cycling" in found:
        drawn["cycling"] = cycling_figure(found["cycling"])
    if "patch" in found:
        drawn["patch"] = patching_map(found["patch"])
    return drawn


def draw(built: Mapping[str, go.Figure], folder: Path, *, formats: Sequence[str] = FORMATS) -> Exported:
    """Write figures, each in every format, and the data of each as CSV.

    Raises
    ------
    FigureError
        For an unknown format.
    """
    from interp.figures.export import export_many

    folder.mkdir(parents=True, exist_ok=True)
    return export_many({folder / name: figure for name, figure in built.items()}, formats)


def _write_index(
    found: Mapping[str, xr.Dataset],
    built: Mapping[str, go.Figure],
    folder: Path,
    files: list[str],
    notice: str,
) -> None:
    from interp.report_page import page

    files = [*files, "index.html", MANIFEST]
    (folder / "index.html").write_text(page(found, built, files=files, notice=notice), encoding="utf-8")
    summary: dict[str, Any] = {
        "model": found["sweep"].attrs["model"],
        "files": files,
        "notice": notice,
        **{name: to_plain(dataset) for name, dataset in found.items()},
    }
    write_json(summary, folder / MANIFEST)
