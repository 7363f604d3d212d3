"""Gate profiles: where a compressor looks in its windows, and how much of that depends on the window."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from hooks.cycling import cycle_gates as _cycle
from hooks.errors import SiteError
from hooks.geometry import ChunkGeometry
from hooks.sites import HookedModel
from interp import engine, results
from interp.phases import measured_stride, sample_blocks
from interp.tasks.prompts import Task
from interp.tasks.recall import RecallTask

__all__ = ["cycle_gates", "gate_profile"]

BLOCKS = 4
_BRANCHES = ("key", "value")


def cycle_gates(model: Any, shift: int) -> Any:
    """Return a copy of a model with its gates moved by `shift` offsets; see :func:`hooks.cycling.cycle_gates`."""
    return _cycle(model, shift)


def gate_profile(
    model: HookedModel,
    task: Task | None = None,
    *,
    n: int | None = None,
    seed: int = 0,
    stride: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Average every gate over the entries of recall prompts.

    Parameters
    ----------
    model : HookedModel
        With at least one chunked layer.
    task : Task, optional
        The prompts; :meth:`RecallTask.for_model` if left out.
    n : int, optional
        Prompts, rounded up to whole blocks of R; 4 blocks if left out.
    seed : int
        Of the prompts.
    stride : int, optional
        Phases of the profile; the model's own if left out. Layers with another stride fill their own phases.
    memory, progress
        As in :func:`interp.engine.run`.

    Returns
    -------
    Dataset
        For each KV head ("layer.head") of a chunked layer, and for key and value branch: ``gate_* (unit,
        offset)`` = E[α], mean over channels; ``profile_* (unit, phase)`` = mass over the phase's offsets ÷
        (their number / W), 1 for a uniform gate; ``static_* (unit)`` = exp H(E[α]) and ``per_window_* (unit)``
        = E[exp H(α)], effective numbers of offsets from 1 to W, entropies averaged over channels. Entries with
        clipped slots are left out. NaN where a branch is absent (tied values).

    Raises
    ------
    SiteError
        If no layer has a gate.
    """
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task, stride)
    layers = {i: g for i in range(model.cfg.n_layers) if (g := model.geometry(i)) is not None}
    valid = set(model.site_names())
    sites = {
        name: (layer, branch)
        for layer in layers
        for branch in _BRANCHES
        if (name := f"blocks.{layer}.attn.compressor.{branch}.hook_gate") in valid
    }
    if not sites:
        raise SiteError(f"model {model.name!r} has no gates: none of its layers is chunked")
    prompts = sample_blocks(task, n, seed, BLOCKS)
    sums = {name: _Sums(layers[layer]) for name, (layer, _) in sites.items()}
    stream = engine.activations(
        model, prompts, list(sites), at="all", memory=memory, progress=progress, label="gates"
    )
    for _, kept in stream:
        for name, gate in kept.items():
            sums[name].add(gate)
    found = {sites[name]: one for name, one in sums.items()}
    attrs = results.provenance(
        model, task, seed, stride=step, modulus=task.modulus, n_per_residue=len(prompts) // task.modulus,
        window=max(layers[layer].window for layer, _ in sites.values()),
    )  # fmt: skip
    return _dataset(layers, found, step, attrs)


@dataclass
class _Sums:
    """Running sums of one gate over entries without clipped slots."""

    geometry: ChunkGeometry
    count: int = 0
    gate: Tensor = field(default_factory=lambda: torch.zeros(()))
    effective: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, gate: Tensor) -> None:
        """Add gates [batch, entry, offset, kv_head, channel]."""
        first = -(-(self.geometry.window - self.geometry.stride) // self.geometry.stride)
        whole = gate[:, first:].to(torch.float64)
        self.count += whole.shape[0] * whole.shape[1]
        self.gate = self.gate + whole.sum((0, 1)).cpu()
        self.effective = self.effective + _entropy(whole, 2).mean(-1).exp().sum((0, 1)).cpu()

    def mean(self) -> Tensor:
        """E[α] as [offset, kv_head, channel]; NaN without an entry."""
        return self.gate / self.count if self.count else self.gate * torch.nan

    def static(self) -> Tensor:
        """Exp H(E[α]) by KV head."""
        return _entropy(self.mean(), 0).mean(-1).exp()

    def per_window(self) -> Tensor:
        """E[exp H(α)] by KV head; NaN without an entry."""
        return self.effective / self.count if self.count else self.effective * torch.nan


def _entropy(gate: Tensor, axis: int) -> Tensor:
    """Shannon entropy in nats along an axis of weights that sum to 1."""
    return -torch.xlogy(gate, gate).sum(axis)


def _dataset(
    layers: dict[int, ChunkGeometry], found: dict[tuple[int, str], _Sums], stride: int, attrs: dict[str, Any]
) -> xr.Dataset:
    groups = next(iter(found.values())).mean().shape[1]
    width = max(geometry.window for geometry in layers.values())
    owned = [
        (layer, g) for layer in layers for g in range(groups) if any((layer, b) in found for b in _BRANCHES)
    ]
    shape = {
        "gate": (len(owned), width),
        "profile": (len(owned), stride),
        "static": (len(owned),),
        "per_window": (len(owned),),
    }
    data: dict[str, np.ndarray] = {
        f"{name}_{branch}": np.full(size, np.nan) for name, size in shape.items() for branch in _BRANCHES
    }
    for row, (layer, g) in enumerate(owned):
        geometry = layers[layer]
        for branch in _BRANCHES:
            if (layer, branch) not in found:
                continue
            one = found[layer, branch]
            mean = one.mean()[:, g].mean(-1).numpy()
            data[f"gate_{branch}"][row, : geometry.window] = mean
            data[f"profile_{branch}"][row] = _profile(mean, geometry, range(stride))
            data[f"static_{branch}"][row] = float(one.static()[g])
            data[f"per_window_{branch}"][row] = float(one.per_window()[g])
    axes = {
        "gate": ("unit", "offset"),
        "profile": ("unit", "phase"),
        "static": ("unit",),
        "per_window": ("unit",),
    }
    return xr.Dataset(
        {key: (axes[key.rsplit("_", 1)[0]], values) for key, values in data.items()},
        coords={
            "unit": [f"{layer}.{g}" for layer, g in owned],
            "layer": ("unit", [layer for layer, _ in owned]),
            "head": ("unit", [g for _, g in owned]),
            "window": ("unit", [layers[layer].window for layer, _ in owned]),
            "stride": ("unit", [layers[layer].stride for layer, _ in owned]),
            "offset": np.arange(width),
            "phase": np.arange(stride),
        },
        attrs=attrs,
    )


def _profile(mean: np.ndarray, geometry: ChunkGeometry, phases: Iterable[int]) -> list[float]:
    """G by phase: mass over the phase's offsets ÷ (their number / W)."""
    profile = []
    for phase in phases:
        offsets = geometry.phase_offsets(phase % geometry.stride)
        profile.append(float(mean[offsets].sum() / (len(offsets) / geometry.window)))
    return profile
