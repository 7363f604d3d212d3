"""The numbers on Hugging Face's DeepSeek-V4 class in docs/: python -m interp.deepseek_report -o docs/deepseek.md.

Seeds are confirmatory (:data:`interp.stats.CONFIRMATORY_SEED`): they were never used while developing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from interp import results, stats
from interp.audit import audit
from interp.branches import BRANCH_HEAD, branch_effects, branch_rows
from interp.sweep import phase_sweep
from interp.tasks.recall import RecallTask

__all__ = ["agreement", "main", "markdown", "measure"]

MODELS = ("hfv4-mix", "hfv4-csa")
STRIDE = 4
"""Phases are counted by the stride of the CSA layers; hfv4-mix has an HCA layer of stride 16 besides."""
OTHER_SEEDS = 8
"""Seeds whose period is told besides: a multiple of the true one passes its test in 5% of samples."""


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


def measure(n: int, *, seed: int, device: str) -> dict[str, Any]:
    """Measure everything on the page; `n` prompts per residue."""
    import hooks

    command = f"python -m interp.deepseek_report -n {n}" + ("" if device == "cpu" else f" --device {device}")
    found: dict[str, Any] = {
        "command": command,
        "seed": seed,
        "sweeps": {},
        "audits": {},
        "periods": {},
        "branches": {},
    }
    for name in MODELS:
        model = hooks.load(name, device=device)
        task = RecallTask.for_model(model)
        found["sweeps"][name] = phase_sweep(
            model, task, n_per_residue=n, seed=seed, stride=STRIDE, progress=False
        )
        options: dict[str, Any] = {"n_per_residue": n, "seed": seed, "stride": STRIDE, "device": device}
        found["audits"][name] = audit(name, query_phases=(), progress=False, **options)["recall"]
        found["periods"][name] = [
            int(
                phase_sweep(model, task, n_per_residue=n, seed=other, stride=STRIDE, progress=False).attrs[
                    "period"
                ]
            )
            for other in range(seed + 1, seed + 1 + OTHER_SEEDS)
        ]
        found["branches"][name] = branch_effects(model, task, n=n * task.modulus, seed=seed, stride=STRIDE)

    return found


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
    for name, periods in found["periods"].items():
        told = ", ".join(map(str, periods))
        first = found["seed"] + 1
        lines += [f"`{name}`, period at seeds {first} to {first + len(periods) - 1}: {told}.", ""]
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
        rows = [
            _bold(row, one.sel(unit=unit))
            for row, unit in zip(branch_rows(one), one["unit"].values, strict=True)
        ]
        clean = " ".join(f"{100 * v:.0f}" for v in one["clean_accuracy"].values)
        n = one.sizes["prompt"] * one.sizes["residue"]
        lines += [f"`{name}`, {n} prompts, intact {clean}:", ""]
        lines += [
            *_table(BRANCH_HEAD, rows),
            "",
            _where(one),
            "",
        ]
    return "\n".join(lines)


def _sweep_row(name: str, by: str, one: xr.Dataset) -> list[str]:
    a = one.attrs
    return [
        f"`{name}`", by, str(one["correct"].size), " ".join(f"{100 * v:.1f}" for v in one["accuracy"].values),
        f"{a['gap_pp']:.1f} ({a['gap_pp_low']:.1f} to {a['gap_pp_high']:.1f})", f"{a['null_gap_pp']:.1f}",
        f"{stats.period_label(a)} ({a['period_p']:.3f})",
    ]  # fmt: skip


def _bold(row: Sequence[str], one: xr.Dataset) -> list[str]:
    """The change of the gap in bold where its interval holds no 0."""
    return [
        *row[:-1],
        f"**{row[-1]}**" if float(one["gap_change_low"]) * float(one["gap_change_high"]) > 0 else row[-1],
    ]


def _where(one: xr.Dataset) -> str:
    """Name the units without which accuracy falls below half, and those that cost nothing."""
    clean = float(one["clean_accuracy"].mean())
    vital, idle = [], []
    for unit, (kind, layer, *_) in zip(one["unit"].values, branch_rows(one), strict=True):
        left = clean + float(one["effect_pp"].sel(unit=unit).mean()) / 100
        label = f"{kind} of layer {layer}"
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
