"""The period of a measurement in the target's position, found from the data and never from a config.

Both forms, per-prompt values and published counts, share one rule: the candidate whose position classes
(t mod candidate) explain most, by a score that does not grow with the number of classes; then the smallest
proper divisor of it that fits as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from hooks.errors import StatisticsError
from interp.rng import numpy_rng
from interp.stats._data import MIN_TEST_PROMPTS, SIGNIFICANCE, table

__all__ = ["CANDIDATES", "Period", "candidates_for", "find_period", "period_label", "period_of_counts"]

CANDIDATES = tuple(range(2, 17))
"""Periods that are looked for; a larger stride that is asked about besides (:func:`candidates_for`)."""
_CHUNK = 4_000_000  # floats held at once while permuting
_TIE = 1e-9


class Period(NamedTuple):
    """A period and how sure it is."""

    period: int
    """0 when p > 0.05, or undefined."""
    p: float
    """Permutation p of the best candidate, adjusted for looking at all of them; NaN below ``MIN_TEST_PROMPTS``
    prompt_ids."""
    scores: dict[int, float]
    """Adjusted between-class variance by candidate: 1 explains all, 0 nothing; NaN where untestable."""

    @property
    def tested(self) -> list[int]:
        """Candidates that could be tested, ascending."""
        return sorted(candidate for candidate, score in self.scores.items() if not np.isnan(score))


def candidates_for(stride: int) -> tuple[int, ...]:
    """Periods to look for where phases are counted by `stride`: :data:`CANDIDATES`, and a stride above them."""
    return CANDIDATES if stride <= CANDIDATES[-1] else (*CANDIDATES, stride)


def period_label(attrs: Mapping[str, Any]) -> str:
    """Say which period was found: a number, "none", or what could not be looked for.

    Parameters
    ----------
    attrs : mapping
        Of a result: ``period`` (0 for none), and where known ``period_p``, ``stride`` and ``period_tested`` (the
        candidates that could be tested; all of :data:`CANDIDATES` if left out).

    Returns
    -------
    str
        "4"; "none"; "none of 2 to 16, 32 not testable" where the stride is not among what was tested, so that its
        absence is no finding; "not tested" where p is undefined.
    """
    period = int(attrs["period"])
    if period:
        return str(period)
    if np.isnan(float(attrs.get("period_p", 0.0))):
        return "not tested"
    tested = [int(c) for c in np.atleast_1d(attrs.get("period_tested", CANDIDATES))]
    stride = int(attrs.get("stride", 0))
    if stride < 2 or stride in tested:
        return "none"
    whole = len(tested) > 2 and tested == list(range(tested[0], tested[-1] + 1))
    among = f"{tested[0]} to {tested[-1]}" if whole else ", ".join(map(str, tested))
    return f"none of {among}, {stride} not testable"


def find_period(
    values: ArrayLike,
    target_position: ArrayLike,
    *,
    candidates: Iterable[int] = CANDIDATES,
    seed: int = 0,
    n_permutations: int = 999,
    level: float = SIGNIFICANCE,
) -> Period:
    """Find the period of values in the target's position.

    Parameters
    ----------
    values : array [prompt, residue] or [row]
        Log-probability or margin (or correct, where nothing else is known). With two axes a row of the array
        is one prompt_id. With one axis every value is its own prompt_id, e.g. a series over filler lengths.
    target_position : int array, the shape of `values`
        t, the position of the token that must be retrieved.
    candidates : iterable of int
        Periods tried; those that leave under two rows a class are untestable here (score NaN).
    seed : int
        Of the permutations.
    n_permutations : int
        m; p = (b+1)/(m+1).
    level : float
        Of the test against no period, and of the nested tests.

    Returns
    -------
    Period
        ``period``, ``p`` and ``scores``. Rows of one prompt_id are no sample of prompts: below
        ``MIN_TEST_PROMPTS`` prompt_ids p is NaN and the period 0, which says nothing.

    Raises
    ------
    StatisticsError
        If shapes differ, a value is not finite, or no candidate can be tested.

    Notes
    -----
    The score is the adjusted R² of the classes t mod candidate on values less their prompt_id's mean. Under
    the null, positions are permuted across prompt_ids: a prompt_id gets all positions of another, in random
    order, so that the difficulty of a prompt is never mistaken for a class. Max over candidates. A proper
    divisor of the best candidate fits as well if moving rows within the divisor's classes gives a score as
    large (p > level); the smallest such divisor is the period. That nested test takes the max over all
    multiples of the divisor, as the best one was picked among them: testing the picked one alone, a true
    period of 2 came out as a multiple of it in 21 of 100 simulated samples. Rows move by turning each
    prompt_id's series of values, in order of t mod R, by a multiple of the divisor: neighbouring positions of
    one prompt often fail together, and free permutations, which part them, took that for a finer period
    (a true period of 4 under noise averaged over 4 positions came out as a multiple in 19 of 100 samples;
    turned, in 5). Where positions are not one of each residue, or the divisor does not divide R, rows are
    permuted freely within classes.
    """
    array = np.asarray(values, dtype=float)
    few = array.ndim == 2 and array.shape[0] < MIN_TEST_PROMPTS
    if array.ndim == 1:
        array = array[None]
    array = table(array, axes="[prompt, residue] or [row]")
    positions = np.asarray(target_position).reshape(-1)
    if positions.size != array.size or not np.issubdtype(positions.dtype, np.integer):
        raise StatisticsError(
            f"{positions.size} target positions of type {positions.dtype} for {array.size} values; "
            "valid: one integer position a value"
        )
    if array.shape[1] == 1:  # one row a prompt_id: no mean of its own, rows are exchangeable as they stand
        array = array.reshape(1, -1)
    centred = array - array.mean(axis=1, keepdims=True)
    classes = _Classes(positions, candidates, freedom=array.size - len(array))
    total = float((centred**2).sum())
    observed = classes.scores(centred.reshape(1, -1), total)[0]
    if few:
        return Period(0, float("nan"), classes.all_scores(observed))
    rng = numpy_rng(seed, "period")
    largest = []
    step = max(1, _CHUNK // array.size)
    for start in range(0, n_permutations, step):
        size = min(step, n_permutations - start)
        prompts = rng.random((size, array.shape[0])).argsort(axis=-1)
        rows = rng.random((size, *array.shape)).argsort(axis=-1)
        shuffled = centred[prompts[:, :, None], rows].reshape(size, -1)
        largest.append(classes.scores(shuffled, total).max(axis=1))
    p = float((1 + (np.concatenate(largest) >= observed.max() - _TIE).sum()) / (n_permutations + 1))

    def nested(divisor: int) -> float:
        shuffle = _turned(positions.reshape(array.shape), divisor, numpy_rng(seed, "nested", divisor))
        finer = classes.multiples(divisor)
        largest = []
        for start in range(0, n_permutations, step):
            order = shuffle(min(step, n_permutations - start))
            largest.append(finer.scores(centred.reshape(-1)[order], total).max(axis=1))
        return float((1 + (np.concatenate(largest) >= observed.max() - _TIE).sum()) / (n_permutations + 1))

    return _decide(classes.all_scores(observed), p, nested, level)


def period_of_counts(
    correct: ArrayLike,
    n: ArrayLike,
    *,
    candidates: Iterable[int] = CANDIDATES,
    seed: int = 0,
    n_permutations: int = 1999,
    level: float = SIGNIFICANCE,
) -> Period:
    """Find the period in published counts per residue, where no prompts are known.

    Parameters
    ----------
    correct : int array [residue]
        Correct answers by residue r = t mod R.
    n : int or int array [residue]
        Prompts by residue.
    candidates : iterable of int
        Periods tried; only divisors of R can be told from residues mod R, others score NaN.
    seed, n_permutations, level
        As in :func:`find_period`. Prompts are taken as independent.

    Raises
    ------
    StatisticsError
        Unless 0 ≤ correct ≤ n, or if no candidate divides R.

    Notes
    -----
    As :func:`find_period` on one row a prompt, permuted by drawing from the multivariate hypergeometric law.
    """
    counts = np.asarray(correct)
    trials = np.broadcast_to(np.asarray(n), counts.shape)
    whole = np.issubdtype(counts.dtype, np.integer) and np.issubdtype(trials.dtype, np.integer)
    if counts.ndim != 1 or not whole or np.any((counts < 0) | (counts > trials) | (trials < 1)):
        raise StatisticsError(
            f"correct={counts.tolist()} of n={trials.tolist()}: need whole 0 <= correct <= n, n >= 1"
        )
    residues = np.arange(counts.size)
    possible = list(candidates)
    weights = trials.astype(float)
    classes = _Classes(
        residues,
        [c for c in possible if counts.size % c == 0],
        freedom=int(trials.sum()) - 1,
        weights=weights,
    )
    mean = counts.sum() / trials.sum()
    total = float(trials.sum() * mean * (1 - mean))
    observed = classes.scores((counts - mean * trials)[None], total)[0]
    drawn = _hypergeometric(counts, trials, numpy_rng(seed, "period counts"), n_permutations)
    largest = classes.scores(drawn - mean * trials, total).max(axis=1)
    p = float((1 + (largest >= observed.max() - _TIE).sum()) / (n_permutations + 1))

    def nested(divisor: int) -> float:
        rng = numpy_rng(seed, "nested counts", divisor)
        drawn = np.empty((n_permutations, counts.size))
        for k in range(divisor):
            drawn[:, k::divisor] = _hypergeometric(
                counts[k::divisor], trials[k::divisor], rng, n_permutations
            )
        largest = classes.multiples(divisor).scores(drawn - mean * trials, total).max(axis=1)
        return float((1 + (largest >= observed.max() - _TIE).sum()) / (n_permutations + 1))

    scores = {c: np.nan for c in possible} | classes.all_scores(observed)
    return _decide(scores, p, nested, level)


class _Classes:
    """Position classes of all testable candidates, as one indicator matrix."""

    def __init__(
        self,
        positions: Int[np.ndarray, " row"],
        candidates: Iterable[int],
        *,
        freedom: int,
        weights: Float[np.ndarray, " row"] | None = None,
    ) -> None:
        weights = np.ones(positions.size) if weights is None else weights
        self._positions, self._weights = positions, weights
        self.candidates = tuple(candidates)
        self.freedom = freedom
        self.tested: list[int] = []
        columns, sizes = [], []
        for candidate in self.candidates:
            if candidate < 1:
                raise StatisticsError(f"candidate period {candidate} is not a period; valid: 2 and up")
            indicator = (positions[:, None] % candidate == np.arange(candidate)).astype(float)
            indicator = indicator[:, indicator.any(axis=0)]
            size = weights @ indicator
            if 1 < size.size <= weights.sum() / 2 and size.size <= freedom:
                self.tested.append(candidate)
                columns.append(indicator)
                sizes.append(size)
        if not self.tested:
            raise StatisticsError(
                f"no period of {list(self.candidates)} can be tested on {positions.size} positions; "
                "valid: two classes or more and two rows a class"
            )
        self._indicator = np.hstack(columns)
        self._size = np.concatenate(sizes)
        self._first = np.cumsum([0] + [size.size for size in sizes[:-1]])
        self._extra = np.array([size.size - 1 for size in sizes])

    def multiples(self, divisor: int) -> _Classes:
        """Keep the tested candidates that refine `divisor`."""
        finer = [c for c in self.tested if c % divisor == 0]
        return _Classes(self._positions, finer, freedom=self.freedom, weights=self._weights)

    def between(
        self, centred: Float[np.ndarray, "permutation row"]
    ) -> Float[np.ndarray, "permutation candidate"]:
        """Between-class sum of squares of values that are centred as a whole."""
        return np.add.reduceat((centred @ self._indicator) ** 2 / self._size, self._first, axis=1)

    def scores(
        self, centred: Float[np.ndarray, "permutation row"], total: float
    ) -> Float[np.ndarray, "permutation candidate"]:
        """Return the adjusted R² of the tested candidates; 0 where nothing varies."""
        if total <= 0:
            return np.zeros((len(centred), len(self.tested)))
        unexplained = (total - self.between(centred)) / (self.freedom - self._extra)
        return 1 - unexplained / (total / self.freedom)

    def all_scores(self, tested: Float[np.ndarray, " candidate"]) -> dict[int, float]:
        return dict.fromkeys(self.candidates, np.nan) | dict(
            zip(self.tested, map(float, tested), strict=True)
        )


def _decide(scores: dict[int, float], p: float, nested: Callable[[int], float], level: float) -> Period:
    """Best candidate, or its smallest proper divisor that fits as well, or 0."""
    if p > level:
        return Period(0, p, scores)
    best = max((c for c in scores if not np.isnan(scores[c])), key=lambda c: (scores[c], -c))
    for divisor in range(2, best):
        if best % divisor == 0 and nested(divisor) > level:
            return Period(divisor, p, scores)
    return Period(best, p, scores)


def _turned(
    positions: Int[np.ndarray, "prompt residue"], divisor: int, rng: np.random.Generator
) -> Callable[[int], Int[np.ndarray, "permutation row"]]:
    """Return a drawer of row orders that turn every prompt's residues by a multiple of `divisor`."""
    prompts, modulus = positions.shape
    residues = positions % modulus
    column = residues.argsort(axis=1)
    complete = (np.take_along_axis(residues, column, axis=1) == np.arange(modulus)).all()
    if prompts == 1 or modulus % divisor or not complete:
        return _within_classes(positions.reshape(-1) % divisor, rng)
    base = np.arange(prompts)[:, None] * modulus

    def draw(size: int) -> Int[np.ndarray, "permutation row"]:
        turns = rng.integers(modulus // divisor, size=(size, prompts, 1)) * divisor
        order = np.empty((size, prompts, modulus), dtype=int)
        source = (np.arange(modulus) + turns) % modulus  # by residue, whose row stands there now
        rows = base + np.take_along_axis(column[None], source, axis=2)
        np.put_along_axis(order, np.broadcast_to(column, order.shape), rows, axis=2)
        return order.reshape(size, -1)

    return draw


def _within_classes(
    classes: Int[np.ndarray, " row"], rng: np.random.Generator
) -> Callable[[int], Int[np.ndarray, "permutation row"]]:
    """Return a drawer of row orders that move rows within their class only."""
    members = [np.flatnonzero(classes == k) for k in np.unique(classes)]

    def draw(size: int) -> Int[np.ndarray, "permutation row"]:
        order = np.empty((size, classes.size), dtype=int)
        for rows in members:
            order[:, rows] = rows[rng.random((size, rows.size)).argsort(axis=-1)]
        return order

    return draw


def _hypergeometric(
    correct: Int[np.ndarray, " residue"], n: Int[np.ndarray, " residue"], rng: np.random.Generator, size: int
) -> Int[np.ndarray, "permutation residue"]:
    """Correct answers by residue when all answers are dealt out again at random."""
    return rng.multivariate_hypergeometric(n, int(correct.sum()), size=size, method="marginals")
