"""Ways of computing one knockout map; all give the same log-probabilities, [1 + unit, prompt].

Every way measures its replacement values itself, on the same calibration prompts, and runs the same batches.

Axis legend: batch B, position T, head H, d_head D.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hooks.errors import PhaselensError
from hooks.replay import fastest
from hooks.transformer import CompressedTransformer
from interp import engine
from interp.bench.cases import Loaded
from interp.engine import Rows, Variant
from interp.replacement import calibrate
from interp.tasks.prompts import Prompts

__all__ = ["METHODS", "Method", "bare"]

Method = Callable[[Loaded], Tensor]
"""``method(loaded) -> log-probabilities [1 + units run, prompt]``."""


def ours(loaded: Loaded) -> Tensor:
    """The engine: one prefill, then all units as one batch of single positions."""
    case = loaded.case
    names = [name for unit in loaded.units for name in unit.sites]
    value_at = calibrate(
        loaded.model, loaded.task, loaded.prompts, names, replace="mean", at="final", stride=1,
        n=case.n_calibration, seed=case.seed, memory=case.memory, progress=False,
    ).at  # fmt: skip
    variants = [Variant(unit.label, unit.edits(value_at, repeatable=True)) for unit in loaded.units]
    scores = engine.run(loaded.model, loaded.prompts, variants, memory=case.memory, progress=False)
    return scores["logprob"]


def float64(loaded: Loaded) -> Tensor:
    """The engine on the same weights in twice the precision.

    Raises
    ------
    PhaselensError
        For a model that is not our own.
    """
    if not isinstance(loaded.model, CompressedTransformer):
        raise PhaselensError(f"float64 runs our own models only; {loaded.model.name!r} is another class")
    return ours(replace(loaded, model=copy.deepcopy(loaded.model).double()))


@torch.no_grad()
def bare(loaded: Loaded) -> Tensor:
    """The bare run: hook-free prefills and the same single positions in one batch, nothing replaced."""
    model = loaded.model
    for chunk in loaded.chunks(loaded.calibration):
        tokens = loaded.calibration.tokens[chunk.start : chunk.stop]
        cache = model.start_cache(len(tokens), rewind=False)
        model(tokens[:, :-1], cache, last_only=True)
        model(tokens[:, -1:], cache)
    first = sorted(unit.layer for unit in loaded.units)

    def run(tokens: Tensor) -> Tensor:
        cache = model.start_cache(len(tokens), rewind=False)
        model(tokens[:, :-1], cache, last_only=True)
        fork = cache.fork()
        stream = model(tokens[:, -1:], fork, stop_at_layer=0)[:, None]
        for layer in range(model.cfg.n_layers):
            new = stream[:, :1].expand(-1, first.count(layer), *stream.shape[2:])
            rows = torch.cat((stream, new), dim=1)
            stop = layer + 1 if layer + 1 < model.cfg.n_layers else None
            out = model(rows.flatten(0, 1), fork, start_at_layer=layer, stop_at_layer=stop)
            stream = out.unflatten(0, rows.shape[:2])
        return stream[:, :, -1]

    parts, forward, batches = [], None, loaded.chunks(loaded.prompts)
    for chunk in batches:
        tokens = loaded.prompts.tokens[chunk.start : chunk.stop]
        forward = forward or fastest(model, run, tokens, batches=len(batches))
        parts.append(_logprob(forward(tokens), loaded.prompts, chunk).T)
    return torch.cat(parts, dim=1)


@torch.no_grad()
def transformer_lens(loaded: Loaded) -> Tensor:
    """A plain TransformerLens loop: ``run_with_cache`` for the means, ``run_with_hooks`` once per unit."""
    model = loaded.model

    def means() -> dict[str, Tensor]:
        names = _sites(loaded)
        sums, count = {}, 0
        for chunk in loaded.chunks(loaded.calibration):
            tokens = loaded.calibration.tokens[chunk.start : chunk.stop]
            _, kept = model.run_with_cache(tokens, names_filter=names)
            for name in names:
                sums[name] = sums.get(name, 0) + kept[name][:, -1].double().sum(0)
            count += len(tokens)
        return {name: total / count for name, total in sums.items()}

    def run(tokens: Tensor, hooks: list[tuple[str, Callable[..., Any]]]) -> Tensor:
        return model.run_with_hooks(tokens, fwd_hooks=hooks)[:, -1]

    return _loop(loaded, means(), run)


def nnsight(loaded: Loaded) -> Tensor:
    """An nnsight loop: one trace for the means of a batch, one trace per unit."""
    from nnsight import NNsight

    if not isinstance(loaded.model, torch.nn.Module) or hasattr(loaded.model, "plain"):
        return _nnsight_deepseek(loaded)
    envoy: Any = NNsight(loaded.model)
    names = _sites(loaded)
    sums, count = {}, 0
    for chunk in loaded.chunks(loaded.calibration):
        tokens = loaded.calibration.tokens[chunk.start : chunk.stop]
        kept: dict[str, Tensor] = {}
        with torch.no_grad(), envoy.trace(tokens):
            for name in names:
                kept[name] = envoy.get(name).output.save()
        for name, z in kept.items():
            sums[name] = sums.get(name, 0) + z[:, -1].double().sum(0)
        count += len(tokens)
    means = {name: total / count for name, total in sums.items()}

    def run(tokens: Tensor, hooks: list[tuple[str, Callable[..., Any]]]) -> Tensor:
        with torch.no_grad(), envoy.trace(tokens):
            for name, edit in hooks:
                point = envoy.get(name)
                point.output = edit(point.output, None)
            logits = envoy.output.save()
        return logits[:, -1]

    return _loop(loaded, means, run)


@torch.no_grad()
def _nnsight_deepseek(loaded: Loaded) -> Tensor:
    from hooks.tracing import trace_deepseek_v4

    traced = trace_deepseek_v4(loaded.model.plain)  # type: ignore[attr-defined]
    names = _sites(loaded)
    sums, count = {}, 0
    for chunk in loaded.chunks(loaded.calibration):
        tokens = loaded.calibration.tokens[chunk.start : chunk.stop]
        for name, z in traced.activations(tokens, names).items():
            sums[name] = sums.get(name, 0) + z[:, -1].double().sum(0)
        count += len(tokens)
    means = {name: total / count for name, total in sums.items()}

    def run(tokens: Tensor, hooks: list[tuple[str, Callable[..., Any]]]) -> Tensor:
        edits = {name: lambda z, f=edit: f(z, None) for name, edit in hooks}
        return traced.run_with_edits(tokens, edits)[:, -1]

    return _loop(loaded, means, run)


@torch.no_grad()
def hugging_face(loaded: Loaded) -> Tensor:
    """Hugging Face's own class, eager attention, with PyTorch hooks where its heads' outputs are mixed.

    Raises
    ------
    PhaselensError
        For a model of another class.
    """
    hf = getattr(loaded.model, "plain", None)
    if hf is None:
        raise PhaselensError(f"{loaded.model.name!r} is no Hugging Face model; valid for: hfv4-mix, hfv4-csa")
    heads = loaded.model.cfg.n_heads

    def place(name: str) -> torch.nn.Module:
        return hf.model.layers[int(name.split(".")[1])].self_attn.o_a_proj

    def under(tokens: Tensor, hooks: list[tuple[str, Callable[..., Any]]]) -> Tensor:
        handles = []
        for name, edit in hooks:

            def before(module: Any, inputs: tuple[Tensor, ...], f: Any = edit) -> tuple[Tensor, ...]:
                z = inputs[0].flatten(2).unflatten(-1, (heads, -1)).clone()
                changed = f(z, None)
                return ((z if changed is None else changed).reshape(inputs[0].shape),)

            handles.append(place(name).register_forward_pre_hook(before))
        try:
            return hf(input_ids=tokens, use_cache=False).logits[:, -1]
        finally:
            for handle in handles:
                handle.remove()

    sums: dict[str, Any] = {}

    def keeping(name: str) -> Callable[..., None]:
        def keep(z: Tensor, hook: object) -> None:
            sums[name] = sums.get(name, 0) + z[:, -1].double().sum(0)

        return keep

    for chunk in loaded.chunks(loaded.calibration):
        tokens = loaded.calibration.tokens[chunk.start : chunk.stop]
        under(tokens, [(name, keeping(name)) for name in _sites(loaded)])
    return _loop(loaded, {name: total / len(loaded.calibration) for name, total in sums.items()}, under)


def _loop(
    loaded: Loaded,
    means: dict[str, Tensor],
    run: Callable[[Tensor, list[tuple[str, Callable[..., Any]]]], Tensor],
) -> Tensor:
    """One full forward pass for the clean run and one per unit, batch by batch."""
    parts = []
    for chunk in loaded.chunks(loaded.prompts):
        tokens = loaded.prompts.tokens[chunk.start : chunk.stop]
        rows = Rows(torch.arange(chunk.start, chunk.stop), torch.tensor([tokens.shape[1] - 1]))
        logits = [run(tokens, [])]
        for index in loaded.loop_units():
            unit = loaded.units[index]
            hooks = [(name, _final(unit, name, rows, means)) for name in unit.sites]
            logits.append(run(tokens, hooks))
        parts.append(_logprob(torch.stack(logits, dim=1), loaded.prompts, chunk).T)
    return torch.cat(parts, dim=1)


def _final(unit: Any, name: str, rows: Rows, means: dict[str, Tensor]) -> Callable[..., Tensor]:
    """Return a hook that edits the final position of [B, T, H, D] in place."""

    def value_at(site: str, tensor: Tensor, _: Rows) -> Tensor:
        return means[site].to(tensor.dtype).expand_as(tensor)

    def hook(z: Tensor, hook: object) -> Tensor:
        unit.edit(name, z[:, -1:], rows, value_at)
        return z

    return hook


def _sites(loaded: Loaded) -> list[str]:
    return list(dict.fromkeys(name for unit in loaded.units for name in unit.sites))


def _logprob(logits: Tensor, prompts: Prompts, chunk: range) -> Tensor:
    """[B, V] of the answers."""
    metric = engine.answer_metrics(prompts)
    return metric(logits, torch.arange(chunk.start, chunk.stop))["logprob"]


METHODS: dict[str, Method] = {
    "ours": ours,
    "bare": bare,
    "transformer_lens": transformer_lens,
    "nnsight": nnsight,
    "hugging_face": hugging_face,
    "float64": float64,
}
