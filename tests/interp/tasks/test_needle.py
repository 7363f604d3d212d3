"""Needle prompts, read back by a parser that knows the pools of ids only."""

import dataclasses
import json
import time
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from hooks.errors import TaskError
from interp.tasks import NeedleTask, Prompts, Task
from interp.tasks.tokenizers import HuggingFaceTokenizer, TekkenTokenizer, whole_words

KEYS, VALUES, FILLERS = range(100, 130), range(200, 220), range(300, 305)
SMALL = NeedleTask(
    key_ids=tuple(KEYS),
    value_ids=tuple(VALUES),
    filler_ids=tuple(FILLERS),
    separator=(7,),
    question=(8, 9),
    head=(1, 2, 3),
    tail=(5,),
    length=200,
    n_records=20,
    n_demonstrations=2,
    modulus=8,
)


def read(
    row: list[int],
) -> tuple[dict[tuple[int, int], tuple[int, int]], list[tuple[int, ...]], tuple[int, int]]:
    """Return {key: (position of its first token, value)}, the demonstrations, and the key asked for."""
    assert row[:3] == [1, 2, 3]
    records, shown, i = {}, [], 3
    while row[i : i + 2] != [8, 9]:
        if row[i] in FILLERS:
            i += 1
            continue
        key, value = (row[i], row[i + 1]), row[i + 3]
        assert key[0] in KEYS
        assert key[1] in KEYS
        assert row[i + 2] == 7
        assert value in VALUES
        assert key not in records
        records[key] = (i, value)
        i += 4
    while len(row) - i > 6:
        assert row[i : i + 2] == [8, 9]
        assert row[i + 4] == 7
        shown.append((row[i + 2], row[i + 3], row[i + 5]))
        i += 6
    assert row[i : i + 2] == [8, 9]
    assert row[i + 4 :] == [7, 5]
    return records, shown, (row[i + 2], row[i + 3])


@pytest.mark.parametrize(("position", "anchor"), [("key_first", 0), ("key_last", 1), ("value_first", 3)])
def test_prompts_hold_what_they_promise(position: Any, anchor: int) -> None:
    task = dataclasses.replace(SMALL, position=position)
    prompts = task.sample(6 * 8, seed=0)
    assert prompts.tokens.shape == (48, 200)
    blocks: dict[int, set[str]] = {}
    for i, row in enumerate(prompts.tokens.tolist()):
        records, shown, asked = read(row)
        assert len(records) == 20
        start, value = records[asked]
        assert start + anchor == prompts.target_position[i]
        assert value == prompts.answer[i]
        assert prompts.target_position[i] % 8 == prompts.residue[i] == i % 8
        assert len(shown) == 2
        assert all(records[s[:2]][1] == s[2] and s[:2] != asked for s in shown)
        same = [[(k, v) for k, (_, v) in records.items()], shown, asked, [t for t in row if t in FILLERS]]
        blocks.setdefault(i // 8, set()).add(json.dumps(same))
    assert all(len(b) == 1 for b in blocks.values())
    assert len({b.pop() for b in blocks.values()}) == 6
    assert torch.equal(task.answer_tokens(prompts)[:, 0], prompts.answer)


def test_moments_are_exact_and_the_target_is_near_the_middle() -> None:
    task = dataclasses.replace(SMALL, modulus=4)
    prompts = task.sample(4**3, seed=1)
    assert prompts.position_deviation() == (0.0, 0.0)
    groups = [prompts.target_position[prompts.residue == r].double() for r in range(4)]
    assert np.ptp([float(g.mean()) for g in groups]) <= 1e-9
    assert np.ptp([float(g.var()) for g in groups]) <= 1e-9
    middle = 3 + task.context / 2
    assert abs(float(prompts.target_position.double().mean()) - middle) <= 4


def test_records_are_spread_over_phases() -> None:
    prompts = SMALL.sample(40 * 8, seed=2)
    starts = [start for row in prompts.tokens.tolist() for start, _ in read(row)[0].values()]
    share = np.bincount(np.array(starts) % 8, minlength=8) / len(starts)
    assert share.min() > 0.1  # 1/8 each if uniform; 1 and 0 without fillers


def test_batches_are_slices_of_the_sample() -> None:
    whole = SMALL.sample(20, seed=3)
    for rows, first in ((1, 0), (3, 0), (7, 5), (50, 13)):
        parts: list[Prompts] = list(SMALL.batches(20, seed=3, rows=rows, first=first))
        assert max(len(part) for part in parts) <= rows
        for name in ("tokens", "answer", "target_position", "residue", "prompt_id"):
            assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name)[first:])
    assert torch.equal(SMALL.sample(9, seed=3).tokens, whole.tokens[:9])
    assert not torch.equal(SMALL.sample(20, seed=4).tokens, whole.tokens)


@pytest.mark.parametrize("stride", [4, 8, None])
def test_query_phase_moves_the_query_only(stride: int | None) -> None:
    plain = SMALL.sample(8, seed=0)
    for phase in range(stride or 8):
        moved = SMALL.sample(8, seed=0, query_phase=phase, query_stride=stride)
        assert (moved.query_position + 1) % (stride or 8) == phase
        assert 0 <= plain.tokens.shape[1] - moved.tokens.shape[1] < (stride or 8)
        assert torch.equal(moved.target_position, plain.target_position)
        assert [read(r) for r in moved.tokens.tolist()] == [read(r) for r in plain.tokens.tolist()]
    with pytest.raises(TaskError, match="query_phase=0 at stride 16"):
        SMALL.sample(8, seed=0, query_phase=0, query_stride=16)


