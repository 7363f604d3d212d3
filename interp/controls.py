"""Statistics every intervention reports, and its controls: strides and weights that mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
import xarray as xr
from jaxtyping import Float

from hooks.errors import SiteError, StatisticsError, did_you_mean
from interp import stats
from interp.phases import by_phase
from interp.rng import derive_seed, numpy_rng

__all__ = [
    "NOTHING", "compared", "controls", "discover_then_confirm", "over_seeds", "paired_statistics", "random_like",
]  # fmt: skip

NOTHING = "0"
"""Stands for the clean counterpart of values that are changes already."""

Variables = dict[str, tuple[tuple[str, str], Float[np.ndarray, "unit phase"]]]


def paired_statistics(
    name: str,
    deltas: Float[np.ndarray, "unit prompt residue"],
    stride: int,
    *,
    seed: int = 0,
    n_resamples: int = 1000,
) -> Variables:
    """Mean change by unit and phase with what a reviewer asks for.

    Parameters
    ----------
    name : str
        Of the variables.
    deltas : array [unit, prompt, residue]
        Changed minus clean score of the same prompt.
    stride : int
        S.
    seed : int
        Of resamples and sign flips.
    n_resamples : int
        Bootstrap resamples.

    Returns
    -------
    dict of (dims, array [unit, phase])
        ``name``, the mean; ``name_low name_high``, its BCa interval over prompt_ids (NaN below 10);
        ``name_p``, family-wise over units × phases (:func:`interp.stats.effect_test`; NaN below 6);
        ``name_q``, for exploration only: Benjamini–Hochberg over the cells' own t tests.

    Raises
    ------
    StatisticsError
        If a change is not finite.
    """
    if not np.isfinite(deltas).all():
        raise StatisticsError(
            f"{name}: a changed run gave scores that are not finite; nothing can be averaged"
        )
    units, prompts = deltas.shape[:2]
    by = stats.phase_means(deltas, stride)  # [unit, prompt, phase]
    low, high = stats.bca(by.swapaxes(0, 1), seed=seed, n_resamples=n_resamples)
    p = np.full((units, stride), np.nan)
    q = p.copy()
    if prompts >= stats.MIN_TEST_PROMPTS:
        p = stats.effect_test(deltas, stride, seed=seed).p
        # The t test by hand: scipy warns of cells where all prompts agree, which are common here.
        spread = by.std(axis=1, ddof=1) / np.sqrt(prompts)
        mean = by.mean(axis=1)
        t = np.divide(mean, spread, out=np.where(mean == 0, 0.0, np.inf), where=spread > 0)
        q = stats.benjamini_hochberg(2 * scipy.stats.t.sf(np.abs(t), prompts - 1))
    axes = ("unit", "phase")
    found = {"": by.mean(axis=1), "_low": low, "_high": high, "_p": p, "_q": q}
    return {f"{name}{end}": (axes, values) for end, values in found.items()}


# ---- what was changed, and against what --------------------------------------------------------------------


def compared(**clean: str) -> dict[str, str]:
    """Attributes that name a result's per-prompt variables and what each is held against, the main one first.

    Parameters
    ----------
    **clean : str
        By variable: that of the clean run, with all or some of its dims, or :data:`NOTHING`.

    Returns
    -------
    dict
        ``changed`` and ``clean``, variables in the same order, separated by blanks.
    """
    return {"changed": " ".join(clean), "clean": " ".join(clean.values())}


@dataclass(frozen=True)
class _Changes:
    """Changes by prompt of everything a result holds, one row for each that is defined.

    Attributes
    ----------
    variable : str
        The score.
    deltas : array [row, prompt, residue]
        Changed minus clean.
    dims : tuple
        What the rows are, e.g. ("unit",) or ("sender", "receiver").
    there : bool array [*dims]
        Which cells the rows fill; the others are undefined for every prompt.
    coords : dict
        Labels of the dims.
    stride : int
        S.
    """

    variable: str
    deltas: Float[np.ndarray, "row prompt residue"]
    dims: tuple[Hashable, ...]
    there: np.ndarray
    coords: dict[Hashable, np.ndarray]
    stride: int

    def back(self, rows: np.ndarray, fill: Any = np.nan) -> np.ndarray:
        """Put [row, …] where the rows come from: [*dims, …]."""
        table = np.full((*self.there.shape, *rows.shape[1:]), fill, dtype=rows.dtype)
        table[self.there] = rows
        return table


def _pairs(found: xr.Dataset) -> dict[str, str]:
    """Clean counterpart by variable: those that the attributes name, then any with ``clean_`` or ``base_``."""
    named = zip(*(str(found.attrs.get(end, "")).split() for end in ("changed", "clean")), strict=False)
    pairs = {a: b for a, b in named if a in found and (b == NOTHING or b in found)}
    for name in map(str, found.data_vars):
        for clean in (f"clean_{name}", f"base_{name}"):
            if clean in found:
                pairs.setdefault(name, clean)
    return pairs


def _changes(found: xr.Dataset, variable: str | None) -> _Changes:
    """Look a result's changes up.

    Raises
    ------
    StatisticsError
        If it holds none of that name by prompt, or some are not finite.
    """
    pairs = _pairs(found)
    if variable is None:
        variable = next(iter(pairs), "logprob")
    if variable not in pairs:
        raise StatisticsError(
            f"variable={variable!r} is not held against a clean run here; {did_you_mean(variable, pairs)}"
        )
    rows = ("prompt", "residue")
    changed = found[variable]
    if not {*rows} <= {*changed.dims} or "stride" not in found.attrs:
        raise StatisticsError(f"{variable} has no prompts and residues, or the result no stride, to test by")
    dims = tuple(dim for dim in changed.dims if dim not in rows)
    changed = changed.astype(float)
    if pairs[variable] != NOTHING:
        changed = changed - found[pairs[variable]].astype(float)
    values = changed.transpose(*dims, *rows).values
    there = np.asarray(~np.isnan(values).all(axis=(-2, -1)))
    if not there.any():
        raise StatisticsError(f"{variable} is undefined throughout: there is nothing to test")
    deltas = values[there]
    if not np.isfinite(deltas).all():
        raise StatisticsError(
            f"{variable}: a changed run gave scores that are not finite; nothing can be averaged"
        )
    coords = {dim: found[dim].values for dim in dims if dim in found.coords}
    return _Changes(variable, deltas, dims, there, coords, int(found.attrs["stride"]))


# ---- over any verb's result --------------------------------------------------------------------------------


def discover_then_confirm(
    found: xr.Dataset, *, variable: str | None = None, seed: int = 0, share: float = 0.5
) -> xr.Dataset:
    """Explore on some prompts and confirm on the others.

    Parameters
    ----------
    found : Dataset
        Of any verb whose attributes ``changed`` and ``clean`` (:func:`compared`) name per-prompt values, or with
        ``clean_`` or ``base_`` before a variable's name for its counterpart; and ``stride``.
    variable : str, optional
        The score; the first that the attributes name if left out, e.g. ``logprob`` of a knockout.
    seed, share
        Of the split, see :func:`interp.stats.discover_confirm`.

    Returns
    -------
    Dataset
        By ``(unit, phase)``, or what else was measured one by one in place of units, e.g. ``(sender, receiver,
        phase)``: ``q_discover``, Benjamini–Hochberg on the discovering half, exploratory;
        ``discovered`` (q < 0.05); ``p_confirm``, family-wise on the confirming half over the units that were
        discovered at any phase (NaN for the others); ``confirmed``, discovered there with p < 0.05 and the
        same sign; NaN (and False) where there is nothing to change. Numbers to publish need seeds of at
        least ``stats.CONFIRMATORY_SEED`` besides.

    Raises
    ------
    StatisticsError
        If a half has fewer than 6 prompt_ids, or nothing in the result is held against a clean run.
    """
    changes = _changes(found, variable)
    stride, deltas = changes.stride, changes.deltas
    first, second = stats.discover_confirm(deltas.shape[1], seed=seed, share=share)
    if min(len(first), len(second)) < stats.MIN_TEST_PROMPTS:
        raise StatisticsError(
            f"{deltas.shape[1]} prompt_ids leave a half below {stats.MIN_TEST_PROMPTS}; valid: "
            f"{2 * stats.MIN_TEST_PROMPTS} or more"
        )
    looked = paired_statistics("x", deltas[:, first], stride, seed=seed)
    q, mean = looked["x_q"][1], looked["x"][1]
    discovered = q < stats.SIGNIFICANCE
    chosen = discovered.any(axis=1)
    p, confirmed = np.full(q.shape, np.nan), np.zeros(q.shape, dtype=bool)
    if chosen.any():
        again = stats.effect_test(deltas[chosen][:, second], stride, seed=seed)
        p[chosen] = again.p
        same = np.sign(again.statistic) == np.sign(mean[chosen])
        confirmed[chosen] = discovered[chosen] & (again.p < stats.SIGNIFICANCE) & same
    axes = (*changes.dims, "phase")
    return xr.Dataset(
        {
            "q_discover": (axes, changes.back(q)),
            "discovered": (axes, changes.back(discovered, False)),
            "p_confirm": (axes, changes.back(p)),
            "confirmed": (axes, changes.back(confirmed, False)),
        },
        coords={**changes.coords, "phase": np.arange(stride)},
        attrs={
            **found.attrs, "n_discover": len(first), "n_confirm": len(second), "split_seed": seed,
            "scored": changes.variable,
        },
    )  # fmt: skip


def over_seeds(found: Sequence[xr.Dataset], *, variable: str | None = None, seed: int = 0) -> xr.Dataset:
    """Mean change by unit and phase over the trained seeds of one model family, seeds drawn first.

    Parameters
    ----------
    found : sequence of Dataset
        One a seed, of the same verb and settings on the same number of prompts. Units match by label: a claim
        about "head 1.0" of a family presumes that seeds put the same thing there; layers are safer.
    variable : str, optional
        The score, as in :func:`discover_then_confirm`.
    seed : int
        Of the resamples.

    Returns
    -------
    Dataset
        ``change change_low change_high (unit, phase)``, see :func:`interp.stats.family_interval` (NaN below 3
        seeds or 10 prompts); ``by_seed (model_seed, unit, phase)``: all seeds, never a chosen one alone.

    Raises
    ------
    StatisticsError
        If the results do not match.
    """
    every = [_changes(one, variable) for one in found]
    if not every or any(
        one.deltas.shape != every[0].deltas.shape or one.stride != every[0].stride
        or not np.array_equal(one.there, every[0].there) for one in every
    ):  # fmt: skip
        raise StatisticsError("results of a family must be one or more, of equal sizes and strides")
    first, stride = every[0], every[0].stride
    # [seed, prompt, unit, phase]
    by = np.stack([stats.phase_means(one.deltas, stride).swapaxes(0, 1) for one in every])
    low, high = stats.family_interval(by, seed=seed)
    axes = (*first.dims, "phase")
    return xr.Dataset(
        {
            "change": (axes, first.back(by.mean(axis=(0, 1)))),
            "change_low": (axes, first.back(low)),
            "change_high": (axes, first.back(high)),
            "by_seed": (("model_seed", *axes), np.stack([first.back(one) for one in by.mean(axis=1)])),
        },
        coords={**first.coords, "phase": np.arange(stride)},
        attrs={
            "stride": stride,
            "scored": first.variable,
            "model_hashes": [str(one.attrs["model_hash"]) for one in found],
        },
    )


def random_like(model: Any, *, seed: int = 0) -> Any:
    """Return a model of the same class and configuration whose weights are drawn anew and never trained.

    Raises
    ------
    SiteError
        For a model that its configuration cannot make again.
    """
    if hasattr(model.cfg, "replace"):
        made = type(model)(model.cfg.replace(seed=seed)).to(model.device).eval()
    elif hasattr(model, "plain"):
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # the only way to seed that class's own initialisation
            plain = type(model.plain)(model.plain.config).to(model.device).eval()
        made = type(model)(plain)
    else:
        raise SiteError(f"model {model.name!r} has no configuration to draw other weights from")
    made.name, made.task = f"{model.name}, random weights", model.task
    return made


def controls(
    model: Any,
    found: xr.Dataset,
    measure: Callable[[Any], xr.Dataset],
    *,
    variable: str | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Hold phase effects against strides that mean nothing and against a model that learned nothing.

    Parameters
    ----------
    model : HookedModel
        What was measured.
    found : Dataset
        As for :func:`discover_then_confirm`.
    measure : function
        Makes the same kind of Dataset of another model.
    variable : str, optional
        The score, as there.
    seed : int
        Of the random weights and of the permutations.

    Returns
    -------
    Dataset
        By ``control``: "own" (the model at its stride), "placebo q" for every placebo stride, and "random
        weights": ``spread (control, unit)``, largest minus smallest mean change over phases (nats);
        ``null_spread (control, unit)``, what 95% of permutations of phases within prompts stay below, over all
        units at once; ``exceeds (control, unit)``, family-wise at 5% within each control. A phase effect
        that its controls show too is none. NaN (and False) where there is nothing to change, and throughout below
        6 prompt_ids, which no permutation can tell from chance.

    Raises
    ------
    StatisticsError
        If nothing in the result is held against a clean run.
    """
    changes = _changes(found, variable)
    stride, residues = changes.stride, changes.deltas.shape[-1]
    other = measure(random_like(model, seed=derive_seed(seed, "random weights") % 2**31))
    rows: list[tuple[str, _Changes, int]] = [("own", changes, stride)]
    rows += [(f"placebo {q}", changes, q) for q in stats.placebo_strides(stride, residues)]
    rows.append(("random weights", _changes(other, changes.variable), stride))
    held = [_held(one, step, seed) for _, one, step in rows]
    spread, null = (np.stack(each) for each in zip(*held, strict=True))
    axes = ("control", *changes.dims)
    return xr.Dataset(
        {"spread": (axes, spread), "null_spread": (axes, null), "exceeds": (axes, spread > null)},
        coords={"control": [name for name, _, _ in rows], **changes.coords},
        attrs={**found.attrs, "control_model_hash": other.attrs["model_hash"], "scored": changes.variable},
    )


