"""Which prompts an audit runs: the tests, the stride, the query phases, and how many of each."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

from hooks.errors import StatisticsError, TaskError, did_you_mean
from hooks.geometry import common_residue_modulus
from interp.audit.subject import Subject
from interp.phases import PLACEBO_STRIDE
from interp.stats import placebo_strides
from interp.tasks import CompletionTask, NeedleTask, Prompts, RecallTask

__all__ = [
    "DEFAULT_CONTEXT",
    "TESTS",
    "Plan",
    "Position",
    "audit_modulus",
    "audit_stride",
    "make_plans",
    "require_used",
]

TESTS = ("needle", "completion", "recall")
Position = Literal["key_first", "key_last", "value_first"]
USED_BY: dict[str, tuple[str, ...]] = {
    "position": ("needle",),
    "context": ("needle",),
    "records": ("needle",),
    "chat": ("needle", "completion"),
    "tokenizer": ("needle", "completion"),
}
"""The tests that an option changes; one that is not named here changes all."""
DEFAULT_CONTEXT = 4096
MAX_QUERIES = 4
_POSITION: Position = "key_last"
_LIMIT_R = 48
_PROVENANCE = ("source", "tokenizer")  # where a tokenizer came from; its content counts
_FEWEST_RECORDS = 5  # four are demonstrations
_PAPER_RECORDS = 16_000 / 131_072  # records a token of the paper's needle test


@dataclass(frozen=True)
class Plan:
    """One test of an audit.

    Attributes
    ----------
    test : str
        One of :data:`TESTS`.
    task : Task
        What makes its prompts.
    stride : int
        S; the placebo for a model without one.
    placebo : bool
        Whether S is that placebo.
    seed : int
        Of the prompts.
    n : int
        Base prompts, each shown at every residue, with the query where the task puts it.
    queries : tuple of int
        Query phases; the first is where the task puts the query by itself.
    crossed : int
        The first so many base prompts are also shown at every other query phase.
    left_out : tuple of str
        Tests of the same audit that cannot be made, with the reason.
    """

    test: str
    task: Any
    stride: int
    placebo: bool
    seed: int
    n: int
    queries: tuple[int, ...]
    crossed: int
    left_out: tuple[str, ...] = ()

    @property
    def modulus(self) -> int:
        """R."""
        return self.task.modulus

    @cached_property
    def fingerprint(self) -> str:
        """Names the prompts: equal settings give equal prompts, whatever the number of them."""
        settings = {name: v for name, v in self.task.describe().items() if name not in _PROVENANCE}
        text = json.dumps([self.test, settings, self.stride, self.seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @cached_property
    def settings(self) -> str:
        """The task as JSON, for provenance."""
        return json.dumps(self.task.describe(), sort_keys=True)

    def rows(self, query: int) -> int:
        """How many prompts have this query phase."""
        return self.modulus * (self.n if query == self.queries[0] else self.crossed)

    @property
    def total(self) -> int:
        """How many prompts there are."""
        return sum(self.rows(query) for query in self.queries)

    def row_id(self, query: int, row: int) -> str:
        """Name a prompt, e.g. ``"needle.q3.17.0a1b2c3d4e"``: test, query phase, row and fingerprint."""
        return f"{self.test}.q{query}.{row}.{self.fingerprint}"

    def batches(self, query: int, *, first: int = 0, rows: int = 1) -> Iterator[Prompts]:
        """Prompts of one query phase from row `first` on, `rows` at a time.

        Needle prompts are made as they are asked for; the others are short and made at once.
        """
        n = self.rows(query)
        if first >= n:
            return
        phase = {"query_phase": query, "query_stride": self.stride}
        if isinstance(self.task, NeedleTask):
            yield from self.task.batches(n, seed=self.seed, rows=rows, first=first, **phase)
            return
        prompts = self.task.sample(n, seed=self.seed, **phase)
        for start in range(first, n, rows):
            yield prompts.select(slice(start, start + rows))

    def length(self, query: int) -> int:
        """Tokens of the prompts of one query phase."""
        return _length(self.task, query, self.stride)

    def limited(self, limit: int | None) -> Plan:
        """Return the plan cut to at most `limit` prompts, in proportion.

        Raises
        ------
        StatisticsError
            If not even one base prompt fits.
        """
        if limit is None or limit >= self.total:
            return self
        blocks = limit // self.modulus
        if blocks < 1:
            raise StatisticsError(
                f"limit={limit} prompts is less than one base prompt at {self.modulus} residues; valid: "
                f"{self.modulus} or more"
            )
        n = max(1, blocks * self.n * self.modulus // self.total)
        others = len(self.queries) - 1
        crossed = min(self.crossed, n, (blocks - n) // others) if others else 0
        return dataclasses.replace(self, n=n, crossed=crossed)


@lru_cache(maxsize=256)
def _length(task: Any, query: int | None, stride: int) -> int:
    if isinstance(task, NeedleTask):  # a prompt of 128K tokens takes a while to make
        return task.length - (0 if query is None else (task.length - query) % stride)
    if query is None:
        return task.sample(1, seed=0).tokens.shape[1]
    return task.sample(1, seed=0, query_phase=query, query_stride=stride).tokens.shape[1]


# --------------------------------------------------------------------------- stride and residues


def audit_stride(subject: Subject, stride: int | None) -> tuple[int, bool]:
    """Choose the stride phases are counted by.

    Parameters
    ----------
    subject : Subject
        Its strides are combined while their lcm with 24 stays within 48 residues.
    stride : int or None
        The user's.

    Returns
    -------
    stride : int
        S.
    placebo : bool
        Whether nothing states it: the model says nothing of compression and the user gave none.

    Raises
    ------
    StatisticsError
        For a stride below 2.
    """
    if stride is not None:
        if stride < 2:
            raise StatisticsError(f"stride={stride} has no phases; valid: 2 or more")
        return stride, False
    if not subject.strides:
        return PLACEBO_STRIDE, True
    modulus = common_residue_modulus(subject.strides)
    together = [s for s in subject.strides if modulus % s == 0] or [subject.strides[0]]
    return math.lcm(*together), False


def audit_modulus(stride: int) -> int:
    """R for a stride: 24, or up to 48 where that is needed for whole cycles and for a placebo stride."""
    common = common_residue_modulus([stride])
    fitting = [r for r in range(24, _LIMIT_R + 1) if r % stride == 0]
    with_placebo = [r for r in fitting if placebo_strides(stride, r)]
    if common % stride == 0 and (placebo_strides(stride, common) or not with_placebo):
        return common
    return min(with_placebo or fitting, default=stride)


# --------------------------------------------------------------------------- tests


def require_used(tests: Sequence[str] | None, given: Mapping[str, Any]) -> None:
    """Raise for an option that would change nothing in the tests that were chosen.

    Parameters
    ----------
    tests : sequence of str or None
        None while it is open which ones are made.
    given : mapping
        Options; those that are None, False or the default position count as left out.

    Raises
    ------
    TaskError
        Naming the option and the tests that have it.
    """
    for name in chosen_options(given) if tests else ():
        users = USED_BY[name]
        if set(tests or ()) <= set(TESTS) - set(users):
            raise TaskError(
                f"--test {' and '.join(tests or ())} makes no use of {name}, so --{name} would do nothing; leave it "
                f"out, or add --test {' or '.join(users)}"
            )


def chosen_options(given: Mapping[str, Any]) -> list[str]:
    """Options of :data:`USED_BY` that the user has set."""
    return [name for name in USED_BY if given.get(name) not in (None, False, _POSITION)]


def make_plans(
    subject: Subject,
    *,
    tests: Sequence[str] | None,
    stride: int | None,
    position: Position,
    chat: bool,
    context: int | None,
    records: int | None,
    n_per_residue: int,
    crossed: int | None,
    query_phases: Sequence[int] | None,
    seed: int,
) -> list[Plan]:
    """Turn an audit's options into plans; see :func:`interp.audit.audit` for them.

    Of the tests that are made by default, those that cannot be made are left out, unless none is left.

    Raises
    ------
    TaskError
        If the model can do none of the tests, or settings do not fit it.
    """
    if n_per_residue < 1:
        raise StatisticsError(f"n_per_residue={n_per_residue}; valid: 1 or more, 32 for useful intervals")
    if position not in get_args(Position):
        raise TaskError(f"position={position!r}; valid: {', '.join(get_args(Position))}")
    wanted = list(dict.fromkeys(tests or _default_tests(subject)))
    given = {"position": position, "context": context, "records": records, "chat": chat}
    require_used(wanted, given)
    if crossed == 0 and query_phases:
        raise TaskError(
            f"--crossed 0 shows no prompt at another query phase, so --query-phase {query_phases[0]} would do nothing; "
            "leave one of the two out"
        )
    for test in wanted:
        if test not in TESTS:
            raise TaskError(f"no test {test!r}; {did_you_mean(test, TESTS)}")
        if test != "recall" and subject.tokenizer is None:
            raise TaskError(
                f"{subject.name!r} has no tokenizer, which the {test} test needs; give --tokenizer"
                + (", or --test recall" if subject.recall else "")
            )
    plans, failed = [], []
    for test in wanted:
        try:
            if test == "recall":
                task, chosen, placebo = _recall(subject, stride)
            else:
                chosen, placebo = audit_stride(subject, stride)
                task = _text_task(test, subject, audit_modulus(chosen), position, chat, context, records)
            queries = _queries(_length(task, None, chosen), chosen, query_phases)
            plan = Plan(
                test, task, chosen, placebo, seed, n_per_residue, queries,
                min(n_per_residue, max(8, n_per_residue // 2) if crossed is None else crossed),
            )  # fmt: skip
            _check_lengths(plan, subject)
        except TaskError as error:
            # What the user asked for by name, or set an option of, is not left out behind their back.
            if tests or any(USED_BY[name] == (test,) for name in chosen_options(given)):
                raise
            failed.append((test, error))
            continue
        _check_vocabulary(plan, subject)
        plans.append(plan)
    if not plans:
        raise failed[0][1]
    left_out = tuple(f"{test}: {error}" for test, error in failed)
    return [dataclasses.replace(plan, left_out=left_out) for plan in plans]


def _check_vocabulary(plan: Plan, subject: Subject) -> None:
    if subject.d_vocab is None or plan.task.d_vocab <= subject.d_vocab:
        return
    given = "" if subject.tokenizer is None else f" of the tokenizer {subject.tokenizer.name!r}"
    raise TaskError(
        f"prompts of the {plan.test} test use token ids up to {plan.task.d_vocab - 1}{given}; {subject.name!r} "
        f"has a vocabulary of {subject.d_vocab} ids; valid: a tokenizer of this model, with --tokenizer"
    )


def _default_tests(subject: Subject) -> tuple[str, ...]:
    if subject.tokenizer is not None:
        return ("needle", "completion")
    if subject.recall is not None or subject.kind == "phaselens":
        return ("recall",)
    raise TaskError(
        f"{subject.name!r} has no tokenizer (tokenizer.json or a tekken file) and no recall settings, so no "
        "prompts can be made for it; give --tokenizer FOLDER"
    )


def _recall(subject: Subject, stride: int | None) -> tuple[RecallTask, int, bool]:
    from interp.phases import measured_stride

    task = RecallTask.for_model(subject.model)
    if stride is None and subject.strides:
        fitting = [s for s in subject.strides if task.modulus % s == 0]
        stride = math.lcm(*fitting) if fitting else subject.strides[0]
    return task, measured_stride(subject.model, task, stride), stride is None


def _text_task(
    test: str,
    subject: Subject,
    modulus: int,
    position: Position,
    chat: bool,
    context: int | None,
    records: int | None,
) -> NeedleTask | CompletionTask:
    tokenizer = subject.tokenizer
    assert tokenizer is not None  # checked by the caller
    if test == "completion":
        return CompletionTask(tokenizer, modulus=modulus, chat=chat)
    longest = subject.max_positions
    if context is None:
        context = min(DEFAULT_CONTEXT, longest or DEFAULT_CONTEXT)
    elif longest is not None and context > longest:
        raise TaskError(
            f"context={context} is longer than {subject.name!r} reads; valid: up to {longest} tokens"
        )
    options: dict[str, Any] = {"length": context, "chat": chat, "position": position, "modulus": modulus}
    if records is None:
        fewest = NeedleTask.from_tokenizer(tokenizer, n_records=_FEWEST_RECORDS, **options)
        fitting = fewest.context // 2 // fewest.record_tokens  # demonstrations take their share
        records = max(_FEWEST_RECORDS, min(round(context * _PAPER_RECORDS), fitting))
    return NeedleTask.from_tokenizer(tokenizer, n_records=records, **options)


def _queries(length: int, stride: int, given: Sequence[int] | None) -> tuple[int, ...]:
    """Query phases, the task's own first: those given, or up to four spread evenly over the stride."""
    own = length % stride  # (q+1) mod S with q = T−1
    if given is None:
        step = max(1, stride // MAX_QUERIES)
        others = [(own + step * i) % stride for i in range(1, min(MAX_QUERIES, stride))]
    else:
        for phase in given:
            if not 0 <= phase < stride:
                raise StatisticsError(
                    f"query phase {phase} does not exist at stride {stride}; valid: 0 to {stride - 1}"
                )
        others = list(given)
    return tuple(dict.fromkeys([own, *others]))


def _check_lengths(plan: Plan, subject: Subject) -> None:
    longest = subject.max_positions
    if longest is None or isinstance(plan.task, RecallTask):
        return
    for query in plan.queries:
        if plan.length(query) > longest:
            raise TaskError(
                f"prompts of the {plan.test} test have {plan.length(query)} tokens; {subject.name!r} reads "
                f"up to {longest}"
            )
