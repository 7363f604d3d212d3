"""Attention of one layer over exact tokens, compressed entries and a sink, every step a hook site.

Axis legend: rows R = B·U (U variants of each of B sequences share their past, row = b·U + u), query T,
head H = G·P (P query heads a KV head), d_head D, entry E.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hooks.cache import LayerState, SharedEntries, as_read, extend, kept_exact, kept_inputs
from hooks.compressor import Compressor, window_tokens
from hooks.config import ModelConfig
from hooks.errors import PhaselensError
from hooks.indexer import Indexer, imitation_loss, pick_mask
from hooks.numerics import RMSNorm, rope_tables, rotate
from hooks.points import HookPoint
from hooks.running import watched
from hooks.segments import attend_picks, masked, spans
from hooks.softmax import Segment, attend, mass
from hooks.stored import store

__all__ = ["Attention", "Segment", "attend"]

MAX_SCORES = 1 << 26
"""Scores formed at once without hooks on them; longer prefills go through in blocks of queries."""
WINDOW_BLOCK = 256
"""Queries of a long prefill that attend at once in layers with a window."""
GATHER_FROM = 1024
"""Visible entries beyond twice the picks from which on picked entries are gathered, not masked."""


@dataclass(frozen=True)
class _Call:
    """One layer's past and present in one call.

    Attributes
    ----------
    past, fresh : LayerState
        Before the call; and the exact keys and the entries it adds, as this layer reads them.
    first_query, first_entry, n_entries : int
        Position of the first query; number of the first new entry; entries after the call.
    picks : Tensor [R, T, k] or None
        Entries each query reads; None reads all that are visible.
    index_scores : Tensor [R, T, E] or None
        What the layer's own indexer scored, while training.
    """

    past: LayerState
    fresh: LayerState
    first_query: int
    first_entry: int = 0
    n_entries: int = 0
    picks: Tensor | None = None
    index_scores: Tensor | None = None


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
        self.cfg, self.layer, self.index = cfg, layer, index
        h, g, d, m = cfg.n_heads, cfg.n_kv_heads, cfg.d_head, cfg.d_model
        self.W_Q = nn.Parameter(torch.empty(h, m, d))
        self.W_O = nn.Parameter(torch.empty(h, d, m))
        self.q_norm = RMSNorm(d) if layer.q_norm else None
        self.hook_q, self.hook_rot_q = HookPoint(), HookPoint()
        if layer.has_exact_branch:
            self.W_K = nn.Parameter(torch.empty(g, m, d))
            self.k_norm = RMSNorm(d) if layer.qk_norm else None
            self.hook_k, self.hook_rot_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
            if not layer.tied_kv:
                self.W_V = nn.Parameter(torch.empty(g, m, d))
        if layer.geometry is not None:
            if layer.role == "full":
                self.compressor = Compressor(cfg, layer)
            self.hook_entry_k, self.hook_entry_v = HookPoint(), HookPoint()
        self.indexer = Indexer(cfg, layer) if layer.index_heads is not None else None
        self.sink = nn.Parameter(torch.zeros(h)) if layer.sink else None
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result = HookPoint(), HookPoint()
        self.imitation: list[tuple[Tensor, Tensor]] = []

    def forward(
        self,
        x: Float[Tensor, "r t m"],
        state: LayerState | None = None,
        *,
        shared: SharedEntries | None = None,
        rewind: bool = False,
        queries: int | None = None,
    ) -> tuple[Float[Tensor, "r q m"], LayerState, SharedEntries | None]:
        """Attend from every position of `x`, or from its last ones only.

        Parameters
        ----------
        x : float tensor [R, T, d_model]
            Normed residual stream.
        state : LayerState or None
            The past; of B sequences with R = B·U rows.
        shared : SharedEntries or None
            What the latest owner left in this call.
        rewind : bool
            Keep the whole past in the returned state.
        queries : int or None
            Form the queries of so many last positions; None: of all.

        Returns
        -------
        output, state, shared : float tensor [R, T or queries, d_model], LayerState, SharedEntries or None
            The state covers past and present; it belongs to R rows and is of no use after a forked call.

        Raises
        ------
        PhaselensError
            If the layer reads entries of an owner that has not run in this call.
        """
        state = state or LayerState()
        start, stop = state.length, state.length + x.shape[1]
        first_query = stop - x.shape[1] if queries is None else stop - queries
        near = self._near(x, stop - first_query, stop, rewind)
        key, value = self._exact(near, stop - near.shape[1])
        if self.layer.role == "full" and self.layer.geometry is not None:
            shared = self._pooled(x, state, stop)
        mine = self._checked(shared, stop) if self.layer.geometry is not None else None
        entry_k, entry_v = (None, None) if mine is None else self._read(mine)
        tables = rope_tables(
            torch.arange(first_query, stop, device=x.device),
            self.layer.rope_dims,
            self.layer.rope_base,
            x.dtype,
        )
        q = self._query(x[:, first_query - start :], tables)
        call = _Call(state, LayerState(stop, key, value, None, entry_k, entry_v), first_query)
        if mine is not None:
            mine, scores = self._picked(x[:, first_query - start :], mine, first_query)
            picks = None if mine.picks is None else mine.picks[:, -q.shape[1] :]
            call = replace(
                call, first_entry=mine.first, n_entries=mine.first + mine.key.shape[1], picks=picks,
                index_scores=scores,
            )  # fmt: skip
        z = self._attend(q, call)
        if self.layer.inverse_rope:
            z = rotate(z, tables, inverse=True)
        state, mine = self._absorbed(x, call, mine, rewind)
        return self._output(self.hook_z(z)), state, mine or shared

    def _query(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        q = self.hook_q(_project(x, self.W_Q))
        q = q if self.q_norm is None else self.q_norm(q)
        return self.hook_rot_q(rotate(q, tables))

    def _near(self, x: Tensor, queries: int, stop: int, rewind: bool) -> Tensor:
        """Inputs whose exact keys a query of this call or a later one can read; all of them where a hook looks."""
        if not self.layer.has_exact_branch or watched(
            self.hook_k, self.hook_rot_k, self.hook_v, self.hook_attn_scores, self.hook_pattern
        ):
            return x
        read = queries + self._reach(stop) - 1
        return x[:, -max(read, kept_exact(self.layer, stop, rewind)) :]

    def _exact(self, x: Tensor, start: int) -> tuple[Tensor | None, Tensor | None]:
        """New exact keys as scored, and values as read."""
        if not self.layer.has_exact_branch:
            return None, None
        key = self.hook_k(_project(x, self.W_K))
        key = key if self.k_norm is None else self.k_norm(key)
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        key = rotate(key, rope_tables(positions, self.layer.rope_dims, self.layer.rope_base, x.dtype))
        key = store(key, self.layer.exact_precision)
        value = key if self.layer.tied_kv else store(_project(x, self.W_V), self.layer.exact_precision)
        return self.hook_rot_k(key), self.hook_v(value)

    def _pooled(self, x: Tensor, state: LayerState, stop: int) -> SharedEntries:
        """Entries and index keys that close in this call, as stored."""
        geometry = self.compressor.key.geometry
        first, end = geometry.n_entries(state.length), geometry.n_entries(stop)
        start = state.length
        if end == first:
            x = x[:, :0]
        elif state.x is not None:
            start -= state.x.shape[1]
            x = torch.cat((_for_rows(state.x, x.shape[0]), x), dim=1)
        tokens = window_tokens(geometry, x, start, first, end)
        pooled = self.compressor(tokens)
        index_key = None if self.indexer is None else self.indexer.keys(tokens, pooled.latent)
        return SharedEntries(
            self.index, stop, first, pooled.key, pooled.value, state.index_key, index_key,
            past=(state.stored_key, state.stored_value),
        )  # fmt: skip

    def _checked(self, shared: SharedEntries | None, stop: int) -> SharedEntries:
        if shared is None or shared.owner != self.layer.owner or shared.stop != stop:
            raise PhaselensError(
                f"layer {self.index} reads the entries of layer {self.layer.owner}, which has not run on these "
                f"tokens; start at layer {self.layer.owner} or before, or run layer by layer with one cache"
            )
        return shared

    def _read(self, shared: SharedEntries) -> tuple[Tensor, Tensor]:
        """New entries as this layer reads them; what a hook does to them stays in this layer."""
        pair = []
        for point, tensor in ((self.hook_entry_k, shared.key), (self.hook_entry_v, shared.value)):
            pair.append(point(tensor.clone() if point.fwd_hooks else tensor))
        return pair[0], pair[1]

    def _picked(
        self, x: Tensor, shared: SharedEntries, first_query: int
    ) -> tuple[SharedEntries, Tensor | None]:
        """The latest picks, this layer's own if it has an indexer; with the scores while training."""
        if self.indexer is None:
            return shared, None
        keys = [key for key in (shared.index_past, shared.index_key) if key is not None]
        pool = shared.pool if self.layer.role == "reindex" else None
        pool = None if pool is None else pool[:, -x.shape[1] :]
        choice = self.indexer.choose(x, first_query, keys, pool=pool, limit=MAX_SCORES, keep=self.training)
        if choice.picks is not None:
            shared = replace(shared, picks=choice.picks)
        if self.layer.role == "full":
            shared = replace(shared, pool=choice.pool)
        return shared, choice.scores if self.training else None

    def _attend(self, q: Tensor, call: _Call) -> Tensor:
        rows, t, heads, _ = q.shape
        self.imitation = []
        if any(point.fwd_hooks or point.bwd_hooks for point in (self.hook_attn_scores, self.hook_pattern)):
            return self._attend_block(q, call, 0, full=True)
        block = self._block(rows, t, heads, call)
        if block >= t:
            return self._attend_block(q, call, 0, full=False)
        blocks = [self._attend_block(q[:, i : i + block], call, i, full=False) for i in range(0, t, block)]
        return torch.cat(blocks, dim=1)

    def _block(self, rows: int, t: int, heads: int, call: _Call) -> int:
        """How many queries attend at once: as many as the budget allows, and few where each reads a window."""
        reach = self._reach(call.fresh.length)
        picked = call.picks is not None and call.index_scores is None and self._gathers(call, call.n_entries)
        columns = reach + (2 * call.picks.shape[-1] if picked and call.picks is not None else call.n_entries)
        block = max(1, MAX_SCORES // max(1, rows * heads * columns))
        # Consecutive queries read a window each: together block + reach − 1 exact tokens, most of them masked.
        return min(block, max(WINDOW_BLOCK, reach)) if t > 4 * max(WINDOW_BLOCK, reach) else block

    def _gathers(self, call: _Call, limit: int) -> bool:
        """Whether picked entries are gathered: pays where queries see many more than they pick."""
        return call.picks is not None and limit - 2 * call.picks.shape[-1] >= GATHER_FROM

    def _reach(self, length: int) -> int:
        """How many positions back, itself included, a query may read exactly."""
        if self.layer.attention == "full":
            return length
        return self.layer.stride if self.layer.tail == "open" else self.layer.exact_window

    def _attend_block(self, q: Tensor, call: _Call, offset: int, *, full: bool) -> Tensor:
        """Attend from the consecutive queries from `offset` on to what they read; `full` keeps every column."""
        first_query = call.first_query + offset
        queries = torch.arange(first_query, first_query + q.shape[1], device=q.device)
        exact, seen = self._exact_segments(call, queries, first_query, full)
        limit = call.n_entries
        if not full and self.layer.geometry is not None:
            limit = min(limit, self.layer.geometry.visible(first_query + q.shape[1] - 1))
        entries = self._entry_segments(call, queries, limit)
        if call.index_scores is not None and entries:
            self._imitate(q, exact, entries, call.index_scores[:, offset : offset + q.shape[1], :limit])
        if call.picks is not None and entries:
            picks = call.picks[:, offset : offset + q.shape[1]]
            if not full and call.index_scores is None and self._gathers(call, limit):
                return self._gathered(q, exact, entries, picks, queries)
            entries = masked(entries, pick_mask(picks, call.n_entries))
        return attend(
            q,
            exact + entries,
            sink=self.sink,
            may_be_empty=self.sink is None and not self.layer.has_exact_branch,
            hook_scores=self.hook_attn_scores if full else None,
            hook_pattern=self.hook_pattern if full else None,
            hidden=seen if full else 0,
        )

    def _gathered(
        self, q: Tensor, exact: list[Segment], entries: list[Segment], picks: Tensor, queries: Tensor
    ) -> Tensor:
        """Attend to exact tokens and to the visible entries among the picks, without the others."""
        key, value = entries[0].key, entries[0].value
        if len(entries) > 1:
            tied = all(part.key is part.value for part in entries)  # then they are gathered once
            key = torch.cat([_for_rows(part.key, len(q)) for part in entries], dim=1)
            value = key if tied else torch.cat([_for_rows(part.value, len(q)) for part in entries], dim=1)
        visible = torch.div(queries + 1, self.layer.stride, rounding_mode="floor")[:, None]
        return attend_picks(
            q,
            exact,
            key,
            value,
            picks.masked_fill(picks >= visible, -1),
            sink=self.sink,
            may_be_empty=self.sink is None and not self.layer.has_exact_branch,
        )

    def _exact_segments(
        self, call: _Call, queries: Tensor, first_query: int, full: bool
    ) -> tuple[list[Segment], int]:
        """Exact tokens in reach, and the first position among them."""
        past, fresh = call.past, call.fresh
        low = 0 if full else max(0, first_query + 1 - self._reach(first_query + 1))
        high = fresh.length if full else first_query + len(queries)
        segments, seen = [], high
        for key, value, begin, end in spans(
            past.key, past.value, fresh.key, fresh.value, past.length, fresh.length
        ):
            a, b = max(begin, low), min(end, high)
            if a < b:
                seen = min(seen, a)
                positions = torch.arange(a, b, device=queries.device)
                mask = self._readable(queries[:, None], positions[None, :])
                segments.append(Segment.of(key, value, slice(a - begin, b - begin), mask))
        return segments, seen

    def _entry_segments(self, call: _Call, queries: Tensor, limit: int) -> list[Segment]:
        """The first `limit` entries, those not visible yet masked."""
        past, fresh, segments = call.past, call.fresh, []
        for key, value, begin, end in spans(
            past.entry_key,
            past.entry_value,
            fresh.entry_key,
            fresh.entry_value,
            call.first_entry,
            call.n_entries,
        ):
            b = min(end, limit)
            if begin < b:
                entries = torch.arange(begin, b, device=queries.device)
                visible = torch.div(queries + 1, self.layer.stride, rounding_mode="floor")
                mask = entries[None, :] < visible[:, None]
                segments.append(Segment.of(key, value, slice(0, b - begin), mask))
        return segments

    def _imitate(self, q: Tensor, exact: list[Segment], entries: list[Segment], scores: Tensor) -> None:
        """Note how far the indexer is from the attention this layer would pay to every visible entry."""
        with torch.no_grad():
            skip = sum(segment.key.shape[1] for segment in exact)
            target = mass(q, exact + entries, self.sink, skip)
        self.imitation.append(imitation_loss(scores, target))

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

    def _absorbed(
        self, x: Tensor, call: _Call, shared: SharedEntries | None, rewind: bool
    ) -> tuple[LayerState, SharedEntries | None]:
        """What queries after this call can read, and what later layers of this call can."""
        layer, past, fresh = self.layer, call.past, call.fresh
        exact = kept_exact(layer, fresh.length, rewind)
        state = LayerState(
            fresh.length, extend(past.key, fresh.key, exact), extend(past.value, fresh.value, exact)
        )
        if shared is None:
            return state, None
        if layer.role == "full":
            if layer.readers:
                key = extend(shared.past[0], shared.key)
                tied = shared.past[0] is shared.past[1] and shared.key is shared.value
                value = key if tied else extend(shared.past[1], shared.value)
                shared = replace(shared, whole=(key, value))
            state = replace(
                state, x=extend(past.x, x, kept_inputs(layer, fresh.length, rewind)),
                stored_key=shared.whole[0], stored_value=shared.whole[1],
                index_key=extend(past.index_key, shared.index_key),
            )  # fmt: skip
        key = as_read(past.entry_key, fresh.entry_key, shared.past[0], shared.key, shared.whole[0])
        tied = past.entry_key is past.entry_value and fresh.entry_key is fresh.entry_value
        value = (
            key
            if tied
            else as_read(past.entry_value, fresh.entry_value, shared.past[1], shared.value, shared.whole[1])
        )
        return replace(state, entry_key=key, entry_value=value), shared


def _project(x: Tensor, weight: Tensor) -> Tensor:
    """Project x [R, T, m] with weight [heads, m, d] to [R, T, heads, d]."""
    heads, m, d = weight.shape
    return (x @ weight.permute(1, 0, 2).reshape(m, heads * d)).unflatten(-1, (heads, d))


def _for_rows(shared: Tensor, rows: int) -> Tensor:
    """Repeat what B sequences share for each of their variants."""
    return shared if shared.shape[0] == rows else shared.repeat_interleave(rows // shared.shape[0], dim=0)