def _held(changes: _Changes, stride: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Spread and the bar it is held against; NaN below the minimum of prompts."""
    if changes.deltas.shape[1] < stats.MIN_TEST_PROMPTS:
        undefined = np.full(changes.there.shape, np.nan)
        return undefined, undefined.copy()
    return (
        changes.back(_spread(changes.deltas, stride)),
        changes.back(_null_spread(changes.deltas, stride, seed)),
    )


def _spread(deltas: np.ndarray, stride: int) -> np.ndarray:
    count = deltas.shape[1] * deltas.shape[2] // stride
    return np.ptp(by_phase(deltas, stride) / count, axis=-1)


def _null_spread(deltas: np.ndarray, stride: int, seed: int, n_permutations: int = 199) -> np.ndarray:
    """Spread that 95% of permutations stay below with all units at once, each on its own scale.

    Residues are permuted within every prompt, alike for all units; a unit's scale is its mean permuted spread.
    """
    rng = numpy_rng(seed, "control spread", stride)
    drawn = []
    for _ in range(n_permutations):
        order = rng.random(deltas.shape[1:]).argsort(axis=-1)
        drawn.append(_spread(np.take_along_axis(deltas, order[None], axis=-1), stride))
    null = np.stack(drawn)
    scale = null.mean(axis=0)
    relative = np.divide(null, scale, out=np.zeros_like(null), where=scale > 0)
    return np.quantile(relative.max(axis=1), 0.95) * scale