def test_value_of_several_tokens() -> None:
    task = dataclasses.replace(SMALL, value_tokens=3, length=300)
    prompts = task.sample(16, seed=0)
    values = task.answer_tokens(prompts)
    assert values.shape == (16, 3)
    assert torch.equal(values[:, 0], prompts.answer)
    assert all(v in VALUES for v in values.flatten().tolist())


def test_describe_is_json_and_tells_pools_apart() -> None:
    assert isinstance(SMALL, Task)
    text = json.dumps(SMALL.describe())
    assert json.loads(text)["n_key_ids"] == 30
    other = dataclasses.replace(SMALL, key_ids=tuple(range(101, 131)))
    assert other.describe()["ids_sha256"] != SMALL.describe()["ids_sha256"]
    assert SMALL.d_vocab == 305


@pytest.mark.parametrize("chat", [False, True])
def test_from_tokenizer(small: HuggingFaceTokenizer, chat: bool) -> None:
    task = NeedleTask.from_tokenizer(small, length=600, n_records=40, chat=chat, modulus=8)
    assert task.record_tokens == 4
    assert not set(task.key_ids) & set(task.value_ids)
    assert not set(task.filler_ids) & {*task.key_ids, *task.value_ids}
    prompts = task.sample(8, seed=0)
    assert prompts.tokens.shape == (8, 600)
    for i, row in enumerate(prompts.tokens.tolist()):
        text = small.decode(row)
        assert text.startswith("<s>user: " if chat else "<s>")
        if chat:
            assert text.endswith("!bot:")
        asked = text.removesuffix("!bot:").rpartition("\n")[2]
        assert text.count(asked) == 2
        assert text.split(asked)[1].startswith(small.decode([int(prompts.answer[i])]))
        # the position is that of the last key token, counted in the whole prompt
        assert small.decode(row[: prompts.target_position[i] + 1]).endswith(asked.removesuffix(":"))


@pytest.mark.slow
def test_full_size_with_the_real_tokenizer(tekken: TekkenTokenizer) -> None:
    task = NeedleTask.from_tokenizer(tekken, modulus=8)
    assert (task.length, task.n_records, task.record_tokens) == (131072, 16000, 4)
    prompts = next(task.batches(8, seed=0, rows=1))
    row = prompts.tokens[0].tolist()
    assert len(row) == 131072
    assert (
        tekken.encode(tekken.decode(row[1:])) == row[1:]
    )  # a server that tokenizes the text sees the same ids
    assert len(whole_words(tekken)) >= 64 + 512 + 4096


def _full_size() -> NeedleTask:
    return NeedleTask(
        key_ids=tuple(range(1000, 5000)),
        value_ids=tuple(range(5000, 5500)),
        filler_ids=tuple(range(100)),
        separator=(101,),
        modulus=8,
    )


def test_full_size_is_fast_exact_and_small() -> None:
    task = _full_size()
    started = time.perf_counter()
    tracemalloc.start()
    batches = list(b.target_position.item() for b in task.batches(6, seed=0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (time.perf_counter() - started) / 6 < 2
    assert peak < 30e6
    assert [t % 8 for t in batches] == [0, 1, 2, 3, 4, 5, 6, 7][:6]
    row = next(task.batches(1, seed=0)).tokens[0]
    assert row.shape == (131072,)
    keys = row[: task.context]
    starts = ((keys >= 1000) & (keys < 5000)).sum()
    assert starts == 2 * 16000
    moments = set()
    for residue in range(8):
        positions, weights = task.balance().distribution(residue)
        mean = sum(p * w for p, w in zip(positions, weights, strict=True))
        moments.add((mean, sum(p * p * w for p, w in zip(positions, weights, strict=True)) - mean**2))
    assert len(moments) == 1
    assert Counter(w for r in range(8) for w in [sum(task.balance().distribution(r)[1])]) == {1: 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 115}, "fillers at n_records=20"),
        ({"n_records": 1000}, "30 key ids give fewer than n_records=1000"),
        ({"position": "middle"}, "valid: key_first, key_last, value_first"),
        ({"n_demonstrations": 20}, "valid: 0 to 19"),
        ({"value_ids": ()}, "each need a token id"),
        ({"key_tokens": 0}, "key_tokens=0"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        dataclasses.replace(SMALL, **changes)


def test_bad_calls(small: HuggingFaceTokenizer) -> None:
    with pytest.raises(TaskError, match="n=0"):
        SMALL.sample(0, seed=0)
    with pytest.raises(TaskError, match="valid: 3 or more"):
        NeedleTask.from_tokenizer(small, record_tokens=2)


def test_long_keys_and_every_key_there_is(small: HuggingFaceTokenizer) -> None:
    task = NeedleTask.from_tokenizer(small, length=400, n_records=8, record_tokens=14, modulus=8)
    assert (task.key_tokens, task.sample(8, seed=0).tokens.shape) == (12, (8, 400))
    every = dataclasses.replace(SMALL, key_ids=(100, 101, 102, 103), n_records=16)
    for row in every.sample(3 * 8, seed=0).tokens[::8].tolist():
        assert sorted(read(row)[0]) == sorted((a, b) for a in range(100, 104) for b in range(100, 104))


@pytest.mark.parametrize("replies", [(1, 2), tuple([5] * 20)])
def test_replies_that_cannot_be_told_apart(replies: tuple[int, ...]) -> None:
    with pytest.raises(TaskError, match="different reply_ids for 20 value_ids"):
        dataclasses.replace(SMALL, reply_ids=replies)
