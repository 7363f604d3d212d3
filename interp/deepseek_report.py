"""The numbers on Hugging Face's DeepSeek-V4 class in docs/: python -m interp.deepseek_report -o docs/deepseek.md.

Seeds are confirmatory (:data:`interp.stats.CONFIRMATORY_SEED`): they were never used while developing.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from interp import engine, results, stats
from interp.audit import audit
from interp.compare import gap_difference
from interp.engine import Variant
from interp.knockout import effects
from interp.phases import fold
from interp.replacement import calibrate
from interp.sweep import phase_sweep
from interp.tasks.prompts import Task
from interp.tasks.recall import RecallTask
from interp.units import Unit, units

__all__ = ["agreement", "branch_effects", "main", "markdown", "measure"]

MODELS = ("hfv4-mix", "hfv4-csa")
STRIDE = 4
"""Phases are counted by the stride of the CSA layers; hfv4-mix has an HCA layer of stride 16 besides."""
KINDS = ("layer", "exact_branch", "entry_branch", "target_entry", "picks")


def agreement(sweep: xr.Dataset, audited: xr.Dataset) -> dict[str, float]:
    """Return the largest difference between what a report's sweep and an audit say of the same prompts.

    Parameters
    ----------
    sweep : Dataset
        Of :func:`interp.sweep.phase_sweep`.
    audited : Dataset
        The recall test of :func:`interp.audit.audit`, at the same stride, seed and number of prompts.

    Returns
    -------
    dict
        ``answers``: prompts answered differently; ``accuracy``, ``gap`` and ``interval`` in percentage points;
        ``period`` in tokens.
    """
    a, b = sweep.attrs, audited.attrs
    ends = ("gap_pp_low", "gap_pp_high")
    return {
        "answers": int((sweep["correct"].values != audited["correct"].values.astype(bool)).sum()),
        "accuracy": 100 * float(np.abs(sweep["accuracy"].values - audited["accuracy"].values).max()),
        "gap": abs(a["gap_pp"] - b["gap_pp"]),
        "interval": max(abs(a[end] - b[end]) for end in ends),
        "period": abs(int(a["period"]) - int(b["period"])),
    }


def branch_effects(
    model: Any, task: Task, *, n: int, seed: int, kinds: Sequence[str] = KINDS, stride: int = STRIDE
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
    kinds : sequence of str
        See :data:`interp.units.UNIT_KINDS`; outputs are replaced by their mean, columns masked.
    stride : int
        S.

    Returns
    -------
    Dataset
        As :func:`interp.knockout.knockout`, units labelled "kind layer"; and ``gap_pp (unit)`` of what is left,
        with ``gap_change gap_change_low gap_change_high (unit)``, that gap minus the intact one, paired.
    """
    prompts = task.sample(n, seed=seed)
    chosen: list[Unit] = [
        dataclasses.replace(one, label=f"{kind} {one.label}")
        for kind in kinds
        for one in units(model, kind, prompts)
    ]
    names = [name for one in chosen if one.replaced for name in one.sites]
    value_at = calibrate(
        model, task, prompts, names, replace="mean", at="final", stride=stride, n=2 * task.modulus, seed=seed,
        progress=False,
    ).at if names else None  # fmt: skip
    variants = [Variant(one.label, one.edits(value_at)) for one in chosen]
    scores = engine.run(model, prompts, variants, progress=False)
    tables = {name: fold(values, task.modulus) for name, values in scores.items()}
    attrs = results.provenance(
        model, task, seed, unit_kind="branches", replace="mean", at="final", stride=stride, modulus=task.modulus,
        n_per_residue=tables["correct"].shape[1], query_position=prompts.query_position,
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


def measure(n: int, *, seed: int, device: str) -> dict[str, Any]:
    """Measure everything on the page; `n` prompts per residue."""
    import hooks

    command = f"python -m interp.deepseek_report -n {n}" + ("" if device == "cpu" else f" --device {device}")
    found: dict[str, Any] = {
        "command": command,
        "seed": seed,
        "sweeps": {},
        "audits": {},
        "branches": {},
        "layers": {},
    }
    for name in MODELS:
        model = hooks.load(name, device=device)
        task = RecallTask.for_model(model)
        found["sweeps"][name] = phase_sweep(
            model, task, n_per_residue=n, seed=seed, stride=STRIDE, progress=False
        )
        options: dict[str, Any] = {"n_per_residue": n, "seed": seed, "stride": STRIDE, "device": device}
        found["audits"][name] = audit(name, query_phases=(), progress=False, **options)["recall"]
        found["branches"][name] = branch_effects(model, task, n=n * task.modulus, seed=seed)
        found["layers"][name] = [_kind(model.geometry(i)) for i in range(model.cfg.n_layers)]
    return found


def _kind(geometry: Any) -> str:
    if geometry is None:
        return "sliding"
    return f"{'CSA' if geometry.window > geometry.stride else 'HCA'} {geometry.stride}"


def markdown(found: dict[str, Any]) -> str:
    """Write what :func:`measure` found as a page."""
    lines = [
        "# Hugging Face's DeepSeek-V4 class, trained on recall",
        "",
        f"Made by `{found['command']}`; intervals are 95%, over prompts, seed "
        f"{found['seed']}; phases are counted by stride {STRIDE}. In 5% of "
        "samples a multiple of the period passes its nested test.",
        "",
        "## A report and an audit of the same model agree",
        "",
        "`phaselens report MODEL -o DIR` sweeps through the hooked model, `phaselens audit MODEL --stride 4` scores "
        "the same prompts its own way.",
        "",
    ]
    rows = []
    for name, sweep in found["sweeps"].items():
        audited = found["audits"][name]
        rows += [_sweep_row(name, "sweep", sweep), _sweep_row(name, "audit", audited)]
    head = ["model", "by", "prompts", "accuracy (%) by phase", "gap (pp)", "null gap", "period (p)"]
    lines += [*_table(head, rows), ""]
    for name, sweep in found["sweeps"].items():
        apart = agreement(sweep, found["audits"][name])
        lines.append(
            f"`{name}`: {apart['answers']} prompts answered differently; gaps differ by {apart['gap']:.2g} pp, their "
            f"intervals by {apart['interval']:.2g} pp, periods by {apart['period']}. By residue: "
            f"{' '.join(f'{100 * v:.0f}' for v in sweep['accuracy_residue'].values)}."
        )
        lines.append("")
    lines += [
        "## Where the gap lives",
        "",
        "At the final position, one at a time: a layer's head outputs replaced by their mean; its exact window, its "
        "entries, or the entries that hold the target masked; or those entries struck from its picks. "
        "Change of accuracy in percentage points by phase, and of the gap with its paired interval; bold where the "
        "interval holds no 0. A unit without which nothing is answered leaves no gap either: the gap lives where "
        "the answers are read.",
        "",
    ]
    for name, one in found["branches"].items():
        layers = found["layers"][name]
        rows = [_branch_row(one.sel(unit=unit), layers) for unit in one["unit"].values]
        clean = " ".join(f"{100 * v:.0f}" for v in one["clean_accuracy"].values)
        n = one.sizes["prompt"] * one.sizes["residue"]
        lines += [f"`{name}`, {n} prompts, intact {clean}:", ""]
        lines += [
            *_table(["knocked out", "layer", "change (pp) by phase", "gap (pp)", "change of the gap"], rows),
            "",
            _where(one, layers),
            "",
        ]
    return "\n".join(lines)


_NAMES = {
    "layer": "whole attention", "exact_branch": "window", "entry_branch": "entries",
    "target_entry": "target's entries", "picks": "target's entries among the picks",
}  # fmt: skip


def _sweep_row(name: str, by: str, one: xr.Dataset) -> list[str]:
    a = one.attrs
    return [
        f"`{name}`", by, str(one["correct"].size), " ".join(f"{100 * v:.1f}" for v in one["accuracy"].values),
        f"{a['gap_pp']:.1f} ({a['gap_pp_low']:.1f} to {a['gap_pp_high']:.1f})", f"{a['null_gap_pp']:.1f}",
        f"{stats.period_label(a)} ({a['period_p']:.3f})",
    ]  # fmt: skip


def _branch_row(one: xr.Dataset, layers: Sequence[str]) -> list[str]:
    kind, layer = str(one["unit"].values).rsplit(" ", 1)
    change, low, high = (float(one[f"gap_change{end}"]) for end in ("", "_low", "_high"))
    told = (
        f"{change:+.1f} ({low:+.1f} to {high:+.1f})"
        if np.isfinite([low, high]).all()
        else f"{change:+.1f} (–)"
    )
    return [
        _NAMES[kind], f"{layer} ({layers[int(layer)]})", " ".join(f"{v:+.0f}" for v in one["effect_pp"].values),
        f"{float(one['gap_pp']):.1f}", f"**{told}**" if low * high > 0 else told,
    ]  # fmt: skip


def _where(one: xr.Dataset, layers: Sequence[str]) -> str:
    """Name the units without which accuracy falls below half, and those that cost nothing."""
    clean = float(one["clean_accuracy"].mean())
    vital, idle = [], []
    for unit in one["unit"].values:
        kind, layer = str(unit).rsplit(" ", 1)
        left = clean + float(one["effect_pp"].sel(unit=unit).mean()) / 100
        label = f"{_NAMES[kind]} of layer {layer} ({layers[int(layer)]})"
        if left < clean / 2:
            vital.append(label)
        elif abs(left - clean) < 0.02:
            idle.append(label)
    return (
        f"More than half of the accuracy goes without: {', '.join(vital) or 'none of them'}. Less than 2 pp changes "
        f"without: {', '.join(idle) or 'none of them'}."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(
        description="Measure the trained models of Hugging Face's DeepSeek-V4 class."
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/deepseek.md"))
    parser.add_argument("-n", "--n-per-residue", type=int, default=48)
    parser.add_argument("--seed", type=int, default=stats.CONFIRMATORY_SEED)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(argv)
    found = measure(given.n_per_residue, seed=given.seed, device=given.device)
    with results.atomic_path(given.out) as path:
        path.write_text(markdown(found), encoding="utf-8")


if __name__ == "__main__":
    main()
