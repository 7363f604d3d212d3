"""Attention over exact tokens, compressed entries and a sink: one softmax, every step a hook site.

Axis legend: rows R = B·U (U variants of each of B sequences share their past, row = b·U + u), query T,
head H = G·P (P query heads a KV head), d_head D, key n.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from hooks.cache import LayerState, kept_exact, kept_inputs
from hooks.compressor import Compressor
from hooks.config import ModelConfig
from hooks.numerics import RMSNorm, masked_softmax, rope_tables, rotate, working_dtype

__all__ = ["Attention", "Segment", "attend"]

MAX_SCORES = 1 << 26
"""Scores formed at once without hooks on them; longer prefills go through in blocks of queries."""


class Segment(NamedTuple):
    """Keys and values that some rows read.

    Attributes
    ----------
    key, value : float tensor [R or B, n, G, D]
        With B < R, the R/B variants of a sequence share them.
    mask : bool tensor [T, n] or None
        True where query may read key; None: everything.
    """

    key: Float[Tensor, "b n g d"]
    value: Float[Tensor, "b n g d"]
    mask: Bool[Tensor, "t n"] | None


def _scores(q: Tensor, key: Tensor) -> Tensor:
    """Dot products [R, H, T, n] of q [R, T, H, D] with shared or own keys."""
    shared, groups = key.shape[0], key.shape[2]
    u, t = q.shape[0] // shared, q.shape[1]
    q = rearrange(q, "(b u) t (g p) d -> b g (u p t) d", u=u, g=groups)
    out = q @ rearrange(key, "b n g d -> b g d n")
    return rearrange(out, "b g (u p t) n -> (b u) (g p) t n", u=u, t=t)


def _mix(weights: Tensor, value: Tensor) -> Tensor:
    """Weighted sums [R, T, H, D] of shared or own values."""
    shared, groups = value.shape[0], value.shape[2]
    u, t = weights.shape[0] // shared, weights.shape[2]
    weights = rearrange(weights, "(b u) (g p) t n -> b g (u p t) n", u=u, g=groups)
    out = weights @ rearrange(value, "b n g d -> b g n d")
    return rearrange(out, "b g (u p t) d -> (b u) t (g p) d", u=u, t=t)


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
    """
    shared = any(segment.key.shape[0] != q.shape[0] for segment in segments)
    if segments and hook_scores is None and not (hidden or may_be_empty or shared):
        return _fused(q, segments, sink)
    rows, t, heads, d_head = q.shape
    wide = working_dtype(q.dtype)
    parts = []
    for segment in segments:
        scores = (_scores(q, segment.key) * d_head**-0.5).to(wide)
        parts.append(scores if segment.mask is None else scores.masked_fill(~segment.mask, -torch.inf))
    if hidden:
        parts.insert(0, q.new_full((rows, heads, t, hidden), -torch.inf, dtype=wide))
    if sink is not None:
        parts.append(sink.to(wide)[None, :, None, None].expand(rows, heads, t, 1))
    if not parts:
        return torch.zeros_like(q)
    scores = torch.cat(parts, dim=-1)
    if hook_scores is not None:
        scores, may_be_empty = hook_scores(scores), True
    pattern = masked_softmax(scores, may_be_empty and scores.shape[-1] > 0)
    if hook_pattern is not None:
        pattern = hook_pattern(pattern)
    pattern = pattern.to(q.dtype)
    sums, column = [], hidden
    for segment in segments:
        n = segment.key.shape[1]
        sums.append(_mix(pattern[..., column : column + n], segment.value))
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
    mask = torch.cat(masks, dim=-1)
    if sink is not None:
        key, value = nn.functional.pad(key, (0, 0, 0, 0, 0, 1)), nn.functional.pad(value, (0, 0, 0, 0, 0, 1))
        bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, -torch.inf)
        column = sink.to(q.dtype)[:, None, None].expand(-1, t, 1)
        mask = torch.cat((bias.expand(len(sink), -1, -1), column), dim=-1)
    heads = q.shape[2] // groups
    key = rearrange(key.repeat_interleave(heads, dim=2), "r n h d -> r h n d")
    value = rearrange(value.repeat_interleave(heads, dim=2), "r n h d -> r h n d")
    out = nn.functional.scaled_dot_product_attention(
        rearrange(q, "r t h d -> r h t d"), key, value, attn_mask=mask
    )
    return rearrange(out, "r h t d -> r t h d")


