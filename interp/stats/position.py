"""What is left of phase when an effect of position itself is taken away: a control for what balance cannot balance.

Target positions have the same mean and variance at every residue, so effects of position up to its square cancel.
A sharp one, such as the edge of a sliding window, does not: it falls between two residues, and all targets lie
within 3R−2 positions. A phase effect comes back every S positions there; a step or a slow change does not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.polynomial import legendre
from numpy.typing import ArrayLike

from hooks.errors import StatisticsError

__all__ = ["DEGREE", "WithoutPosition", "without_position"]

DEGREE = 5
"""Of the polynomial that stands for slow changes."""
_DUST = 1e-9


class WithoutPosition(NamedTuple):
    """Values less what position explains.

    Attributes
    ----------
    values : float array [prompt, residue]
        Of the same mean as before.
    step : int
        First position above the step that fits best.
    share : float
        Part of the variance within prompts that step and polynomial explain, 0 to 1.
    """

    values: Float[np.ndarray, "prompt residue"]
    step: int
    share: float


def without_position(values: ArrayLike, target_position: ArrayLike) -> WithoutPosition:
    """Take away the best fitting step in position together with a polynomial of degree :data:`DEGREE`.

    Parameters
    ----------
    values : array [prompt, residue]
        E.g. correct, or log-probabilities.
    target_position : int array [prompt, residue]
        t.

    Returns
    -------
    WithoutPosition
        Least squares within prompts: values and regressors less their means of each prompt, so that the
        difficulty of a prompt is no position effect. The step is the one, of all places, that leaves least.

    Raises
    ------
    StatisticsError
        If shapes differ.
    """
    array, position = np.asarray(values, dtype=float), np.asarray(target_position)
    if array.ndim != 2 or array.shape != position.shape:
        raise StatisticsError(
            f"values {array.shape}, target positions {position.shape}: both must be [prompt, residue]"
        )
    low, high = int(position.min()), int(position.max())
    if low == high:
        return WithoutPosition(array.copy(), low, 0.0)
    own = array.mean(axis=1, keepdims=True)
    centred = (array - own).reshape(-1)
    scaled = 2.0 * (position - low) / (high - low) - 1.0
    slow = _within(np.moveaxis(legendre.legvander(scaled, DEGREE)[..., 1:], -1, 0))
    places = np.arange(low + 1, high + 1)
    steps = _within((position >= places[:, None, None]).astype(float))
    # Of orthogonal regressors each takes away the square of its projection.
    basis = np.linalg.svd(slow.T, full_matrices=False)
    smooth = basis.U[:, _DUST * basis.S[0] < basis.S]
    rest = centred - smooth @ (smooth.T @ centred)
    steps -= (steps @ smooth) @ smooth.T
    size = np.linalg.norm(steps, axis=1)
    taken = np.where(size > _DUST, steps @ rest / np.maximum(size, _DUST), 0.0)
    best = int(np.abs(taken).argmax())
    rest = rest - taken[best] * steps[best] / max(size[best], _DUST)
    total = float(centred @ centred)
    rest[np.abs(rest) < _DUST * max(1.0, float(np.abs(array).max()))] = 0.0
    share = 1.0 - float(rest @ rest) / total if rest.any() or total > _DUST**2 * array.size else 0.0
    return WithoutPosition(rest.reshape(array.shape) + array.mean(), int(places[best]), share)


def _within(regressors: Float[np.ndarray, "k prompt residue"]) -> Float[np.ndarray, "k cell"]:
    """Less the mean of each prompt."""
    return (regressors - regressors.mean(axis=-1, keepdims=True)).reshape(len(regressors), -1)
