"""Resumable grids of models × verbs × seeds × paddings: one results file a cell, on one machine or a cluster.

A cell is done if its file is intact and was made with the same weights, task and settings; so a run that was
killed goes on where it was, and several processes or machines can share one folder.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from hooks.errors import PhaselensError, did_you_mean
from hooks.files import require_writable
from interp import results

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["VERBS", "Cell", "Outcome", "cells", "finish", "run_grid", "shard", "write_summary"]

VERBS = ("knockout", "sweep", "gates")
"""What can be a cell, in the order in which it is made."""
SUMMARY = "summary.csv"
LOCKS = ".locks"
"""Folder of the locks; the operating system frees one whose process is dead, and its file stays, empty."""
_LONGEST_STEM = 80  # as much of a name as temporary files repeat, so that a cell knows its own leftovers
_MEMORY = 1 << 30

Loader = Callable[[str, str], tuple[Any, Any]]
"""(model name, padding) → hooked model and its recall task."""
State = Literal["done", "made", "missing", "failed", "busy", "elsewhere"]


@dataclass(frozen=True, order=True)
class Cell:
    """One measurement of a grid; its fields say all that defines it but the weights."""

    model: str
    verb: str
    seed: int
    padding: str = "in_sequence"
    n_per_residue: int = 64
    unit: str = "kv_head"
    """What is knocked out; of no concern to other verbs."""

    @property
    def file(self) -> str:
        """Name of its results file, e.g. ``tiny_knockout-kv_head_prefix_n64_seed0.nc``."""
        verb = f"{self.verb}-{self.unit}" if self.verb == "knockout" else self.verb
        name = _readable(self.model, 40)
        stem = f"{name}_{verb}_{self.padding}_n{self.n_per_residue}_seed{self.seed}"
        return f"{_readable(stem, _LONGEST_STEM)}.nc"

    def settings(self) -> dict[str, Any]:
        """Attributes that its file must have, besides those of model and task."""
        own: dict[str, dict[str, Any]] = {
            "sweep": {"axis": "target"},
            "knockout": {"unit_kind": self.unit, "replace": "mean", "at": "final"},
        }
        common = {"grid_verb": self.verb, "seed": self.seed, "n_per_residue": self.n_per_residue}
        return common | own.get(self.verb, {})


@dataclass(frozen=True)
class Outcome:
    """What became of a cell."""

    cell: Cell
    state: State
    """done: its file was there; made: just now; missing: to be made; failed; busy: another process is making
    it; elsewhere: another shard's, and not done."""
    reason: str = ""
    """Why it failed, who is making it, or why the file that was there did not count."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The summary of its result: ``gap_pp gap_pp_low gap_pp_high worst_phase period selective_units``."""

    def row(self) -> dict[str, Any]:
        """One line of the summary."""
        numbers = {name: self.numbers.get(name, "") for name in _NUMBERS}
        return {
            **asdict(self.cell),
            "state": self.state,
            **numbers,
            "file": self.cell.file,
            "reason": self.reason,
        }


_NUMBERS = ("gap_pp", "gap_pp_low", "gap_pp_high", "worst_phase", "period", "selective_units")


def cells(
    models: Iterable[str],
    *,
    verbs: Iterable[str] = ("sweep", "knockout"),
    seeds: Iterable[int] = (0,),
    paddings: Iterable[str] = ("in_sequence",),
    n_per_residue: int = 64,
    unit: str = "kv_head",
) -> list[Cell]:
    """Every combination once, model by model.

    Raises
    ------
    PhaselensError
        For a verb that no grid has, or if there is no combination.
    """
    chosen = list(dict.fromkeys(verbs))
    for verb in chosen:
        if verb not in VERBS:
            raise PhaselensError(f"verb {verb!r} cannot be a cell; {did_you_mean(verb, VERBS)}")
    found = {
        Cell(model, verb, seed, padding, n_per_residue, unit)
        for model in models for verb in chosen for seed in seeds for padding in paddings
    }  # fmt: skip
    if not found:
        raise PhaselensError("a grid without cells; give one or more models, verbs, seeds and paddings")
    return sorted(found, key=lambda c: (c.model, c.padding, c.seed, VERBS.index(c.verb)))


