"""The paper's claims as tests on results: what is measured, by which interval, and the verdict.

Every rule compares a 95% interval over prompt_ids with a bar; undefined decides nothing. Gaps and their differences
have the intervals of :mod:`interp.stats.gaps`, which hold whichever phases are best and worst. Losses have BCa
intervals, and where all prompts agree on 0 or 100% the Wilson bound of those that say anything: that answered cleanly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hooks.errors import StatisticsError
from interp import stats
from interp.compare import gap_difference
from interp.figures.base import number
from interp.findings import Claim, Finding, Interval, Measured, Verdict, decide
from interp.specialization import arcs_text, served_arcs

__all__ = [
    "SMALLEST_GAP", "Change", "Claim", "Finding", "Interval", "Measured", "boundary_claim", "closing_claim", "difference",
    "direction_claim", "full_attention_claim", "gap_claim", "gap_interval", "heads_claim", "inside_claim", "loss_bounds",
    "losses_with_bounds", "period_claim", "uncovered_claim",
]  # fmt: skip

SMALLEST_GAP = 10.0
"""Percentage points below which a gap counts as none: about half the smallest published one of a chunked model.

One rule for every claim: a model has a gap if the permutation test finds one and its interval does not lie wholly below
this bar, none if the interval does (however significant), and is undecided otherwise.
"""
MOST_PHASES = 3
"""Phases that a specialized unit serves at most."""

_NOT: dict[Verdict, Verdict] = {
    "supported": "not supported", "not supported": "supported", "undecided": "undecided",
}  # fmt: skip


# --------------------------------------------------------------------------- gaps


def gap_interval(correct: np.ndarray, stride: int, *, seed: int) -> Interval:
    """Best minus worst phase in percentage points, of [prompt, any multiple of stride], whichever they are."""
    return _gap_of(100 * stats.phase_means(correct, stride), seed)


def _gap_of(by: np.ndarray, seed: int) -> Interval:
    """The gap of [prompt, phase] in percent."""
    return Interval(float(np.ptp(by.mean(axis=0))), *stats.gap_bounds(by, scale=100.0, seed=seed))


def _gap(model: Measured) -> Interval:
    return gap_interval(model.correct, model.stride, seed=_seed(model))


def _found_gap(by: np.ndarray, seed: int) -> tuple[Verdict, str]:
    """Whether [prompt, phase] has a gap, and what was measured."""
    gap, p = _gap_of(by, seed), stats.gap_test(by, seed=seed)
    verdict = decide(gap, above=math.inf, below=SMALLEST_GAP)
    if verdict == "undecided" and p < stats.SIGNIFICANCE and not math.isnan(gap.high):
        verdict = "supported"
    return verdict, f"mean {number(float(by.mean()), 1)}%, gap {gap} pp, p {number(p, 3)}"


def _phase_gap(model: Measured) -> tuple[Verdict, str]:
    return _found_gap(100 * stats.phase_means(model.correct, model.stride), _seed(model))


def gap_claim(models: Iterable[Measured]) -> Claim:
    """Chunked models have a gap."""
    found = [(m, *_phase_gap(m)) for m in models if m.chunked]
    return Claim(
        "Chunked models have a phase gap",
        "a model has a gap (supported) if p < 0.05 that one as large would be seen if phases meant nothing (permuted within "
        f"prompts) and the gap's interval does not lie wholly below {SMALLEST_GAP:g} pp; it has none (not supported) if the "
        f"interval does, for a gap surely that small counts as none, whatever its p. The interval is of the gap between the "
        "truly best and the truly worst phase, whichever they are, so it may reach 0 where p is small",
        tuple(Finding(m.name, text, verdict) for m, verdict, text in found),
        note="Where every prompt is answered there is no gap to see, whatever the heads do (see who specializes, below).",
    )


def full_attention_claim(models: Iterable[Measured]) -> Claim:
    """Full attention has none."""
    found = [(m, *_phase_gap(m)) for m in models if not m.chunked]
    return Claim(
        "Full attention has no phase gap",
        "the rule above, turned round, at a placebo stride: supported if the gap's interval lies wholly below "
        f"{SMALLEST_GAP:g} pp, not supported if the model has a gap",
        tuple(Finding(m.name, f"{text} (stride {m.stride})", _NOT[verdict]) for m, verdict, text in found),
    )


def period_claim(models: Iterable[Measured]) -> Claim:
    """The period is the stride."""

    def finding(m: Measured) -> Finding:
        period, p = int(m.sweep.attrs["period"]), float(m.sweep.attrs["period_p"])
        if math.isnan(p) or len(m.correct) < stats.MIN_TEST_PROMPTS:
            return Finding(m.name, f"not tested: {len(m.correct)} prompts per residue", "undecided")
        related = period == 0 or period % m.stride == 0 or m.stride % period == 0
        verdict: Verdict = "supported" if period == m.stride else "undecided" if related else "not supported"
        found = f"period {period}" if period else "no period"
        return Finding(m.name, f"{found} (p {p:.3f}), stride {m.stride}", verdict)

    return Claim(
        "The period equals the stride, whether or not windows overlap",
        "the period of the log-probability, tested by permutation over candidates 2 to 16; undecided if none is "
        "found, or a divisor of the stride (too few prompts tell the stride from it) or a multiple (5% of samples give "
        f"one), or there are under {stats.MIN_TEST_PROMPTS} prompts per residue; not supported if any other",
        tuple(finding(m) for m in models if m.chunked),
    )


def boundary_claim(models: Iterable[Measured]) -> Claim:
    """The worst phase is the boundary phase."""

    def finding(m: Measured) -> Finding:
        by = 100 * stats.phase_means(m.correct, m.stride)  # [prompt, phase]
        lead = by[:, :-1] - by[:, -1:]
        low, high = stats.paired_bounds(lead, scale=100.0)
        below = stats.paired_bounds(lead, scale=100.0, family=m.stride - 1)[1] < 0
        verdict: Verdict = "supported" if (low > 0).all() else "not supported" if below.any() else "undecided"
        least = int(np.argmin(low))
        closest = Interval(float(lead.mean(axis=0)[least]), float(low[least]), float(high[least]))
        text = f"worst phase {int(by.mean(axis=0).argmin())}; phase {least} minus boundary {m.stride - 1}: {closest} pp"
        if below.any():
            text += f"; surely below it: {arcs_text(np.append(below, False))}"
        return Finding(m.name, text, verdict)

    return Claim(
        "The worst phase is the boundary phase",
        "paired differences of accuracy, every other phase minus the boundary phase S−1; supported if the 95% intervals of "
        "all lie above 0 (each must, so none is corrected); not supported if that of some phase lies below 0 when the "
        "intervals are widened to hold for all S−1 phases at once (Bonferroni). The phase named is the one whose interval "
        "reaches lowest. Models with a gap",
        tuple(finding(m) for m in _with_gap(models)),
    )


def inside_claim(models: Iterable[Measured]) -> Claim:
    """The gap is not the boundary phase alone."""

    def finding(m: Measured) -> Finding:
        verdict, text = _found_gap(100 * stats.phase_means(m.correct, m.stride)[:, :-1], _seed(m))
        return Finding(m.name, text, verdict)

    return Claim(
        "The boundary phase alone does not explain the gap",
        "the first rule on all phases but S−1; models with a gap and a stride of 3 or more",
        tuple(finding(m) for m in _with_gap(models) if m.stride > 2),
    )


# --------------------------------------------------------------------------- pairs


def closing_claim(pairs: Iterable[tuple[Measured, Measured]]) -> Claim:
    """More KV heads do not close the gap: (fewer heads, more heads)."""

    def finding(few: Measured, many: Measured) -> Finding:
        left, moved = _gap(many), difference(few, many, _common(few, many))
        verdict = decide(left, above=SMALLEST_GAP)
        if verdict == "not supported" and not moved.high < 0:  # small, but not surely smaller than it was
            verdict = "undecided"
        text = f"gap {_gap(few)} → {left} pp, difference {moved}"
        return Finding(f"{few.name} → {many.name}", text, verdict)

    return Claim(
        "More KV heads do not close the gap",
        "models with fewer heads that have a gap by the first rule; supported if the gap's interval of the model with more "
        f"heads lies wholly above {SMALLEST_GAP:g} pp; not supported if it lies wholly below (none by the first rule) and "
        "that of the paired difference wholly below 0",
        tuple(finding(*pair) for pair in pairs if _phase_gap(pair[0])[0] == "supported"),
    )


@dataclass(frozen=True)
class Change:
    """A change of the model whose effect on the gap is published, with the pairs it can be tested on."""

    text: str
    bases: tuple[tuple[str, float], ...]
    """Published runs without the change and their residue gaps, in percentage points."""
    changed: tuple[str, float]
    """The published run with it."""
    pairs: tuple[tuple[Measured, Measured], ...]
    """Without and with the change, on the same prompts."""
    note: str = ""
    """What else differs between them."""


def direction_claim(change: Change) -> Claim:
    """A change moves the residue gap the way it did in the paper, from whichever of its runs one starts.

    Raises
    ------
    StatisticsError
        If the published differences have different signs, or a pair was measured on different prompts.
    """
    moved = [change.changed[1] - gap for _, gap in change.bases]
    signs = {math.copysign(1.0, one) for one in moved}
    if len(signs) > 1:
        raise StatisticsError(f"published differences {moved} of {change.text!r}; valid: one direction")
    sign = signs.pop()

    def finding(pair: tuple[Measured, Measured]) -> Finding:
        modulus = pair[0].correct.shape[1]
        gaps = [gap_interval(one.correct, modulus, seed=_seed(one)) for one in pair]
        found = difference(*pair, modulus)
        text = f"residue gap {gaps[0]} → {gaps[1]} pp, difference {found}"
        subject = f"{pair[0].name} → {pair[1].name}"
        if sign < 0 and _phase_gap(pair[0])[0] != "supported":
            return Finding(subject, text + "; the first has no gap that could narrow", "undecided")
        turned = Interval(sign * found.value, *sorted((sign * found.low, sign * found.high)))
        return Finding(subject, text, decide(turned, above=0))

    told = "; ".join(
        f"“{name}” {number(gap, 1)} → “{change.changed[0]}” {number(change.changed[1], 1)} "
        f"({number(one, 1, sign=True)} pp)"
        for (name, gap), one in zip(change.bases, moved, strict=True)
    )
    return Claim(
        change.text,
        f"residue gaps on both sides (best minus worst of the key's position mod 24). Published: {told}. Ours: the paired "
        "difference, with the interval of the true one; supported if it lies on the same side of 0, not supported if on "
        "the other, undecided if the first model has no phase gap by the first rule that could narrow",
        tuple(finding(pair) for pair in change.pairs),
        note=change.note,
    )


def difference(first: Measured, second: Measured, stride: int) -> Interval:
    """The second's gap minus the first's, in percentage points, phases of both counted by `stride`.

    Raises
    ------
    StatisticsError
        If they were measured on different prompts.
    """
    for name in ("task", "seed"):
        if first.sweep.attrs[name] != second.sweep.attrs[name]:
            raise StatisticsError(
                f"{first.name} and {second.name} were measured with another {name}; valid: results on the same prompts"
            )
    shapes = [" × ".join(map(str, one.correct.shape)) for one in (first, second)]
    if shapes[0] != shapes[1]:
        raise StatisticsError(
            f"{first.name} and {second.name} were measured on {shapes[0]} and {shapes[1]} prompts × residues; valid: "
            "results on the same prompts"
        )
    tables = np.stack([first.correct, second.correct]).astype(float)
    by = 100 * stats.phase_means(tables, stride).swapaxes(0, 1)
    return Interval(*gap_difference(by, scale=100.0, seed=_seed(first)))


def _common(first: Measured, second: Measured) -> int:
    """A stride by which the phases of both can be counted."""
    return math.lcm(first.stride, second.stride)


# --------------------------------------------------------------------------- heads


def heads_claim(models: Iterable[Measured]) -> Claim:
    """Heads specialize."""

    def finding(m: Measured) -> Finding:
        k = m.knockout
        serves, p = k["serves"].values.astype(bool), k["p_selective"].values
        losses, need = losses_with_bounds(m), float(k.attrs["min_loss"])
        sure, maybe = losses[..., 1] >= need, ~(losses[..., 2] < need)
        special = [
            f"{unit} → {arcs_text(serves[i])}"
            for i, unit in enumerate(k["unit"].values)
            if p[i] < stats.SIGNIFICANCE and _short(serves[i]) and (serves[i] & sure[i]).any()
        ]
        possible = any(_could_be_short(sure[i], maybe[i]) for i in range(len(sure)))
        verdict: Verdict = "supported" if special else "undecided" if possible else "not supported"
        return Finding(m.name, "; ".join(special) or "none found", verdict)

    return Claim(
        f"Heads specialize: a KV head is selective and serves at most {MOST_PHASES} adjacent phases",
        "supported if a head has p < 0.05 in the selectivity test, the phases it serves are adjacent and at most "
        f"{MOST_PHASES}, and its loss has an interval above 40% at one of them; not supported if the intervals of the "
        "losses leave no head that could",
        tuple(finding(m) for m in models if m.chunked),
    )


def uncovered_claim(models: Iterable[Measured]) -> Claim:
    """Some phase is served by no head; one of many will do, so its intervals are widened for their number."""
    chunked = [m for m in models if m.chunked]
    looks = sum(m.stride for m in chunked)

    def finding(m: Measured) -> Finding:
        k = m.knockout
        losses, need = losses_with_bounds(m, level=1 - 0.05 / looks), float(k.attrs["min_loss"])
        bare = (losses[..., 2] < need).all(axis=0)
        covered = ((losses[..., 1] >= need) & k["serves"].values.astype(bool)).any(axis=0)
        verdict: Verdict = "supported" if bare.any() else "not supported" if covered.all() else "undecided"
        text = f"surely by none: {arcs_text(bare)}; surely by one: {arcs_text(covered)}"
        return Finding(m.name, text, verdict)

    return Claim(
        "Some phases are served by no KV head",
        "supported if at some phase every head's loss has an interval below 40%; not supported if at every phase a "
        "head serves with an interval above; these intervals are widened to 95% for all phases of all models at once, "
        "and losses are undefined under 20 right answers",
        tuple(finding(m) for m in chunked),
        over="any",
    )


def losses_with_bounds(model: Measured, *, level: float = 0.95) -> np.ndarray:
    """Loss of every unit at every phase of a model's knockout, see :func:`loss_bounds`."""
    k = model.knockout
    clean, correct = k["clean_correct"].values, k["correct"].values
    return loss_bounds(clean, correct, model.stride, seed=_seed(model), level=level)


