"""Owner → reuse effects: what a dropped record costs the layer that stores it and every layer that reads it.

With shared caches a layer owns entries that later layers read. The record that must be retrieved is dropped from
an owner's entries as one layer reads them, or as all do, and the answer and every later layer's attention are
measured.

Axis legend: batch B, position T, entry E, offset W, KV head G, head H, channel D, changed entries M of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from hooks.errors import SiteError
from hooks.sites import HookedModel
from interp import engine, results, stats
from interp.controls import paired_statistics
from interp.engine import Edit, Rows, Variant
from interp.phases import fold, measured_stride, sample_blocks
from interp.tasks.prompts import Prompts, Task
from interp.tasks.recall import RecallTask

__all__ = ["entry_owners", "owner_effects"]

DEFAULT_PER_RESIDUE = 16
RECORD = 2
"""Tokens of a record that are dropped: the key and the value behind it."""


def entry_owners(model: HookedModel) -> dict[int, list[int]]:
    """Layers that store entries, each with the layers that read them, itself first.

    Raises
    ------
    SiteError
        If no layer stores entries.
    """
    valid, found = set(model.site_names()), {}
    for layer in range(model.cfg.n_layers):
        if f"blocks.{layer}.attn.compressor.key.hook_gate" in valid:
            found[layer] = [layer]
        elif f"blocks.{layer}.attn.hook_entry_k" in valid:
            found[max(found)].append(layer)
    if not found:
        raise SiteError(f"model {model.name!r} stores no entries; valid: one with a chunked layer")
    return found


def owner_effects(
    model: HookedModel,
    task: Task | None = None,
    *,
    n: int | None = None,
    seed: int = 0,
    stride: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Drop the target's record from the entries of each owner, for one reading layer at a time and for all.

    Dropping takes the record's two tokens out of the pooling: their gate weights become 0 and the others are
    scaled up to sum to 1. An entry of nothing else is hidden. For "all" this is done where entries are stored, so
    that index keys made of them, and with them picks, lose the record too.

    Parameters
    ----------
    model, task, n, seed, stride, memory, progress
        As in :func:`interp.knockout.knockout`; 16 prompts a residue if `n` is left out.

    Returns
    -------
    Dataset
        Units are labelled "owner→reader" or "owner→all" (coordinates ``owner``, ``reader``, −1 for all).
        ``effect_logprob (unit, phase)``, mean change of the answer's log-probability in nats, with ``_low _high
        _p _q`` (:func:`interp.controls.paired_statistics`); ``effect_pp (unit, phase)`` of accuracy;
        ``mass (unit, layer, phase)``, change of the final query's attention on the entries that held the record,
        mean over heads (0 in layers before the reader, NaN in layers without entries), and ``clean_mass (layer,
        phase)``; ``picked (layer, phase)``, share of prompts whose picks hold one of those entries (NaN
        where everything is attended). Per prompt: ``correct logprob margin (unit, prompt, residue)`` and the
        same with ``clean_`` in front.

    Raises
    ------
    SiteError
        If no layer stores entries.
    """
    task = task or RecallTask.for_model(model)
    step = measured_stride(model, task, stride)
    prompts = sample_blocks(task, n, seed, DEFAULT_PER_RESIDUE)
    owners = entry_owners(model)
    mass = _Masses(model, prompts)
    cells: list[tuple[int, int]] = []
    variants: list[Variant] = []
    for owner, readers in owners.items():
        dropped = _dropped(model, prompts, owner, memory=memory)
        cells += [(owner, reader) for reader in [*readers, -1]]
        variants += [_one_reader(dropped, reader, mass) for reader in readers]
        variants.append(_every_reader(model, dropped, readers, mass))
    scores = engine.run(model, prompts, variants, at="all", memory=memory, progress=progress, label="owners")
    clean_mass, picked = _clean(model, prompts, memory=memory)
    tables = {name: fold(values, task.modulus) for name, values in scores.items()}
    deltas = (tables["logprob"][1:] - tables["logprob"][:1]).astype(float)
    changed = np.stack([mass.of(v.label) for v in variants]) - clean_mass  # [unit, layer, prompt]
    before = np.arange(model.cfg.n_layers)[None] < np.array([v.first_layer for v in variants])[:, None]
    changed = np.where(before[..., None] & np.isfinite(clean_mass), 0.0, changed)

    def phases(values: np.ndarray) -> np.ndarray:
        return stats.phase_means(fold(values, task.modulus), step).mean(axis=-2)

    correct = stats.phase_means(tables["correct"].astype(float), step).mean(axis=1)
    data: dict[str, Any] = dict(paired_statistics("effect_logprob", deltas, step, seed=seed))
    data |= {
        "effect_pp": (("unit", "phase"), 100 * (correct[1:] - correct[0])),
        "clean_accuracy": ("phase", correct[0]),
        "mass": (("unit", "layer", "phase"), phases(changed)),
        "clean_mass": (("layer", "phase"), phases(clean_mass)),
        "picked": (("layer", "phase"), phases(picked)),
        "target_position": (("prompt", "residue"), fold(prompts.target_position, task.modulus)),
    }
    for name, values in tables.items():
        data[name] = (("unit", "prompt", "residue"), values[1:])
        data[f"clean_{name}"] = (("prompt", "residue"), values[0])
    return xr.Dataset(
        data,
        coords={
            "unit": [variant.label for variant in variants],
            "owner": ("unit", [owner for owner, _ in cells]),
            "reader": ("unit", [reader for _, reader in cells]),
            "layer": np.arange(model.cfg.n_layers), "phase": np.arange(step),
            "prompt": np.arange(deltas.shape[1]), "residue": np.arange(task.modulus),
        },
        attrs=results.provenance(
            model, task, seed, unit_kind="owner→reader", at="all", stride=step, modulus=task.modulus,
            n_per_residue=deltas.shape[1], query_position=prompts.query_position,
        ),
    )  # fmt: skip


