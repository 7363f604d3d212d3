"""Where a gap lives in a model of several kinds of layers: layers, windows, entries and picks knocked out by phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from hooks.sites import HookedModel
from interp import engine, results, stats
from interp.compare import gap_difference
from interp.engine import Variant
from interp.knockout import effects
from interp.phases import fold
from interp.replacement import calibrate
from interp.tasks.prompts import Task
from interp.units import Unit, units

__all__ = ["BRANCH_HEAD", "BRANCH_KINDS", "branch_effects", "branch_rows", "is_mixed"]

BRANCH_KINDS = ("layer", "exact_branch", "entry_branch", "target_entry", "picks")
BRANCH_HEAD = ("knocked out", "layer", "change (pp) by phase", "gap (pp)", "change of the gap")
_NAMES = {
    "layer": "whole attention", "exact_branch": "window", "entry_branch": "entries",
    "target_entry": "target's entries", "picks": "target's picks",
}  # fmt: skip


def is_mixed(model: HookedModel) -> bool:
    """Whether the model's layers differ in how they compress, so that a gap can live in some of them."""
    return len({model.geometry(layer) for layer in range(model.cfg.n_layers)}) > 1


def branch_effects(
    model: Any,
    task: Task,
    *,
    n: int,
    seed: int,
    kinds: Sequence[str] | None = None,
    stride: int,
    memory: int = engine.MEMORY,
) -> xr.Dataset:
    """Knock out units of several kinds on the same prompts: whole layers, windows, entries, picks.

    Parameters
    ----------
    model, task : HookedModel, Task
        What is measured on what.
    n : int
        Prompts, a multiple of R.
    seed : int
        Of the prompts.
    kinds : sequence of str, optional
        See :data:`interp.units.UNIT_KINDS`; outputs are replaced by their mean, columns masked. All of
        :data:`BRANCH_KINDS` that the model has if left out.
    stride : int
        S.
    memory : int
        Budget for activations, in bytes.

    Returns
    -------
    Dataset
        As :func:`interp.knockout.knockout`, units labelled "kind layer"; and ``gap_pp (unit)`` of what is left,
        with ``gap_change gap_change_low gap_change_high (unit)``, that gap minus the intact one, paired.
    """
    prompts = task.sample(n, seed=seed)
    chosen: list[Unit] = [
        dataclasses.replace(one, label=f"{kind} {one.label}")
        for kind in kinds or BRANCH_KINDS
        for one in units(model, kind, prompts, required=kinds is not None)
    ]
    names = [name for one in chosen if one.replaced for name in one.sites]
    value_at = calibrate(
        model, task, prompts, names, replace="mean", at="final", stride=stride, n=2 * task.modulus, seed=seed,
        memory=memory, progress=False,
    ).at if names else None  # fmt: skip
    variants = [Variant(one.label, one.edits(value_at)) for one in chosen]
    scores = engine.run(model, prompts, variants, memory=memory, progress=False)
    tables = {name: fold(values, task.modulus) for name, values in scores.items()}
    attrs = results.provenance(
        model, task, seed, unit_kind="branches", replace="mean", at="final", stride=stride, modulus=task.modulus,
        n_per_residue=tables["correct"].shape[1], query_position=prompts.query_position,
        layers=[_layer_kind(model.geometry(i)) for i in range(model.cfg.n_layers)],
    )  # fmt: skip
    found = effects(
        tables, chosen, position=fold(prompts.target_position, task.modulus), stride=stride, attrs=attrs
    )
    by = 100 * stats.phase_means(tables["correct"].astype(float), stride)  # [1 + unit, prompt, phase]
    changes = np.array(
        [gap_difference(np.stack([by[0], one], axis=1), scale=100.0, seed=seed) for one in by[1:]]
    )
    return found.assign(
        gap_pp=("unit", np.ptp(by[1:].mean(axis=1), axis=-1)),
        gap_change=("unit", changes[:, 0]),
        gap_change_low=("unit", changes[:, 1]),
        gap_change_high=("unit", changes[:, 2]),
    )


def branch_rows(found: xr.Dataset) -> list[list[str]]:
    """Rows under :data:`BRANCH_HEAD` of a result of :func:`branch_effects`, one a unit."""
    layers, rows = list(np.atleast_1d(found.attrs["layers"])), []
    for unit in found["unit"].values:
        one, (kind, layer) = found.sel(unit=unit), str(unit).rsplit(" ", 1)
        change, low, high = (float(one[f"gap_change{end}"]) for end in ("", "_low", "_high"))
        bounds = f"{low:+.1f} to {high:+.1f}" if np.isfinite([low, high]).all() else "–"
        rows.append([
            _NAMES[kind], f"{layer} ({layers[int(layer)]})", " ".join(f"{v:+.0f}" for v in one["effect_pp"].values),
            f"{float(one['gap_pp']):.1f}", f"{change:+.1f} ({bounds})".replace("-", "−"),
        ])  # fmt: skip
    return rows


def _layer_kind(geometry: Any) -> str:
    if geometry is None:
        return "sliding"
    return f"{'CSA' if geometry.window > geometry.stride else 'HCA'} {geometry.stride}"