def shard(all_cells: Sequence[Cell], index: int, count: int) -> list[Cell]:
    """Cells of machine `index` of `count`, counted from 0; whatever the order of `all_cells`.

    Raises
    ------
    PhaselensError
        Unless 0 ≤ index < count.
    """
    if not 0 <= index < count:
        raise PhaselensError(f"shard {index}/{count}; valid: I/N with I from 0 to N−1, e.g. 0/4 to 3/4")
    own = set(sorted(all_cells)[index::count])
    return [cell for cell in all_cells if cell in own]


def run_grid(
    all_cells: Sequence[Cell],
    out: Path,
    *,
    load: Loader,
    part: tuple[int, int] = (0, 1),
    dry_run: bool = False,
    memory: int = _MEMORY,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """Make every cell that is not done.

    Parameters
    ----------
    all_cells : sequence of Cell
        See :func:`cells`.
    out : path
        Folder of the files; made if need be.
    load : callable
        (model, padding) → hooked model and task.
    part : (int, int)
        Index and count of this machine's share, see :func:`shard`.
    dry_run : bool
        Only look.
    memory : int
        Budget for activations, in bytes.
    tell : callable
        Gets a line whenever a cell is begun, made, or not what it should be.

    Returns
    -------
    list of Outcome
        One a cell, in their order.

    Raises
    ------
    CheckpointError
        If the folder cannot be made or written.
    """
    own = set(shard(all_cells, *part))
    if not dry_run:
        require_writable(out / LOCKS)
    grid = _Grid(out, load, dry_run, memory, tell)
    found = {cell: grid.settle(cell, cell in own) for cell in all_cells}
    # Others may have finished meanwhile, or died: what they had is looked at once more.
    for cell in [cell for cell, outcome in found.items() if outcome.state == "busy"]:
        found[cell] = grid.settle(cell, True)
    return [found[cell] for cell in all_cells]


def finish(outcomes: Sequence[Outcome], out: Path, *, load: Loader) -> list[Outcome]:
    """Look once more at what others were making, and write ``summary.csv``; one process at a time.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Of :func:`run_grid`.
    out, load
        As there.

    Returns
    -------
    list of Outcome
        The same, cells that are there by now as done. Whichever shard or process is the last to finish sees, and
        writes, all of them.
    """
    require_writable(out / LOCKS)
    grid = _Grid(out, load, True, _MEMORY, lambda _: None)
    with FileLock(out / LOCKS / SUMMARY):
        found = []
        for old in outcomes:
            new = grid.settle(old.cell, False) if old.state in ("busy", "elsewhere") else old
            found.append(new if new.state == "done" else old)
        write_summary(found, out)
    return found


def write_summary(outcomes: Sequence[Outcome], out: Path) -> Path:
    """Write ``summary.csv``, one line a cell; undefined and unmeasured numbers are empty."""
    path = out / SUMMARY
    rows = [outcome.row() for outcome in outcomes]
    with results.atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: "" if isinstance(v, float) and v != v else v for name, v in row.items()} for row in rows
        )
    return path


# --------------------------------------------------------------------------- one cell