# ---- what is dropped ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Dropped:
    """An owner's entries without the record, prompt by prompt.

    Attributes
    ----------
    index : Int64[Tensor, "n M"]
        Entries that change; −1 is none.
    hidden : Bool[Tensor, "n M"]
        Those of which nothing is left.
    values : dict of Tensor [n, M, G, D]
        Of ``hook_entry_k`` and ``hook_entry_v``.
    """

    owner: int
    length: int
    index: Tensor
    hidden: Tensor
    values: dict[str, Tensor]

    def rewrite(self, name: str) -> Callable[[Tensor, Rows], Tensor]:
        """Edit of the entries [B, E, G, D] that a layer reads."""

        def edit(tensor: Tensor, rows: Rows) -> Tensor:
            index, values = self.index[rows.prompt], self.values[name][rows.prompt]
            row, place = (index >= 0).nonzero(as_tuple=True)
            tensor[row, index[row, place]] = values[row, place].to(tensor.dtype)
            return tensor

        return edit

    def hide(self, scores: Tensor, rows: Rows) -> Tensor:
        """Edit of the scores [B, H, T, column] of a layer that reads these entries."""
        row, place = self.hidden[rows.prompt].nonzero(as_tuple=True)
        columns = self.length + self.index[rows.prompt][row, place]
        scores[row, :, :, columns] = -torch.inf
        return scores


def _record(model: HookedModel, layer: int, prompts: Prompts) -> list[list[tuple[int, int]]]:
    """(entry, offset) of every place a prompt's record has in a layer's entries."""
    geometry, length = model.geometry(layer), prompts.tokens.shape[1]
    assert geometry is not None
    entries = geometry.n_entries(length)
    return [
        [
            (entry, token - (entry + 1) * geometry.stride + geometry.window)
            for token in range(target, target + RECORD)
            for entry in geometry.entries_of(token)
            if entry < entries
        ]
        for target in prompts.target_position.tolist()
    ]


