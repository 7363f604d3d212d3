"""The open replication: bundled models beside the paper's controlled runs, and its claims tested on them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from hooks.errors import PhaselensError, did_you_mean
from interp import claims, results, stats
from interp.claims import Change, Claim, Interval, Measured
from interp.figures.base import number
from interp.grid import Loader, Outcome, cells, finish, run_grid
from interp.outputs import as_word
from interp.published import load_published

__all__ = ["PAGE", "Counterpart", "Replication", "RunRow", "replicate"]

PAGE = "replication.md"
CELLS = "cells"
PUBLISHED = "controlled_runs"


@dataclass(frozen=True)
class Counterpart:
    """The bundled model nearest in shape to a published run."""

    published: str
    model: str
    differences: str
    """Besides size, data and task, which differ for all."""


COUNTERPARTS = (
    Counterpart("full attention, 1 KV", "full-4kv", "4 KV heads, not 1"),
    Counterpart("full attention, 8 KV", "full-4kv", "4 KV heads, not 8"),
    Counterpart("W8/S8, 1 KV, seed 42", "w8s8-1kv", "none in the compressor"),
    Counterpart("W8/S8, 1 KV, seed 43", "w8s8-1kv", "the same model again: one seed is bundled"),
    Counterpart("W8/S8, 8 KV", "w8s8-4kv", "4 KV heads, not 8"),
    Counterpart("W8/S4, 1 KV", "w8s4-4kv", "4 KV heads, not 1"),
    Counterpart("W12/S12, 1 KV", "w12s12-4kv", "4 KV heads, not 1"),
    Counterpart("W8/S8, 1 KV, no RoPE", "w8s8-2kv-nope", "2 KV heads, not 1"),
    Counterpart(
        "W8/S8, 1 KV, uniform averaging",
        "w8s8-2kv-uniform",
        "2 KV heads, not 1; went on from w8s8-2kv-seed1, since none took off from scratch",
    ),
    Counterpart("W8/S4, 1 KV, DeepSeek-style kernel", "dsv4-w8s4-1kv", "none in the compressor"),
    Counterpart(
        "W8/S4, 1 KV, DeepSeek-style kernel, scalar gates",
        "dsv4-w8s4-1kv",
        "vector gates, not scalar: the twin is not bundled",
    ),
)
ALSO = ("w8s8-2kv", "w8s8-2kv-seed1", "w8s8-2kv-seed2", "w4s4-4kv", "w8s6-4kv")
"""Without a published run of their shape; the claims are tested on them too."""
_TWO_KV = ("w8s8-2kv", "w8s8-2kv-seed1", "w8s8-2kv-seed2")
MORE_HEADS = tuple(("w8s8-1kv", many) for many in (*_TWO_KV, "w8s8-4kv"))
BASES = ("W8/S8, 1 KV, seed 42", "W8/S8, 1 KV, seed 43")
"""The published runs that a change is held against: both seeds."""
CHANGES = (
    (
        "Removing RoPE narrows the gap",
        "W8/S8, 1 KV, no RoPE",
        tuple((base, "w8s8-2kv-nope") for base in _TWO_KV),
        "The model without RoPE was trained once, from a seed of its own and for fewer steps; the three with it differ by "
        "their training seed alone. No pair shares a seed: a difference no larger than those between seeds says nothing "
        "about RoPE.",
    ),
    (
        "Uniform averaging narrows the gap",
        "W8/S8, 1 KV, uniform averaging",
        (("w8s8-2kv-seed1", "w8s8-2kv-uniform"),),
        "Not trained from scratch, as in the paper: the gates of w8s8-2kv-seed1 were made uniform and training went on, "
        "saved before its end. So this is the one pair there is, of one seed, and of a first model with little gap to narrow.",
    ),
    (
        "A smaller stride narrows the gap",
        "W8/S4, 1 KV",
        (("w8s8-4kv", "w8s4-4kv"),),
        "One seed each, trained for other numbers of steps; windows of stride 4 overlap, those of stride 8 do not.",
    ),
)
"""Claim, published run with the change, our pairs without and with it (every bundled seed), what else differs."""
UNTESTED = (
    "what scalar gates change in the DeepSeek-style kernel (no such model is bundled)",
    "gate cycling (`phaselens gates MODEL --cycle 1`) and the needle and completion tests (`phaselens audit`)",
)


@dataclass(frozen=True)
class RunRow:
    """A published run and ours, percent by residue and percentage points."""

    published: str
    published_mean: float
    published_worst: float
    published_gap_pp: float
    model: str
    mean: Interval
    worst: Interval
    gap: Interval
    null_gap_pp: float
    differences: str

    def to_dict(self) -> dict[str, Any]:
        """Flat, for a CSV: intervals as three columns."""
        flat: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if isinstance(value, dict):
                flat |= {name: value["value"], f"{name}_low": value["low"], f"{name}_high": value["high"]}
            else:
                flat[name] = value
        return flat


@dataclass(frozen=True)
class Replication:
    """What :func:`replicate` found."""

    n_per_residue: int
    seed: int
    padding: str
    runs: tuple[RunRow, ...]
    claims: tuple[Claim, ...]
    outcomes: tuple[Outcome, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "n_per_residue": self.n_per_residue, "seed": self.seed, "padding": self.padding,
            "runs": [row.to_dict() for row in self.runs],
            "claims": [{"verdict": claim.verdict, **asdict(claim)} for claim in self.claims],
            "cells": [one.row() for one in self.outcomes],
        }  # fmt: skip


def replicate(
    out: Path,
    *,
    load: Loader,
    models: Sequence[str] | None = None,
    n_per_residue: int = 64,
    seed: int = stats.CONFIRMATORY_SEED,
    padding: str = "prefix",
    memory: int = 1 << 30,
    tell: Callable[[str], None] = lambda _: None,
) -> Replication:
    """Measure the models through :mod:`interp.grid`, and write page, tables and results.

    Parameters
    ----------
    out : path
        Folder of ``replication.md``, ``runs.csv``, ``claims.csv`` and ``cells/``.
    load : callable
        (model, padding) → hooked model and task.
    models : sequence of str, optional
        Only these; runs, pairs and claims that need another are left out.
    n_per_residue, seed, padding
        Of the prompts; the paper's numbers are of prefix padding.
    memory, tell
        As in :func:`interp.grid.run_grid`.

    Raises
    ------
    PhaselensError
        For a model that is not part of it, or while another process is making one of the cells.
    """
    known = list(dict.fromkeys([*(one.model for one in COUNTERPARTS), *ALSO]))
    for name in models or ():
        if name not in known:
            raise PhaselensError(
                f"model {name!r} is not part of the replication; {did_you_mean(name, known, 20)}"
            )
    chosen = cells(
        models or known,
        verbs=("knockout", "sweep"),
        seeds=(seed,),
        paddings=(padding,),
        n_per_residue=n_per_residue,
    )
    folder = out / CELLS
    outcomes = finish(run_grid(chosen, folder, load=load, memory=memory, tell=tell), folder, load=load)
    busy = [one for one in outcomes if one.state == "busy"]
    if busy:
        raise PhaselensError(
            f"{len(busy)} cells are being made by others ({busy[0].reason}); call again when they are done"
        )
    ready = _read(outcomes, folder)
    found = Replication(
        n_per_residue, seed, padding, tuple(run_rows(ready)), tuple(tested_claims(ready)), tuple(outcomes)
    )
    _write(found, out, models)
    return found


def _read(outcomes: Sequence[Outcome], folder: Path) -> dict[str, Measured]:
    parts: dict[str, dict[str, xr.Dataset]] = {}
    for one in outcomes:
        if one.state in ("done", "made"):
            parts.setdefault(one.cell.model, {})[one.cell.verb] = results.load(folder / one.cell.file)
    return {name: Measured(name, **found) for name, found in parts.items() if len(found) == 2}


# --------------------------------------------------------------------------- tables


def run_rows(ready: dict[str, Measured]) -> list[RunRow]:
    """Published runs whose counterpart was measured."""
    published = {run["name"]: run for run in load_published(PUBLISHED)["runs"]}
    rows = []
    for one in COUNTERPARTS:
        if one.model in ready:
            theirs, ours = published[one.published], ready[one.model]
            numbers = by_residue(ours.correct, seed=int(ours.sweep.attrs["seed"]))
            rows.append(
                RunRow(
                    one.published, theirs["mean"], theirs["worst"], theirs["gap_pp"], one.model, *numbers,
                    one.differences,
                )
            )  # fmt: skip
    return rows


def by_residue(correct: np.ndarray, *, seed: int) -> tuple[Interval, Interval, Interval, float]:
    """Mean, worst residue and residue gap, as published, and the gap if residues meant nothing.

    Parameters
    ----------
    correct : array [prompt, residue]
    seed : int
        Of resamples and permutations.
    """
    values = 100 * np.asarray(correct, dtype=float)
    n, modulus = values.shape
    mean = Interval.of(values.mean(), stats.bca(values.mean(axis=1), seed=seed), n)
    lowest = stats.bca(values, lambda sample: sample.mean(axis=1).min(axis=-1), seed=seed)
    worst = Interval.of(values.mean(axis=0).min(), lowest, n)
    gap = claims.gap_interval(correct, modulus, seed=seed)
    return mean, worst, gap, 100 * stats.null_gap(correct, modulus, seed=seed)


def tested_claims(ready: dict[str, Measured]) -> list[Claim]:
    """Every claim that the measured models can speak to."""
    models = list(ready.values())
    published = {run["name"]: float(run["gap_pp"]) for run in load_published(PUBLISHED)["runs"]}

    def pairs(names: Sequence[tuple[str, str]]) -> list[tuple[Measured, Measured]]:
        return [(ready[a], ready[b]) for a, b in names if a in ready and b in ready]

    found = [
        claims.gap_claim(models),
        claims.full_attention_claim(models),
        claims.period_claim(models),
        claims.boundary_claim(models),
        claims.inside_claim(models),
        claims.closing_claim(pairs(MORE_HEADS)),
        *(
            claims.direction_claim(
                Change(
                    text,
                    tuple((base, published[base]) for base in BASES),
                    (changed, published[changed]),
                    tuple(pairs(names)),
                    note,
                )
            )
            for text, changed, names, note in CHANGES
        ),
        claims.heads_claim(models),
        claims.uncovered_claim(models),
    ]
    return [claim for claim in found if claim.findings]


# --------------------------------------------------------------------------- page


def _write(found: Replication, out: Path, models: Sequence[str] | None) -> None:
    _csv([row.to_dict() for row in found.runs], out / "runs.csv")
    findings = [
        {"claim": claim.text, "verdict_of_claim": claim.verdict, **asdict(finding)}
        for claim in found.claims for finding in claim.findings
    ]  # fmt: skip
    _csv(findings, out / "claims.csv")
    with results.atomic_path(out / PAGE) as temporary:
        temporary.write_text(page(found, models), encoding="utf-8")


def _csv(rows: list[dict[str, Any]], path: Path) -> None:
    with results.atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: "" if isinstance(v, float) and v != v else v for name, v in row.items()} for row in rows
        )


def page(found: Replication, models: Sequence[str] | None = None) -> str:
    """The replication as Markdown."""
    n = found.n_per_residue
    options = "".join(f" --model {as_word(name)}" for name in models or ())
    lines = [
        "# Replication",
        "",
        f"Made by `phaselens replicate --n-per-residue {n} --seed {found.seed} --padding {found.padding}{options}`; "
        f"every number is measured by it: n = {n} prompts per residue, {found.padding} padding. The paper's numbers are "
        "data in the package: " + load_published(PUBLISHED)["source"],
        "",
        "## Claims",
        "",
        'A claim about every model is supported if each finding is, and not supported if one is not; "some" needs one. '
        "Intervals are 95% and tests 5% each, not corrected for their number unless the rule says so, over prompts of the "
        "models as trained: another training seed is another model.",
        "",
        f"| claim | verdict | findings for / against / undecided at n = {n} |",
        "|---|---|---|",
    ]
    for claim in found.claims:
        counts = " / ".join(map(str, claim.counts()))
        lines.append(f"| {claim.text} | **{claim.verdict_at(n)}** | {counts} |")
    lines += [*_against(found.claims), "", f"Not tested here: {'; '.join(UNTESTED)}.", *_run_lines(found)]
    for claim in found.claims:
        lines += [
            "",
            f"## {claim.text}",
            "",
            f"Rule: {claim.rule}.",
            *(["", claim.note] if claim.note else []),
        ]
        lines += ["", "| model | measured | verdict |"]
        lines.append("|---|---|---|")
        lines += [f"| `{each.subject}` | {each.measured} | {each.verdict} |" for each in claim.findings]
    failed = [one for one in found.outcomes if one.state == "failed"]
    if failed:
        lines += ["", "## Not measured", "", *(f"- `{one.cell.file}`: {one.reason}" for one in failed)]
    return "\n".join([*lines, "", *_seeds_note()]) + "\n"


def _against(tested: Sequence[Claim]) -> list[str]:
    """What is not supported, and by which findings; which claims are open, and for want of what."""
    lines = []
    for claim in tested:
        told = {
            verdict: "; ".join(
                f"`{f.subject}` ({f.measured})" for f in claim.findings if f.verdict == verdict
            )
            for verdict in ("not supported", "undecided")
        }
        if claim.verdict != "supported":
            why = told[claim.verdict]
            lines.append(
                f"- **{claim.text}**: {claim.verdict}, because of {why}.{' ' + claim.note if claim.note else ''}"
            )
    return ["", "What is not supported or stays open, and why:", "", *lines] if lines else []


def _run_lines(found: Replication) -> list[str]:
    lines = [
        "",
        "## Runs",
        "",
        "Accuracy in percent by residue (key position mod 24), as published; gaps between best and worst residue in pp. "
        "Theirs / ours with [95% interval], for gaps that of the true one, whichever residues are best and worst (`phaselens "
        'sweep` prints the bootstrap\'s, of the measured gap, which lies higher where phases differ little); "chance" '
        'is our gap if residues meant nothing, each of a prompt for itself; "–" undefined. For all: theirs '
        f"is {load_published(PUBLISHED)['task']}; ours have 4 layers of width 128 with 4 query heads, trained on recall "
        "alone, and answer it for 44 records in 144 positions.",
        "",
        "| published run | mean | worst | gap | our model | mean | worst | gap | chance | differs besides |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found.runs:
        theirs = f"{row.published_mean} | {row.published_worst} | {row.published_gap_pp}"
        ours = f"{row.mean} | {row.worst} | {row.gap} | {number(row.null_gap_pp, 1)}"
        lines.append(f"| {row.published} | {theirs} | `{row.model}` | {ours} | {row.differences} |")
    return lines


def _seeds_note() -> list[str]:
    """What choice there was among seeds."""
    from hooks.checkpoint import zoo_info

    seeds = zoo_info("w8s8-2kv").get("seeds", [])
    gaps = [max(a) - min(a) for a in (run.get("accuracy_by_phase") for run in seeds) if a]
    wide = sum(gap > claims.SMALLEST_GAP for gap in gaps)
    return [
        f"`w8s8-2kv` was chosen for its gap and heads among {len(gaps)} trained seeds of one recipe, whose gaps when they "
        f"were trained ran from {number(min(gaps), 1)} to {number(max(gaps), 1)} pp, {wide} of them above "
        f"{claims.SMALLEST_GAP:g} pp; [the zoo](zoo.md) lists them all. One model of each other kind is bundled, so what "
        "another seed would have done there is not known."
    ]
