"""Per-prompt results in a file that only grows, so that an audit goes on where it was killed."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TextIO

from hooks.checks import is_real
from hooks.errors import CheckpointError, PhaselensError
from interp.audit.plan import Plan

__all__ = ["ROW_ID", "Score", "State", "StateError", "is_unfinished"]

_VALUES = ("correct", "logprob", "margin")
_FINISHED = re.compile(r'\{"finished": \d+\}')
ROW_ID = re.compile(r"(needle|completion|recall)\.q(\d+)\.(\d+)\.([0-9a-f]{10})")


class StateError(PhaselensError):
    """A file of per-prompt results or answers that does not belong to this audit, or is damaged."""


@dataclass(frozen=True)
class Score:
    """What is kept of one prompt: the target's position, and how the answer fared.

    ``logprob`` and ``margin`` are None where only the answer's text is known.
    """

    target_position: int
    correct: bool
    logprob: float | None
    margin: float | None


class State:
    """Scores by prompt id; with a path, each batch is appended to a JSONL file as soon as it is there.

    The last line says so once the audit has its page: without it, the file is of an unfinished audit.

    Parameters
    ----------
    path : path or None
        The file; None keeps scores in memory only.
    owner : mapping
        What the file must belong to, e.g. the model's hash: its first line.
    resume : bool
        Go on with the file if there is one. Without it, a file is started over, with the first score.

    Raises
    ------
    StateError
        When resuming a file of another model or with a damaged line. A last line that a kill cut off is
        dropped.
    """

    def __init__(self, path: Path | None, *, owner: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        self.scores: dict[str, Score] = {}
        self._owner = dict(owner)
        self._stream: TextIO | None = None
        self._mode: Literal["w", "a"] = "w"
        self._finished = False
        if path is not None and resume and path.exists() and path.stat().st_size:
            self._read(path, self._owner)
            self._mode = "a"

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def done(self, plan: Plan, query: int) -> int:
        """How many leading rows of a query phase have scores."""
        row = 0
        while row < plan.rows(query) and plan.row_id(query, row) in self.scores:
            row += 1
        return row

    def require_same_prompts(self, plans: Sequence[Plan]) -> None:
        """Raise if it has rows of a test, but none of the prompts that are to be run.

        Raises
        ------
        StateError
            Naming the test and the number of rows that would not be used.
        """
        found = Counter((match[1], match[4]) for name in self.scores if (match := ROW_ID.fullmatch(name)))
        for plan in plans:
            rows = sum(count for (test, _), count in found.items() if test == plan.test)
            if rows and (plan.test, plan.fingerprint) not in found:
                raise StateError(
                    f"{self.path} has {rows} rows of the {plan.test} test, all of other prompts (context, "
                    "records, position, stride, chat, seed or tokenizer differ); give the same options, "
                    "choose another -o, or leave --resume out to start over"
                )

    def add(self, scores: Mapping[str, Score]) -> None:
        """Keep scores, and write them so that a kill loses none of them."""
        self.scores.update(scores)
        self._finished = False
        self._write(
            {
                "id": name,
                "t": s.target_position,
                "correct": s.correct,
                "logprob": s.logprob,
                "margin": s.margin,
            }
            for name, s in scores.items()
        )

    def finish(self) -> None:
        """Write that the audit has its page; more prompts may follow."""
        if not self._finished:
            with self:
                self._write([{"finished": len(self.scores)}])
        self._finished = True

    def table(self, plan: Plan, query: int) -> Sequence[Score]:
        """Scores of all rows of one query phase, in order."""
        return [self.scores[plan.row_id(query, row)] for row in range(plan.rows(query))]

    def _write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        if self.path is None:
            return
        if self._stream is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._stream = self.path.open(self._mode, encoding="utf-8")
            except OSError as error:
                raise CheckpointError(
                    f"cannot write to {self.path}: {error.strerror}; choose another -o"
                ) from error
            rows = rows if self._mode == "a" else chain([{"audit": self._owner}], rows)
            self._mode = "a"
        for row in rows:
            self._stream.write(json.dumps(row) + "\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def _read(self, path: Path, owner: dict[str, Any]) -> None:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # a kill in the middle of a write
            with path.open("r+b") as stream:
                stream.truncate(whole)
        lines = data[:whole].decode("utf-8", errors="replace").splitlines()
        try:
            found = json.loads(lines[0])["audit"]
        except (IndexError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(
                f"{path} is not the state of an audit; choose another -o, or leave --resume out"
            ) from error
        for name, value in owner.items():
            if found.get(name) != value:
                raise StateError(
                    f"{path} is of another audit: its {name} is {str(found.get(name))[:60]!r}, now "
                    f"{str(value)[:60]!r}; choose another -o, or leave --resume out to start over"
                )
        for number, line in enumerate(lines[1:], start=2):
            self._finished = _FINISHED.fullmatch(line) is not None
            if self._finished:
                continue
            name, score = _parse(line, f"{path}, line {number}")
            self.scores[name] = score


def is_unfinished(path: Path) -> bool:
    """Whether a state holds scores that no page shows yet."""
    if not path.exists():
        return False
    scores = path.read_text(encoding="utf-8", errors="replace").splitlines()[1:]  # the first line says whose
    return bool(scores) and _FINISHED.fullmatch(scores[-1]) is None


def _parse(line: str, where: str) -> tuple[str, Score]:
    try:
        row = json.loads(line)
        name, score = row["id"], Score(row["t"], row["correct"], row["logprob"], row["margin"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(f"{where} is damaged: {line[:60]!r}; delete that line, or the file") from error
    numbers = [x for x in (score.logprob, score.margin) if x is not None]
    well_formed = (
        isinstance(name, str)
        and ROW_ID.fullmatch(name)
        and isinstance(score.target_position, int)
        and isinstance(score.correct, bool)
        and all(is_real(x) for x in numbers)
    )
    if not well_formed:
        raise StateError(f"{where} is damaged: {line[:60]!r}; delete that line, or the file")
    return name, score
