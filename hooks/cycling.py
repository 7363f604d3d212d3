"""Gate cycling: the same model with its gates shifted by some offsets and its payloads left where they are."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hooks.checks import whole_number
from hooks.errors import SiteError

__all__ = ["cycle_gates", "cycled_layers"]


def cycle_gates(model: Any, shift: int) -> Any:
    """Return a copy whose gate maps Z and biases b are moved by `shift` offsets; payload maps C stay.

    Offset i then uses the gate of offset (i − shift) mod W, so what the model retrieved at phase r it should
    retrieve at (r + shift) mod S: A_δ(r) ≈ A_0((r − δ) mod S) (Zhu et al. 2026, arXiv 2609.36322).

    Parameters
    ----------
    model : CompressedTransformer
        With W = S and per-offset gates in every chunked layer. It is not changed.
    shift : int
        δ, in offsets; taken mod W.

    Raises
    ------
    SiteError
        If the model has no gates of its own per offset, windows that overlap, or only windows of one offset.
    """
    shift = whole_number("shift", shift, error=SiteError)
    layers = cycled_layers(model)
    moved = copy.deepcopy(model)
    moved.name = f"{model.name}, gates cycled by {shift}"
    with torch.no_grad():
        for layer in layers:
            compressor = moved.blocks[layer].attn.compressor
            for branch in (compressor.key, compressor.value):
                if branch is None:
                    continue
                if branch.W_gate.shape[0] == branch.geometry.window:
                    branch.W_gate.copy_(branch.W_gate.roll(shift, 0))
                if branch.b_gate is not None:
                    branch.b_gate.copy_(branch.b_gate.roll(shift, 0))
    return moved


def cycled_layers(model: Any) -> list[int]:
    """Layers whose gates :func:`cycle_gates` moves; its SiteError if it cannot."""
    own = hasattr(model.cfg, "layer")  # a model of ours; others keep no gate weights by offset
    layers = [
        i
        for i in range(model.cfg.n_layers if own else 0)
        if model.geometry(i) is not None and model.cfg.layer(i).role == "full"
    ]
    if not layers:
        raise SiteError(f"model {model.name!r} has no gates to cycle; valid: own models with chunked layers")
    for layer in layers:
        geometry, kind = model.geometry(layer), model.cfg.layer(layer)
        if geometry.window != geometry.stride or kind.gate == "uniform":
            raise SiteError(
                f"layer {layer} has window {geometry.window}, stride {geometry.stride} and {kind.gate} gates; "
                "cycling needs window = stride and learned gates"
            )
        if kind.payload == "shared" and not kind.gate_bias:
            raise SiteError(f"layer {layer} gates every offset alike, so there is nothing to cycle")
    if all(model.geometry(layer).window == 1 for layer in layers):
        raise SiteError(
            f"model {model.name!r} has windows of one offset, so there is nothing to cycle; valid: window 2 or more"
        )
    return layers
