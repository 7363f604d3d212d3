"""The numbers on interventions in docs/, from one command: python -m interp.intervention_report -o docs/interventions.md.

Seeds are confirmatory (:data:`interp.stats.CONFIRMATORY_SEED`): they were never used while developing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import xarray as xr

from interp import results, stats
from interp.attribution import attribution
from interp.claims import loss_bounds
from interp.controls import controls
from interp.figures import cycling_figure
from interp.gate_controls import cycling_controls, parts_controls
from interp.gate_interventions import FORCED, cycling, gate_parts
from interp.knockout import knockout
from interp.patching import patch
from interp.phases import measured_stride
from interp.report import draw
from interp.specialization import MIN_LOSS, served_text
from interp.tasks.recall import RecallTask

__all__ = ["main", "markdown"]

CYCLED = ("w8s8-2kv", "w8s8-1kv", "w12s12-4kv")
PARTS = "w8s8-2kv"
RANKED = ("w8s8-2kv", "w4s4-4kv")
CONTROL = "full-4kv"
CONTROL_SEEDS = 3
PAPER_R2 = 0.66
"""The least that the paper reports without the boundary phase (Zhu et al. 2026, arXiv 2609.36322)."""
ALIKE = 0.5
"""Similarity from which a head's effect on log-probability under forced gates counts as that under intact gates."""


