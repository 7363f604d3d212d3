"""One softmax over exact tokens, compressed entries and a sink.

Axis legend: rows R = B·U (U variants of each of B sequences share their past, row = b·U + u), query T,
head H = G·P (P query heads a KV head), d_head D, key n.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from hooks.numerics import masked_softmax, working_dtype
from hooks.points import HookPoint
from hooks.running import require_unread

__all__ = ["Segment", "attend", "dot_products", "mass", "mix", "scores_of"]


class Segment(NamedTuple):
    """Keys and values that some rows read.

    Attributes
    ----------
    key, value : float tensor [R or B, n, G, D]
        With B < R, the R/B variants of a sequence share them.
    mask : bool tensor [T, n] or [R, T, n], or None
        True where query may read key; None: everything.
    """

    key: Float[Tensor, "b n g d"]
    value: Float[Tensor, "b n g d"]
    mask: Bool[Tensor, "*r t n"] | None

    @classmethod
    def of(cls, key: Tensor, value: Tensor, part: slice, mask: Tensor | None) -> Segment:
        """Part of keys and values, which stay one tensor where they are one."""
        piece = key[:, part]
        return cls(piece, piece if value is key else value[:, part], mask)


def dot_products(q: Tensor, key: Tensor) -> Tensor:
    """Dot products [R, H, T, n] of q [R, T, H, D] with shared or own keys."""
    shared, groups = key.shape[0], key.shape[2]
    u, t = q.shape[0] // shared, q.shape[1]
    q = rearrange(q, "(b u) t (g p) d -> b g (u p t) d", u=u, g=groups)
    out = q @ rearrange(key, "b n g d -> b g d n")
    return rearrange(out, "b g (u p t) n -> (b u) (g p) t n", u=u, t=t)


def mix(weights: Tensor, value: Tensor) -> Tensor:
    """Weighted sums [R, T, H, D] of shared or own values."""
    shared, groups = value.shape[0], value.shape[2]
    u, t = weights.shape[0] // shared, weights.shape[2]
    weights = rearrange(weights, "(b u) (g p) t n -> b g (u p t) n", u=u, g=groups)
    out = weights @ rearrange(value, "b n g d -> b g n d")
    return rearrange(out, "b g (u p t) d -> (b u) t (g p) d", u=u, t=t)


def scores_of(q: Tensor, segments: list[Segment], sink: Tensor | None, hidden: int = 0) -> list[Tensor]:
    """Scaled and masked scores, segment by segment, with the hidden positions first and the sink last."""
    rows, t, heads, d_head = q.shape
    wide = working_dtype(q.dtype)
    parts = []
    for segment in segments:
        scores = (dot_products(q, segment.key) * d_head**-0.5).to(wide)
        mask = segment.mask if segment.mask is None or segment.mask.ndim == 2 else segment.mask[:, None]
        parts.append(scores if mask is None else scores.masked_fill(~mask, -torch.inf))
    if hidden:
        parts.insert(0, q.new_full((rows, heads, t, hidden), -torch.inf, dtype=wide))
    if sink is not None:
        parts.append(sink.to(wide)[None, :, None, None].expand(rows, heads, t, 1))
    return parts


def mass(
    q: Float[Tensor, "r t h d"], segments: list[Segment], sink: Float[Tensor, " h"] | None, skip: int
) -> Float[Tensor, "r t n"]:
    """Softmax mass of every column behind the first `skip`, summed over heads; the sink's left out."""
    pattern = masked_softmax(torch.cat(scores_of(q, segments, sink), dim=-1), True)
    return pattern[..., skip : pattern.shape[-1] - (sink is not None)].sum(1)


def attend(
    q: Float[Tensor, "r t h d"],
    segments: list[Segment],
    *,
    sink: Float[Tensor, " h"] | None = None,
    may_be_empty: bool = False,
    hook_scores: HookPoint | None = None,
    hook_pattern: HookPoint | None = None,
    hidden: int = 0,
) -> Float[Tensor, "r t h d"]:
    """One softmax over all segments and the sink.

    Parameters
    ----------
    q : float tensor [R, T, H, D]
        Normed and rotated queries.
    segments : list of Segment
        Exact positions first, entries after them.
    sink : float tensor [H] or None
        Logit of the sink, which draws mass and adds nothing.
    may_be_empty : bool
        Whether a query may read nothing at all; its output is then 0.
    hook_scores, hook_pattern : HookPoint or None
        Fired on full maps [R, H, T, hidden + Σn (+1)] when given; both or neither.
    hidden : int
        Positions before the first segment that nobody can read: columns of −inf scores.

    Returns
    -------
    float tensor [R, T, H, D]
        Per-head outputs before any inverse rotation.

    Raises
    ------
    SiteError
        If a hook gives a hidden position a score or weight: there is no key or value that it could reach.
    """
    shared = any(segment.key.shape[0] != q.shape[0] for segment in segments)
    if segments and hook_scores is None and not (hidden or may_be_empty or shared):
        return _fused(q, segments, sink)
    parts = scores_of(q, segments, sink, hidden)
    if not parts:
        return torch.zeros_like(q)
    scores = torch.cat(parts, dim=-1)
    if hook_scores is not None:
        scores, may_be_empty = hook_scores(scores), True
        require_unread(scores[..., :hidden] != -torch.inf, "scores")
    pattern = masked_softmax(scores, may_be_empty and scores.shape[-1] > 0)
    if hook_pattern is not None:
        pattern = hook_pattern(pattern)
        require_unread(pattern[..., :hidden] != 0, "weights")
    pattern = pattern.to(q.dtype)
    sums, column = [], hidden
    for segment in segments:
        n = segment.key.shape[1]
        sums.append(mix(pattern[..., column : column + n], segment.value))
        column += n
    return torch.stack(sums).sum(0) if len(sums) > 1 else sums[0] if sums else torch.zeros_like(q)


def _fused(q: Tensor, segments: list[Segment], sink: Tensor | None) -> Tensor:
    """Return the same without forming maps: torch's scaled-dot-product kernel over all columns at once.

    The sink is a key of zeros whose mask adds its logit and whose value is zero.
    """
    groups, t = segments[0].key.shape[2], q.shape[1]
    key = torch.cat([segment.key for segment in segments], dim=1)
    value = torch.cat([segment.value for segment in segments], dim=1)
    masks = [
        q.new_ones((t, segment.key.shape[1]), dtype=torch.bool) if segment.mask is None else segment.mask
        for segment in segments
    ]
    if any(mask.ndim == 3 for mask in masks):
        masks = [mask.expand(len(q), -1, -1) for mask in masks]
    mask = torch.cat(masks, dim=-1)
    if mask.ndim == 3:
        mask = mask[:, None]
    if sink is not None:
        key, value = nn.functional.pad(key, (0, 0, 0, 0, 0, 1)), nn.functional.pad(value, (0, 0, 0, 0, 0, 1))
        bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, -torch.inf)
        bias = bias.expand(*bias.shape[:-3], len(sink), -1, -1)
        column = sink.to(q.dtype)[:, None, None].expand(*bias.shape[:-1], 1)
        mask = torch.cat((bias, column), dim=-1)
    heads = q.shape[2] // groups
    key = rearrange(key.repeat_interleave(heads, dim=2), "r n h d -> r h n d")
    value = rearrange(value.repeat_interleave(heads, dim=2), "r n h d -> r h n d")
    out = nn.functional.scaled_dot_product_attention(
        rearrange(q, "r t h d -> r h t d"), key, value, attn_mask=mask
    )
    return rearrange(out, "r h t d -> r t h d")