def loss_bounds(
    clean: np.ndarray, correct: np.ndarray, stride: int, *, seed: int, level: float = 0.95
) -> np.ndarray:
    """Loss of every unit at every phase in percent of clean accuracy: [unit, phase, (value, low, high)].

    Parameters
    ----------
    clean, correct : array [prompt, residue], [unit, prompt, residue]
        Whether answers are right as the model is, and without each unit.
    stride, seed, level
        Of the phases, the resamples and the intervals.

    Notes
    -----
    NaN where fewer than 20 clean answers were right. Without spread the bound is Wilson's for the prompt_ids with a
    clean right answer at the phase, since the others have nothing to lose.
    """
    tables = np.concatenate([clean[None], correct]).astype(float)
    # right answers [prompt, clean + unit, phase]
    by = stats.by_cycle(tables, stride).sum(axis=-2).swapaxes(0, 1)

    def loss(sample: np.ndarray) -> np.ndarray:
        total = sample.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return 100 * (1 - total[:, 1:] / total[:, :1])

    values = loss(by[None])[0]
    bounds = stats.bca(by, loss, seed=seed, level=level)
    answered = (by[:, 0] > 0).sum(axis=0)  # prompt_ids with something to lose, by phase
    found = np.full((*values.shape, 3), np.nan)
    for cell in np.argwhere(np.broadcast_to(by[:, 0].sum(axis=0) >= stats.MIN_CLEAN_CORRECT, values.shape)):
        at = tuple(cell)
        one = Interval.of(values[at], (bounds[0][at], bounds[1][at]), int(answered[at[1]]), level)
        found[at] = one.value, one.low, one.high
    return found


def _short(serves: np.ndarray) -> bool:
    """Whether the phases form one run of at most MOST_PHASES."""
    return 0 < serves.sum() <= MOST_PHASES and len(served_arcs(serves)) == 1


def _could_be_short(sure: np.ndarray, maybe: np.ndarray) -> bool:
    """Whether a short run of phases that may be served holds all that surely are."""
    phases = len(sure)
    for first in range(phases):
        for length in range(1, min(MOST_PHASES, phases) + 1):
            run = np.zeros(phases, dtype=bool)
            run[(first + np.arange(length)) % phases] = True
            if maybe[run].all() and not sure[~run].any():
                return True
    return False


# --------------------------------------------------------------------------- parts


def _with_gap(models: Iterable[Measured]) -> list[Measured]:
    return [m for m in models if m.chunked and _phase_gap(m)[0] == "supported"]


def _seed(model: Measured) -> int:
    return int(model.sweep.attrs["seed"])
