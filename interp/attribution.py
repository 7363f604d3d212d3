"""Attribution patching: gradient × difference, and how well it ranks what true patching gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import scipy
import torch
import xarray as xr
from torch import Tensor

from hooks.checks import require_choice
from hooks.errors import SiteError
from hooks.sites import HookedModel, site
from interp import engine, results, stats
from interp.controls import NOTHING, compared, paired_statistics
from interp.engine import At, Rows, Variant, answer_metrics
from interp.phases import fold, measured_stride, sample_blocks
from interp.replacement import CALIBRATION_BLOCKS, Replace, ValueAt, calibrate
from interp.rng import numpy_rng
from interp.tasks.prompts import Prompts, Task
from interp.tasks.recall import RecallTask
from interp.units import Unit, select_units, units

__all__ = ["SATURATED", "attribution", "rank_agreement"]

SATURATED = 0.99
"""Probability of the answer above which the gradient of its log-probability says little."""
DEFAULT_PER_RESIDUE = 8


def attribution(
    model: HookedModel,
    task: Task | None = None,
    *,
    unit: Literal["head", "kv_head", "layer", "mlp", "gate_offset"] = "head",
    replace: Replace = "mean",
    score: Literal["margin", "logprob"] = "margin",
    only: Sequence[str] | None = None,
    n: int | None = None,
    seed: int = 0,
    stride: int | None = None,
    memory: int = engine.MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """Estimate what removing each unit does from one backward pass, beside what it really does.

    Parameters
    ----------
    model, task, only, seed, stride, memory, progress
        As in :func:`interp.knockout.knockout`.
    unit : str
        Heads, layers and MLPs are replaced at the final position; a gate offset is removed in every window,
        the rest renormalised.
    replace : str
        By what heads, layers and MLPs are replaced.
    score : "margin" or "logprob"
        What is estimated. The softmax over answers saturates: where the answer has a probability near 1 the
        gradient of its log-probability is near 0, whatever a unit is worth. The margin is linear in the
        logits and does not saturate; phases where "logprob" would are flagged either way.
    n : int, optional
        Prompts, rounded up to whole blocks of R; 8 a residue if left out.

    Returns
    -------
    Dataset
        ``attributed (unit, phase)``, mean of gradient × (replaced − clean); ``true (unit, phase)``, mean
        change of the score when the unit is replaced, each with ``_low _high _p _q``
        (:func:`interp.controls.paired_statistics`); per prompt ``attributed_prompt true_prompt (unit, prompt,
        residue)``; ``saturated (phase)``, the share of clean prompts with p(answer) above 0.99; ``missed
        (unit, phase)``, where the true effect is significant and the estimate has another sign or less
        than a tenth of its size. Attributes ``rank_correlation`` (Spearman, over units × phases) with interval
        ``rank_correlation_low _high`` by bootstrap over prompt_ids, and ``n_cells``.

    Raises
    ------
    PhaselensError
        For another score or replacement.
    SiteError
        For units that are removed by masking scores: −inf has no gradient.
    """
    task = task or RecallTask.for_model(model)
    require_choice("score", score, ("margin", "logprob"))
    step = measured_stride(model, task, stride)
    prompts = sample_blocks(task, n, seed, DEFAULT_PER_RESIDUE)
    chosen = select_units(units(model, unit, prompts), only)
    if any(name.endswith("hook_attn_scores") for one in chosen for name in one.sites):
        raise SiteError(
            f"unit={unit!r} is masked by scores of -inf, which have no gradient; valid: head, gate_offset"
        )
    at: At = "final" if chosen[0].replaced else "all"
    options: dict[str, Any] = dict(memory=memory, progress=progress)
    value_at = calibrate(
        model, task, prompts, [name for one in chosen if one.replaced for name in one.sites], replace=replace, at=at,
        stride=step, seed=seed, n=CALIBRATION_BLOCKS * task.modulus, **options,
    ).at  # fmt: skip
    variants = [Variant(one.label, one.edits(value_at)) for one in chosen]
    scores = engine.run(model, prompts, variants, at=at, label="true", **options)
    estimate = fold(_estimates(model, prompts, chosen, value_at, at, score, memory), task.modulus)
    truth = fold(scores[score], task.modulus).astype(float)
    true = truth[1:] - truth[0]
    data: dict[str, Any] = paired_statistics("attributed", estimate, step, seed=seed)
    data |= paired_statistics("true", true, step, seed=seed)
    mean, wanted, p = (data[name][1] for name in ("attributed", "true", "true_p"))
    sure = fold(scores["logprob"][0], task.modulus) > np.log(SATURATED)
    missed = (p < stats.SIGNIFICANCE) & (mean * np.sign(wanted) < 0.1 * np.abs(wanted))
    axes = ("unit", "prompt", "residue")
    value, low, high = rank_agreement(estimate, true, step, seed=seed)
    return xr.Dataset(
        {
            **data,
            "attributed_prompt": (axes, estimate),
            "true_prompt": (axes, true),
            "saturated": ("phase", stats.phase_means(sure, step).mean(0)),
            "missed": (("unit", "phase"), missed),
            "target_position": (axes[1:], fold(prompts.target_position, task.modulus)),
        },
        coords={
            "unit": [one.label for one in chosen],
            "layer": ("unit", [one.layer for one in chosen]), "head": ("unit", [one.head for one in chosen]),
            "phase": np.arange(step), "prompt": np.arange(true.shape[1]), "residue": np.arange(task.modulus),
        },
        attrs=results.provenance(
            model, task, seed, unit_kind=unit, replace=replace if chosen[0].replaced else "masked", at=at,
            score=score, stride=step, modulus=task.modulus, n_per_residue=true.shape[1], n_cells=mean.size,
            rank_correlation=value, rank_correlation_low=low, rank_correlation_high=high,
            query_position=prompts.query_position, **compared(true_prompt=NOTHING, attributed_prompt=NOTHING),
        ),
    )  # fmt: skip


def rank_agreement(
    estimate: np.ndarray, true: np.ndarray, stride: int, *, seed: int = 0, n_resamples: int = 500
) -> tuple[float, float, float]:
    """Spearman correlation of two [unit, prompt, residue] effects over units × phases, with its interval.

    Returns
    -------
    value, low, high : float
        Percentile bootstrap over prompt_ids; NaN bounds below 10 of them; NaN where either is constant.
    """
    a, b = (stats.phase_means(values, stride) for values in (estimate, true))  # [unit, prompt, phase]

    def of(rows: Any) -> float:
        x, y = a[:, rows].mean(1).ravel(), b[:, rows].mean(1).ravel()
        if np.ptp(x) == 0 or np.ptp(y) == 0:
            return float("nan")
        return float(np.corrcoef(scipy.stats.rankdata(x), scipy.stats.rankdata(y))[0, 1])

    prompts = a.shape[1]
    if prompts < stats.MIN_BOOTSTRAP_PROMPTS:
        return of(slice(None)), float("nan"), float("nan")
    rng = numpy_rng(seed, "rank agreement", prompts)
    drawn = np.array([of(rng.integers(prompts, size=prompts)) for _ in range(n_resamples)])
    low, high = (
        np.quantile(drawn[np.isfinite(drawn)], [0.025, 0.975]) if np.isfinite(drawn).any() else (np.nan,) * 2
    )
    return of(slice(None)), float(low), float(high)


def _estimates(
    model: HookedModel,
    prompts: Prompts,
    chosen: Sequence[Unit],
    value_at: ValueAt | None,
    at: At,
    score: str,
    memory: int,
) -> np.ndarray:
    """Gradient × difference [unit, n]."""
    names = list(dict.fromkeys(name for one in chosen for name in one.sites))
    length = prompts.tokens.shape[1]
    metric = answer_metrics(prompts)
    parts: list[Tensor] = []
    # The graph of a backward pass holds every activation, where a forward pass needs a few at a time.
    for chunk in engine.chunks(model, len(prompts), length, 0, memory // (2 * model.cfg.n_layers)):
        kept: dict[str, Tensor] = {}

        def keep(tensor: Tensor, hook: Any, kept: dict[str, Tensor] = kept) -> Tensor:
            kept[hook.name] = tensor if tensor.requires_grad else tensor.requires_grad_()
            return kept[hook.name]

        tokens = prompts.tokens[chunk.start : chunk.stop].to(model.device)
        prompt = torch.arange(chunk.start, chunk.stop, device=model.device)
        with torch.enable_grad():
            logits = model.run_with_hooks(tokens, [(name, keep) for name in names], last_only=True)
            total = metric(logits, prompt)[score].sum()
            found = torch.autograd.grad(total, [kept[name] for name in names])
        slopes = dict(zip(names, found, strict=True))
        rows = Rows(prompt, torch.arange(length, device=model.device))
        with torch.no_grad():
            parts.append(
                torch.stack([_product(one, kept, slopes, rows, value_at, at) for one in chosen])
                .double()
                .cpu()
            )
    return torch.cat(parts, dim=1).numpy()


def _product(
    one: Unit,
    kept: dict[str, Tensor],
    slopes: dict[str, Tensor],
    rows: Rows,
    value_at: ValueAt | None,
    at: At,
) -> Tensor:
    """Σ gradient · (replaced − clean) of one unit [batch]."""
    total = torch.zeros(len(rows.prompt), device=rows.prompt.device)
    for name in one.sites:
        clean, slope = kept[name].detach(), slopes[name]
        axes, where = site(name).axes, rows
        if at == "final" and "pos" in axes:
            axis = axes.index("pos")
            clean, slope = (x.narrow(axis, x.shape[axis] - 1, 1) for x in (clean, slope))
            where = rows._replace(positions=rows.positions[-1:])
        changed = one.edit(name, clean.clone(), where, value_at)
        total = total + ((changed - clean) * slope).flatten(1).sum(1)
    return total