class Attention(nn.Module):
    """Attention of one layer: exact branch, compressed entries, sink.

    Parameters
    ----------
    cfg : ModelConfig
        Of the whole model.
    index : int
        Which layer this is.
    """

    def __init__(self, cfg: ModelConfig, index: int) -> None:
        super().__init__()
        layer = cfg.layer(index)
        self.cfg, self.layer = cfg, layer
        h, g, d, m = cfg.n_heads, cfg.n_kv_heads, cfg.d_head, cfg.d_model
        self.W_Q = nn.Parameter(torch.empty(h, m, d))
        self.W_O = nn.Parameter(torch.empty(h, d, m))
        self.q_norm = RMSNorm(d) if layer.qk_norm else None
        self.hook_q, self.hook_rot_q = HookPoint(), HookPoint()
        if layer.has_exact_branch:
            self.W_K = nn.Parameter(torch.empty(g, m, d))
            self.k_norm = RMSNorm(d) if layer.qk_norm else None
            self.hook_k, self.hook_rot_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
            if not layer.tied_kv:
                self.W_V = nn.Parameter(torch.empty(g, m, d))
        if layer.geometry is not None:
            self.compressor = Compressor(cfg, layer)
            self.hook_entry_k, self.hook_entry_v = HookPoint(), HookPoint()
        self.sink = nn.Parameter(torch.zeros(h)) if layer.sink else None
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result = HookPoint(), HookPoint()

    def forward(
        self,
        x: Float[Tensor, "r t m"],
        state: LayerState | None = None,
        *,
        rewind: bool = False,
        last_only: bool = False,
    ) -> tuple[Float[Tensor, "r q m"], LayerState]:
        """Attend from every position of `x`, or from its last one only.

        Parameters
        ----------
        x : float tensor [R, T, d_model]
            Normed residual stream.
        state : LayerState or None
            The past; of B sequences with R = B·U rows.
        rewind : bool
            Keep the whole past in the returned state.
        last_only : bool
            Form the query of the last position alone.

        Returns
        -------
        output, state : float tensor [R, T or 1, d_model], LayerState
            The state covers past and present; it belongs to R rows and is of no use after a forked call.
        """
        state = state or LayerState()
        start, stop = state.length, state.length + x.shape[1]
        fresh = LayerState(stop, *self._exact(x, start), None, *self._entries(x, state, stop))
        first_query = stop - 1 if last_only else start
        tables = rope_tables(
            torch.arange(first_query, stop, device=x.device),
            self.layer.rope_dims,
            self.layer.rope_base,
            x.dtype,
        )
        q = self._query(x[:, first_query - start :], tables)
        z = self._attend(q, state, fresh, first_query)
        if self.layer.inverse_rope:
            z = rotate(z, tables, inverse=True)
        return self._output(self.hook_z(z)), self._absorbed(x, state, fresh, rewind)

    def _query(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        q = self.hook_q(_project(x, self.W_Q))
        q = q if self.q_norm is None else self.q_norm(q)
        return self.hook_rot_q(rotate(q, tables))

    def _exact(self, x: Tensor, start: int) -> tuple[Tensor | None, Tensor | None]:
        """New exact keys as scored, and values as read."""
        if not self.layer.has_exact_branch:
            return None, None
        key = self.hook_k(_project(x, self.W_K))
        key = key if self.k_norm is None else self.k_norm(key)
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        key = rotate(key, rope_tables(positions, self.layer.rope_dims, self.layer.rope_base, x.dtype))
        value = key if self.layer.tied_kv else _project(x, self.W_V)
        return self.hook_rot_k(key), self.hook_v(value)

    def _entries(self, x: Tensor, state: LayerState, stop: int) -> tuple[Tensor | None, Tensor | None]:
        """Entries that close in this call, as this layer reads them."""
        geometry = self.layer.geometry
        if geometry is None:
            return None, None
        first, end = geometry.n_entries(state.length), geometry.n_entries(stop)
        start = state.length
        if end == first:
            x = x[:, :0]
        elif state.x is not None:
            start -= state.x.shape[1]
            x = torch.cat((_for_rows(state.x, x.shape[0]), x), dim=1)
        key, value = self.compressor(x, start, first, end)
        return self.hook_entry_k(key), self.hook_entry_v(value)

    def _attend(self, q: Tensor, past: LayerState, fresh: LayerState, first_query: int) -> Tensor:
        watched = self.hook_attn_scores.fwd_hooks or self.hook_pattern.fwd_hooks
        watched = watched or self.hook_attn_scores.bwd_hooks or self.hook_pattern.bwd_hooks
        rows, t, heads, _ = q.shape
        if watched:
            return self._attend_block(q, past, fresh, first_query, full=True)
        geometry = self.layer.geometry
        columns = self._reach(fresh.length) + (geometry.n_entries(fresh.length) if geometry else 0)
        block = max(1, MAX_SCORES // max(1, rows * heads * columns))
        if block >= t:
            return self._attend_block(q, past, fresh, first_query, full=False)
        blocks = [
            self._attend_block(q[:, i : i + block], past, fresh, first_query + i, full=False)
            for i in range(0, t, block)
        ]
        return torch.cat(blocks, dim=1)

    def _reach(self, length: int) -> int:
        """How many positions back, itself included, a query may read exactly."""
        if self.layer.attention == "full":
            return length
        return self.layer.stride if self.layer.tail == "open" else self.layer.exact_window

    def _attend_block(
        self, q: Tensor, past: LayerState, fresh: LayerState, first_query: int, *, full: bool
    ) -> Tensor:
        """Attend from consecutive queries to what they can read; `full` keeps every column."""
        queries = torch.arange(first_query, first_query + q.shape[1], device=q.device)
        low = 0 if full else max(0, first_query + 1 - self._reach(first_query + 1))
        high = fresh.length if full else first_query + q.shape[1]
        segments, seen = [], high
        for key, value, begin, end in _spans(
            past.key, past.value, fresh.key, fresh.value, past.length, fresh.length
        ):
            a, b = max(begin, low), min(end, high)
            if a < b:
                seen = min(seen, a)
                positions = torch.arange(a, b, device=q.device)
                mask = self._readable(queries[:, None], positions[None, :])
                segments.append(Segment(key[:, a - begin : b - begin], value[:, a - begin : b - begin], mask))
        hidden = seen if full else 0
        geometry = self.layer.geometry
        if geometry is not None:
            old, new = geometry.n_entries(past.length), geometry.n_entries(fresh.length)
            limit = new if full else geometry.visible(first_query + q.shape[1] - 1)
            for key, value, begin, end in _spans(
                past.entry_key, past.entry_value, fresh.entry_key, fresh.entry_value, old, new
            ):
                b = min(end, limit)
                if begin < b:
                    entries = torch.arange(begin, b, device=q.device)
                    mask = (
                        entries[None, :]
                        < torch.div(queries + 1, geometry.stride, rounding_mode="floor")[:, None]
                    )
                    segments.append(Segment(key[:, : b - begin], value[:, : b - begin], mask))
        return attend(
            q,
            segments,
            sink=self.sink,
            may_be_empty=self.sink is None and not self.layer.has_exact_branch,
            hook_scores=self.hook_attn_scores if full else None,
            hook_pattern=self.hook_pattern if full else None,
            hidden=hidden,
        )

    def _readable(self, query: Tensor, position: Tensor) -> Tensor:
        """Which exact positions each query may read."""
        causal = position <= query
        if self.layer.attention == "full":
            return causal
        if self.layer.tail == "open":
            same = torch.div(position, self.layer.stride, rounding_mode="floor") == torch.div(
                query, self.layer.stride, rounding_mode="floor"
            )
            return causal & same
        return causal & (position > query - self.layer.exact_window)

    def _output(self, z: Tensor) -> Tensor:
        if self.hook_result.fwd_hooks or self.hook_result.bwd_hooks:
            return self.hook_result(torch.einsum("rthd,hdm->rthm", z, self.W_O)).sum(2)
        return z.flatten(2) @ self.W_O.flatten(0, 1)

    def _absorbed(self, x: Tensor, past: LayerState, fresh: LayerState, rewind: bool) -> LayerState:
        """What queries after this call can read."""
        layer = self.layer
        exact = kept_exact(layer, fresh.length, rewind)
        key, value = _extend(past.key, fresh.key, exact), _extend(past.value, fresh.value, exact)
        if layer.geometry is None:
            return LayerState(fresh.length, key, value)
        entry_key = _extend(past.entry_key, fresh.entry_key)
        tied = past.entry_key is past.entry_value and fresh.entry_key is fresh.entry_value
        entry_value = entry_key if tied else _extend(past.entry_value, fresh.entry_value)
        inputs = _extend(past.x, x, kept_inputs(layer, fresh.length, rewind))
        return LayerState(fresh.length, key, value, inputs, entry_key, entry_value)


def _project(x: Tensor, weight: Tensor) -> Tensor:
    """Project x [R, T, m] with weight [heads, m, d] to [R, T, heads, d]."""
    heads, m, d = weight.shape
    return (x @ weight.permute(1, 0, 2).reshape(m, heads * d)).unflatten(-1, (heads, d))


def _for_rows(shared: Tensor, rows: int) -> Tensor:
    """Repeat what B sequences share for each of their variants."""
    return shared if shared.shape[0] == rows else shared.repeat_interleave(rows // shared.shape[0], dim=0)


def _extend(past: Tensor | None, fresh: Tensor | None, keep: int | None = None) -> Tensor | None:
    """Append along axis 1 and keep the last `keep` rows, as a tensor of its own."""
    if fresh is None:
        return past
    if past is not None and past.shape[0] != fresh.shape[0]:
        return None
    whole = fresh if past is None else torch.cat((past, fresh), dim=1)
    return whole if keep is None or keep >= whole.shape[1] else whole[:, whole.shape[1] - keep :].clone()


def _spans(old_key, old_value, new_key, new_value, boundary: int, end: int):
    """Past and present tensors with the absolute range each covers."""
    if old_key is not None and old_key.shape[1]:
        yield old_key, old_value, boundary - old_key.shape[1], boundary
    if new_key is not None and new_key.shape[1]:
        yield new_key, new_value, boundary, end
