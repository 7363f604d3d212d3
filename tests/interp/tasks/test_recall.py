"""Recall prompts, decoded by a parser that knows only the token layout of the task's description."""

import dataclasses
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hooks.errors import TaskError
from hooks.geometry import ChunkGeometry
from interp.tasks import Prompts, RecallTask, Task
from interp.tasks.recall import Padding

SMALL = RecallTask(
    n_keys=20, n_values=9, n_filler=5, n_records=10, context=40, n_queries=4, n_demonstrations=3, modulus=12
)


@dataclass
class Parsed:
    records: list[tuple[int, int]]
    key_at: dict[int, int]
    fillers: list[int]
    between: list[int]
    demonstrations: list[tuple[int, int]]
    target: int


def parse(tokens: list[int], *, n_filler: int, n_keys: int, context: int) -> Parsed:
    """Read a test prompt token by token."""

    def kind(token: int) -> str:
        if token < n_filler:
            return "filler"
        if token == n_filler:
            return "marker"
        return "key" if token <= n_filler + n_keys else "value"

    records, key_at, fillers = [], {}, []
    i = 0
    while i < context:
        if kind(tokens[i]) == "filler":
            fillers.append(tokens[i])
            i += 1
        else:
            assert kind(tokens[i]) == "key"
            assert kind(tokens[i + 1]) == "value"
            assert i + 1 < context
            records.append((tokens[i], tokens[i + 1]))
            key_at[tokens[i]] = i
            i += 2
    between = []
    while kind(tokens[i]) == "filler":
        between.append(tokens[i])
        i += 1
    demonstrations = []
    while i + 2 < len(tokens):
        assert [kind(t) for t in tokens[i : i + 3]] == ["marker", "key", "value"]
        demonstrations.append((tokens[i + 1], tokens[i + 2]))
        i += 3
    assert [kind(t) for t in tokens[i:]] == ["marker", "key"]
    return Parsed(records, key_at, fillers, between, demonstrations, tokens[-1])


def parse_all(task: RecallTask, prompts: Prompts) -> list[Parsed]:
    sizes = {"n_filler": task.n_filler, "n_keys": task.n_keys, "context": task.context}
    return [parse(row, **sizes) for row in prompts.tokens.tolist()]


@pytest.fixture(params=["in_sequence", "prefix"])
def padding(request: pytest.FixtureRequest) -> Padding:
    return request.param


@pytest.mark.parametrize("settings", [{}, {"modulus": 48}, {"n_records": 30, "n_demonstrations": 0}])
def test_prompts_hold_what_they_promise(padding: Padding, settings: dict[str, Any]) -> None:
    task = RecallTask(padding=padding, **settings)
    prompts = task.sample(4 * task.modulus, seed=0)
    assert task.d_vocab == 273
    assert prompts.tokens.shape == (4 * task.modulus, 144 + 3 * task.n_demonstrations + 2)
    assert prompts.query_position == prompts.tokens.shape[1] - 1
    for row, parsed in enumerate(parse_all(task, prompts)):
        book = dict(parsed.records)
        assert len(book) == len(parsed.records) == task.n_records
        assert all(book[key] == value for key, value in parsed.demonstrations)
        assert len({key for key, _ in parsed.demonstrations}) == task.n_demonstrations
        assert parsed.target not in {key for key, _ in parsed.demonstrations}
        assert book[parsed.target] == prompts.answer[row]
        assert parsed.key_at[parsed.target] == prompts.target_position[row]
        assert prompts.residue[row] == row % task.modulus == prompts.target_position[row] % task.modulus
        assert prompts.prompt_id[row] == row // task.modulus


def test_a_block_is_one_base_prompt(padding: Padding) -> None:
    task = RecallTask(padding=padding)
    parsed = parse_all(task, task.sample(3 * 24, seed=1))
    for block in (parsed[:24], parsed[24:48], parsed[48:]):
        first = block[0]
        assert all(p.records == first.records for p in block)
        assert all(p.fillers == first.fillers for p in block)
        assert all(p.demonstrations == first.demonstrations for p in block)
        assert all(p.target == first.target for p in block)
    assert parsed[0].records != parsed[24].records


def test_prefix_padding_moves_all_records_together_and_in_sequence_does_not() -> None:
    def spread(padding: Padding) -> set[float]:
        task = RecallTask(padding=padding)
        block = parse_all(task, task.sample(24, seed=2))
        keys = [key for key, _ in block[0].records]
        relative = np.array([[p.key_at[k] - p.key_at[p.target] for k in keys] for p in block])
        return set(relative.std(0)[relative[0] != 0].tolist())

    assert spread("prefix") == {0.0}
    assert 0.0 not in spread("in_sequence")


def test_sample_moments_are_exact_at_multiples_of_r_squared(padding: Padding) -> None:
    task = dataclasses.replace(SMALL, padding=padding)
    prompts = task.sample(12**3, seed=7)
    assert prompts.position_deviation() == (0.0, 0.0)
    position, residue = prompts.target_position.numpy(), prompts.residue.numpy()
    groups = [position[residue == r] for r in range(12)]
    assert np.ptp([g.mean() for g in groups]) <= 1e-9
    assert np.ptp([g.var() for g in groups]) <= 1e-9


