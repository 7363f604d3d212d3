"""Which unit serves which phase, how selectively, and which phases no unit serves."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from hooks.errors import StatisticsError
from interp.stats import (
    MIN_CLEAN_CORRECT,
    MIN_TEST_PROMPTS,
    SIGNIFICANCE,
    by_cycle,
    effect_test,
    selectivity_test,
)

__all__ = ["MIN_LOSS", "arcs_text", "served_arcs", "served_text", "specialization", "unserved"]

MIN_LOSS = 40.0
"""Loss in percent of clean accuracy from which a unit serves a phase, unless another is given."""


def specialization(
    effects: xr.Dataset | xr.DataArray | ArrayLike,
    stride: int | None = None,
    *,
    min_loss: float = MIN_LOSS,
    clean_accuracy: ArrayLike | None = None,
    seed: int = 0,
    n_permutations: int = 999,
) -> xr.Dataset:
    """Say which phases each unit serves.

    A unit serves a phase if its loss there is at least `min_loss` percent of clean accuracy and, where
    prompts exist, the adjusted p of the effect is below 0.05.

    Parameters
    ----------
    effects : Dataset, DataArray or array
        A knockout result with per-prompt values; or, without any prompts, relative changes in percent
        (negative = loss) as [unit, any multiple of stride], e.g. a published table by residue, decided by the
        loss alone.
    stride : int, optional
        S; taken from the attributes of a knockout result when not given. Another one (a placebo) relabels.
    min_loss : float
        Percent of clean accuracy.
    clean_accuracy : array [any multiple of stride], optional
        For effects without prompts: weights of the columns of `effects` when they are pooled to phases, so
        that a change of a tiny base counts for little. Plain mean when not given.
    seed, n_permutations : int
        Of the two tests.

    Returns
    -------
    Dataset
        ``serves (unit, phase)``, ``loss (unit, phase)`` in percent (NaN = undefined, never served),
        ``selectivity (unit)`` = 1 − entropy of max(0, loss) over phases ÷ log S (NaN for a unit that serves
        none), ``p_effect (unit, phase)`` and ``p_selective (unit)`` (NaN without prompts), ``uncovered
        (phase)``.

    Raises
    ------
    StatisticsError
        If no stride is known, if it does not divide the columns, or if values have the wrong shape.
    """
    attrs: dict[str, Any] = {}
    coords: dict[str, Any] = {}
    if isinstance(effects, xr.Dataset | xr.DataArray):
        attrs = dict(effects.attrs)
        coords = {str(name): c for name, c in effects.coords.items() if c.dims == ("unit",)}
        stride = attrs.get("stride") if stride is None else stride
    if stride is None:
        raise StatisticsError("no stride is given and the effects carry none; pass stride=S")
    stride = int(stride)
    if isinstance(effects, xr.Dataset) and {"correct", "clean_correct"} <= set(effects):
        loss = _loss_from_counts(effects, stride)
        tested_on, p_effect, p_selective = _tests(effects, stride, seed, n_permutations)
    else:
        loss = -_pooled(_matrix(effects), stride, clean_accuracy)
        tested_on, p_effect, p_selective = "none", np.full(loss.shape, np.nan), np.full(len(loss), np.nan)
    # np.greater_equal is False for NaN: an undefined loss is not a service.
    serves = (loss >= min_loss) & ((p_effect < SIGNIFICANCE) if tested_on != "none" else True)
    attrs |= {
        "stride": stride,
        "min_loss": float(min_loss),
        "tested_on": tested_on,
        "specialization_seed": int(seed),
        "n_permutations": int(n_permutations),
    }
    return xr.Dataset(
        {
            "serves": (("unit", "phase"), serves),
            "loss": (("unit", "phase"), loss),
            "selectivity": ("unit", _selectivity(loss, serves)),
            "p_effect": (("unit", "phase"), p_effect),
            "p_selective": ("unit", p_selective),
            "uncovered": ("phase", ~serves.any(axis=0)),
        },
        coords={"unit": [str(u) for u in range(len(loss))], "phase": np.arange(stride)} | coords,
        attrs=attrs,
    )


def served_arcs(serves_row: ArrayLike) -> list[tuple[int, int]]:
    """Group served phases into cyclic runs (first, last): phases 7, 0, 1 of 8 are the run (7, 1).

    Parameters
    ----------
    serves_row : bool array [phase]
        One unit's row of ``serves``.

    Returns
    -------
    list of (int, int)
        By first phase; ``[(0, S−1)]`` if all are served, ``[]`` if none.
    """
    row = np.asarray(serves_row, dtype=bool)
    size = row.size
    if row.all():
        return [(0, size - 1)] if size else []
    arcs = []
    for first in range(size):
        if row[first] and not row[first - 1]:
            last = first
            while row[(last + 1) % size]:
                last = (last + 1) % size
            arcs.append((first, last))
    return arcs


def arcs_text(serves_row: ArrayLike) -> str:
    """Write served phases for a table: ``"7–1, 4"``, ``"all"`` or ``"none"``."""
    row = np.asarray(serves_row, dtype=bool)
    if row.size and row.all():
        return "all"
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in served_arcs(row)) or "none"


def served_text(serves_row: ArrayLike, loss_row: ArrayLike) -> str:
    """Write one unit's served phases beside those where its loss is undefined, which it may serve or not.

    Parameters
    ----------
    serves_row : bool array [phase]
        One unit's row of ``serves``.
    loss_row : array [phase]
        One unit's row of ``loss``; NaN is undefined.

    Returns
    -------
    str
        As :func:`arcs_text`, with the undefined phases named, or ``"undefined (accuracy too low)"`` for all.
    """
    undefined = np.isnan(np.asarray(loss_row, dtype=float))
    if not undefined.any():
        return arcs_text(serves_row)
    if undefined.all():
        return "undefined (accuracy too low)"
    return f"{arcs_text(serves_row)}; undefined at {arcs_text(undefined)} (accuracy too low)"


def unserved(specialization: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Split the phases that no unit serves: those where losses could be measured, and those where none could.

    Returns
    -------
    tuple of bool arrays [phase]
        Served by no unit; undefined, because too few clean answers are right there.
    """
    undefined = np.isnan(specialization["loss"].values.astype(float)).all(axis=0)
    uncovered = specialization["uncovered"].values.astype(bool)
    return uncovered & ~undefined, uncovered & undefined


