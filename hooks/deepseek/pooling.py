"""Where the hook sites of one pooling compressor sit inside the Hugging Face code.

Axis legend: batch B, entries E (n of them close in this call), slots W, channels D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hooks.geometry import ChunkGeometry
from hooks.points import HookPoint
from hooks.running import watched

__all__ = ["BranchSites", "Call", "PoolTap"]


class BranchSites(nn.Module):
    """Hook points of one compressor: of the attended KV, where keys are values, or of index keys."""

    def __init__(self) -> None:
        super().__init__()
        self.hook_gate_logits, self.hook_gate, self.hook_payload = HookPoint(), HookPoint(), HookPoint()
        self.hook_pooled, self.hook_entry = HookPoint(), HookPoint()


@dataclass(frozen=True)
class Call:
    """The call in progress: tokens absorbed before it, its own tokens, and the cache it writes to."""

    past: int
    new: int
    cache: Any

    def entries(self, geometry: ChunkGeometry | None) -> tuple[int, int]:
        """How many entries there were before the call, and how many there are with it."""
        if geometry is None:
            return 0, 0
        return geometry.n_entries(self.past), geometry.n_entries(self.past + self.new)


class PoolWatch(TorchFunctionMode):
    """Catches the softmax and the product inside one compressor's forward.

    The first softmax is the gate over a window's slots (its input the logits, −inf in clipped slots); the
    first product after it is payload times gate. Everything else passes.
    """

    def __init__(self, sites: BranchSites) -> None:
        super().__init__()
        self.sites, self.step = sites, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.step == 0 and func in (Tensor.softmax, torch.softmax, F.softmax):
            self.step = 1
            logits = _per_head(self.sites.hook_gate_logits, args[0])
            return _per_head(self.sites.hook_gate, func(logits, *args[1:], **kwargs))
        if self.step == 1 and func in (Tensor.mul, Tensor.__mul__, torch.mul):
            self.step = 2
            args = (_per_head(self.sites.hook_payload, args[0]), *args[1:])
        return func(*args, **kwargs)


class PoolTap:
    """Puts the hook points of one compressor into its module.

    Parameters
    ----------
    sites : BranchSites
        The hook points.
    module : nn.Module
        Compressor or indexer of the class.
    name : str
        What the class's cache calls its entries.
    layer : int
        Its layer.
    geometry : ChunkGeometry
        Windows and strides.
    call : function
        Returns the call in progress, or None when someone else runs the code; then nothing fires.
    """

    def __init__(
        self,
        sites: BranchSites,
        module: Any,
        *,
        name: str,
        layer: int,
        geometry: ChunkGeometry,
        call: Callable[[], Call | None],
    ) -> None:
        self.sites, self.name, self.layer, self.geometry, self.call = sites, name, layer, geometry, call
        self.width = module.head_dim
        module.kv_norm.register_forward_pre_hook(self._pooled)

    def run(self, forward: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward on attention inputs `x` with gate and payload hooked."""
        call, sites = self.call(), self.sites
        slots = (sites.hook_gate_logits, sites.hook_gate, sites.hook_payload)
        if call is None or not watched(*slots, sites.hook_pooled):
            return forward(x, *args, **kwargs)
        old, total = call.entries(self.geometry)
        if old == total:
            for point in slots:
                point(x.new_zeros(x.shape[0], 0, self.geometry.window, 1, self.width))
            sites.hook_pooled(x.new_zeros(x.shape[0], 0, 1, self.width))
        with PoolWatch(sites):
            return forward(x, *args, **kwargs)

    def stored(self, entries: Tensor) -> Tensor:
        """Pass those entries [B, E, D] that close in this call to their hooks, and store the result."""
        call, point = self.call(), self.sites.hook_entry
        if call is None or not watched(point):
            return entries
        old = call.entries(self.geometry)[0]
        fresh = point(entries[:, old:].unsqueeze(2).clone()).squeeze(2)
        entries = torch.cat((entries[:, :old], fresh), dim=1)
        if call.cache is not None:
            call.cache.layers[self.layer].compressed_kv[self.name] = entries
        return entries

    def _pooled(self, module: nn.Module, args: Any) -> Any:
        if self.call() is None or not watched(self.sites.hook_pooled):
            return None
        return (self.sites.hook_pooled(args[0].unsqueeze(2)).squeeze(2), *args[1:])


def _per_head(point: HookPoint, x: Tensor) -> Tensor:
    """Fire on slots [B, E, W, D] as [B, E, W, 1, D]."""
    return point(x.unsqueeze(3)).squeeze(3)
