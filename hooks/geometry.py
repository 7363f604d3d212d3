"""All window, stride and phase arithmetic; pure integers, and the only place for it.

Entries END at multiples of the stride (DeepSeek's convention): entry j covers tokens
(j+1)·S−W … (j+1)·S−1, clipped at 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hooks.errors import ConfigError

__all__ = ["MOST_RESIDUES", "ChunkGeometry", "common_residue_modulus"]

MOST_RESIDUES = 48
"""Largest R that models of several strides share."""


@dataclass(frozen=True)
class ChunkGeometry:
    """The geometry of one chunked compressor: one entry every `stride` tokens, each pooling `window` tokens.

    Parameters
    ----------
    window : int
        W, tokens pooled into one entry.
    stride : int
        S, tokens between the ends of two entries; W ≥ S ≥ 1.

    Raises
    ------
    ConfigError
        If either is not an integer, or unless W ≥ S ≥ 1.

    Examples
    --------
    >>> g = ChunkGeometry(window=8, stride=6)
    >>> [g.offset_phase(i) for i in range(8)]
    [4, 5, 0, 1, 2, 3, 4, 5]
    >>> g.covered(0), g.covered(1), g.entries_of(4)
    (range(0, 6), range(4, 12), range(0, 2))
    """

    window: int
    stride: int

    def __post_init__(self) -> None:
        for name in ("window", "stride"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name}={value!r} is not an integer; window and stride count tokens")
        if not self.window >= self.stride >= 1:
            raise ConfigError(
                f"window={self.window}, stride={self.stride}: a chunked compressor needs window >= stride >= 1, "
                "otherwise some tokens would be in no entry"
            )

    @property
    def boundary_phase(self) -> int:
        """S−1, the phase of the token that closes an entry."""
        return self.stride - 1

    def phase(self, token: int) -> int:
        """Phase φ(t) = t mod S of a token position."""
        return _position(token) % self.stride

    def query_phase(self, query: int) -> int:
        """(q+1) mod S: how many tokens of the open window query `q` has seen, itself included."""
        return (_position(query) + 1) % self.stride

    def offset_phase(self, offset: int) -> int:
        """Phase of the token in slot `offset` (0 … W−1) of every window: (i−W) mod S."""
        if not 0 <= offset < self.window:
            raise ConfigError(f"offset {offset} is outside the window; valid: 0 to {self.window - 1}")
        return (offset - self.window) % self.stride

    def phase_offsets(self, phase: int) -> list[int]:
        """All offsets whose tokens have this phase, ascending (two or more where windows overlap)."""
        if not 0 <= phase < self.stride:
            raise ConfigError(
                f"phase {phase} does not exist at stride {self.stride}; valid: 0 to {self.stride - 1}"
            )
        return [offset for offset in range(self.window) if self.offset_phase(offset) == phase]

    def covered(self, entry: int) -> range:
        """Token positions pooled into entry `j`, clipped at 0."""
        end = (_position(entry, "entry") + 1) * self.stride
        return range(max(0, end - self.window), end)

    def entries_of(self, token: int) -> range:
        """Every entry that pools token `t`, closed yet or not: t//S … (t+W)//S − 1."""
        token = _position(token)
        return range(token // self.stride, (token + self.window) // self.stride)

    def visible(self, query: int) -> int:
        """How many entries query `q` may read: those whose last token is at or before `q`."""
        return (_position(query) + 1) // self.stride

    def closes_at(self, token: int) -> int:
        """Position of the last token of the first entry that pools token `t`: (t//S+1)·S−1."""
        return (_position(token) // self.stride + 1) * self.stride - 1

    def n_entries(self, length: int) -> int:
        """Entries closed by a sequence of `length` tokens."""
        if length < 0:
            raise ConfigError(f"length {length} is negative; a sequence has 0 or more tokens")
        return length // self.stride

    def unreachable(self, query: int, exact_window: int) -> range:
        """Positions that query `q` can read neither exactly nor through an entry (the blind gap).

        Parameters
        ----------
        query : int
            Position of the query.
        exact_window : int
            Number of exact tokens the query sees, itself included.

        Returns
        -------
        range
            Empty iff ``exact_window >= query_phase(query)``.
        """
        return range(self.visible(query) * self.stride, max(0, query + 1 - exact_window))


def common_residue_modulus(strides: Iterable[int], base: int = 24, limit: int = MOST_RESIDUES) -> int:
    """R, the modulus of the residue axis that models of these strides share.

    Parameters
    ----------
    strides : iterable of int
        Strides of the layers that are compared; those that would push R over `limit` are left out and
        get a sweep of their own at R = stride.
    base : int
        24 by default: the axis of the paper.
    limit : int
        Largest R.

    Returns
    -------
    int
        lcm of 24 and all strides for which it stays ≤ 48.
    """
    modulus = base
    for stride in sorted(set(strides)):
        if math.lcm(modulus, stride) <= limit:
            modulus = math.lcm(modulus, stride)
    return modulus


def _position(value: int, kind: str = "position") -> int:
    if value < 0:
        raise ConfigError(f"{kind} {value} is negative; {kind}s count from 0")
    return value
