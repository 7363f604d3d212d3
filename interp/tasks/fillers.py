"""Fillers of the completion test: families of units, and how many tokens they add where they stand.

Every length is measured on the tokens of the whole text; a filler that merges with its surroundings makes none.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from interp.tasks.completion import CompletionTask, Measured

__all__ = ["FILLER_FAMILIES", "SHORTEST", "Slot", "filler_of", "filler_units", "fillers_by_tokens"]

FILLER_FAMILIES = ("equals", "words", "digits", "newlines")
"""' =' repeated; common words; one digit repeated; line ends."""

Slot = Literal["docstring", "comment"]
# The pieces on either side of an empty filler can merge, so balanced samples always have some.
SHORTEST = 2
_WORDS = " the and for with that from this they have been one all our more when can other some into time than"


def filler_units(family: str) -> list[tuple[str, ...]]:
    """Every filler unit of a family, cycled, that a sample can use; words are put in a new order for each."""
    if family == "digits":
        return [(digit,) for digit in "1479"]
    if family == "words":
        return [tuple(f" {word}" for word in _WORDS.split())]
    return [(" =",) if family == "equals" else ("\n",)]


@lru_cache(maxsize=256)
def fillers_by_tokens(task: CompletionTask, slot: str, unit: tuple[str, ...], longest: int) -> dict[int, str]:
    """Fillers by the tokens they add, measured, with everything before and after them unchanged."""
    bare = task.measure("", "", 0)
    found: dict[int, str] = {}
    for count in range(4 * longest + 17):
        fill = "".join(unit[i % len(unit)] for i in range(count))
        added = _added(task, slot, fill, bare)
        if added is not None and added <= longest:
            found.setdefault(added, fill)
        # Merges make the count uneven, but only by a few tokens.
        if len(found) > longest or (added or 0) > longest + 16:
            break
    return found


def _added(task: CompletionTask, slot: str, fill: str, bare: Measured) -> int | None:
    """Tokens a filler adds, None where it merges with its surroundings."""
    got = task.measure(fill, "", 0) if slot == "docstring" else task.measure("", fill, 0)
    if slot == "comment":
        return (
            len(got.ids) - len(bare.ids)
            if got.ids[: bare.target + 1] == bare.ids[: bare.target + 1]
            else None
        )
    return got.target - bare.target if got.ids[got.target :] == bare.ids[bare.target :] else None


def filler_of(task: CompletionTask, slot: Slot, unit: tuple[str, ...], wanted: int) -> str | None:
    """Return the filler that adds `wanted` tokens, None where there is none."""
    plain = "".join(unit[i % len(unit)] for i in range(wanted))
    if _added(task, slot, plain, task.measure("", "", 0)) == wanted:
        return plain
    return fillers_by_tokens(task, slot, unit, max(wanted, task.longest_filler(slot))).get(wanted)
