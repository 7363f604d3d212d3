"""The needle test: very many key-value records in a very long context, one of which is asked for."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from hooks.errors import TaskError
from interp.rng import numpy_rng
from interp.tasks.balance import PositionBalance
from interp.tasks.layout import RecordLayout
from interp.tasks.prompts import Prompts
from interp.tasks.tokenizers import TextTokenizer, reply_tokens, tokenizer_hash, whole_words

__all__ = ["NeedleTask"]

Position = Literal["key_first", "key_last", "value_first"]
_POOLS = ("key_ids", "value_ids", "filler_ids", "reply_ids")
_INTRO = "Each pair of words is followed by its own word. Remember them all.\n"
_FILLER_WORDS, _VALUE_WORDS, _KEY_WORDS = 64, 512, 4096
_FEWEST_REPLIES = 16  # value words that stay one token without a space, else first tokens tell them apart


class _Base(NamedTuple):
    """What the rows of one block share."""

    records: Int64[np.ndarray, "record k"]
    fillers: Int64[np.ndarray, " filler"]
    ending: list[int]  # fillers kept for the query phase, demonstrations, question and tail
    rank: int
    targets: Int64[np.ndarray, " residue"]


@dataclass(frozen=True)
class NeedleTask:
    """Find one of `n_records` records in a prompt of exactly `length` tokens, all given as token ids.

    A prompt is: head, a context of records (key, separator, value) between fillers, R−1 more fillers,
    demonstrations (question, key, separator, value), then question, target key, separator, tail. The answer
    is the first token of the target's value. Fillers between records put the records at every phase: records
    of four tokens alone would all share one.

    Behind a chat template a model begins a new text: it writes a value without the space that the value has
    in the context. The token that such a reply begins with is then as right: the prompts' alternative.

    Parameters
    ----------
    key_ids, value_ids, filler_ids : tuple of int
        Token ids each kind is drawn from.
    separator, question, head, tail : tuple of int
        Fixed token ids; a chat template goes to head and tail.
    reply_ids : tuple of int
        The token that a reply begins with, one for each of `value_ids` and all different; empty where the
        value's own token is the only right one.
    length : int
        T of every prompt, everything included.
    n_records : int
        Records in the context; their keys are distinct.
    key_tokens, value_tokens : int
        Tokens of a key and of a value.
    n_demonstrations : int
        Answered questions before the last one; never about the target.
    position : "key_first", "key_last" or "value_first"
        Which token of the target record its position is counted at.
    modulus : int
        R.
    source : str
        Name of the tokenizer, for provenance.
    tokenizer_sha256 : str
        Of the tokenizer's content, see :func:`interp.tasks.tokenizers.tokenizer_hash`.

    Raises
    ------
    TaskError
        Naming the setting that does not fit and what to change.
    """

    key_ids: tuple[int, ...]
    value_ids: tuple[int, ...]
    filler_ids: tuple[int, ...]
    separator: tuple[int, ...] = ()
    question: tuple[int, ...] = ()
    head: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()
    reply_ids: tuple[int, ...] = ()
    length: int = 131072
    n_records: int = 16000
    key_tokens: int = 2
    value_tokens: int = 1
    n_demonstrations: int = 4
    position: Position = "key_last"
    modulus: int = 24
    source: str = ""
    tokenizer_sha256: str = ""

    def __post_init__(self) -> None:
        for name in ("separator", "question", "head", "tail", *_POOLS):
            object.__setattr__(self, name, tuple(int(i) for i in getattr(self, name)))
        for name in ("length", "n_records", "key_tokens", "value_tokens", "modulus"):
            if getattr(self, name) < 1:
                raise TaskError(f"{name}={getattr(self, name)}; valid: 1 or more")
        if self.position not in get_args(Position):
            raise TaskError(f"position={self.position!r}; valid: {', '.join(get_args(Position))}")
        if not 0 <= self.n_demonstrations < self.n_records:
            raise TaskError(f"n_demonstrations={self.n_demonstrations}; valid: 0 to {self.n_records - 1}")
        if not (self.key_ids and self.value_ids and self.filler_ids):
            raise TaskError("key_ids, value_ids and filler_ids each need a token id")
        if self.reply_ids and not len(self.reply_ids) == len(self.value_ids) == len(set(self.reply_ids)):
            raise TaskError(
                f"{len(set(self.reply_ids))} different reply_ids for {len(self.value_ids)} value_ids; valid: "
                "none, or one for each value"
            )
        if len(set(self.key_ids)) ** self.key_tokens < self.n_records:
            raise TaskError(
                f"{len(set(self.key_ids))} key ids give fewer than n_records={self.n_records} distinct keys "
                f"of {self.key_tokens} tokens; use more key tokens or fewer records"
            )
        self.layout().balance()

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: TextTokenizer,
        *,
        length: int = 131072,
        n_records: int = 16000,
        record_tokens: int = 4,
        chat: bool = False,
        separator: str = ":",
        n_demonstrations: int = 4,
        position: Position = "key_last",
        modulus: int = 24,
    ) -> NeedleTask:
        """Build records from the whole words of a vocabulary: key words, separator, one value word.

        Parameters
        ----------
        tokenizer : TextTokenizer
            Fillers are its most frequent words, keys and values others; no word has two roles.
        length, n_records, n_demonstrations, position, modulus
            See :class:`NeedleTask`.
        record_tokens : int
            Tokens of a record, separator and value included.
        chat : bool
            Put the prompt into the tokenizer's chat template; positions count its tokens. Values are then
            words that stay one token without a space, or whose first tokens tell them apart.
        separator : str
            Between key and value.

        Raises
        ------
        TaskError
            If the vocabulary has too few whole words, or a record has no token left for its key.
        """
        between = tokenizer.encode(separator)
        if record_tokens - len(between) - 1 < 1:
            raise TaskError(
                f"record_tokens={record_tokens} leaves no key token: {separator!r} takes {len(between)}, "
                f"the value 1; valid: {len(between) + 2} or more"
            )
        words = whole_words(tokenizer)
        fillers = min(_FILLER_WORDS, len(words) // 8)
        rest = words[fillers : fillers + _VALUE_WORDS + _KEY_WORDS]
        step = 1 + _KEY_WORDS // _VALUE_WORDS
        if fillers < 1 or len(rest) <= step:
            raise TaskError(
                f"tokenizer {tokenizer.name!r} has only {len(words)} whole-word tokens; 16 are needed"
            )
        before, after = tokenizer.frame(chat)
        replies = _replies(tokenizer, after, rest) if chat else dict.fromkeys(rest, 0)
        # As many values as without a template, as evenly spread from frequent to rare.
        values = list(replies)[:: max(1, step * len(replies) // len(rest))]
        if len(values) < 2:
            raise TaskError(
                f"no two words of tokenizer {tokenizer.name!r} begin differently without a space, as replies "
                "to its chat template do; leave the chat option off"
            )
        chosen = set(values)
        return cls(
            key_ids=tuple(word for word in rest if word not in chosen),
            value_ids=tuple(values),
            reply_ids=tuple(replies[value] for value in values) if chat else (),
            filler_ids=words[:fillers],
            separator=tuple(between),
            question=tuple(tokenizer.encode("\n")),
            head=(*before, *tokenizer.encode(_INTRO)),
            tail=tuple(after),
            length=length,
            n_records=n_records,
            key_tokens=record_tokens - len(between) - 1,
            n_demonstrations=n_demonstrations,
            position=position,
            modulus=modulus,
            source=tokenizer.name,
            tokenizer_sha256=tokenizer_hash(tokenizer),
        )

    def describe(self) -> dict[str, Any]:
        """Every setting as a JSON value; the pools of ids as their sizes and one SHA-256."""
        values = dataclasses.asdict(self)
        pools = {name: list(values.pop(name)) for name in _POOLS}
        digest = hashlib.sha256(json.dumps(pools, sort_keys=True).encode()).hexdigest()
        sizes = {f"n_{name}": len(ids) for name, ids in pools.items()}
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}
        return {"task": "needle", **plain, **sizes, "ids_sha256": digest}

    # -- sizes -------------------------------------------------------------------------------------------

    @property
    def record_tokens(self) -> int:
        """Tokens of one record."""
        return self.key_tokens + len(self.separator) + self.value_tokens

    @property
    def d_vocab(self) -> int:
        """The smallest vocabulary that has every token id used."""
        fixed = (self.separator, self.question, self.head, self.tail)
        return 1 + max(max(ids) for ids in (*(getattr(self, name) for name in _POOLS), *fixed) if ids)

    @property
    def context(self) -> int:
        """Positions of records and the fillers between them."""
        asked = len(self.question) + self.key_tokens + len(self.separator) + len(self.tail)
        shown = self.n_demonstrations * (len(self.question) + self.record_tokens)
        return self.length - len(self.head) - (self.modulus - 1) - shown - asked

    def layout(self) -> RecordLayout:
        """Return where records can be in the context."""
        anchors = {
            "key_first": 0,
            "key_last": self.key_tokens - 1,
            "value_first": self.key_tokens + len(self.separator),
        }
        return RecordLayout(
            self.context, self.n_records, self.record_tokens, self.modulus,
            anchor=anchors[self.position], offset=len(self.head),
        )  # fmt: skip

    def balance(self) -> PositionBalance:
        """Return the target positions, counted in the whole prompt and centred in the context."""
        return self.layout().balance()

    # -- prompts -----------------------------------------------------------------------------------------

    def batches(
        self,
        n: int,
        *,
        seed: int,
        rows: int = 1,
        first: int = 0,
        query_phase: int | None = None,
        query_stride: int | None = None,
    ) -> Iterator[Prompts]:
        """Rows `first` … n−1 of a sample, at most `rows` at a time, so that memory stays bounded.

        Row i shows base prompt i // R at residue i % R and depends on (seed, i) only.

        Parameters
        ----------
        n : int
            Rows of the sample; a last block that is not full is cut.
        seed : int
            Seed of everything random.
        rows : int
            Rows per item.
        first : int
            Where to resume.
        query_phase, query_stride : int or None
            Leave out fillers before the demonstrations until (q+1) mod `query_stride` (None: R) is
            `query_phase`; targets stay where they are.

        Raises
        ------
        TaskError
            For counts below 1 or a query phase that does not exist.
        """
        if n < 1 or rows < 1 or first < 0:
            raise TaskError(
                f"n={n}, rows={rows}, first={first}; valid: n and rows 1 or more, first 0 or more"
            )
        trim = self._trim(query_phase, query_stride)
        base = lru_cache(maxsize=1)(lambda block: self._base(seed, block))
        for start in range(first, n, rows):
            index = range(start, min(n, start + rows))
            yield self._prompts(seed, index, [base(i // self.modulus) for i in index], trim)

    def sample(
        self, n: int, *, seed: int, query_phase: int | None = None, query_stride: int | None = None
    ) -> Prompts:
        """All rows at once; see :meth:`batches` for long contexts."""
        return next(
            self.batches(n, seed=seed, rows=max(1, n), query_phase=query_phase, query_stride=query_stride)
        )

    def answer_tokens(self, prompts: Prompts) -> Int64[Tensor, "n value"]:
        """All tokens of each target's value, read from the prompts themselves."""
        anchor = self.layout().anchor
        first = prompts.target_position - anchor + self.key_tokens + len(self.separator)
        return prompts.tokens.gather(1, first[:, None] + torch.arange(self.value_tokens, device=first.device))

    def _trim(self, query_phase: int | None, query_stride: int | None) -> int:
        if query_phase is None:
            return 0
        stride = self.modulus if query_stride is None else query_stride
        if not 1 <= stride <= self.modulus or not 0 <= query_phase < stride:
            raise TaskError(
                f"query_phase={query_phase} at stride {stride} does not exist; valid: 0 to stride−1, "
                f"strides up to modulus={self.modulus}"
            )
        return (self.length - query_phase) % stride  # (q+1) = T

    def _base(self, seed: int, block: int) -> _Base:
        rng = numpy_rng(seed, "needle", block)
        layout = self.layout()
        keys = _distinct(rng, sorted(set(self.key_ids)), self.key_tokens, self.n_records)
        values = rng.choice(np.array(self.value_ids), (self.n_records, self.value_tokens))
        between = np.tile(np.array(self.separator, dtype=np.int64), (self.n_records, 1))
        records = np.concatenate([keys, between, values], 1)
        fillers = rng.choice(np.array(self.filler_ids), layout.n_fillers)
        window = layout.balance().windows(block, 1, seed=seed)
        rank = layout.rank(int(window[0]))
        others = rng.choice(self.n_records - 1, self.n_demonstrations, replace=False)
        ending = rng.choice(np.array(self.filler_ids), self.modulus - 1).tolist()
        for other in others + (others >= rank):
            ending += [*self.question, *records[other].tolist()]
        ending += [*self.question, *records[rank, : -self.value_tokens].tolist(), *self.tail]
        return _Base(records, fillers, ending, rank, layout.balance().targets(window)[0])

    def _prompts(self, seed: int, index: range, bases: list[_Base], trim: int) -> Prompts:
        layout = self.layout()
        length = self.length - trim
        tokens = np.empty((len(index), length), dtype=np.int64)
        for place, (row, base) in enumerate(zip(index, bases, strict=True)):
            block, residue = divmod(row, self.modulus)
            rng = numpy_rng(seed, "needle gaps", block, residue)
            starts = layout.in_sequence(rng, base.rank, base.targets[[residue]])
            context = layout.write(base.records, starts, base.fillers)[0]
            tokens[place] = np.concatenate([self.head, context, base.ending[trim:]])
        row = torch.tensor(index)
        targets = [int(base.targets[i % self.modulus]) for i, base in zip(index, bases, strict=True)]
        values = torch.tensor([int(base.records[base.rank, -self.value_tokens]) for base in bases])
        replies = dict(zip(self.value_ids, self.reply_ids, strict=False))
        return Prompts(
            tokens=torch.from_numpy(tokens),
            answer=values,
            alternative=torch.tensor([replies[v] for v in values.tolist()]) if replies else None,
            target_position=torch.tensor(targets),
            query_position=length - 1,
            residue=row % self.modulus,
            prompt_id=row // self.modulus,
            modulus=self.modulus,
        )


def _distinct(
    rng: np.random.Generator, ids: list[int], tokens: int, count: int
) -> Int64[np.ndarray, "count tokens"]:
    """Draw `count` distinct sequences of `tokens` ids, in random order."""
    drawn = np.empty((0, tokens), dtype=np.int64)
    while len(drawn) < count:
        more = rng.integers(len(ids), size=(count + count // 8 + 8, tokens))
        drawn = np.concatenate([drawn, more])
        _, first = np.unique(drawn, axis=0, return_index=True)
        drawn = drawn[np.sort(first)]
    return np.array(ids)[drawn[:count]]


def _replies(tokenizer: TextTokenizer, tail: list[int], words: tuple[int, ...]) -> dict[int, int]:
    """Which words can be told by the first token of a reply, and that token."""
    replies = {word: reply_tokens(tokenizer, tail, tokenizer.decode([word]).strip()) for word in words}
    whole = {word: reply[0] for word, reply in replies.items() if len(reply) == 1}
    if len(whole) >= _FEWEST_REPLIES:
        return whole
    by_first: dict[int, int] = {}
    for word, reply in replies.items():
        by_first.setdefault(reply[0], word)
    return {word: first for first, word in by_first.items()}
