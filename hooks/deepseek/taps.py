"""Where the hook sites of one DeepSeek-V4 layer sit inside the Hugging Face code, which runs unchanged.

Axis legend: batch B, pos T, query head H, head dim D, entries E (n of them close in this call), slots W.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.deepseek_v4.modeling_deepseek_v4 import eager_attention_forward, repeat_kv

from hooks.deepseek.pooling import BranchSites, Call, PoolTap
from hooks.geometry import ChunkGeometry
from hooks.picks import readable_picks
from hooks.points import HookPoint
from hooks.running import require_unread, watched

__all__ = ["ATTENTION", "FIRING_ORDER", "BlockSites", "Call", "LayerTap", "plain"]

ATTENTION = "phaselens_eager"
"""Name under which the observed eager attention is registered with transformers."""

_SLOTS = ("hook_gate_logits", "hook_gate", "hook_payload", "hook_pooled")
FIRING_ORDER = [
    "hook_resid_pre",
    *(f"attn.{name}" for name in ("hook_q", "hook_k")),
    *(f"attn.compressor.key.{name}" for name in _SLOTS),
    *(f"attn.indexer.compressor.{name}" for name in (*_SLOTS, "hook_entry")),
    *(f"attn.indexer.{name}" for name in ("hook_scores", "hook_picks")),
    "attn.compressor.key.hook_entry",
    *(f"attn.{name}" for name in ("hook_rot_q", "hook_rot_k", "hook_v", "hook_entry_k", "hook_entry_v")),
    *(f"attn.{name}" for name in ("hook_attn_scores", "hook_pattern", "hook_z", "hook_result")),
    *("hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post"),
]
"""Sites of a layer, in order of firing; sliding and heavily compressed layers lack some."""


class IndexerSites(nn.Module):
    """Hook points of the lightning indexer: its own compressor, its scores, its picks."""

    def __init__(self) -> None:
        super().__init__()
        self.compressor = BranchSites()
        self.hook_scores, self.hook_picks = HookPoint(), HookPoint()


class AttentionSites(nn.Module):
    """Hook points of one attention."""

    def __init__(self, compressed: bool, indexed: bool) -> None:
        super().__init__()
        self.hook_q, self.hook_k = HookPoint(), HookPoint()
        if compressed:
            self.compressor = nn.Module()
            self.compressor.key = BranchSites()
        if indexed:
            self.indexer = IndexerSites()
        self.hook_rot_q, self.hook_rot_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        if compressed:
            self.hook_entry_k, self.hook_entry_v = HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result = HookPoint(), HookPoint()

    @property
    def branch(self) -> BranchSites:
        """The sites of the compressor's one branch."""
        return self.compressor.key  # type: ignore[return-value]