def _gate_edit(places: list[list[tuple[int, int]]]) -> Callable[[Tensor, Rows], Tensor]:
    """Edit of gates [B, E, W, G, D or 1]: the record's weights 0, the rest scaled up to 1, or all 0."""

    def edit(gate: Tensor, rows: Rows) -> Tensor:
        for row, prompt in enumerate(rows.prompt.tolist()):
            for entry, offset in places[prompt]:
                gate[row, entry, offset] = 0.0
            for entry in {entry for entry, _ in places[prompt]}:
                left = gate[row, entry].sum(0)
                gate[row, entry] /= left.masked_fill(left == 0, 1.0)
        return gate

    return edit


@torch.no_grad()
def _dropped(model: HookedModel, prompts: Prompts, owner: int, *, memory: int) -> _Dropped:
    """Pool an owner's entries without the record."""
    stem, places = f"blocks.{owner}.attn.", _record(model, owner, prompts)
    n, length = prompts.tokens.shape
    most = max(1, *(len({entry for entry, _ in each}) for each in places))
    index = torch.full((n, most), -1)
    for row, each in enumerate(places):
        entries = sorted({entry for entry, _ in each})
        index[row, : len(entries)] = torch.tensor(entries, dtype=torch.long)
    hidden = torch.zeros_like(index, dtype=torch.bool)
    names = ("hook_entry_k", "hook_entry_v")
    values: dict[str, list[Tensor]] = {name: [] for name in names}
    edit = _gate_edit(places)
    stop: dict[str, Any] = (
        {"stop_at_layer": owner + 1} if owner + 1 < model.cfg.n_layers else {"last_only": True}
    )
    for chunk in engine.chunks(model, n, length, 0, memory):
        prompt = torch.arange(chunk.start, chunk.stop)
        rows = Rows(prompt, torch.arange(length))
        kept: dict[str, Tensor] = {}

        def cut(gate: Tensor, hook: object, rows: Rows = rows, kept: dict[str, Tensor] = kept) -> Tensor:
            kept["gate"] = edit(gate.clone(), rows)
            return kept["gate"]

        hooks: list[tuple[str, Callable[..., Any]]] = [(name, cut) for name in _gates(model, owner)]
        hooks += [
            (stem + name, lambda tensor, hook, name=name, kept=kept: kept.update({name: tensor}))
            for name in names
        ]
        with model.hooks(fwd_hooks=hooks):
            model(prompts.tokens[chunk.start : chunk.stop].to(model.device), **stop)
        at = index[chunk.start : chunk.stop].clamp_min(0).to(model.device)
        row = torch.arange(len(at), device=at.device)[:, None]
        for name in names:
            values[name].append(kept[name][row, at])
        gone = kept["gate"][row, at].sum(2).flatten(2).amax(-1) == 0  # no channel has any weight left
        hidden[chunk.start : chunk.stop] = gone.cpu() & (index[chunk.start : chunk.stop] >= 0)
    stacked = {name: torch.cat(parts) for name, parts in values.items()}
    return _Dropped(owner, length, index.to(model.device), hidden.to(model.device), stacked)


def _gates(model: HookedModel, owner: int) -> list[str]:
    valid = set(model.site_names())
    names = (f"blocks.{owner}.attn.compressor.{branch}.hook_gate" for branch in ("key", "value"))
    return [name for name in names if name in valid]


# ---- variants ----------------------------------------------------------------------------------------------


def _reads(dropped: _Dropped, reader: int) -> list[Edit]:
    """Edits that take the record from what one layer reads."""
    stem = f"blocks.{reader}.attn."
    edits = [Edit(stem + name, dropped.rewrite(name)) for name in dropped.values]
    return [*edits, Edit(stem + "hook_attn_scores", dropped.hide)]


def _one_reader(dropped: _Dropped, reader: int, mass: _Masses) -> Variant:
    label = f"{dropped.owner}→{reader}"
    return Variant(label, (*_reads(dropped, reader), *mass.recorders(label, reader)))


