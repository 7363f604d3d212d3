"""What can be knocked out: heads, layers, branches, entries and gate offsets, each as edits at hook sites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from hooks.checks import require_choice
from hooks.errors import PhaselensError, SiteError, did_you_mean
from hooks.sites import HookedModel, site
from interp.engine import At, Edit, Rows
from interp.replacement import ValueAt
from interp.tasks.prompts import Prompts

__all__ = ["UNIT_KINDS", "Unit", "UnitKind", "select_units", "union", "units"]

UnitKind = Literal[
    "kv_head", "head", "layer", "mlp", "engram", "exact_branch", "entry_branch", "target_entry", "picks",
    "gate_offset",
]  # fmt: skip
UNIT_KINDS: tuple[str, ...] = get_args(UnitKind)


@dataclass(frozen=True)
class Unit:
    """One thing that can be knocked out.

    Attributes
    ----------
    label : str
        "layer", "layer.head" or "layer.offset".
    layer, head : int
        Head is −1 for units that are not one.
    sites : tuple of str
        Sites it is edited at.
    replaced : bool
        Whether a replacement value is written; branches, entries and offsets are masked instead (a zeroed
        entry would still draw softmax mass).
    edit : function
        ``edit(site, tensor, rows, value_at) -> tensor``.
    """

    label: str
    layer: int
    head: int
    sites: tuple[str, ...]
    replaced: bool
    edit: Callable[[str, Tensor, Rows, ValueAt | None], Tensor]

    def edits(self, value_at: ValueAt | None, *, repeatable: bool = False) -> tuple[Edit, ...]:
        """Bind replacement values; `repeatable`: those of :meth:`Replacement.at`, see :class:`Edit`."""

        def bound(name: str) -> Edit:
            # What masks instead reads targets on the CPU, or is checked for what it wrote.
            fixed = repeatable and self.replaced
            return Edit(name, lambda tensor, rows: self.edit(name, tensor, rows, value_at), fixed)

        return tuple(bound(name) for name in self.sites)


def units(
    model: HookedModel, kind: str, prompts: Prompts | None = None, *, required: bool = True
) -> list[Unit]:
    """Every unit of a kind that a model has.

    Parameters
    ----------
    model : HookedModel
        The model.
    kind : str
        "kv_head" (the query heads that read one KV head), "head", "layer" (all heads of a layer), "mlp",
        "engram" (a layer's n-gram memory), "exact_branch", "entry_branch", "target_entry" (the entries that pool
        the target), "picks" (the same entries are struck from what a layer's indexer picked, for it and for all
        that follow its picks), "gate_offset" (one slot of all windows of a layer; the rest of a gate is renormalised,
        and an entry whose only slot it is, as the first of a sequence may be, stays as it is).
    prompts : Prompts or None
        Needed by kinds that mask columns: they depend on the prompts' length and targets.
    required : bool
        Whether a model without any unit of the kind is an error; if not, it has none.

    Raises
    ------
    PhaselensError
        For another kind, or a kind that this model has no unit of.
    """
    if kind not in _BUILDERS:
        raise PhaselensError(f"unit={kind!r}; {did_you_mean(kind, UNIT_KINDS)}")
    found = _of_kind(model, kind, prompts)
    if not found and required:
        asked = [k for k in UNIT_KINDS if prompts is not None or k not in _OF_PROMPTS]
        there = [k for k in asked if _of_kind(model, k, prompts)]
        sole = any((g := model.geometry(layer)) and g.window == 1 for layer in range(model.cfg.n_layers))
        why = " (windows of one offset keep nothing without it)" if kind == "gate_offset" and sole else ""
        raise SiteError(f"model {model.name!r} has no {kind} to knock out{why}; valid: {', '.join(there)}")
    return found


def _of_kind(model: HookedModel, kind: str, prompts: Prompts | None) -> list[Unit]:
    found = [unit for layer in range(model.cfg.n_layers) for unit in _BUILDERS[kind](model, layer, prompts)]
    sites = set(model.site_names())
    return [unit for unit in found if sites.issuperset(unit.sites)]


def select_units(found: Sequence[Unit], labels: Sequence[str] | None) -> list[Unit]:
    """Pick units by label, in the order given; None keeps all.

    Raises
    ------
    SiteError
        For a label that does not exist, e.g. head 4 of 4, and for no label at all.
    """
    if labels is None:
        return list(found)
    by_label = {unit.label: unit for unit in found}
    # A number is what people write for a layer; it is no label, and is said to be none.
    labels = [labels] if isinstance(labels, str) or not isinstance(labels, Iterable) else list(labels)
    if not labels:
        raise SiteError(
            f"an empty list picks no unit; leave it out for all, or {did_you_mean('', by_label, 40)}"
        )
    for label in labels:
        if label not in by_label:
            raise SiteError(
                f"unit {label!r} does not exist in this model; {did_you_mean(str(label), by_label, 40)}"
            )
    return [by_label[label] for label in labels]


def where(chosen: Sequence[Unit], at: At) -> At:
    """`at`; or "all" if a unit edits a site without positions, which nothing at the final position reaches.

    Raises
    ------
    PhaselensError
        For another word.
    """
    require_choice("at", at, get_args(At))
    reached = all("pos" in site(name).axes for one in chosen for name in one.sites)
    return at if reached else "all"


def union(chosen: Sequence[Unit]) -> Unit:
    """Make one unit of several, all edited at once; its layer and head are −1 unless they share them.

    Raises
    ------
    SiteError
        For an empty set.
    """
    if not chosen:
        raise SiteError("an empty set of units was given; a set holds one label or more")
    layers, heads = ({getattr(one, name) for one in chosen} for name in ("layer", "head"))

    def edit(name: str, tensor: Tensor, rows: Rows, value_at: ValueAt | None) -> Tensor:
        for one in chosen:
            if name in one.sites:
                tensor = one.edit(name, tensor, rows, value_at)
        return tensor

    return Unit(
        label="+".join(one.label for one in chosen),
        layer=layers.pop() if len(layers) == 1 else -1,
        head=heads.pop() if len(heads) == 1 and len(chosen) == 1 else -1,
        sites=tuple(dict.fromkeys(name for one in chosen for name in one.sites)),
        replaced=any(one.replaced for one in chosen),
        edit=edit,
    )


def _heads(label: str, layer: int, head: int, chosen: slice) -> Unit:
    def edit(name: str, tensor: Tensor, rows: Rows, value_at: ValueAt | None) -> Tensor:
        assert value_at is not None
        tensor[:, :, chosen] = value_at(name, tensor, rows)[:, :, chosen]
        return tensor

    return Unit(label, layer, head, (f"blocks.{layer}.attn.hook_z",), True, edit)


def _head_units(model: HookedModel, layer: int, prompts: Prompts | None) -> list[Unit]:
    return [_heads(f"{layer}.{h}", layer, h, slice(h, h + 1)) for h in range(model.cfg.n_heads)]


def _kv_head_units(model: HookedModel, layer: int, prompts: Prompts | None) -> list[Unit]:
    share = model.cfg.n_heads // model.cfg.n_kv_heads
    return [
        _heads(f"{layer}.{g}", layer, g, slice(g * share, (g + 1) * share))
        for g in range(model.cfg.n_kv_heads)
    ]


def _layer_units(model: HookedModel, layer: int, prompts: Prompts | None) -> list[Unit]:
    return [_heads(str(layer), layer, -1, slice(None))]


def _mlp_units(model: HookedModel, layer: int, prompts: Prompts | None) -> list[Unit]:
    def edit(name: str, tensor: Tensor, rows: Rows, value_at: ValueAt | None) -> Tensor:
        assert value_at is not None
        return value_at(name, tensor, rows).clone()

    return [Unit(str(layer), layer, -1, (f"blocks.{layer}.hook_mlp_out",), True, edit)]


def _engram_units(model: HookedModel, layer: int, prompts: Prompts | None) -> list[Unit]:
    def edit(name: str, tensor: Tensor, rows: Rows, value_at: ValueAt | None) -> Tensor:
        assert value_at is not None
        return value_at(name, tensor, rows).clone()

    return [Unit(str(layer), layer, -1, (f"blocks.{layer}.engram.hook_out",), True, edit)]


def _columns(model: HookedModel, layer: int, prompts: Prompts | None) -> tuple[int, int]:
    """Numbers of exact and entry columns of a full attention map."""
    if prompts is None:
        raise PhaselensError("this kind of unit masks attention columns and needs the prompts")
    length, geometry = prompts.tokens.shape[1], model.geometry(layer)
    return length, geometry.n_entries(length) if geometry else 0


def _masking(label: str, layer: int, hide: Callable[[Tensor, Rows], Tensor]) -> Unit:
    def edit(name: str, tensor: Tensor, rows: Rows, value_at: ValueAt | None) -> Tensor:
        return hide(tensor, rows)

    return Unit(label, layer, -1, (f"blocks.{layer}.attn.hook_attn_scores",), False, edit)


def _exact_branch_units(model: HookedModel, layer: int, prompts: Prompts | None) -> list[Unit]:
    exact, _ = _columns(model, layer, prompts)

    def hide(scores: Tensor, rows: Rows) -> Tensor:
        scores[..., :exact] = -torch.inf
        return scores

    return [_masking(str(layer), layer, hide)]


def _entry_branch_units(model: HookedModel, layer: int, prompts: Prompts | None) -> list[Unit]:
    exact, entries = _columns(model, layer, prompts)

    def hide(scores: Tensor, rows: Rows) -> Tensor:
        scores[..., exact : exact + entries] = -torch.inf
        return scores

    return [_masking(str(layer), layer, hide)] if model.geometry(layer) else []


def _target_entry_units(model: HookedModel, layer: int, prompts: Prompts | None) -> list[Unit]:
    exact, entries = _columns(model, layer, prompts)
    geometry = model.geometry(layer)
    if geometry is None or prompts is None:
        return []
    targets = prompts.target_position.tolist()

    def hide(scores: Tensor, rows: Rows) -> Tensor:
        for row, index in enumerate(rows.prompt.tolist()):
            for entry in geometry.entries_of(targets[index]):
                if entry < entries:
                    scores[row, :, :, exact + entry] = -torch.inf
        return scores

    return [_masking(str(layer), layer, hide)]


def _pick_units(model: HookedModel, layer: int, prompts: Prompts | None) -> list[Unit]:
    _columns(model, layer, prompts)  # the prompts are needed here too
    geometry = model.geometry(layer)
    if geometry is None or prompts is None:
        return []
    targets = prompts.target_position.tolist()

    def strike(name: str, picks: Tensor, rows: Rows, value_at: ValueAt | None) -> Tensor:
        for row, index in enumerate(rows.prompt.tolist()):
            reached = geometry.entries_of(targets[index])
            picks[row].masked_fill_((picks[row] >= reached.start) & (picks[row] < reached.stop), -1)
        return picks

    return [Unit(str(layer), layer, -1, (f"blocks.{layer}.attn.indexer.hook_picks",), False, strike)]


def _gate_offset_units(model: HookedModel, layer: int, prompts: Prompts | None) -> list[Unit]:
    geometry, valid = model.geometry(layer), set(model.site_names())
    if geometry is None:
        return []
    branches = ("key", "value")
    sites = tuple(
        name for b in branches if (name := f"blocks.{layer}.attn.compressor.{b}.hook_gate") in valid
    )

    def without(offset: int) -> Callable[[str, Tensor, Rows, ValueAt | None], Tensor]:
        def edit(name: str, gate: Tensor, rows: Rows, value_at: ValueAt | None) -> Tensor:
            rest = gate.clone()
            rest[:, :, offset] = 0.0
            left = rest.sum(2, keepdim=True)
            return torch.where(left > 0, rest / left.clamp_min(torch.finfo(gate.dtype).tiny), gate)

        return edit

    if geometry.window == 1:
        return []
    return [Unit(f"{layer}.{i}", layer, -1, sites, False, without(i)) for i in range(geometry.window)]


_BUILDERS: dict[str, Callable[[HookedModel, int, Prompts | None], list[Unit]]] = {
    "kv_head": _kv_head_units,
    "head": _head_units,
    "layer": _layer_units,
    "mlp": _mlp_units,
    "engram": _engram_units,
    "exact_branch": _exact_branch_units,
    "entry_branch": _entry_branch_units,
    "target_entry": _target_entry_units,
    "picks": _pick_units,
    "gate_offset": _gate_offset_units,
}
_OF_PROMPTS = {"exact_branch", "entry_branch", "target_entry", "picks"}
"""Kinds that mask columns, which depend on the prompts."""
