"""The completion test: code that names a type, fillers around it, and a last line that must repeat the type.

Text in, token positions out: every position is measured on the tokens of the whole text, never counted from
characters or fillers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Int64
from torch import Tensor

from hooks.errors import TaskError, did_you_mean
from interp.rng import numpy_rng
from interp.tasks.balance import PositionBalance
from interp.tasks.fillers import FILLER_FAMILIES, SHORTEST, Slot, filler_of, filler_units, fillers_by_tokens
from interp.tasks.prompts import Prompts
from interp.tasks.tokenizers import TextTokenizer, reply_tokens, tokenizer_hash

__all__ = ["FILLER_FAMILIES", "CompletionLength", "CompletionTask"]

_PREFIX = 'def quantize_block(x, scale, n):\n    """Copy one block of numbers to the output buffer.'
_EVIDENCE = '\n    """\n    out = alloc(n, dtype=FP'
_BRIDGE = ")\n    # Every number is divided by the scale of its block."
_CODE_LINE = "\n    for i in range(n):\n        out[i] = cast(x[i] / scale, FP"


class CompletionLength(NamedTuple):
    """One docstring length; `tokens` is None, with the reason, where fillers of a family cannot make it."""

    family: str
    filler_tokens: int
    tokens: Int64[Tensor, " pos"] | None
    target_position: int | None
    query_position: int | None
    missing: str


class Measured(NamedTuple):
    """A whole prompt's token ids, and the position of its target."""

    ids: list[int]
    target: int


