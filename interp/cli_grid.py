"""The verbs ``grid`` and ``replicate`` of the command line; nothing heavy is imported until they run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from hooks.errors import PhaselensError
from interp.cli_options import NATURAL, POSITIVE, Device, Json, Memory, PerResidue
from interp.cli_usage import refuse_idle
from interp.memory import parse_bytes

if TYPE_CHECKING:
    from interp.grid import Outcome

__all__ = ["grid", "replicate"]

_STATES = {
    "done": "done", "made": "made", "missing": "to make", "failed": "FAILED", "busy": "busy", "elsewhere": "other shard",
}  # fmt: skip


def grid(
    *models: Annotated[
        str, Parameter(help="Zoo names (phaselens zoo lists them) or folders of saved models.", negative=())
    ],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="Folder of the cells; made if need be.")],
    verb: Annotated[
        list[Literal["sweep", "knockout", "gates"]] | None,
        Parameter(help="What is measured; repeatable; sweep and knockout if left out."),
    ] = None,
    seed: Annotated[
        list[int] | None, Parameter(help="Seeds of the prompts; repeatable; 0 if left out.")
    ] = None,
    padding: Annotated[
        list[Literal["in_sequence", "prefix"]] | None,
        Parameter(help="How the target reaches a residue; repeatable; in_sequence if left out."),
    ] = None,
    n_per_residue: PerResidue = 64,
    unit: Annotated[
        Literal["kv_head", "head", "layer"], Parameter(help="What is knocked out, one at a time.")
    ] = "kv_head",
    shard: Annotated[
        str | None,
        Parameter(help="I/N: only the I-th of N equal parts, I from 0, e.g. $SLURM_ARRAY_TASK_ID/8."),
    ] = None,
    dry_run: Annotated[bool, Parameter(help="List the cells and which are done; measure nothing.")] = False,
    memory: Memory = "1GiB",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Measure models × verbs × seeds × paddings into one folder; what is done stays done.

    One results file a cell. Killed, it goes on when called again; called twice at
    once, no cell is computed twice. A file that is damaged, or of other weights,
    task or settings, is made again. Writes summary.csv; a cell that fails does
    not stop the others, and makes the exit code 2. Of several shards, the last to
    finish writes the summary of all.

    Example: phaselens grid tiny w8s8-2kv --seed 0 --seed 1 -o runs/grid
    """
    if verb and "knockout" not in verb:
        refuse_idle(
            grid, locals(), ["unit"], why=f"--verb {' and '.join(verb)} knocks nothing out",
            instead="leave it out, or add --verb knockout",
        )  # fmt: skip
    for one in seed or ():
        if one < 0:
            raise PhaselensError(f"--seed {one}; valid: 0 or more")
    part, budget = _part(shard), parse_bytes(memory)
    if not models:
        raise PhaselensError(
            "give one or more MODELs: zoo names or folders; phaselens zoo lists the bundled ones"
        )
    from interp import cli_run
    from interp import grid as grids

    chosen = grids.cells(
        models,
        verbs=verb or ("sweep", "knockout"),
        seeds=seed or (0,),
        paddings=padding or ("in_sequence",),
        n_per_residue=n_per_residue,
        unit=unit,
    )
    found = grids.run_grid(
        chosen, out, load=_loader(device), part=part, dry_run=dry_run, memory=budget, tell=_tell
    )
    summary = None
    if not dry_run:
        found, summary = grids.finish(found, out, load=_loader(device)), out / grids.SUMMARY
    if json:
        cli_run.print_json({"cells": [one.row() for one in found], "summary": summary})
    else:
        _show(found, summary)
    _raise_failures(found)