def _matrix(effects: Any) -> Float[np.ndarray, "unit column"]:
    if isinstance(effects, xr.Dataset):
        if "effect" not in effects:
            raise StatisticsError(
                f"the Dataset holds {sorted(map(str, effects))}; valid: a knockout result with correct and "
                "clean_correct, or one with effect"
            )
        effects = effects["effect"]
    if isinstance(effects, xr.DataArray):
        effects = effects.transpose("unit", ...) if "unit" in effects.dims else effects
    array = np.asarray(effects, dtype=float)
    if array.ndim != 2 or array.size == 0 or np.isinf(array).any():
        raise StatisticsError(
            f"effects of shape {array.shape}; valid: [unit, any multiple of stride] in percent, finite or NaN"
        )
    return array


def _pooled(
    effects: Float[np.ndarray, "unit column"], stride: int, clean_accuracy: ArrayLike | None
) -> Float[np.ndarray, "unit phase"]:
    """Pool columns to phases, weighted by clean accuracy; undefined columns are left out."""
    weights = np.ones(effects.shape[1]) if clean_accuracy is None else np.asarray(clean_accuracy, dtype=float)
    if weights.shape != effects.shape[1:] or not np.all(weights >= 0):
        raise StatisticsError(
            f"clean_accuracy of shape {weights.shape}; valid: {effects.shape[1]} numbers >= 0, one a column"
        )
    used = np.where(np.isnan(effects), 0.0, weights)
    weight = by_cycle(used, stride).sum(axis=1)
    change = by_cycle(used * np.nan_to_num(effects), stride).sum(axis=1)
    return np.divide(change, weight, out=np.full(weight.shape, np.nan), where=weight > 0)


def _loss_from_counts(effects: xr.Dataset, stride: int) -> Float[np.ndarray, "unit phase"]:
    """Percent of the clean-correct count of every phase that is lost; NaN under ``MIN_CLEAN_CORRECT``."""
    clean = by_cycle(_values(effects, "clean_correct"), stride).sum(axis=(0, 1))
    after = by_cycle(_values(effects, "correct"), stride).sum(axis=(1, 2))
    loss = np.full(after.shape, np.nan)
    return np.divide(100 * (clean - after), clean, out=loss, where=clean >= MIN_CLEAN_CORRECT)


def _tests(
    effects: xr.Dataset, stride: int, seed: int, n_permutations: int
) -> tuple[str, Float[np.ndarray, "unit phase"], Float[np.ndarray, " unit"]]:
    """Run both tests: what they ran on and both adjusted p, NaN below the tests' minimum n."""
    pairs = [name for name in ("logprob", "margin", "correct") if {name, f"clean_{name}"} <= set(effects)]
    name = pairs[0]
    after, clean = _values(effects, name), _values(effects, f"clean_{name}")
    if clean.shape[0] < MIN_TEST_PROMPTS:
        return name, np.full((len(after), stride), np.nan), np.full(len(after), np.nan)
    p_effect = effect_test(after - clean, stride, seed=seed, n_permutations=n_permutations).p
    if name == "logprob":  # probabilities: the scale on which losses of weak and strong phases compare
        after, clean = np.exp(after), np.exp(clean)
    elif name == "margin":
        after, clean = _values(effects, "correct"), _values(effects, "clean_correct")
    p_selective = selectivity_test(clean, after, stride, seed=seed, n_permutations=n_permutations).p
    return name, p_effect, p_selective


def _values(effects: xr.Dataset, name: str) -> Float[np.ndarray, "*shape"]:
    """Per-prompt values with axes (unit,) prompt, residue, columns in the order of their residue."""
    dims = ("prompt", "residue") if name.startswith("clean_") else ("unit", "prompt", "residue")
    values = effects[name]
    if set(values.dims) != set(dims):
        raise StatisticsError(f"{name} has dims {values.dims}; valid: {dims}")
    values = values.transpose(*dims)
    if "residue" in values.coords:
        values = values.sortby("residue")
    return np.asarray(values, dtype=float)


def _selectivity(
    loss: Float[np.ndarray, "unit phase"], serves: Bool[np.ndarray, "unit phase"]
) -> Float[np.ndarray, " unit"]:
    """1 − entropy of max(0, loss) over phases ÷ log S; NaN for a unit that serves none and at S = 1."""
    part = np.clip(np.nan_to_num(loss), 0, None)
    total = part.sum(axis=1, keepdims=True)
    share = np.divide(part, total, out=np.zeros_like(part), where=total > 0)
    entropy = -(share * np.log(share, out=np.zeros_like(share), where=share > 0)).sum(axis=1)
    if loss.shape[1] == 1:
        return np.full(len(loss), np.nan)
    return np.where(serves.any(axis=1), 1 - entropy / np.log(loss.shape[1]), np.nan)
