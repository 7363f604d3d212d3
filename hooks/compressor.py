"""Chunked compressors: gates, payloads and pooled entries, every step a hook site.

Axis legend: batch B, token t, entry E, offset W (slot in a window), map M (distinct weight maps), kv_head G,
channel C (D for vector gates, 1 for scalar ones), d_head D, d_model d.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hooks.config import LayerConfig, ModelConfig
from hooks.geometry import ChunkGeometry
from hooks.numerics import RMSNorm, masked_softmax, rope_tables, rotate, working_dtype
from hooks.points import HookPoint
from hooks.stored import store

__all__ = ["Branch", "Compressor", "Pooled", "WindowTokens", "window_tokens"]


class WindowTokens:
    """The tokens of some consecutive windows, gathered once and shared by both branches.

    Attributes
    ----------
    x : float tensor [B, t, d]
        Attention inputs from absolute position `start` on.
    index : integer tensor [E, W]
        Row of `x` behind each slot; 0 where `clipped`.
    clipped : bool tensor [E, W] or None
        Slots before position 0; None when there are none.
    first : int
        Number of the first entry.
    """

    def __init__(
        self,
        x: Float[Tensor, "b t d"],
        index: Int[Tensor, "e w"],
        clipped: Bool[Tensor, "e w"] | None,
        first: int,
    ) -> None:
        self.x, self.index, self.clipped, self.first = x, index, clipped, first
        self._gathered: Tensor | None = None
        self._by_offset: Tensor | None = None

    @property
    def n_entries(self) -> int:
        """How many entries close."""
        return self.index.shape[0]

    def detached(self) -> WindowTokens:
        """The same windows, through which no gradient flows back."""
        return WindowTokens(self.x.detach(), self.index, self.clipped, self.first)

    def gathered(self) -> Float[Tensor, "b e w d"]:
        """Inputs of every slot, formed on first use: overlapping windows repeat tokens."""
        if self._gathered is None:
            # Windows side by side are a view; anything else is copied slot by slot.
            side_by_side = self.x.shape[1] == self.index.numel() > 0 and self.clipped is None
            self._gathered = (
                self.x.unflatten(1, tuple(self.index.shape)) if side_by_side else self.x[:, self.index]
            )
        return self._gathered

    def by_offset(self) -> Float[Tensor, "w rows d"]:
        """The same inputs offset by offset, copied once: every map of every branch multiplies this one."""
        if self._by_offset is None:
            self._by_offset = self.gathered().permute(2, 0, 1, 3).flatten(1, 2).contiguous()
        return self._by_offset


def window_tokens(
    geometry: ChunkGeometry, x: Float[Tensor, "b t d"], start: int, first: int, end: int
) -> WindowTokens:
    """Collect the tokens of entries `first` … `end`−1.

    Parameters
    ----------
    geometry : ChunkGeometry
        Window and stride.
    x : float tensor [B, t, d]
        Attention inputs; row 0 is at absolute position `start` and every token of those windows is there.
    start, first, end : int
        Absolute position of row 0; entry range.
    """
    low, stop = max(0, (first + 1) * geometry.stride - geometry.window), end * geometry.stride
    if end > first:
        x, start = x[:, low - start : stop - start], low
    entries = torch.arange(first, end, device=x.device)[:, None]
    slots = torch.arange(geometry.window, device=x.device)[None, :]
    position = (entries + 1) * geometry.stride - geometry.window + slots
    clipped = None
    if (first + 1) * geometry.stride < geometry.window:
        clipped = position < 0
    return WindowTokens(x, (position - start).clamp_min(0), clipped, first)


class Branch(nn.Module):
    """The key or the value branch of one compressor.

    ``entry = finish(Σ_i gate_i ⊙ payload_i)`` with ``gate = softmax_i(Z_i x_i + b_i)`` and
    ``payload_i = C_i x_i`` (Zhu et al. 2026, arXiv 2609.36322; DeepSeek-V4, arXiv 2606.19348).

    Parameters
    ----------
    cfg, layer : ModelConfig, LayerConfig
        Sizes and variant.
    is_key : bool
        Key entries are normed (with QK norm) and rotated to position j·S; untied value entries are neither.
    index : bool
        The branch makes index keys: one head of ``index_dim`` channels, always normed.
    """

    def __init__(self, cfg: ModelConfig, layer: LayerConfig, is_key: bool, *, index: bool = False) -> None:
        super().__init__()
        self.geometry = ChunkGeometry(layer.window, layer.stride)
        self.kind = layer.gate
        self.is_key = is_key
        groups, d_head = (1, layer.index_dim or 1) if index else (cfg.n_kv_heads, cfg.d_head)
        self.precision = layer.index_precision if index else layer.entry_precision
        self.rope_dims, self.rope_base = min(layer.rope_dims, d_head - d_head % 2), layer.rope_base
        maps = {"per_offset": layer.window, "shared": 1, "two_series": 2}[layer.payload]
        width = d_head if layer.gate == "vector" else 1
        self.W_payload = nn.Parameter(torch.empty(maps, cfg.d_model, groups, d_head))
        if self.kind != "uniform":
            self.W_gate = nn.Parameter(torch.empty(maps, cfg.d_model, groups, width))
            self.b_gate = nn.Parameter(torch.zeros(layer.window, groups, width)) if layer.gate_bias else None
            self.hook_gate_logits = HookPoint()
        self.norm = RMSNorm(d_head) if index or (is_key and layer.qk_norm) else None
        self.hook_gate = HookPoint()
        self.hook_payload = HookPoint()
        self.hook_pooled = HookPoint()
        self.hook_entry = HookPoint()

    def apply_maps(
        self, weight: Float[Tensor, "m d g c"], tokens: WindowTokens
    ) -> Float[Tensor, "b e w g c"]:
        """Send every slot's token through the map of its offset."""
        maps, _, groups, width = weight.shape
        flat = weight.flatten(2)
        if maps == self.geometry.window and maps > 2:
            out = torch.bmm(tokens.by_offset(), flat)
            out = out.unflatten(1, (tokens.x.shape[0], tokens.n_entries)).permute(1, 2, 0, 3)
            return out.unflatten(-1, (groups, width))
        # Shared maps see each token once, then slots pick their series.
        per_token = torch.einsum("btd,mdc->btmc", tokens.x, flat)
        slots = torch.arange(self.geometry.window, device=flat.device)
        series = (slots * maps // self.geometry.window).expand_as(tokens.index)
        return per_token[:, tokens.index, series].unflatten(-1, (groups, width))

    def gate(self, tokens: WindowTokens) -> Float[Tensor, "b e w g c"]:
        """Softmax gates over each window's offsets; clipped slots exactly 0, the rest renormalised."""
        if self.kind == "uniform":
            shape = (tokens.x.shape[0], *tokens.index.shape, self.W_payload.shape[2], 1)
            weight = torch.ones(shape, dtype=working_dtype(tokens.x.dtype), device=tokens.x.device)
            if tokens.clipped is not None:
                weight = weight.masked_fill(tokens.clipped[None, :, :, None, None], 0.0)
            return self.hook_gate(weight / weight.sum(2, keepdim=True))
        logits = self.apply_maps(self.W_gate, tokens)
        logits = logits.to(working_dtype(logits.dtype))
        if self.b_gate is not None:
            logits = logits + self.b_gate
        logits = self.hook_gate_logits(logits)
        if tokens.clipped is not None:
            logits = logits.masked_fill(tokens.clipped[None, :, :, None, None], -torch.inf)
        # A window without a finite logit (clipped away, or masked by a hook) pools nothing.
        gate = masked_softmax(logits.movedim(2, -1), True).movedim(-1, 2)
        return self.hook_gate(gate)

    def forward(self, tokens: WindowTokens) -> tuple[Float[Tensor, "b e g d"], Float[Tensor, "b e g d"]]:
        """Pool the windows; return entries as they are stored, and before RoPE (the latents)."""
        gate = self.gate(tokens)
        payload = self.hook_payload(self.apply_maps(self.W_payload, tokens))
        pooled = self.hook_pooled((gate * payload).sum(2).to(payload.dtype))
        latent = pooled if self.norm is None else self.norm(pooled)
        return self.hook_entry(self.finish(latent, tokens.first)), latent

    def finish(self, latent: Float[Tensor, "b e g d"], first: int) -> Float[Tensor, "b e g d"]:
        """Rotate keys (entry j sits at position j·S) and round to the stored precision."""
        if self.is_key:
            positions = (
                torch.arange(first, first + latent.shape[1], device=latent.device) * self.geometry.stride
            )
            latent = rotate(latent, rope_tables(positions, self.rope_dims, self.rope_base, latent.dtype))
        return store(latent, self.precision)


class Pooled(NamedTuple):
    """What a compressor makes of some windows.

    Attributes
    ----------
    key, value : float tensor [B, E, G, D]
        Entries as stored (one tensor when tied).
    latent : float tensor [B, E, G, D]
        Key entries before RoPE.
    """

    key: Tensor
    value: Tensor
    latent: Tensor


class Compressor(nn.Module):
    """Key and value branches over the same windows; with tied K/V the key branch serves both."""

    def __init__(self, cfg: ModelConfig, layer: LayerConfig) -> None:
        super().__init__()
        self.key = Branch(cfg, layer, is_key=True)
        self.value = None if layer.tied_kv else Branch(cfg, layer, is_key=False)

    def forward(self, tokens: WindowTokens) -> Pooled:
        """Pool key and value entries of some windows."""
        key, latent = self.key(tokens)
        return Pooled(key, key if self.value is None else self.value(tokens)[0], latent)
