"""What picks set by a hook may name: one rule for our own models and for both adapters of DeepSeek-V4."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

from hooks.errors import SiteError

__all__ = ["readable_picks", "require_range"]


def readable_picks(
    picks: Int[Tensor, "*batch t k"], visible: Int[Tensor, " t"], total: int, *, name: str
) -> Int[Tensor, "*batch t k"]:
    """Return picks a hook has set with those emptied (−1) that their query may not read.

    An entry that closes after the query is of the future; one that an earlier pick of the same query names is
    read once.

    Parameters
    ----------
    picks : integer tensor [..., T, k]
        Entries, −1 where empty.
    visible : integer tensor [T]
        Entries that each query sees.
    total : int
        Entries there are.
    name : str
        Of the site, for the error.

    Raises
    ------
    SiteError
        If a pick names an entry that does not exist.
    """
    require_range(picks, total, name=name, what="pick")
    picks = picks.masked_fill(picks >= visible[:, None].to(picks.device), -1)
    same = picks[..., :, None] == picks[..., None, :]
    return picks.masked_fill(same.tril(-1).any(-1), -1)


def require_range(chosen: Int[Tensor, "*any"], total: int, *, name: str, what: str) -> None:
    """Raise unless every number is −1 (empty) or below `total`.

    Raises
    ------
    SiteError
        Naming the site, one number that is not, and the valid ones.
    """
    if not chosen.numel():
        return
    low, high = (int(value) for value in chosen.aminmax())
    if low < -1 or high >= total:
        raise SiteError(
            f"{name}: {what} {low if low < -1 else high} does not exist; valid: -1 (empty) to {total - 1}"
        )