def markdown(found: dict[str, dict[str, xr.Dataset]], missing: Sequence[str], command: str) -> str:
    """Write what was measured as a page.

    Parameters
    ----------
    found : dict of dict of Dataset
        By section ("cycling", "parts", "attribution", "control") and model, or verb and seed of the controls;
        "cycling controls" and "parts controls" by the same models.
    missing : sequence of str
        Models that are not in the zoo.
    command : str
        What makes the page.
    """
    lines = [
        "# Interventions", "",
        f"Made by `{command}` (n: prompts per residue); intervals are 95%, over prompts; seeds from "
        f"{stats.CONFIRMATORY_SEED} on.",
        "", "## Gate cycling", "",
        "R² = 1 − SS_res/SS_tot of accuracy by phase against the prediction A_0((r − δ) mod S), nothing fitted. Lead: "
        "R² without the boundary phase minus the best that the prediction by any other δ gives, 0 (nothing moves) among "
        "them.", "",
    ]  # fmt: skip
    rows = []
    for name, one in found["cycling"].items():
        held = found["cycling controls"][name]
        for i, shift in enumerate(one["shift"].values):
            rows.append([
                name, f"{int(shift):+d}", _ci(one, "r2", i), str(one.attrs["n"]), _ci(one, "r2_inner", i),
                str(one.attrs["n_inner"]), _ci(held, "lead_inner", i), _percent(one["predicted"].values[i]),
                _percent(one["observed"].values[i]),
            ])  # fmt: skip
    head = [
        "model", "δ", "R²", "phases", "R² without the boundary phase", "phases", "lead", "predicted (%)", "observed (%)",
    ]  # fmt: skip
    lines += [*_table(head, rows), "", *_cycling_verdict(found), ""]
    for name in found["cycling"]:
        lines += [f"![{name}, gates cycled](figures/cycling-{name}.svg)", ""]
    lines += ["## Which part of a gate carries the phases", ""]
    for name, one in found["parts"].items():
        losses = _losses(one)
        lines += [
            f"{name}: heads knocked out under forced gates. Similarity is the correlation over phases of a head's "
            "effect on log-probability with its effect under intact gates. Moved: the mean gate, moved by half a window, "
            "a control of the static part. Losses are in percent of the accuracy under the same gates, by phase, at the "
            "phases that the head serves under intact gates.", "",
            *_parts(one, losses), "", *_parts_verdict(one, found["parts controls"][name], losses), "",
        ]  # fmt: skip
    lines += ["## Attribution patching against true patching", ""]
    rows = [
        [
            name.split()[0], one.attrs["unit_kind"],
            f"{one.attrs['rank_correlation']:.2f} ({one.attrs['rank_correlation_low']:.2f} to "
            f"{one.attrs['rank_correlation_high']:.2f})",
            str(one.attrs["n_cells"]), str(int(one["missed"].values.sum())), _percent(one["saturated"].values),
        ]
        for name, one in found["attribution"].items()
    ]  # fmt: skip
    head = [
        "model", "units", "Spearman", "cells (unit × phase)", "effects missed", "p(answer) > 0.99, % of prompts by phase",
    ]  # fmt: skip
    lines += [*_table(head, rows), "", "## Controls", "", *_controls(found["control"])]
    if missing:
        lines += [f"Not measured, for they are not in the zoo: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def _controls(found: dict[str, xr.Dataset]) -> list[str]:
    """Spreads over phases of a model without phases beside those of its controls, and what they say, in words."""
    if not found:
        return []
    rows, above, larger, controls = [], [], [], []
    for name, one in found.items():
        spread = one["spread"].max("unit")
        for control in one["control"].values:
            cell = one.sel(control=control)
            rows.append([
                name, str(control), f"{float(cell['spread'].max()):.3f}", f"{float(cell['null_spread'].max()):.3f}",
                f"{100 * float(cell['exceeds'].mean()):.0f}",
            ])  # fmt: skip
        passed = one["exceeds"].any("unit")
        controls += passed.drop_sel(control="own").values.tolist()
        if passed.sel(control="own"):
            above.append(name)
        if float(spread.sel(control="own")) > float(spread.drop_sel(control="own").max()):
            larger.append(name)
    head = [
        "run",
        "control",
        "largest spread over phases (nats)",
        "95% of permuted, all units at once",
        "units above (%)",
    ]
    one = next(iter(found.values()))
    told = (
        f"At its own stride no unit is above the bar in {len(found) - len(above)} of {len(found)} runs"
        + (f" (above in {'; '.join(above)})" if above else "")
        + f". The largest spread there is larger than those of the placebo stride and of random weights in {len(larger)} of "
        f"{len(found)} runs"
    )
    told += (
        ": that comparison alone would not clear the model, and it is by the permuted phases that its effects are within "
        "chance." if larger and not above else "."
    )  # fmt: skip
    if above:
        chance = scipy.stats.binom.sf(len(above) - 1, len(found), 0.05)
        told += (
            f" By chance alone {len(above)} or more of {len(found)} runs pass a bar of 95% with probability {chance:.2f}; of "
            f"the controls, which cannot have phases, {sum(controls)} of {len(controls)} did."
        )
    return [
        f"{one.attrs['model']}, which has no stride, measured at stride {one.attrs['stride']}. The bar of a run is what "
        "95% of permutations of phases within prompts stay below.", "", *_table(head, rows), "", told, "",
    ]  # fmt: skip


def _cycling_verdict(found: dict[str, dict[str, xr.Dataset]]) -> list[str]:
    """Which models bear out the paper's prediction outside the boundary phase, by their intervals."""
    words: dict[str, list[str]] = {
        "supported": [], "undecided": [], "not supported": [], "undefined": [],
    }  # fmt: skip
    leads: dict[str, list[str]] = {"better": [], "not told apart": [], "worse": [], "undefined": []}
    for name, one in found["cycling"].items():
        for i, shift in enumerate(one["shift"].values):
            low, high = (float(one[f"r2_inner_{end}"].values[i]) for end in ("low", "high"))
            said = _decided(low, high, PAPER_R2, ("supported", "not supported"))
            words[said].append(f"{name} by {int(shift):+d}")
            held = found["cycling controls"][name]
            low, high = (float(held[f"lead_inner_{end}"].values[i]) for end in ("low", "high"))
            said = _decided(low, high, 0, ("better", "worse"))
            leads["not told apart" if said == "undecided" else said].append(f"{name} by {int(shift):+d}")
    return [
        f"The paper reports R² of {PAPER_R2} to 1.00 without the boundary phase. An R² of {PAPER_R2} or more is, by the interval, "
        f"{_told(words)}.", "",
        f"Against the best prediction by another δ, that by δ itself is {_told(leads)}.",
    ]  # fmt: skip


def _told(words: dict[str, list[str]]) -> str:
    return "; ".join(f"{said}: {', '.join(which)}" for said, which in words.items() if which)


def _losses(one: xr.Dataset) -> xr.DataArray:
    """Losses under each gates with their intervals, in percent [gates, unit, phase, (value, low, high)]."""
    stride, seed = int(one.attrs["stride"]), int(one.attrs["seed"])
    found = [
        loss_bounds(clean, correct, stride, seed=seed)
        for clean, correct in zip(one["clean_correct"].values, one["correct"].values, strict=True)
    ]
    return xr.DataArray(
        np.stack(found),
        {"gates": one["gates"].values, "unit": one["unit"].values},
        ("gates", "unit", "phase", "end"),
    )


def _parts_verdict(one: xr.Dataset, held: xr.Dataset, losses: xr.DataArray) -> list[str]:
    """Say what each part of the gates leaves of the specialised heads: the phases they serve, and their effects.

    Phases served go by accuracy, by the intervals of the losses, and decide. Similarity goes by log-probability, which
    changes where accuracy is too low for a loss as well; alike effects on answers that are wrong anyway are no phases kept.
    """
    intact = one.sel(gates="intact")
    special = [
        str(u) for u, row in zip(one["unit"].values, intact["serves"].values, strict=True) if row.any()
    ]
    if not special:
        return ["No head is specialised under intact gates: there is nothing to keep."]
    lines = [
        f"Of {len(special)} specialised heads: phases served are kept if the loss at each of them has an interval at or "
        f"above {MIN_LOSS:g}%, lost if that at one of them has an interval below; effects are alike where the "
        f"similarity of log-probabilities is {ALIKE} or more, unlike where it is less, by the interval.", "",
    ]  # fmt: skip
    for gates, words in (("static", "static part"), ("deviation", "per-window deviation")):
        under = one.sel(gates=gates)
        served: dict[str, list[str]] = {"kept": [], "lost": [], "undecided": []}
        alike: dict[str, list[str]] = {"alike": [], "unlike": [], "undecided": [], "undefined": []}
        above: dict[str, list[str]] = {}
        for unit in special:
            phases = intact["serves"].sel(unit=unit).values.astype(bool)
            served[_kept(losses.sel(gates=gates, unit=unit).values[phases])].append(unit)
            low, high = (float(under[f"similarity_{end}"].sel(unit=unit)) for end in ("low", "high"))
            alike[_decided(low, high, ALIKE, ("alike", "unlike"))].append(unit)
            cell = held.sel(gates=gates, unit=unit)
            for control in cell["control"].values[np.isfinite(cell["lead"].values)]:
                listed = above.setdefault(str(control), [])
                if bool(cell["exceeds"].sel(control=control)):
                    listed.append(unit)
        why = _undecided(served["undecided"], intact, under, losses.sel(gates=gates))
        controls = "".join(
            f" Above the control {control!r}: {', '.join(which) or 'none'}."
            for control, which in above.items()
        )
        lines.append(
            f"- With the {words} alone, phases served: {_told(served)}.{why} Effects: {_told(alike)}.{controls}"
        )
    return lines


def _kept(losses: np.ndarray) -> str:
    """Whether a unit still serves the phases it served, by [phase, (value, low, high)] of its losses at them.

    "kept" if it surely does at all of them, "lost" if it surely does not at some, or else "undecided".
    """
    if (losses[:, 2] < MIN_LOSS).any():
        return "lost"
    return "kept" if (losses[:, 1] >= MIN_LOSS).all() else "undecided"


def _undecided(units: list[str], intact: xr.Dataset, under: xr.Dataset, losses: xr.DataArray) -> str:
    """Say why units are undecided: too few right answers for a loss, or an interval on both sides of the bar."""
    undefined, open_ = [], []
    for unit in units:
        at = losses.sel(unit=unit).values[intact["serves"].sel(unit=unit).values.astype(bool)]
        (undefined if np.isnan(at).any() else open_).append(unit)
    told = ""
    if undefined:
        low, high = (f"{100 * float(f(under['accuracy'].values)):.0f}" for f in (np.min, np.max))
        told += (
            f" Undecided ({', '.join(undefined)}): accuracy, {low} to {high}% by phase, is too low for a loss, or for its "
            "interval, at a phase they served; effects on log-probability alone do not say that phases are kept."
        )
    if open_:
        told += (
            f" Undecided ({', '.join(open_)}): the interval of a loss reaches to both sides of {MIN_LOSS:g}%."
        )
    return told


def _decided(low: float, high: float, least: float, words: tuple[str, str]) -> str:
    """First word if the interval lies at or above a value, second if below it, else what is missing."""
    if not np.isfinite([low, high]).all():
        return "undefined"
    return words[0] if low >= least else words[1] if high < least else "undecided"


def _parts(one: xr.Dataset, losses: xr.DataArray) -> list[str]:
    rows = []
    served = one["serves"].sel(gates="intact")
    known = ~np.isnan(one["similarity"].sel(gates="intact").values)
    for gates in one["gates"].values:
        rows.append([f"**{gates}**", _percent(one["accuracy"].sel(gates=gates).values), "", ""])
        for unit in one["unit"].values[known]:
            cell = one.sel(gates=gates, unit=unit)
            low, high = float(cell["similarity_low"]), float(cell["similarity_high"])
            between = f"{low:.2f} to {high:.2f}" if np.isfinite([low, high]).all() else "interval undefined"
            told = f"{float(cell['similarity']):.2f} ({between})"
            at = np.flatnonzero(served.sel(unit=unit).values)
            loss = losses.sel(gates=gates, unit=unit).values
            lost = "; ".join(_loss_at(int(phase), loss[phase]) for phase in at)
            rows.append([
                f"KV head {unit}", served_text(cell["serves"].values, cell["loss"].values), lost, told,
            ])  # fmt: skip
    return _table(["gates", "accuracy by phase (%), phases served", "loss by phase (%)", "similarity"], rows)


def _loss_at(phase: int, loss: np.ndarray) -> str:
    value, low, high = loss
    if np.isnan(value):
        return f"{phase}: undefined"
    between = f"{low:.0f} to {high:.0f}" if np.isfinite([low, high]).all() else "interval undefined"
    return f"{phase}: {value:.0f} ({between})"


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
    command = f"python -m interp.intervention_report -n {given.n_per_residue} --device {given.device}"
    found, missing = _measured(given.n_per_residue, given.device)
    if given.results is not None:
        given.results.mkdir(parents=True, exist_ok=True)
        for section, each in found.items():
            for name, one in each.items():
                results.save(one, given.results / f"{section} {name}.nc".replace(",", "").replace(" ", "-"))
    draw(
        {f"cycling-{name}": cycling_figure(one) for name, one in found["cycling"].items()},
        given.out.parent / "figures",
        formats=("svg",),
    )
    with results.atomic_path(given.out) as path:
        path.write_text(markdown(found, missing, command), encoding="utf-8")


def _measured(n: int, device: str) -> tuple[dict[str, dict[str, xr.Dataset]], list[str]]:
    import hooks

    there = set(hooks.zoo())
    missing = [name for name in dict.fromkeys((*CYCLED, PARTS, *RANKED, CONTROL)) if name not in there]
    options: dict[str, Any] = {"seed": stats.CONFIRMATORY_SEED}
    sections = ("cycling", "cycling controls", "parts", "parts controls", "attribution", "control")
    found: dict[str, dict[str, xr.Dataset]] = {section: {} for section in sections}

    def loaded(name: str) -> tuple[Any, RecallTask]:
        model = hooks.load(name, device=device)
        return model, RecallTask.for_model(model)

    for name in (name for name in CYCLED if name in there):
        one = cycling(*loaded(name), n_per_residue=n, **options)
        found["cycling"][name], found["cycling controls"][name] = one, cycling_controls(one, **options)
    if PARTS in there:
        model, task = loaded(PARTS)
        one = gate_parts(model, task, to=(*FORCED, "moved"), n=n * task.modulus, **options)
        found["parts"][PARTS], found["parts controls"][PARTS] = one, parts_controls(one, **options)
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
        for verb, run in (("knockout", knockout), ("patch", patch)):
            for seed in range(stats.CONFIRMATORY_SEED, stats.CONFIRMATORY_SEED + CONTROL_SEEDS):

                def measure(other: Any, run: Any = run, seed: int = seed) -> xr.Dataset:
                    return run(other, task, unit="kv_head", n=n * task.modulus, seed=seed)

                held = controls(model, measure(model), measure, seed=seed)
                found["control"][f"{verb}, seed {seed}"] = held
    return found, missing


if __name__ == "__main__":
    main()