class _Grid:
    """Looks at cells and makes them; keeps the last model it loaded."""

    def __init__(
        self, out: Path, load: Loader, dry_run: bool, memory: int, tell: Callable[[str], None]
    ) -> None:
        self.out, self.dry_run, self.memory, self.tell = out, dry_run, memory, tell
        self._load, self._loaded = load, ("", "")
        self._found: tuple[Any, Any] | Exception = (None, None)

    def settle(self, cell: Cell, own: bool) -> Outcome:
        """Say that a cell is done, or make it if it is this machine's."""
        try:
            model, task = self._prepare(cell)
            seen = _stamp(self.out / cell.file)
            dataset, reason = self._read(cell, model, task)
            if dataset is not None:
                return Outcome(cell, "done", numbers=_summary(dataset))
            if not own:
                return Outcome(cell, "elsewhere", reason)
            if self.dry_run:
                return Outcome(cell, "missing", reason)
            with FileLock(self.out / LOCKS / cell.file, timeout=0):
                return self._make_held(cell, model, task, seen, reason)
        except Timeout:
            return Outcome(cell, "busy", "another process is making it")
        except Exception as error:  # one bad cell must not end a night's run; its own line says what it was
            if not isinstance(error, PhaselensError | OSError | MemoryError):
                traceback.print_exc(file=sys.stderr)
            reason = " ".join(f"{error}".split()) or type(error).__name__
            if own:
                self.tell(f"{cell.file}: failed: {reason}")
            return Outcome(cell, "failed" if own else "elsewhere", reason)

    def _make_held(self, cell: Cell, model: Any, task: Any, seen: Any, reason: str) -> Outcome:
        path = self.out / cell.file
        for leftover in results.leftovers(path):  # nobody else writes this cell: they are a killed run's
            leftover.unlink(missing_ok=True)
        if _stamp(path) != seen:  # another process was here since we looked
            dataset, reason = self._read(cell, model, task)
            if dataset is not None:
                return Outcome(cell, "done", numbers=_summary(dataset))
        self.tell(f"{cell.file}: made again, {reason}" if reason else f"{cell.file} ...")
        start = time.perf_counter()
        dataset = _measure(cell, model, task, self.memory)
        results.save(dataset.assign_attrs(cell.settings()), path)
        self.tell(f"{cell.file}: made in {time.perf_counter() - start:.1f} s")
        return Outcome(cell, "made", reason, numbers=_summary(dataset))

    def _prepare(self, cell: Cell) -> tuple[Any, Any]:
        wanted = (cell.model, cell.padding)
        if self._loaded != wanted:
            self._loaded = wanted
            try:
                self._found = self._load(*wanted)
            except Exception as error:
                self._found = error
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def _read(self, cell: Cell, model: Any, task: Any) -> tuple[xr.Dataset | None, str]:
        """The cell's result, or None and why the file there does not count ("" if there is none)."""
        path = self.out / cell.file
        if not path.exists():
            return None, ""
        try:
            dataset = results.load(path)
        except results.ResultsError as error:
            return None, str(error)
        wanted = {
            "model_hash": model.content_hash(), "task": json.dumps(task.describe(), sort_keys=True),
            **cell.settings(),
        }  # fmt: skip
        other = [name for name, value in wanted.items() if dataset.attrs.get(name) != value]
        return (None, f"the file there is of another {', '.join(other)}") if other else (dataset, "")


def _measure(cell: Cell, model: Any, task: Any, memory: int) -> xr.Dataset:
    if cell.verb == "sweep":
        from interp.sweep import phase_sweep

        return phase_sweep(model, task, n_per_residue=cell.n_per_residue, seed=cell.seed, memory=memory)
    n = cell.n_per_residue * task.modulus
    if cell.verb == "gates":
        from interp.gates import gate_profile

        return gate_profile(model, task, n=n, seed=cell.seed, memory=memory)
    from interp.knockout import knockout
    from interp.specialization import specialization

    effects = knockout(model, task, unit=cell.unit, n=n, seed=cell.seed, memory=memory)
    served = specialization(effects, seed=cell.seed)
    return effects.assign(served.data_vars).assign_attrs(served.attrs)


def _summary(dataset: xr.Dataset) -> dict[str, Any]:
    """Numbers of one result for the summary."""
    numbers = {name: dataset.attrs[name] for name in _NUMBERS if name in dataset.attrs}
    if "p_selective" in dataset:
        from interp.stats import SIGNIFICANCE

        selective = dataset["p_selective"].values < SIGNIFICANCE
        numbers["selective_units"] = int((selective & dataset["serves"].values.any(axis=1)).sum())
    return numbers


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever a file is replaced; None without one."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _readable(text: str, longest: int) -> str:
    """The text as part of a file name; what had to be changed or cut gets a few digits of a hash."""
    safe = re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip("-.")
    if safe == text and len(text) <= longest:
        return text
    return f"{safe[-(longest - 9) :].lstrip('-.')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
