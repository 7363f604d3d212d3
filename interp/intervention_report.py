"""The numbers on interventions in docs/, from one command: python -m interp.intervention_report -o docs/interventions.md.

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
from interp.attribution import attribution
from interp.controls import controls
from interp.figures import cycling_figure
from interp.gate_interventions import cycling, gate_parts
from interp.knockout import knockout
from interp.phases import measured_stride
from interp.report import draw
from interp.specialization import served_text
from interp.tasks.recall import RecallTask

__all__ = ["main", "markdown"]

CYCLED = ("w8s8-2kv", "w8s8-1kv", "w12s12-4kv")
PARTS = "w8s8-2kv"
RANKED = ("w8s8-2kv", "w4s4-4kv")
CONTROL = "full-4kv"
PAPER_R2 = 0.66
"""The least that the paper reports without the boundary phase (Zhu et al. 2026, arXiv 2609.36322)."""
ALIKE = 0.5
"""Similarity from which a head's effect under forced gates counts as that under intact gates."""


def markdown(found: dict[str, dict[str, xr.Dataset]], missing: Sequence[str]) -> str:
    """Write what was measured as a page.

    Parameters
    ----------
    found : dict of dict of Dataset
        By section ("cycling", "parts", "attribution", "control") and model.
    missing : sequence of str
        Models that are not in the zoo.
    """
    lines = [
        "# Interventions", "",
        "Made by `python -m interp.intervention_report -o docs/interventions.md`; intervals are 95%, over prompts.",
        "", "## Gate cycling", "",
        "R² = 1 − SS_res/SS_tot of accuracy by phase against the prediction A_0((r − δ) mod S), nothing fitted.", "",
    ]  # fmt: skip
    rows = []
    for name, one in found["cycling"].items():
        for i, shift in enumerate(one["shift"].values):
            rows.append([
                name, f"{int(shift):+d}", _ci(one, "r2", i), str(one.attrs["n"]), _ci(one, "r2_inner", i),
                str(one.attrs["n_inner"]), _percent(one["predicted"].values[i]), _percent(one["observed"].values[i]),
            ])  # fmt: skip
    head = ["model", "δ", "R²", "n", "R² without the boundary phase", "n", "predicted (%)", "observed (%)"]
    lines += [*_table(head, rows), "", *_cycling_verdict(found["cycling"]), ""]
    for name in found["cycling"]:
        lines += [f"![{name}, gates cycled](figures/cycling-{name}.svg)", ""]
    lines += ["## Which part of a gate carries the phases", ""]
    for name, one in found["parts"].items():
        lines += [
            f"{name}: heads knocked out under forced gates. Similarity is the correlation over phases of a head's "
            "effect with its effect under intact gates.", "", *_parts(one), "", *_parts_verdict(one), "",
        ]  # fmt: skip
    lines += ["## Attribution patching against true patching", ""]
    rows = [
        [
            name.split()[0], one.attrs["unit_kind"],
            f"{one.attrs['rank_correlation']:.2f} ({one.attrs['rank_correlation_low']:.2f} to "
            f"{one.attrs['rank_correlation_high']:.2f})",
            str(one.attrs["n_cells"]), str(int(one["missed"].values.sum())), _percent(one["saturated"].values),
        ]
        for name, each in found["attribution"].items() for one in (each,)
    ]  # fmt: skip
    head = [
        "model",
        "units",
        "Spearman",
        "cells",
        "effects missed",
        "p(answer) > 0.99, % of prompts by phase",
    ]
    lines += [*_table(head, rows), "", "## Controls", ""]
    for name, one in found["control"].items():
        over = one["exceeds"].values.mean(axis=1)
        rows = [
            [str(c), f"{s.max():.3f}", f"{n.max():.3f}", f"{100 * o:.0f}"]
            for c, s, n, o in zip(
                one["control"].values, one["spread"].values, one["null_spread"].values, over, strict=True
            )
        ]
        head = [
            "control",
            "largest spread over phases (nats)",
            "95% of permuted, all units at once",
            "units above (%)",
        ]
        lines += [
            f"{name}, stride {one.attrs['stride']} for want of one of its own:",
            "",
            *_table(head, rows),
            "",
        ]
    if missing:
        lines += [f"Not measured, for they are not in the zoo: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def _cycling_verdict(found: dict[str, xr.Dataset]) -> list[str]:
    """Which models bear out the paper's prediction outside the boundary phase, by their intervals."""
    words: dict[str, list[str]] = {
        "supported": [], "undecided": [], "not supported": [], "undefined": [],
    }  # fmt: skip
    for name, one in found.items():
        for i, shift in enumerate(one["shift"].values):
            low, high = (float(one[f"r2_inner_{end}"].values[i]) for end in ("low", "high"))
            said = _decided(low, high, PAPER_R2, ("supported", "not supported"))
            words[said].append(f"{name} by {int(shift):+d}")
    told = "; ".join(f"{said}: {', '.join(which)}" for said, which in words.items() if which)
    return [
        f"The paper reports R² of {PAPER_R2} to 1.00 without the boundary phase. An R² of {PAPER_R2} or more is, by the interval, "
        f"{told}."
    ]


def _parts_verdict(one: xr.Dataset) -> list[str]:
    """What each part of the gates keeps of the specialised heads' phases, by similarity and by what they serve.

    Similarity decides: it is defined where accuracy is too low for a loss. Heads counted as "undefined" have
    no phase that is lost and one or more whose loss is undefined.
    """
    intact = one.sel(gates="intact")
    special = [
        str(u) for u, row in zip(one["unit"].values, intact["serves"].values, strict=True) if row.any()
    ]
    if not special:
        return ["No head is specialised under intact gates: there is nothing to keep."]
    lines = [
        f"Of {len(special)} specialised heads; a head's phases are kept where its similarity is {ALIKE} or more, "
        "by the interval.", "",
    ]  # fmt: skip
    for gates, words in (("static", "static part"), ("deviation", "per-window deviation")):
        under = one.sel(gates=gates)
        said: dict[str, list[str]] = {}
        counts: dict[str, int] = {"kept": 0, "lost": 0, "undefined": 0}
        for unit in special:
            low, high = (float(under[f"similarity_{end}"].sel(unit=unit)) for end in ("low", "high"))
            said.setdefault(_decided(low, high, ALIKE, ("kept", "lost")), []).append(unit)
            phases = intact["serves"].sel(unit=unit).values.astype(bool)
            counts[_kept(under.sel(unit=unit), phases)] += 1
        told = "; ".join(f"{word} by {', '.join(which)}" for word, which in said.items())
        served = ", ".join(f"{count} {word}" for word, count in counts.items())
        lines.append(f"- With the {words} alone: {told}. By phases served: {served}.")
    return lines


def _kept(unit: xr.Dataset, phases: np.ndarray) -> str:
    """Whether a unit still serves the phases it served: "kept", "lost" or "undefined"."""
    serves, undefined = unit["serves"].values.astype(bool)[phases], np.isnan(unit["loss"].values[phases])
    if (~serves & ~undefined).any():
        return "lost"
    return "undefined" if undefined.any() else "kept"


def _decided(low: float, high: float, least: float, words: tuple[str, str]) -> str:
    """First word if the interval lies at or above a value, second if below it, else what is missing."""
    if not np.isfinite([low, high]).all():
        return "undefined"
    return words[0] if low >= least else words[1] if high < least else "undecided"


def _parts(one: xr.Dataset) -> list[str]:
    rows = []
    known = ~np.isnan(one["similarity"].sel(gates="intact").values)
    for gates in one["gates"].values:
        rows.append([f"**{gates}**", _percent(one["accuracy"].sel(gates=gates).values), ""])
        for unit in one["unit"].values[known]:
            cell = one.sel(gates=gates, unit=unit)
            low, high = float(cell["similarity_low"]), float(cell["similarity_high"])
            between = f"{low:.2f} to {high:.2f}" if np.isfinite([low, high]).all() else "interval undefined"
            told = f"{float(cell['similarity']):.2f} ({between})"
            rows.append([f"KV head {unit}", served_text(cell["serves"].values, cell["loss"].values), told])
    return _table(["gates", "accuracy by phase (%), phases served", "similarity"], rows)


def _ci(one: xr.Dataset, name: str, index: int) -> str:
    value, low, high = (float(one[f"{name}{end}"].values[index]) for end in ("", "_low", "_high"))
    return f"{value:.2f} ({low:.2f} to {high:.2f})" if np.isfinite(value) else "undefined"


def _percent(values: np.ndarray) -> str:
    return " ".join(f"{100 * value:.0f}" for value in values)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the page, and the results behind it where a folder is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/interventions.md"))
    parser.add_argument("--results", type=Path, help="folder for the results behind the page")
    parser.add_argument("-n", "--n-per-residue", type=int, default=24)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(argv)
    found, missing = _measured(given.n_per_residue, given.device)
    if given.results is not None:
        given.results.mkdir(parents=True, exist_ok=True)
        for section, each in found.items():
            for name, one in each.items():
                results.save(one, given.results / f"{section}-{name.replace(' ', '-')}.nc")
    draw(
        {f"cycling-{name}": cycling_figure(one) for name, one in found["cycling"].items()},
        given.out.parent / "figures",
        formats=("svg",),
    )
    with results.atomic_path(given.out) as path:
        path.write_text(markdown(found, missing), encoding="utf-8")


def _measured(n: int, device: str) -> tuple[dict[str, dict[str, xr.Dataset]], list[str]]:
    import hooks

    there = set(hooks.zoo())
    missing = [name for name in dict.fromkeys((*CYCLED, PARTS, *RANKED, CONTROL)) if name not in there]
    options: dict[str, Any] = {"seed": stats.CONFIRMATORY_SEED}
    found: dict[str, dict[str, xr.Dataset]] = {"cycling": {}, "parts": {}, "attribution": {}, "control": {}}

    def loaded(name: str) -> tuple[Any, RecallTask]:
        model = hooks.load(name, device=device)
        return model, RecallTask.for_model(model)

    for name in (name for name in CYCLED if name in there):
        found["cycling"][name] = cycling(*loaded(name), n_per_residue=n, **options)
    if PARTS in there:
        model, task = loaded(PARTS)
        found["parts"][PARTS] = gate_parts(model, task, n=n * task.modulus, **options)
    for name in (name for name in RANKED if name in there):
        model, task = loaded(name)
        # True patching of every gate offset runs whole prompts: one cycle of phases is shown, not all of R.
        task = RecallTask.for_model(model, modulus=measured_stride(model, task))
        for unit in ("head", "gate_offset"):
            found["attribution"][f"{name} {unit}"] = attribution(
                model, task, unit=unit, n=n * task.modulus, **options
            )  # fmt: skip
    if CONTROL in there:
        model, task = loaded(CONTROL)

        def measure(other: Any) -> xr.Dataset:
            return knockout(other, task, n=n * task.modulus, **options)

        found["control"][CONTROL] = controls(model, measure(model), measure, **options)
    return found, missing


if __name__ == "__main__":
    main()
