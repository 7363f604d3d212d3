"""Where records and fillers go in a context, given where the target must be.

Axis legend: residue (the rows of one block), record, k (tokens of one record).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from hooks.errors import TaskError
from interp.tasks.balance import PositionBalance

__all__ = ["RecordLayout"]


@dataclass(frozen=True)
class RecordLayout:
    """Equally long records between fillers, one of which, the target, can be put at R consecutive positions.

    Parameters
    ----------
    context : int
        Positions of records and fillers together.
    n_records, record_tokens : int
        Records, and tokens of each.
    modulus : int
        R.
    anchor : int
        Which token of the target record its position is counted at, 0 … record_tokens−1.
    offset : int
        Tokens before the context; target positions count them, starts of records do not.
    """

    context: int
    n_records: int
    record_tokens: int
    modulus: int
    anchor: int = 0
    offset: int = 0

    @property
    def n_fillers(self) -> int:
        """Positions of the context that no record takes."""
        return self.context - self.n_records * self.record_tokens

    def balance(self) -> PositionBalance:
        """Return the target positions, centred in the context.

        Raises
        ------
        TaskError
            If the context is too short for R residues, or has too few fillers to move a target by R−1.
        """
        needed = self.modulus + self.record_tokens - 2
        if self.n_fillers < needed:
            raise TaskError(
                f"context={self.context} has {max(0, self.n_fillers)} fillers at n_records={self.n_records}; "
                f"modulus={self.modulus} needs {needed}: use a longer context, fewer records or less modulus"
            )
        centred = PositionBalance.centred(self.modulus, self.context - self.record_tokens + 1)
        return PositionBalance(self.modulus, centred.start + self.anchor + self.offset)

    def rank(self, window: int) -> int:
        """Return the target's rank among the records for target positions `window` … `window`+R−1.

        It is the rank of an even spread, moved so that every one of these positions is possible.
        """
        start = window - self.anchor - self.offset
        size, records = self.record_tokens, self.n_records
        low = max(0, -(-(start + self.modulus - 1 + size * records - self.context) // size))
        high = min(records - 1, start // size)
        even = round((start + (self.modulus - 1) / 2) * records / self.context)
        return min(max(even, low), high)

    def in_sequence(
        self, rng: np.random.Generator, rank: int, targets: Int64[np.ndarray, " residue"]
    ) -> Int64[np.ndarray, "residue record"]:
        """Draw the starts of all records, with other gaps at each target position."""
        start = targets - self.anchor - self.offset
        size, after = self.record_tokens, self.n_records - 1 - rank
        left = _spread(rng, rank, start - size * rank, size)
        right = _spread(rng, after, self.context - start - size * (after + 1), size)
        return np.concatenate([left, start[:, None], right + start[:, None] + size], 1)

    def prefix(
        self, rng: np.random.Generator, rank: int, window: int, targets: Int64[np.ndarray, " residue"]
    ) -> Int64[np.ndarray, "residue record"]:
        """Draw one layout and move it as a whole, so that R−1 fillers are left around it."""
        shorter = RecordLayout(
            self.context - self.modulus + 1,
            self.n_records, self.record_tokens, self.modulus, self.anchor, self.offset,
        )  # fmt: skip
        return shorter.in_sequence(rng, rank, np.array([window])) + (targets - window)[:, None]

    def write(
        self,
        records: Int64[np.ndarray, "record k"],
        starts: Int64[np.ndarray, "residue record"],
        fillers: Int64[np.ndarray, " filler"],
    ) -> Int64[np.ndarray, "residue context"]:
        """Write records at their starts and the fillers, in order, everywhere else."""
        context = np.empty((len(starts), self.context), dtype=np.int64)
        is_filler = np.ones_like(context, dtype=bool)
        for place in range(self.record_tokens):
            np.put_along_axis(context, starts + place, np.broadcast_to(records[:, place], starts.shape), 1)
            np.put_along_axis(is_filler, starts + place, False, 1)
        context[is_filler] = np.tile(fillers, len(starts))
        return context


def _spread(
    rng: np.random.Generator, records: int, fillers: Int64[np.ndarray, " row"], size: int
) -> Int64[np.ndarray, "row record"]:
    """Mix `records` records with each row's number of fillers uniformly; return the starts, ascending."""
    slots = records + int(fillers.max())
    score = rng.random((len(fillers), slots))
    score[np.arange(slots) >= records + fillers[:, None]] = np.inf
    chosen = np.sort(np.argsort(score, 1, kind="stable")[:, :records], 1)
    return chosen + (size - 1) * np.arange(records)