def test_position_deviation_by_hand() -> None:
    prompts = Prompts(
        tokens=torch.zeros(4, 9, dtype=torch.long),
        answer=torch.zeros(4, dtype=torch.long),
        target_position=torch.tensor([0, 3, 4, 5]),
        query_position=8,
        residue=torch.tensor([0, 1, 0, 1]),
        prompt_id=torch.tensor([0, 0, 1, 1]),
        modulus=2,
    )
    assert prompts.position_deviation() == (2.0, 3.0)  # means 2, 4; variances 4, 1
    with pytest.raises(TaskError, match="no prompt has residue 1"):
        prompts.select(torch.tensor([0, 2])).position_deviation()


def test_small_samples_report_their_deviation() -> None:
    deviation = RecallTask().sample(64 * 24, seed=0).position_deviation()
    assert 0 < deviation.mean < 1.5
    assert deviation.variance > 0
    assert RecallTask().sample(48 * 24, seed=0).position_deviation().mean == 0


def test_rows_do_not_depend_on_the_sample_size(padding: Padding) -> None:
    task = RecallTask(padding=padding)
    large = task.sample(10 * 24, seed=4)
    for n in (1, 24, 100, 9 * 24):
        small = task.sample(n, seed=4)
        assert torch.equal(small.tokens, large.tokens[:n])
        assert torch.equal(small.answer, large.answer[:n])
        assert torch.equal(small.target_position, large.target_position[:n])
    assert not torch.equal(task.sample(24, seed=5).tokens, large.tokens[:24])