class BlockSites(nn.Module):
    """Hook points of one layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.hook_resid_pre = HookPoint()
        self.attn = AttentionSites(kind != "sliding_attention", kind == "compressed_sparse_attention")
        self.hook_attn_out, self.hook_resid_mid = HookPoint(), HookPoint()
        self.hook_mlp_out, self.hook_resid_post = HookPoint(), HookPoint()


class LayerTap:
    """Puts one layer's hook points into its Hugging Face attention.

    Parameters
    ----------
    sites : AttentionSites
        The hook points.
    attention : nn.Module
        The layer's ``self_attn``, bridged or not.
    geometry : ChunkGeometry or None
        Of its compressor.
    call : function
        Returns the call in progress, or None when the code is run by someone else; then nothing fires.
    """

    def __init__(
        self,
        sites: AttentionSites,
        attention: nn.Module,
        geometry: ChunkGeometry | None,
        call: Callable[[], Call | None],
    ) -> None:
        self.sites, self.geometry, self.call = sites, geometry, call
        self.core: Any = plain(attention)
        self.z: Tensor | None = None
        self.core.phaselens_tap = self
        self.core.q_b_proj.register_forward_hook(self._query)
        self.core.kv_proj.register_forward_hook(self._key)
        self.core.o_a_proj.register_forward_pre_hook(self._z)
        self.core.o_b_proj.register_forward_hook(self._result)
        if geometry is not None:
            compressor = plain(self.core.compressor)
            where: dict[str, Any] = {"layer": self.core.layer_idx, "geometry": geometry, "call": call}
            self.pool = PoolTap(sites.branch, compressor, name="compressor", **where)
            compressor.forward = _bound(self._compress, compressor.forward)
            if hasattr(sites, "indexer"):
                indexer = plain(compressor.indexer)
                self.index_pool = PoolTap(sites.indexer.compressor, indexer, name="indexer", **where)
                indexer.forward = _bound(self._index, indexer.forward)
                indexer.scorer.register_forward_pre_hook(self._index_keys)
                indexer.scorer.register_forward_hook(self._index_scores)

    # ------------------------------------------------------------------ projections

    def _query(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        if self.call() is None or not watched(self.sites.hook_q):
            return None
        return self.sites.hook_q(out.unflatten(-1, (self.core.num_heads, -1))).flatten(2)

    def _key(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        if self.call() is None or not watched(self.sites.hook_k):
            return None
        return self.sites.hook_k(out.unsqueeze(2)).squeeze(2)

    def _z(self, module: nn.Module, args: Any) -> Any:
        self.z = None
        if self.call() is None or not watched(self.sites.hook_z, self.sites.hook_result):
            return None
        grouped = args[0]
        z = grouped.flatten(2).unflatten(-1, (self.core.num_heads, -1))
        self.z = z = self.sites.hook_z(z)
        return (z.flatten(2).reshape(grouped.shape), *args[1:])

    def _result(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        """Form each head's share of the output; the native sum stays unless a hook changes a share."""
        if self.z is None or not watched(self.sites.hook_result):
            return None
        shares = self._shares(self.z)
        before = shares.clone()
        after = self.sites.hook_result(shares)
        return None if torch.equal(after, before) else after.sum(2)

    def _shares(self, z: Tensor) -> Tensor:
        """Per-head results [B, T, H, d_model], through the layer's own grouped map, one head at a time."""
        first, second = plain(self.core.o_a_proj), plain(self.core.o_b_proj)
        shares = []
        for head in range(z.shape[2]):
            alone = torch.zeros_like(z)
            alone[:, :, head] = z[:, :, head]
            grouped = alone.flatten(2).unflatten(-1, (self.core.config.o_groups, -1))
            shares.append(second(first(grouped).flatten(2)))
        return torch.stack(shares, dim=2)

    # ------------------------------------------------------------------ compressor and indexer

    def _compress(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        entries, bias = self.pool.run(forward, *args, **kwargs)
        return self.pool.stored(entries.squeeze(1)).unsqueeze(1), bias

    def _index_keys(self, module: nn.Module, args: Any) -> Any:
        query, keys, *rest = args
        return (query, self.index_pool.stored(keys), *rest)

    def _index(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        """Run the indexer with its compressor and its picks hooked."""
        picks = self.index_pool.run(forward, *args, **kwargs)
        call, point = self.call(), self.sites.indexer.hook_picks
        if call is None or not watched(point):
            return picks
        total = call.entries(self.geometry)[1]
        return readable_picks(point(picks), self._visible(call, picks), total, name=str(point.name))

    def _index_scores(self, module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        call = self.call()
        if call is None or not watched(self.sites.indexer.hook_scores):
            return None
        future = torch.arange(out.shape[-1], device=out.device) >= self._visible(call, out)[:, None]
        return self.sites.indexer.hook_scores(out.masked_fill(future, -torch.inf))

    def _visible(self, call: Call, like: Tensor) -> Tensor:
        """Entries [T] that each query of the call sees."""
        assert self.geometry is not None
        queries = torch.arange(call.past, call.past + call.new, device=like.device)
        return torch.div(queries + 1, self.geometry.stride, rounding_mode="floor")

    # ------------------------------------------------------------------ attention

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, dropout: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Do the class's eager attention with every step a hook site; bit-equal to it without edits.

        Parameters
        ----------
        query : float tensor [B, H, T, D]
        key, value : float tensor [B, 1, K, D]
            Window tokens of earlier calls, the T new ones, then entries.
        mask : float tensor [B, 1, T, K]
            Additive.
        """
        call, sites = self.call(), self.sites
        assert call is not None
        old, total = call.entries(self.geometry)
        query = sites.hook_rot_q(query.transpose(1, 2)).transpose(1, 2)
        exact = key.shape[2] - total
        tokens = slice(exact - call.new, exact)
        key, value = _read(key, tokens, sites.hook_rot_k), _read(value, tokens, sites.hook_v)
        if self.geometry is not None:
            fresh = slice(exact + old, exact + total)
            key, value = _read(key, fresh, sites.hook_entry_k), _read(value, fresh, sites.hook_entry_v)
        heads = query.shape[1]
        scores = torch.matmul(query, repeat_kv(key, heads).transpose(2, 3)) * scaling + mask
        sinks = self.core.sinks.reshape(1, -1, 1, 1).expand(query.shape[0], -1, query.shape[-2], -1)
        hidden = call.past + call.new - exact
        scores = F.pad(torch.cat([scores, sinks], dim=-1), (hidden, 0), value=-torch.inf)
        scores = sites.hook_attn_scores(scores)
        require_unread(scores[..., :hidden] != -torch.inf, "scores")
        scores = scores[..., hidden:]
        pattern = F.softmax(scores - scores.max(dim=-1, keepdim=True).values, dim=-1, dtype=scores.dtype)
        pattern = sites.hook_pattern(F.pad(pattern, (hidden, 0)))
        require_unread(pattern[..., :hidden] != 0, "weights")
        pattern = pattern[..., hidden:-1]
        pattern = F.dropout(pattern, p=dropout, training=self.core.training).to(value.dtype)
        z = torch.matmul(pattern, repeat_kv(value, heads))
        return z.transpose(1, 2).contiguous(), pattern


def observed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention function for transformers: the class's own unless one of its inner sites is hooked."""
    tap: LayerTap = module.phaselens_tap
    sites = tap.sites
    points = [sites.hook_rot_q, sites.hook_rot_k, sites.hook_v, sites.hook_attn_scores, sites.hook_pattern]
    if tap.geometry is not None:
        points += [sites.hook_entry_k, sites.hook_entry_v]
    if tap.call() is None or attention_mask is None or not watched(*points):
        return eager_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    return tap.attend(query, key, value, attention_mask, scaling, dropout)


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, observed_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["eager"])


def plain(module: Any) -> Any:
    """Return the Hugging Face module inside a bridge component, or the module itself."""
    inner = getattr(module, "original_component", None)
    return module if inner is None else inner


def _bound(method: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return method(forward, *args, **kwargs)

    return run


def _read(kv: Tensor, part: slice, point: HookPoint) -> Tensor:
    """Show a part of the keys or of the values [B, 1, K, D] to hooks as [B, n, 1, D], as one read alone."""
    if not watched(point):
        return kv
    piece = point(kv[:, :, part].transpose(1, 2).clone()).transpose(1, 2)
    return torch.cat((kv[:, :, : part.start], piece, kv[:, :, part.stop :]), dim=2)
