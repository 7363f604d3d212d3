"""Statistics every intervention reports, and its controls: strides and weights that mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
import torch
import xarray as xr
from jaxtyping import Float

from hooks.errors import SiteError, StatisticsError
from interp import stats
from interp.phases import by_phase
from interp.rng import derive_seed, numpy_rng

__all__ = ["controls", "discover_then_confirm", "over_seeds", "paired_statistics", "random_like"]

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


def discover_then_confirm(
    found: xr.Dataset, *, variable: str = "logprob", seed: int = 0, share: float = 0.5
) -> xr.Dataset:
    """Explore on some prompts and confirm on the others.

    Parameters
    ----------
    found : Dataset
        Of any verb: `variable` (unit, prompt, residue), its clean (or base) counterpart, attribute ``stride``.
    variable : str
        The score.
    seed, share
        Of the split, see :func:`interp.stats.discover_confirm`.

    Returns
    -------
    Dataset
        By ``(unit, phase)``: ``q_discover``, Benjamini–Hochberg on the discovering half, exploratory;
        ``discovered`` (q < 0.05); ``p_confirm``, family-wise on the confirming half over the units that were
        discovered at any phase (NaN for the others); ``confirmed``, discovered there with p < 0.05 and the
        same sign. Numbers to publish need seeds of at least ``stats.CONFIRMATORY_SEED`` besides.

    Raises
    ------
    StatisticsError
        If a half has fewer than 6 prompt_ids.
    """
    stride, deltas = int(found.attrs["stride"]), _deltas(found, variable)
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
    axes = ("unit", "phase")
    return xr.Dataset(
        {
            "q_discover": (axes, q),
            "discovered": (axes, discovered),
            "p_confirm": (axes, p),
            "confirmed": (axes, confirmed),
        },
        coords={"unit": found["unit"].values, "phase": np.arange(stride)},
        attrs={**found.attrs, "n_discover": len(first), "n_confirm": len(second), "split_seed": seed},
    )


def over_seeds(found: Sequence[xr.Dataset], *, variable: str = "logprob", seed: int = 0) -> xr.Dataset:
    """Mean change by unit and phase over the trained seeds of one model family, seeds drawn first.

    Parameters
    ----------
    found : sequence of Dataset
        One a seed, of the same verb and settings on the same number of prompts. Units match by label: a claim
        about "head 1.0" of a family presumes that seeds put the same thing there; layers are safer.
    variable : str
        The score.
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
    if not found or any(
        dict(one.sizes) != dict(found[0].sizes) or one.attrs["stride"] != found[0].attrs["stride"]
        for one in found
    ):
        raise StatisticsError("results of a family must be one or more, of equal sizes and strides")
    stride = int(found[0].attrs["stride"])
    # [seed, prompt, unit, phase]
    by = np.stack([stats.phase_means(_deltas(one, variable), stride).swapaxes(0, 1) for one in found])
    low, high = stats.family_interval(by, seed=seed)
    axes = ("unit", "phase")
    return xr.Dataset(
        {
            "change": (axes, by.mean(axis=(0, 1))),
            "change_low": (axes, low),
            "change_high": (axes, high),
            "by_seed": (("model_seed", *axes), by.mean(axis=1)),
        },
        coords={"unit": found[0]["unit"].values, "phase": np.arange(stride)},
        attrs={
            "stride": stride,
            "scored": variable,
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
    variable: str = "logprob",
    seed: int = 0,
) -> xr.Dataset:
    """Hold phase effects against strides that mean nothing and against a model that learned nothing.

    Parameters
    ----------
    model : HookedModel
        What was measured.
    found : Dataset
        With per-prompt `variable` (unit, prompt, residue) and its clean counterpart.
    measure : function
        Makes the same kind of Dataset of another model.
    variable : str
        The score.
    seed : int
        Of the random weights and of the permutations.

    Returns
    -------
    Dataset
        By ``control``: "own" (the model at its stride), "placebo q" for every placebo stride, and "random
        weights": ``spread (control, unit)``, largest minus smallest mean change over phases (nats);
        ``null_spread (control, unit)``, what 95% of permutations of phases within prompts stay below, over all
        units at once; ``exceeds (control, unit)``, family-wise at 5% within each control. A phase effect
        that its controls show too is none.
    """
    stride, modulus = int(found.attrs["stride"]), int(found.attrs["modulus"])
    other = measure(random_like(model, seed=derive_seed(seed, "random weights") % 2**31))
    rows: list[tuple[str, np.ndarray, int]] = [("own", _deltas(found, variable), stride)]
    rows += [(f"placebo {q}", rows[0][1], q) for q in stats.placebo_strides(stride, modulus)]
    rows.append(("random weights", _deltas(other, variable), stride))
    spread = np.stack([_spread(deltas, step) for _, deltas, step in rows])
    null = np.stack([_null_spread(deltas, step, seed) for _, deltas, step in rows])
    return xr.Dataset(
        {
            "spread": (("control", "unit"), spread),
            "null_spread": (("control", "unit"), null),
            "exceeds": (("control", "unit"), spread > null),
        },
        coords={"control": [name for name, _, _ in rows], "unit": found["unit"].values},
        attrs={**found.attrs, "control_model_hash": other.attrs["model_hash"], "scored": variable},
    )


def _deltas(found: xr.Dataset, variable: str) -> np.ndarray:
    clean = f"clean_{variable}" if f"clean_{variable}" in found else f"base_{variable}"
    return found[variable].values.astype(float) - found[clean].values.astype(float)


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
