"""Completion prompts; positions checked by adding up decoded tokens one by one."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hooks.errors import TaskError
from interp.tasks import CompletionTask, Task
from interp.tasks.completion import FILLER_FAMILIES
from interp.tasks.tokenizers import HuggingFaceTokenizer, TekkenTokenizer


class Greedy:
    """Longest match among pieces, else single characters: merges exactly where a test wants it to."""

    name = "greedy"
    d_vocab = 2000

    def __init__(self, *pieces: str) -> None:
        self.pieces = sorted(pieces, key=len, reverse=True)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            piece = next((p for p in self.pieces if text.startswith(p)), text[0])
            ids.append(1000 + self.pieces.index(piece) if piece in self.pieces else ord(piece))
            text = text[len(piece) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i - 1000] if i >= 1000 else chr(i) for i in ids)

    def frame(self, chat: bool) -> tuple[list[int], list[int]]:
        return ([0, 1], [2]) if chat else ([], [])


def token_of(tokenizer: Any, ids: list[int], character: int) -> int:
    """Which token holds a character (ASCII texts: token texts add up)."""
    end = 0
    for i, token in enumerate(ids):
        end += len(tokenizer.decode([token]))
        if end > character:
            return i
    raise AssertionError


def check(task: CompletionTask, tokenizer: Any, n: int, frame: int = 0, tail: int = 0) -> set[str]:
    """Check every row of a sample against its own text; return the fillers seen in the docstrings."""
    prompts = task.sample(n, seed=0)
    fillers = set()
    for i, row in enumerate(prompts.tokens.tolist()):
        ids = row[frame : len(row) - tail]
        text = tokenizer.decode(ids)
        right = task.candidates[i // task.modulus % 2]
        at = text.index(task.evidence) + len(task.evidence)
        assert text[at:].startswith(right + task.bridge)
        assert text.startswith(task.prefix)
        assert text.endswith(task.code_line)
        assert prompts.target_position[i] == frame + token_of(tokenizer, ids, at)
        assert prompts.target_position[i] % task.modulus == prompts.residue[i] == i % task.modulus
        assert row[prompts.target_position[i]] == prompts.answer[i]
        assert tokenizer.encode(text) == ids
        assert tokenizer.encode(text + right)[len(ids)] == prompts.answer[i]
        fillers.add(text[len(task.prefix) : at - len(task.evidence)].strip()[:1])
    return fillers


def test_balanced_prompts_of_the_real_tokenizer(tekken: TekkenTokenizer) -> None:
    task = CompletionTask(tekken, modulus=4)
    assert task.usable_families() == list(FILLER_FAMILIES)
    seen = check(task, tekken, 16 * 4, frame=1)
    assert "=" in seen
    assert seen & set("1479")
    assert "" in seen  # newlines
    assert any(s.isalpha() for s in seen)
    prompts = task.sample(4**3, seed=0)
    assert prompts.position_deviation() == (0.0, 0.0)
    assert tekken.decode([task.candidate_ids[0]]) == "8"
    assert prompts.answer[::4].unique_consecutive().tolist() == list(task.candidate_ids) * 8


def test_byte_level_tokenizer_with_a_chat_template(small: HuggingFaceTokenizer) -> None:
    task = CompletionTask(small, modulus=4, chat=True)
    head, tail = small.frame(True)
    assert len(head) > 1
    check(task, small, 8 * 4, frame=len(head), tail=len(tail))


def test_merging_fillers_are_missing_not_assumed() -> None:
    tokenizer = Greedy("\n\n\n\n", " =", *(f" {w}" for w in ("the", "and")))
    task = CompletionTask(tokenizer, modulus=2, families=("equals", "newlines", "words"))
    missing = task.missing_lengths()
    # By hand: " the" and " and" are one token each, then come " for" with 4 and " with" with 5: 2, 6, 11 …
    assert missing["words"]["docstring"] == [3, 4, 5]
    assert task.usable_families() == ["equals", "newlines"]
    assert check(task, tokenizer, 16) == {"=", ""}
    assert task.describe()["missing_lengths"] == missing


def test_lengths_by_hand() -> None:
    tokenizer = Greedy("\n\n\n\n", " =")
    task = CompletionTask(tokenizer, modulus=2)
    bare = task.lengths("equals", [0])[0]
    assert bare.tokens is not None
    for length in task.lengths("equals", range(1, 12)):
        assert length.tokens is not None
        assert len(length.tokens) == len(bare.tokens) + length.filler_tokens
        assert length.target_position == bare.target_position + length.filler_tokens
        assert length.query_position == len(length.tokens) - 1
        assert (
            tokenizer.decode(length.tokens.tolist()).count(" =") == length.filler_tokens + 2
        )  # two in the code
    # Line ends come in fours or ones, the code's own included: c fillers add (c+1)//4 + (c+1)%4 − 1 tokens.
    fewest = {(c + 1) // 4 + (c + 1) % 4 - 1: c for c in reversed(range(60))}
    for length in task.lengths("newlines", range(10)):
        assert length.tokens is not None
        assert len(length.tokens) == len(bare.tokens) + length.filler_tokens
        text = tokenizer.decode(length.tokens.tolist())
        line_ends = text.count("\n") - tokenizer.decode(bare.tokens.tolist()).count("\n")
        assert line_ends in {fewest[length.filler_tokens], length.filler_tokens}
        at = text.index(task.evidence) + len(task.evidence)
        assert length.target_position == token_of(tokenizer, length.tokens.tolist(), at)


def test_a_length_that_no_filler_makes_is_reported() -> None:
    tokenizer = Greedy(" the and")  # other words are letters: " the" 4, " and" 4, both together 1
    task = CompletionTask(tokenizer, modulus=2, families=("words", "equals"))
    lengths = task.lengths("words", range(5))
    assert [x.filler_tokens for x in lengths if x.tokens is None] == [2, 3]
    assert "adds exactly 2 tokens" in lengths[2].missing
    assert lengths[1].tokens is not None
    assert lengths[1].target_position == task.lengths("words", [0])[0].target_position + 1


def test_rows_do_not_depend_on_the_sample_size(small: HuggingFaceTokenizer) -> None:
    task = CompletionTask(small, modulus=4)
    large = task.sample(40, seed=1)
    small_sample = task.sample(10, seed=1)
    assert torch.equal(small_sample.tokens, large.tokens[:10])
    assert torch.equal(small_sample.target_position, large.target_position[:10])
    assert not torch.equal(task.sample(40, seed=2).target_position, large.target_position)


def test_query_phase_moves_the_query_only(small: HuggingFaceTokenizer) -> None:
    task = CompletionTask(small, modulus=8)
    plain = task.sample(8, seed=0)
    for phase in range(4):
        moved = task.sample(8, seed=0, query_phase=phase, query_stride=4)
        assert (moved.query_position + 1) % 4 == phase
        assert torch.equal(moved.target_position, plain.target_position)
    with pytest.raises(TaskError, match="query_phase=4 at stride 4"):
        task.sample(8, seed=0, query_phase=4, query_stride=4)


def test_describe_is_json(small: HuggingFaceTokenizer) -> None:
    task = CompletionTask(small, modulus=4)
    assert isinstance(task, Task)
    assert json.loads(json.dumps(task.describe()))["candidates"] == ["8", "32"]


def test_candidates_that_cannot_be_told_apart() -> None:
    with pytest.raises(TaskError, match="begin with the same token"):
        CompletionTask(Greedy(), candidates=("32", "38"))
    with pytest.raises(TaskError, match="candidate '8' merges with the end of the line"):
        CompletionTask(Greedy("P8"))
    with pytest.raises(TaskError, match="other tokens in the evidence"):
        CompletionTask(Greedy("8)"))


def test_bad_settings() -> None:
    with pytest.raises(TaskError, match="unknown filler family 'equal'; valid: equals"):
        CompletionTask(Greedy(), families=("equal",))
    with pytest.raises(TaskError, match="families is empty"):
        CompletionTask(Greedy(), families=())
    with pytest.raises(TaskError, match="n=0"):
        CompletionTask(Greedy(), modulus=2).sample(0, seed=0)
    with pytest.raises(TaskError, match="merges fillers of every family"):
        CompletionTask(Greedy(), modulus=2, families=("words",)).sample(2, seed=0)

    class Lossy(Greedy):
        def decode(self, ids: Sequence[int]) -> str:
            return super().decode(ids).lower()

    with pytest.raises(TaskError, match="does not give the text back"):
        CompletionTask(Lossy())


def test_other_texts() -> None:
    task = CompletionTask(
        Greedy(" ="), prefix="A note", evidence=". The sky is ", bridge=".", code_line=" Yes, it is ",
        candidates=("blue", "red"), families=("equals",), modulus=3,
    )  # fmt: skip
    check(task, task.tokenizer, 9)
    assert dataclasses.replace(task, modulus=4).sample(4, seed=0).modulus == 4