def replicate(
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="Folder of page, tables and results.")] = Path(
        "reports/replication"
    ),
    n_per_residue: Annotated[
        int | None, Parameter(validator=POSITIVE, help="Prompts per residue; 64 if left out.")
    ] = None,
    quick: Annotated[bool, Parameter(help="12 prompts per residue; many verdicts stay undecided.")] = False,
    seed: Annotated[
        int, Parameter(validator=NATURAL, help="Seed of the prompts; 10000 or more to confirm.")
    ] = 10_000,
    padding: Annotated[
        Literal["in_sequence", "prefix"],
        Parameter(help="How the target reaches a residue; the paper's numbers are of prefix."),
    ] = "prefix",
    model: Annotated[
        list[str] | None,
        Parameter(help="Only these zoo models; repeatable; all that the page needs if left out."),
    ] = None,
    memory: Memory = "1GiB",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Lay the bundled models beside the paper's controlled runs, and test its claims on them.

    Writes replication.md, runs.csv, claims.csv, and every result under cells/.
    Each claim is decided by 95% intervals: supported, not supported, or undecided
    at this n. Killed, it goes on when called again.

    Example: phaselens replicate -o reports/replication
    """
    if quick and n_per_residue is not None:
        raise PhaselensError(
            f"--quick and --n-per-residue {n_per_residue} were given; valid: one of them (quick means 12 per residue)"
        )
    budget = parse_bytes(memory)
    from interp import cli_run
    from interp import replicate as replication

    found = replication.replicate(
        out,
        models=model,
        n_per_residue=12 if quick else n_per_residue or 64,
        seed=seed,
        padding=padding,
        load=_loader(device),
        memory=budget,
        tell=_tell,
    )
    if json:
        cli_run.print_json(found.to_dict())
    else:
        _show_claims(found)
        print(f"Page: {out / replication.PAGE}")
    _raise_failures(found.outcomes)


# --------------------------------------------------------------------------- parts


def _loader(device: str) -> Any:
    from interp import cli_run

    return lambda model, padding: cli_run.prepare(model, device=device, padding=padding)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _part(text: str | None) -> tuple[int, int]:
    """(index, count) of "I/N"."""
    if text is None:
        return 0, 1
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise PhaselensError(f"--shard {text!r}; valid: I/N with I from 0 to N−1, e.g. 0/4 to 3/4")
    return int(index), int(count)


def _show(found: Sequence[Outcome], summary: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    paddings = len({one.cell.padding for one in found}) > 1
    table = Table(box=None, pad_edge=False, header_style="", title="Grid", title_justify="left")
    for name in ("model", "verb", "seed", "gap (pp) [95%]", "worst", "period", "selective", "state"):
        table.add_column(
            name, overflow="fold", justify="left" if name in ("model", "verb", "state") else "right"
        )
    for one in found:
        verb = f"{one.cell.verb}, {one.cell.padding}" if paddings else one.cell.verb
        table.add_row(one.cell.model, verb, str(one.cell.seed), *_numbers(one), _STATES[one.state])
    console = Console()
    console.print(table)
    for line in dict.fromkeys(f"{one.cell.model}: {one.reason}" for one in found if one.reason):
        console.print(line, highlight=False, markup=False)
    if summary is not None:
        print(f"Summary: {summary}")


def _numbers(one: Outcome) -> list[str]:
    """Gap, worst phase, period, selective units; empty where the verb does not measure them."""
    from interp.figures.base import number

    got = one.numbers
    gap = ""
    if "gap_pp" in got:
        low, high = number(got["gap_pp_low"]), number(got["gap_pp_high"])
        gap = f"{number(got['gap_pp'], 1)} " + (f"[{low}, {high}]" if low != "–" else "[–]")
    period = str(got["period"] or "none") if "period" in got else ""
    return [gap, str(got.get("worst_phase", "")), period, str(got.get("selective_units", ""))]


def _show_claims(found: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="", title="Claims", title_justify="left")
    table.add_column("claim", overflow="fold")
    table.add_column("verdict")
    table.add_column("for / against / undecided", justify="right")
    for claim in found.claims:
        counts = " / ".join(map(str, claim.counts()))
        table.add_row(claim.text, claim.verdict_at(found.n_per_residue), counts)
    Console().print(table)


def _raise_failures(found: Sequence[Outcome]) -> None:
    failed = [one for one in found if one.state == "failed"]
    if failed:
        names = ", ".join(one.cell.file for one in failed[:4])
        more = f" and {len(failed) - 4} more" if len(failed) > 4 else ""
        raise PhaselensError(
            f"{len(failed)} of {len(found)} cells failed: {names}{more}; their reasons stand above"
        )
