"""Which keys a layer's queries are given: spans of past and present, picks as masks, picks gathered.

Axis legend: rows R = B·U (U variants of each of B sequences share their past, row = b·U + u), query T,
head H = G·P (P query heads a KV head), d_head D, key n, pick k.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from hooks.numerics import masked_softmax
from hooks.softmax import Segment, mix, scores_of

__all__ = ["attend_picks", "masked", "spans"]


def spans(
    old_key: Tensor | None,
    old_value: Tensor | None,
    new_key: Tensor | None,
    new_value: Tensor | None,
    boundary: int,
    end: int,
) -> Iterator[tuple[Tensor, Tensor, int, int]]:
    """Past and present tensors with the absolute range each covers."""
    for key, value, stop in ((old_key, old_value, boundary), (new_key, new_value, end)):
        if key is not None and value is not None and key.shape[1]:
            yield key, value, stop - key.shape[1], stop


def masked(segments: list[Segment], picked: Tensor) -> list[Segment]:
    """Hide from each row the entries that it did not pick."""
    found, column = [], 0
    for segment in segments:
        mask = picked[..., column : column + segment.key.shape[1]]
        column += segment.key.shape[1]
        found.append(segment._replace(mask=mask if segment.mask is None else segment.mask & mask))
    return found


def attend_picks(
    q: Float[Tensor, "r t h d"],
    exact: list[Segment],
    key: Float[Tensor, "b e g d"],
    value: Float[Tensor, "b e g d"],
    picks: Int[Tensor, "r t k"],
    *,
    sink: Float[Tensor, " h"] | None,
    may_be_empty: bool,
) -> Float[Tensor, "r t h d"]:
    """Attention over exact tokens and the entries each query picked, gathered: cost grows with k, not with E.

    Parameters
    ----------
    q : float tensor [R, T, H, D]
        Queries.
    exact : list of Segment
        Exact tokens.
    key, value : float tensor [B, E, G, D]
        All entries, from number 0 on.
    picks : integer tensor [R, T, k]
        Distinct entries, all visible; −1 is empty.
    sink, may_be_empty
        As in :func:`hooks.softmax.attend`.
    """
    variants, groups = q.shape[0] // key.shape[0], key.shape[2]
    row = torch.arange(q.shape[0], device=q.device).div(variants, rounding_mode="floor")[:, None, None]
    index = picks.clamp_min(0) + row * key.shape[1]
    picked_key = _rows(key, index)
    picked_value = picked_key if value is key else _rows(value, index)
    near = scores_of(q, exact, sink)
    split = rearrange(q, "r t (g p) d -> r t g p d", g=groups)
    far = torch.einsum("rtgpd,rtkgd->rgptk", split, picked_key) * q.shape[-1] ** -0.5
    far = far.flatten(1, 2).to(near[0].dtype if near else far.dtype)
    far = far.masked_fill((picks < 0)[:, None], -torch.inf)
    pattern = masked_softmax(torch.cat([far, *near], dim=-1), may_be_empty).to(q.dtype)
    column = picks.shape[-1]
    weights = pattern[..., :column].unflatten(1, (groups, -1))
    out = torch.einsum("rgptk,rtkgd->rtgpd", weights, picked_value).flatten(2, 3)
    for segment in exact:
        n = segment.key.shape[1]
        out = out + mix(pattern[..., column : column + n], segment.value)
        column += n
    return out


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Entries [R, T, k, G, D] of a table [B, E, G, D], numbered through all of it."""
    flat = nn.functional.embedding(index, table.flatten(0, 1).flatten(1))
    return flat.unflatten(-1, table.shape[2:])