def _every_reader(model: HookedModel, dropped: _Dropped, readers: list[int], mass: _Masses) -> Variant:
    label = f"{dropped.owner}→all"
    cut = _gate_edit(_record(model, dropped.owner, mass.prompts))
    edits = [Edit(name, cut) for name in _gates(model, dropped.owner)]
    edits += [Edit(f"blocks.{reader}.attn.hook_attn_scores", dropped.hide) for reader in readers]
    return Variant(label, (*edits, *mass.recorders(label, dropped.owner)))


class _Masses:
    """Attention of the final query on the entries that held the record, layer by layer, noted while running."""

    def __init__(self, model: HookedModel, prompts: Prompts) -> None:
        self.prompts, self.length = prompts, prompts.tokens.shape[1]
        self.layers = [i for i in range(model.cfg.n_layers) if model.geometry(i) is not None]
        self.columns = {i: _columns(_record(model, i, prompts), self.length) for i in self.layers}
        self.n_layers = model.cfg.n_layers
        self.noted: dict[str, np.ndarray] = {}

    def recorders(self, label: str, first: int) -> list[Edit]:
        """Edits that change nothing, in every layer from `first` on."""
        table = self.noted.setdefault(label, np.full((self.n_layers, len(self.prompts)), np.nan))

        def recorder(layer: int) -> Callable[[Tensor, Rows], Tensor]:
            def note(pattern: Tensor, rows: Rows) -> Tensor:
                table[layer, rows.prompt.cpu().numpy()] = self.read(layer, pattern, rows.prompt)
                return pattern

            return note

        return [Edit(f"blocks.{i}.attn.hook_pattern", recorder(i)) for i in self.layers if i >= first]

    def read(self, layer: int, pattern: Tensor, prompt: Tensor) -> np.ndarray:
        """Mass by prompt of a pattern [B, H, T, column], mean over heads."""
        last = pattern[:, :, -1].mean(1)  # [B, column]
        columns = self.columns[layer].to(last.device)[prompt]
        mass = last.gather(1, columns.clamp_min(0)).masked_fill(columns < 0, 0.0)
        return mass.sum(1).double().cpu().numpy()

    def of(self, label: str) -> np.ndarray:
        """[layer, prompt]."""
        return self.noted[label]


def _columns(places: list[list[tuple[int, int]]], length: int) -> Tensor:
    """Columns of the entries in an attention map, −1 for none: [n, M]."""
    entries = [sorted({entry for entry, _ in each}) for each in places]
    table = torch.full((len(entries), max(1, *map(len, entries))), -1)
    for row, each in enumerate(entries):
        table[row, : len(each)] = length + torch.tensor(each, dtype=torch.long)
    return table


def _clean(model: HookedModel, prompts: Prompts, *, memory: int) -> tuple[np.ndarray, np.ndarray]:
    """Unchanged attention on those entries, and whether the picks hold one of them: [layer, prompt] each."""
    masses, valid = _Masses(model, prompts), set(model.site_names())
    mass = np.full((model.cfg.n_layers, len(prompts)), np.nan)
    picked = mass.copy()
    names = [f"blocks.{i}.attn.hook_pattern" for i in masses.layers]
    names += [name for i in masses.layers if (name := _picks(i)) in valid]
    for chunk, kept in engine.activations(model, prompts, names, memory=memory, progress=False):
        prompt = torch.arange(chunk.start, chunk.stop)
        picks: Tensor | None = None
        for layer in masses.layers:
            mass[layer, chunk.start : chunk.stop] = masses.read(
                layer, kept[f"blocks.{layer}.attn.hook_pattern"], prompt
            )
            owns = f"blocks.{layer}.attn.compressor.key.hook_gate" in valid
            picks = kept.get(_picks(layer), None if owns else picks)
            if picks is not None:
                columns = masses.columns[layer][prompt].to(picks.device)
                wanted = torch.where(columns >= 0, columns - masses.length, -2)
                there = (picks[:, -1, :, None] == wanted[:, None]).flatten(1).any(1)
                picked[layer, chunk.start : chunk.stop] = there.cpu().numpy()
    return mass, picked


def _picks(layer: int) -> str:
    return f"blocks.{layer}.attn.indexer.hook_picks"