def test_global_generators_are_untouched() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    SMALL.sample(24, seed=0)
    SMALL.training_batch(4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


@pytest.mark.parametrize("stride", [6, 8, None])
def test_query_phase_moves_the_query_only(stride: int | None) -> None:
    task = RecallTask()
    plain = task.sample(24, seed=3)
    for phase in range(stride or 24):
        moved = task.sample(24, seed=3, query_phase=phase, query_stride=stride)
        assert (moved.query_position + 1) % (stride or 24) == phase
        assert moved.tokens.shape[1] - plain.tokens.shape[1] < (stride or 24)
        assert torch.equal(moved.target_position, plain.target_position)
        assert torch.equal(moved.tokens[:, :144], plain.tokens[:, :144])
        assert torch.equal(moved.tokens[:, -26:], plain.tokens[:, -26:])
        assert len(parse_all(task, moved)[0].between) == moved.tokens.shape[1] - 170
    with pytest.raises(TaskError, match="query_phase=24"):
        task.sample(24, seed=3, query_phase=24, query_stride=stride)


def test_value_pairs_differ_in_the_target_value_only() -> None:
    clean, corrupt = SMALL.sample_pairs(36, seed=0, kind="value")
    assert torch.equal(clean.tokens, SMALL.sample(36, seed=0).tokens)
    assert (clean.answer != corrupt.answer).all()
    assert set(corrupt.answer.tolist()) <= set(SMALL.values)
    different = clean.tokens != corrupt.tokens
    assert (different.sum(1) == 1).all()
    assert torch.equal(different.int().argmax(1), clean.target_position + 1)
    for row, parsed in enumerate(parse_all(SMALL, corrupt)):
        assert dict(parsed.records)[parsed.target] == corrupt.answer[row]
    assert (corrupt.answer.reshape(3, 12) == corrupt.answer.reshape(3, 12)[:, :1]).all()


@pytest.mark.parametrize("shift", [1, 5, -1])
def test_shift_pairs_show_the_same_base_prompt_elsewhere(shift: int) -> None:
    clean, corrupt = SMALL.sample_pairs(24, seed=0, kind="shift", shift=shift)
    assert torch.equal(corrupt.residue, (clean.residue + shift) % 12)
    assert torch.equal(corrupt.prompt_id, clean.prompt_id)
    assert torch.equal(corrupt.answer, clean.answer)
    for a, b in zip(parse_all(SMALL, clean), parse_all(SMALL, corrupt), strict=True):
        assert a.records == b.records
        assert a.target == b.target


def test_pairs_need_whole_blocks() -> None:
    with pytest.raises(TaskError, match="n=13 is not a multiple of modulus=12"):
        SMALL.sample_pairs(13, seed=0, kind="shift")
    with pytest.raises(TaskError, match="valid: value, shift"):
        SMALL.sample_pairs(12, seed=0, kind="key")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("n_records", [None, 6])
def test_training_sequences(n_records: int | None) -> None:
    tokens, targets = SMALL.training_batch(
        50, generator=torch.Generator().manual_seed(1), n_records=n_records
    )
    assert tokens.shape == targets.shape == (50, 40 + 12)
    assert tokens.dtype == targets.dtype == torch.int64
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        parsed = parse([*row, SMALL.marker, 6], n_filler=5, n_keys=20, context=40)
        book = dict(parsed.records)
        assert len(book) == len(parsed.records) == (n_records or 10)
        assert [book[k] for k, _ in parsed.demonstrations] == [v for _, v in parsed.demonstrations]
        assert len({k for k, _ in parsed.demonstrations}) == 4
        asked = [i for i, t in enumerate(target) if t != -100]
        assert asked == [41, 44, 47, 50]
        assert all(target[i] == row[i + 1] == book[row[i]] for i in asked)


def test_training_gaps_are_uniform() -> None:
    # 10 records and 20 fillers in random order: a position holds a key with probability 1/3 · 30/40 on
    # average, and the first slot with exactly 1/3.
    tokens, _ = SMALL.training_batch(4000, generator=torch.Generator().manual_seed(2))
    first_is_key = (tokens[:, 0] > SMALL.marker).double().mean().item()
    assert abs(first_is_key - 1 / 3) < 4 * (2 / 9 / 4000) ** 0.5
    last_is_value = (tokens[:, 39] > SMALL.marker).double().mean().item()
    assert abs(last_is_value - 1 / 3) < 4 * (2 / 9 / 4000) ** 0.5
    repeated, _ = SMALL.training_batch(4000, generator=torch.Generator().manual_seed(2))
    assert torch.equal(tokens, repeated)


def _model(strides: list[int | None], task: dict[str, Any] | None, d_vocab: int = 273) -> Any:
    return SimpleNamespace(
        name="toy",
        task=task,
        cfg=SimpleNamespace(n_layers=len(strides), d_vocab=d_vocab),
        geometry=lambda layer: ChunkGeometry(2 * s, s) if (s := strides[layer]) else None,
    )


@pytest.mark.parametrize(
    ("strides", "modulus"), [([8, 8], 24), ([6], 24), ([12], 24), ([4, 16], 48), ([None], 24), ([2, 128], 24)]
)
def test_modulus_for_a_model(strides: list[int | None], modulus: int) -> None:
    task = RecallTask.for_model(_model(strides, None))
    assert task.modulus == modulus
    assert task.sample(modulus, seed=0).position_deviation().mean >= 0


def test_for_model_uses_the_stored_settings() -> None:
    stored = {"task": "recall", "n_keys": 30, "n_values": 20, "n_filler": 4, "n_records": 20, "context": 90}
    task = RecallTask.for_model(_model([8], stored, d_vocab=55), padding="prefix")
    assert (task.n_keys, task.context, task.padding, task.modulus) == (30, 90, "prefix", 24)
    assert RecallTask.for_model(_model([8], stored, d_vocab=55), modulus=16).modulus == 16


def test_short_contexts_get_a_smaller_modulus() -> None:
    task = RecallTask.for_model(_model([4, 4], None, d_vocab=73))
    assert (task.context, task.n_records, task.modulus) == (48, 14, 12)
    assert task.length <= task.train_length
    parse_all(task, task.sample(120, seed=0))
    with pytest.raises(TaskError, match="fits no modulus"):
        RecallTask.for_model(_model([24], None, d_vocab=73))
    with pytest.raises(TaskError, match="modulus=24"):
        RecallTask.for_model(_model([4], None, d_vocab=73), modulus=24)


def test_for_model_refuses_unknown_vocabularies() -> None:
    with pytest.raises(TaskError, match=r"d_vocab=50.*273, 73"):
        RecallTask.for_model(_model([4], None, d_vocab=50))
    with pytest.raises(TaskError, match=r"273 token ids.*d_vocab=50"):
        RecallTask.for_model(_model([4], {"n_keys": 128}, d_vocab=50))


def test_describe_round_trip() -> None:
    text = json.dumps(SMALL.describe())
    assert RecallTask.from_dict(json.loads(text)) == SMALL
    assert isinstance(SMALL, Task)
    with pytest.raises(TaskError, match=r"'contxt'.*context"):
        RecallTask.from_dict({"contxt": 4})
    with pytest.raises(TaskError, match="task='needle'"):
        RecallTask.from_dict({"task": "needle"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_records": 129}, "distinct keys"),
        ({"context": 80}, "take 88 positions"),
        ({"n_demonstrations": 44}, "valid: 0 to 43"),
        ({"modulus": 0}, "modulus=0"),
        ({"n_keys": 3.5}, "n_keys=3.5"),
        ({"padding": "left"}, "valid: in_sequence, prefix"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        RecallTask(**settings)


def test_bad_samples() -> None:
    with pytest.raises(TaskError, match="fillers at n_records=44"):
        RecallTask(context=100).sample(24, seed=0)
    with pytest.raises(TaskError, match="use a longer context"):
        RecallTask(context=69, n_records=10).sample(24, seed=0)
    with pytest.raises(TaskError, match="n=0"):
        RecallTask().sample(0, seed=0)
    with pytest.raises(TaskError, match="n_records=3"):
        SMALL.training_batch(2, generator=torch.Generator(), n_records=3)