@dataclass(frozen=True)
class CompletionTask:
    """Two candidates, one of which stands in the evidence and is right after the code line.

    The text is: prefix, docstring fillers, evidence, the right candidate, bridge, comment fillers, code line.
    Docstring fillers move the target, the candidate's first token in the evidence; comment fillers keep the
    query where it is. Base prompts alternate the right candidate and go round the filler families.

    Parameters
    ----------
    tokenizer : TextTokenizer
        See :mod:`interp.tasks.tokenizers`.
    prefix, evidence, bridge, code_line : str
        The fixed pieces.
    candidates : (str, str)
        Continuations of evidence and code line; their first tokens differ.
    families : tuple of str
        Filler families to try, of :data:`FILLER_FAMILIES`.
    modulus : int
        R.
    chat : bool
        Put the text into the tokenizer's chat template; positions count its tokens. The token that a reply
        with the candidate begins with is then as right as the one after the line.

    Raises
    ------
    TaskError
        If a family is unknown, the tokenizer changes the text, a candidate merges with the code line, or the
        two cannot be told apart by their first token.
    """

    tokenizer: TextTokenizer
    prefix: str = _PREFIX
    evidence: str = _EVIDENCE
    bridge: str = _BRIDGE
    code_line: str = _CODE_LINE
    candidates: tuple[str, str] = ("8", "32")
    families: tuple[str, ...] = FILLER_FAMILIES
    modulus: int = 24
    chat: bool = False

    def __post_init__(self) -> None:
        for family in self.families:
            if family not in FILLER_FAMILIES:
                raise TaskError(f"unknown filler family {family!r}; {did_you_mean(family, FILLER_FAMILIES)}")
        if not self.families:
            raise TaskError(f"families is empty; valid: {', '.join(FILLER_FAMILIES)}")
        if self.modulus < 1:
            raise TaskError(f"modulus={self.modulus}; valid: 1 or more")
        for first, second in (self.candidate_ids, [tokens[0] for tokens in self.answer_tokens()]):
            if first == second:
                raise TaskError(
                    f"candidates {self.candidates[0]!r} and {self.candidates[1]!r} begin with the same token; "
                    "choose two that differ at once"
                )
        for right in (0, 1):
            self.measure("", "", right)

    @property
    def d_vocab(self) -> int:
        """The smallest vocabulary that has every token id used."""
        return 1 + _largest_id(self)

    @property
    def candidate_ids(self) -> tuple[int, int]:
        """First token of each candidate after the code line, as tokenized there."""
        first, second = (_continuation(self.tokenizer, self._text("", "", 0), c)[0] for c in self.candidates)
        return first, second

    def answer_tokens(self) -> list[tuple[int, ...]]:
        """All tokens of each candidate as an answer: after the code line, or as a reply to a chat template."""
        if not self.chat:
            line = self._text("", "", 0)
            return [_continuation(self.tokenizer, line, candidate) for candidate in self.candidates]
        tail = tuple(self.tokenizer.frame(True)[1])
        return [reply_tokens(self.tokenizer, tail, candidate) for candidate in self.candidates]

    def describe(self) -> dict[str, Any]:
        """Every setting as a JSON value, the families in use, and the lengths the others cannot make."""
        return {
            "task": "completion",
            "tokenizer": self.tokenizer.name,
            "tokenizer_sha256": tokenizer_hash(self.tokenizer),
            "ids_sha256": hashlib.sha256(
                json.dumps([_bare(self, right).ids for right in (0, 1)]).encode()
            ).hexdigest(),
            **{name: getattr(self, name) for name in ("prefix", "evidence", "bridge", "code_line")},
            "candidates": list(self.candidates),
            "families": list(self.families),
            "modulus": self.modulus,
            "chat": self.chat,
            "usable_families": self.usable_families(),
            "missing_lengths": self.missing_lengths(),
        }

    # -- fillers and what they measure -------------------------------------------------------------------

    def missing_lengths(self) -> dict[str, dict[str, list[int]]]:
        """Filler lengths, in tokens, that a family cannot make in the docstring or the comment.

        Returns
        -------
        dict
            Family → slot → lengths; only families and slots where some are missing.
        """
        return _missing(self)

    def usable_families(self) -> list[str]:
        """Families that can make every length a balanced sample needs."""
        missing = self.missing_lengths()
        return [family for family in self.families if family not in missing]

    def lengths(
        self, family: str, filler_tokens: Iterable[int], *, right: Literal[0, 1] = 0
    ) -> list[CompletionLength]:
        """Lengthen the docstring alone, as the paper does; target and query move together.

        Parameters
        ----------
        family : str
            Filler family.
        filler_tokens : iterable of int
            Lengths of the fillers in tokens.
        right : 0 or 1
            Which candidate the evidence holds.

        Returns
        -------
        list of CompletionLength
            One per length; a length that merging makes impossible has `tokens` None and says so.

        Raises
        ------
        TaskError
            If the family is unknown or a length is negative.
        """
        if family not in FILLER_FAMILIES:
            raise TaskError(f"unknown filler family {family!r}; {did_you_mean(family, FILLER_FAMILIES)}")
        unit = filler_units(family)[0]
        rows = []
        for wanted in filler_tokens:
            if wanted < 0:
                raise TaskError(f"filler_tokens={wanted}; valid: 0 or more")
            fill = filler_of(self, "docstring", unit, wanted)
            if fill is None:
                reason = (
                    f"no number of {family!r} fillers adds exactly {wanted} tokens and leaves the rest alone"
                )
                rows.append(CompletionLength(family, wanted, None, None, None, reason))
                continue
            got = self.measure(fill, "", right)
            if got.target != _bare(self, right).target + wanted:
                reason = f"{family!r} fillers merge with the evidence of candidate {self.candidates[right]!r}"
                rows.append(CompletionLength(family, wanted, None, None, None, reason))
                continue
            ids = torch.tensor(got.ids)
            rows.append(CompletionLength(family, wanted, ids, got.target, len(ids) - 1, ""))
        return rows

    def _unit(self, family: str, seed: int, block: int) -> tuple[str, ...]:
        rng = numpy_rng(seed, "completion fillers", block)
        units = filler_units(family)
        unit = units[int(rng.integers(len(units)))]
        return tuple(unit[i] for i in rng.permutation(len(unit)))

    def longest_filler(self, slot: str) -> int:
        """Longest filler a sample can need, in tokens."""
        docstring = SHORTEST + PositionBalance.span(self.modulus) - 1
        return docstring if slot == "docstring" else docstring + self._slack() + self.modulus - 1

    def _slack(self) -> int:
        """Tokens by which the text with one candidate is longer than with the other."""
        return abs(len(_bare(self, 0).ids) - len(_bare(self, 1).ids))

    def _text(self, docstring: str, comment: str, right: int) -> str:
        before = self.prefix + docstring + self.evidence
        return before + self.candidates[right] + self.bridge + comment + self.code_line

    def measure(self, docstring: str, comment: str, right: int) -> Measured:
        """Tokenize a whole prompt and find the target by decoding; raises if the text does not survive."""
        head, tail = self.tokenizer.frame(self.chat)
        text = self._text(docstring, comment, right)
        ids = self.tokenizer.encode(text)
        if self.tokenizer.decode(ids) != text:
            raise TaskError(
                f"tokenizer {self.tokenizer.name!r} does not give the text back; positions are unknown"
            )
        target = _token_at(self.tokenizer, ids, len(self.prefix + docstring + self.evidence))
        if ids[target] != self.candidate_ids[right]:
            raise TaskError(
                f"candidate {self.candidates[right]!r} is other tokens in the evidence than after the line; "
                "let both end in the same characters"
            )
        return Measured([*head, *ids, *tail], target + len(head))

    # -- balanced prompts --------------------------------------------------------------------------------

    def balance(self) -> PositionBalance:
        """Return the target positions, counted from the measured one without fillers."""
        return PositionBalance(self.modulus, _bare(self, 0).target + SHORTEST)

    def sample(
        self, n: int, *, seed: int, query_phase: int | None = None, query_stride: int | None = None
    ) -> Prompts:
        """Phase-balanced prompts of one length, in blocks of R residues.

        Parameters
        ----------
        n : int
            Rows; a last block that is not full is cut.
        seed : int
            Seed of windows and fillers; row i depends on (seed, i) only.
        query_phase, query_stride : int or None
            Lengthen the comment until (q+1) mod `query_stride` (None: R) is `query_phase`.

        Raises
        ------
        TaskError
            If no family can make every length, or the query phase does not exist.
        """
        if n < 1:
            raise TaskError(f"n={n} prompts; valid: 1 or more, best a multiple of modulus={self.modulus}")
        usable = self.usable_families()
        if not usable:
            raise TaskError(
                f"tokenizer {self.tokenizer.name!r} merges fillers of every family in "
                f"{', '.join(self.families)}, so lengths are missing; try others or a smaller modulus"
            )
        length = self._length(query_phase, query_stride)
        balance = self.balance()
        blocks = -(-n // self.modulus)
        targets = balance.targets(balance.windows(0, blocks, seed=seed))
        rows, rights = [], []
        for row in range(n):
            block, residue = divmod(row, self.modulus)
            right = block % 2
            unit = self._unit(usable[block // 2 % len(usable)], seed, block)
            rows.append(self._row(unit, right, int(targets[block, residue]), length))
            rights.append(right)
        index = torch.arange(n)
        return Prompts(
            tokens=torch.tensor(rows),
            answer=torch.tensor(self.candidate_ids)[rights],
            alternative=torch.tensor([ids[0] for ids in self.answer_tokens()])[rights] if self.chat else None,
            target_position=torch.from_numpy(targets.reshape(-1))[:n],
            query_position=length - 1,
            residue=index % self.modulus,
            prompt_id=index // self.modulus,
            modulus=self.modulus,
        )

    def _length(self, query_phase: int | None, query_stride: int | None) -> int:
        bare = max(len(_bare(self, right).ids) for right in (0, 1))
        length = bare + 2 * SHORTEST + PositionBalance.span(self.modulus) - 1
        if query_phase is None:
            return length
        stride = self.modulus if query_stride is None else query_stride
        if not 1 <= stride <= self.modulus or not 0 <= query_phase < stride:
            raise TaskError(
                f"query_phase={query_phase} at stride {stride} does not exist; valid: 0 to stride−1, "
                f"strides up to modulus={self.modulus}"
            )
        return length + (query_phase - length) % stride  # (q+1) = T

    def _row(self, unit: tuple[str, ...], right: int, target: int, length: int) -> list[int]:
        bare = _bare(self, right)
        moved = target - bare.target
        docstring = filler_of(self, "docstring", unit, moved)
        comment = filler_of(self, "comment", unit, length - len(bare.ids) - moved)
        if docstring is not None and comment is not None:
            got = self.measure(docstring, comment, right)
            if got.target == target and len(got.ids) == length:
                return got.ids
        raise TaskError(
            f"fillers {unit[0]!r} merge with the text of candidate {self.candidates[right]!r}, so the target "
            f"cannot be at {target} in {length} tokens; leave that family out"
        )


def _token_at(tokenizer: TextTokenizer, ids: list[int], character: int) -> int:
    """Index of the token that holds a character, by decoding beginnings of the ids."""
    low, high = 0, len(ids) - 1
    while low < high:
        middle = (low + high) // 2
        if len(tokenizer.decode(ids[: middle + 1])) > character:
            high = middle
        else:
            low = middle + 1
    return low


@lru_cache(maxsize=64)
def _bare(task: CompletionTask, right: int) -> Measured:
    """The prompt without fillers."""
    return task.measure("", "", right)


@lru_cache(maxsize=64)
def _missing(task: CompletionTask) -> dict[str, dict[str, list[int]]]:
    missing: dict[str, dict[str, list[int]]] = {}
    for family in task.families:
        for slot in ("docstring", "comment"):
            lacking: set[int] = set()
            for unit in filler_units(family):
                lacking |= set(range(SHORTEST, task.longest_filler(slot) + 1)) - set(
                    fillers_by_tokens(task, slot, unit, task.longest_filler(slot))
                )
            if lacking:
                missing.setdefault(family, {})[slot] = sorted(lacking)
    return missing


@lru_cache(maxsize=8)
def _largest_id(task: CompletionTask) -> int:
    """Largest token id in prompts with the longest fillers of every usable family, and in the answers."""
    largest = max(max(tokens) for tokens in task.answer_tokens())
    for family in task.usable_families():
        for unit in filler_units(family):
            fills = [filler_of(task, slot, unit, task.longest_filler(slot)) for slot in get_args(Slot)]
            for right in (0, 1):
                largest = max(largest, *task.measure(fills[0] or "", fills[1] or "", right).ids)
    return largest


@lru_cache(maxsize=64)
def _continuation(tokenizer: TextTokenizer, text: str, candidate: str) -> tuple[int, ...]:
    """Token ids of a candidate after a text."""
    ids = tokenizer.encode(text)
    longer = tokenizer.encode(text + candidate)
    if longer[: len(ids)] != ids or len(longer) == len(ids):
        raise TaskError(
            f"candidate {candidate!r} merges with the end of the line {text[-12:]!r}; end the line elsewhere"
        )
    return tuple(longer[len(ids) :])
