"""Associative recall: key-value records between fillers, demonstrations, then one target key."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from hooks.errors import TaskError, did_you_mean
from hooks.geometry import MOST_RESIDUES, common_residue_modulus
from interp.rng import numpy_rng
from interp.tasks.balance import PositionBalance
from interp.tasks.layout import RecordLayout
from interp.tasks.prompts import Prompts

__all__ = ["RecallTask"]

Padding = Literal["in_sequence", "prefix"]
_NO_TARGET = -100  # torch's cross_entropy skips this label

# Settings of the two shipped vocabularies, for models that carry no settings of their own.
_BY_VOCAB: dict[int, dict[str, int]] = {
    273: {},
    73: {
        "n_keys": 32, "n_values": 32, "n_filler": 8, "n_records": 14, "context": 48, "n_queries": 8,
        "n_demonstrations": 7, "modulus": 12,
    },
}  # fmt: skip


@dataclass(frozen=True)
class RecallTask:
    """Recall the value of one key among `n_records` records.

    Token ids: fillers 0 … n_filler−1, the marker, keys, values. A test prompt is a context of `context`
    positions that holds every record (a key, directly followed by its value) with fillers between, then
    demonstrations "marker, key, value", then "marker, target key"; the answer is the target's value.

    Parameters
    ----------
    n_keys, n_values, n_filler : int
        Token ids of each kind.
    n_records : int
        Records in the context, with distinct keys.
    context : int
        Positions of the context.
    n_queries : int
        Queries after the context of a training sequence.
    n_demonstrations : int
        Demonstrations before the target key of a test prompt; the target is never one of them.
    padding : "in_sequence" or "prefix"
        How the target reaches a residue: the gaps between records vary, so that distractors do not move in
        lockstep; or fillers before the first record shift all records together.
    modulus : int
        R, the number of residues a base prompt is shown at.

    Raises
    ------
    TaskError
        Naming the setting that does not fit and what to change.
    """

    n_keys: int = 128
    n_values: int = 128
    n_filler: int = 16
    n_records: int = 44
    context: int = 144
    n_queries: int = 16
    n_demonstrations: int = 8
    padding: Padding = "in_sequence"
    modulus: int = 24

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            minimum = 0 if field.name == "n_demonstrations" else 1
            if field.name != "padding" and (
                isinstance(value, bool) or not isinstance(value, int) or value < minimum
            ):
                raise TaskError(f"{field.name}={value!r} is not an integer of at least {minimum}")
        if self.padding not in get_args(Padding):
            raise TaskError(f"padding={self.padding!r}; valid: {', '.join(get_args(Padding))}")
        if self.n_records > self.n_keys:
            raise TaskError(f"n_records={self.n_records} needs so many distinct keys; n_keys={self.n_keys}")
        if 2 * self.n_records > self.context:
            raise TaskError(
                f"n_records={self.n_records} take {2 * self.n_records} positions; context={self.context}"
            )
        if self.n_demonstrations >= self.n_records:
            raise TaskError(
                f"n_demonstrations={self.n_demonstrations} leaves no target; valid: 0 to {self.n_records - 1}"
            )

    # -- construction ------------------------------------------------------------------------------------

    @classmethod
    def for_model(
        cls, model: Any, padding: Padding = "in_sequence", *, modulus: int | None = None
    ) -> RecallTask:
        """Return the task a model was trained on, with residues its strides divide.

        Parameters
        ----------
        model : HookedModel
            Its ``task`` holds the settings; without them the shipped settings for its vocabulary are used.
        padding : "in_sequence" or "prefix"
            See :class:`RecallTask`.
        modulus : int or None
            R; None is the lcm of 24 and the model's strides while at most 48. If the context is too short for
            it, the largest divisor that still is a multiple of every stride.

        Raises
        ------
        TaskError
            If the model's vocabulary belongs to no known settings, or no modulus fits its context.
        """
        d_vocab = int(model.cfg.d_vocab)
        task = cls.for_vocab(d_vocab) if model.task is None else cls.from_dict(model.task)
        if task.d_vocab != d_vocab:
            raise TaskError(
                f"the task has {task.d_vocab} token ids, model {model.name!r} has d_vocab={d_vocab}; "
                "give it the settings it was trained with"
            )
        if modulus is None:
            modulus = _feasible_modulus(task, _strides(model))
        task = dataclasses.replace(task, padding=padding, modulus=modulus)
        task.balance()
        return task

    @classmethod
    def for_vocab(cls, d_vocab: int, **changes: Any) -> RecallTask:
        """Return the shipped settings for a vocabulary size.

        Raises
        ------
        TaskError
            If none are known for it.
        """
        if d_vocab not in _BY_VOCAB:
            raise TaskError(
                f"no recall settings are known for d_vocab={d_vocab}, only for "
                f"{', '.join(str(v) for v in _BY_VOCAB)}; store RecallTask(...).describe() as its task"
            )
        return cls(**{**_BY_VOCAB[d_vocab], **changes})

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], *, complete: bool = False) -> RecallTask:
        """Inverse of :meth:`describe`; `complete` refuses settings that lack one, where a default would be a guess.

        Raises
        ------
        TaskError
            For another task's settings or an unknown key, by name.
        """
        if not isinstance(settings, Mapping):
            raise TaskError(
                f"task {settings!r} is no table of settings; valid: what RecallTask.describe() gives"
            )
        values = dict(settings)
        kind = values.pop("task", "recall")
        if kind != "recall":
            raise TaskError(f"task={kind!r} is not recall; valid: recall")
        names = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                raise TaskError(f"unknown recall setting {key!r}; {did_you_mean(key, names)}")
        lacking = [name for name in names if complete and name not in values]
        if lacking:
            raise TaskError(f"the stored task lacks {lacking[0]!r}; required: {', '.join(names)}")
        return cls(**values)

    def describe(self) -> dict[str, Any]:
        """Every setting as a JSON value, with the task's name under ``task``."""
        return {"task": "recall", **dataclasses.asdict(self)}

    # -- sizes -------------------------------------------------------------------------------------------

    @property
    def marker(self) -> int:
        """Token id of the marker before every demonstrated or queried key."""
        return self.n_filler

    @property
    def keys(self) -> range:
        """Token ids of the keys."""
        return range(self.n_filler + 1, self.n_filler + 1 + self.n_keys)

    @property
    def values(self) -> range:
        """Token ids of the values."""
        return range(self.keys.stop, self.keys.stop + self.n_values)

    @property
    def d_vocab(self) -> int:
        """Number of token ids."""
        return self.values.stop

    @property
    def train_length(self) -> int:
        """T of a training sequence."""
        return self.context + 3 * self.n_queries

    @property
    def length(self) -> int:
        """T of a test prompt at its shortest query position."""
        return self.context + 3 * self.n_demonstrations + 2

    # -- training ----------------------------------------------------------------------------------------

    def training_batch(
        self, batch: int, *, generator: torch.Generator, n_records: int | None = None
    ) -> tuple[Int64[Tensor, "batch pos"], Int64[Tensor, "batch pos"]]:
        """Random training sequences on the generator's device.

        Parameters
        ----------
        batch : int
            Sequences.
        generator : torch.Generator
            Its device is the tensors' device.
        n_records : int or None
            Records in the context (the curriculum raises it); None is the task's own.

        Returns
        -------
        tokens, targets : Int64[Tensor, "batch pos"]
            The target at every query key is its value, elsewhere −100.

        Raises
        ------
        TaskError
            If `n_records` is below n_queries or over the task's own.
        """
        records = self.n_records if n_records is None else n_records
        if not self.n_queries <= records <= self.n_records:
            raise TaskError(f"n_records={records}; valid: {self.n_queries} (n_queries) to {self.n_records}")
        device = generator.device

        def choose(options: int, size: int) -> Tensor:  # [batch, size] distinct, in random order
            return torch.rand(batch, options, generator=generator, device=device).argsort(1)[:, :size]

        keys = choose(self.n_keys, records) + self.keys.start
        values = torch.randint(self.n_values, (batch, records), generator=generator, device=device)
        values += self.values.start
        # A context is a random order of records and fillers; i values stand before the i-th record.
        slots = choose(self.context - records, records).sort(1).values
        position = slots + torch.arange(records, device=device)
        context = torch.randint(self.n_filler, (batch, self.context), generator=generator, device=device)
        context.scatter_(1, position, keys).scatter_(1, position + 1, values)
        asked = choose(records, self.n_queries)
        marker = torch.full_like(asked, self.marker)
        queries = torch.stack([marker, keys.gather(1, asked), values.gather(1, asked)], 2).flatten(1)
        tokens = torch.cat([context, queries], 1)
        targets = torch.full_like(tokens, _NO_TARGET)
        targets[:, self.context + 1 :: 3] = queries[:, 2::3]
        return tokens, targets

    # -- test prompts ------------------------------------------------------------------------------------

    def layout(self) -> RecordLayout:
        """Return where records can be in the context."""
        return RecordLayout(self.context, self.n_records, 2, self.modulus)

    def balance(self) -> PositionBalance:
        """Return the target positions, centred in the context; raises as :meth:`RecordLayout.balance`."""
        return self.layout().balance()

    def position_distribution(self, residue: int) -> tuple[list[int], list[Fraction]]:
        """Target positions of a residue and their exact probabilities, see :class:`PositionBalance`."""
        return self.balance().distribution(residue)

    def sample(
        self, n: int, *, seed: int, query_phase: int | None = None, query_stride: int | None = None
    ) -> Prompts:
        """Phase-balanced test prompts.

        Row i shows base prompt i // R at residue i % R and depends on (seed, i) only, so a smaller sample is
        the beginning of a larger one. Moments of the target position are equal over residues exactly when
        n / R is a multiple of R², else nearly: see :meth:`Prompts.position_deviation`.

        Parameters
        ----------
        n : int
            Rows; a last block that is not full is cut.
        seed : int
            Seed of everything random.
        query_phase : int or None
            Lengthen the fillers between context and demonstrations until (q+1) mod `query_stride` is this;
            targets stay where they are. None adds none.
        query_stride : int or None
            The stride `query_phase` refers to; None is R.

        Raises
        ------
        TaskError
            If n < 1, the query phase does not exist, or the context cannot be balanced.
        """
        if isinstance(n, bool) or n < 1:
            raise TaskError(f"n={n!r} prompts; valid: 1 or more, best a multiple of modulus={self.modulus}")
        extra = self._extra_fillers(query_phase, query_stride)
        balance = self.balance()
        blocks = -(-n // self.modulus)
        windows = balance.windows(0, blocks, seed=seed)
        targets = balance.targets(windows)
        built = [self._block(seed, i, int(windows[i]), targets[i], extra) for i in range(blocks)]
        tokens = torch.from_numpy(np.concatenate([rows for rows, _ in built]))[:n]
        answer = torch.from_numpy(np.repeat([value for _, value in built], self.modulus))[:n]
        row = torch.arange(n)
        return Prompts(
            tokens=tokens,
            answer=answer,
            target_position=torch.from_numpy(targets.reshape(-1))[:n],
            query_position=tokens.shape[1] - 1,
            residue=row % self.modulus,
            prompt_id=row // self.modulus,
            modulus=self.modulus,
        )

    def sample_pairs(
        self, n: int, *, seed: int, kind: Literal["value", "shift"], shift: int = 1
    ) -> tuple[Prompts, Prompts]:
        """Pairs of prompts that differ in one thing.

        Parameters
        ----------
        n, seed : int
            As in :meth:`sample`; n is a multiple of R.
        kind : "value" or "shift"
            The corrupt prompt has another value after the target key, which is its answer; or shows the same
            base prompt with the target at residue (r + shift) mod R.
        shift : int
            Residues to shift by.

        Returns
        -------
        clean, corrupt : Prompts
            Row by row.

        Raises
        ------
        TaskError
            For another kind, an n that is not a multiple of R, or a single value in the vocabulary.
        """
        if n % self.modulus:
            raise TaskError(f"n={n} is not a multiple of modulus={self.modulus}: pairs come in whole blocks")
        clean = self.sample(n, seed=seed)
        row = torch.arange(n)
        if kind == "shift":
            order = row - row % self.modulus + (row + shift % self.modulus) % self.modulus
            return clean, clean.select(order)
        if kind != "value":
            raise TaskError(f"kind={kind!r}; valid: value, shift")
        if self.n_values < 2:
            raise TaskError("kind='value' needs another value; n_values=1")
        steps = [
            int(numpy_rng(seed, "other value", i).integers(1, self.n_values))
            for i in range(n // self.modulus)
        ]
        moved = clean.answer - self.values.start + torch.tensor(steps).repeat_interleave(self.modulus)
        answer = moved % self.n_values + self.values.start
        tokens = clean.tokens.clone()
        tokens[row, clean.target_position + 1] = answer
        return clean, dataclasses.replace(clean, tokens=tokens, answer=answer)

    def _extra_fillers(self, query_phase: int | None, query_stride: int | None) -> int:
        if query_phase is None:
            return 0
        stride = self.modulus if query_stride is None else query_stride
        if stride < 1 or not 0 <= query_phase < stride:
            raise TaskError(
                f"query_phase={query_phase} does not exist at stride {stride}; valid: 0 to {stride - 1}"
            )
        return (query_phase - self.length) % stride  # (q+1) = T

    def _block(
        self, seed: int, index: int, window: int, targets: np.ndarray, extra: int
    ) -> tuple[Int64[np.ndarray, "residue pos"], int]:
        """Return base prompt `index` at every residue, and its answer."""
        rng = numpy_rng(seed, "recall", index)
        keys = rng.choice(self.n_keys, self.n_records, replace=False) + self.keys.start
        values = rng.integers(self.n_values, size=self.n_records) + self.values.start
        filler = rng.integers(self.n_filler, size=self.context - 2 * self.n_records)
        layout = self.layout()
        rank = layout.rank(window)
        others = np.delete(np.arange(self.n_records), rank)
        shown = rng.permutation(others)[: self.n_demonstrations]
        starts = (
            layout.prefix(rng, rank, window, targets)
            if self.padding == "prefix"
            else layout.in_sequence(rng, rank, targets)
        )
        context = layout.write(np.stack([keys, values], 1), starts, filler)
        demonstrations = np.stack([np.full_like(shown, self.marker), keys[shown], values[shown]], 1).reshape(
            -1
        )
        between = numpy_rng(seed, "query fillers", index).integers(self.n_filler, size=extra)
        tail = np.concatenate([between, demonstrations, [self.marker, keys[rank]]])
        return np.concatenate([context, np.tile(tail, (len(targets), 1))], 1), int(values[rank])


def _strides(model: Any) -> list[int]:
    geometries = [model.geometry(layer) for layer in range(model.cfg.n_layers)]
    return sorted({geometry.stride for geometry in geometries if geometry is not None})


def _feasible_modulus(task: RecallTask, strides: list[int]) -> int:
    """Return the shared modulus, or its largest divisor that fits and is a multiple of the strides in it."""
    wanted = common_residue_modulus(strides)
    longest = min((task.context + 1) // 3, task.context - 2 * task.n_records)
    if strides and not any(wanted % stride == 0 for stride in strides):
        # None shares the axis: a sweep of its own, at as many cycles of the smallest stride as fit.
        wanted = strides[0] * max(1, min(longest, MOST_RESIDUES) // strides[0])
    unit = math.lcm(*[stride for stride in strides if wanted % stride == 0])
    for modulus in range(wanted, 0, -unit):
        if wanted % modulus == 0 and modulus <= longest:
            return modulus
    raise TaskError(
        f"context={task.context} with {task.n_records} records fits no modulus above {longest}, and strides "
        f"{strides} need a multiple of {unit}; use a longer context or fewer records"
    )
