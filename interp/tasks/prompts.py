"""The prompts every task hands out: one scored target each, in blocks of R residues over one base prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor

from hooks.errors import TaskError

__all__ = ["PositionDeviation", "Prompts", "Task"]


class PositionDeviation(NamedTuple):
    """Largest difference between residues in mean (tokens) and variance (tokens²) of the target position."""

    mean: float
    variance: float


@dataclass(frozen=True, eq=False)
class Prompts:
    """Rectangular prompts and what is known about them.

    Parameters
    ----------
    tokens : Int64[Tensor, "n pos"]
        Token ids.
    answer : Int64[Tensor, "n"]
        The token id that is right after the last position.
    target_position : Int64[Tensor, "n"]
        Position of the target key in the context.
    query_position : int
        Position of the query, always T−1.
    residue : Int64[Tensor, "n"]
        target_position mod R.
    prompt_id : Int64[Tensor, "n"]
        Which base prompt a row shows: row // R in a fresh sample.
    modulus : int
        R.
    alternative : Int64[Tensor, "n"] or None
        Another token id that is as right, for models that may begin a reply either way; where there is only
        one, the answer again.

    Raises
    ------
    TaskError
        If the lengths disagree, a residue is not its position's, or the query is not the last position.
    """

    tokens: Int64[Tensor, "n pos"]
    answer: Int64[Tensor, " n"]
    target_position: Int64[Tensor, " n"]
    query_position: int
    residue: Int64[Tensor, " n"]
    prompt_id: Int64[Tensor, " n"]
    modulus: int
    alternative: Int64[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2:
            raise TaskError(
                f"tokens have shape {tuple(self.tokens.shape)}; prompts are one rectangle [n, pos]"
            )
        for name in ("answer", "target_position", "residue", "prompt_id", "alternative"):
            if getattr(self, name) is None:
                continue
            shape = tuple(getattr(self, name).shape)
            if shape != (len(self),):
                raise TaskError(
                    f"{name} has shape {shape} for {len(self)} prompts; one value per prompt is needed"
                )
        if self.query_position != self.tokens.shape[1] - 1:
            raise TaskError(
                f"query_position={self.query_position} is not the last position {self.tokens.shape[1] - 1}"
            )
        if not torch.equal(self.target_position % self.modulus, self.residue):
            raise TaskError(f"residue is not target_position mod {self.modulus}")

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def select(self, index: Any) -> Prompts:
        """Return the rows of an index, mask or slice."""
        return Prompts(
            tokens=self.tokens[index],
            answer=self.answer[index],
            target_position=self.target_position[index],
            query_position=self.query_position,
            residue=self.residue[index],
            prompt_id=self.prompt_id[index],
            modulus=self.modulus,
            alternative=None if self.alternative is None else self.alternative[index],
        )

    def to(self, device: torch.device | str) -> Prompts:
        """Return the same prompts on a device."""
        return Prompts(
            tokens=self.tokens.to(device),
            answer=self.answer.to(device),
            target_position=self.target_position.to(device),
            query_position=self.query_position,
            residue=self.residue.to(device),
            prompt_id=self.prompt_id.to(device),
            modulus=self.modulus,
            alternative=None if self.alternative is None else self.alternative.to(device),
        )

    def accepted(self) -> Int64[Tensor, "n right"]:
        """Every token id that is right, the answer first: one column, or two with alternatives."""
        columns = [self.answer] if self.alternative is None else [self.answer, self.alternative]
        return torch.stack(columns, dim=1)

    def position_deviation(self) -> PositionDeviation:
        """How far the sample is from equal moments: (0, 0) when the count per residue is a multiple of R².

        Raises
        ------
        TaskError
            If a residue has no prompt.
        """
        count = torch.bincount(self.residue, minlength=self.modulus).cpu()
        if (count == 0).any():
            missing = [r for r in range(self.modulus) if count[r] == 0]
            raise TaskError(
                f"no prompt has residue {missing[0]}; moments need every residue 0 to {self.modulus - 1}"
            )
        # Integer sums: equal moments give exactly 0, not a rounding error.
        position = self.target_position.cpu()
        residue = self.residue.cpu()
        total = torch.zeros_like(count).index_add_(0, residue, position)
        square = torch.zeros_like(count).index_add_(0, residue, position**2)
        mean = total.double() / count
        variance = (square * count - total**2).double() / count.double() ** 2
        return PositionDeviation(float(mean.max() - mean.min()), float(variance.max() - variance.min()))


@runtime_checkable
class Task(Protocol):
    """What every measurement needs from a task."""

    @property
    def modulus(self) -> int:
        """R, rows per base prompt."""
        ...

    @property
    def d_vocab(self) -> int:
        """Number of token ids."""
        ...

    def sample(self, n: int, *, seed: int) -> Prompts:
        """`n` rows, in blocks of R; the first rows do not depend on `n`."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON values, for provenance."""
        ...
