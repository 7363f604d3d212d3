"""The paper's claims as tests on results: what is measured, by which interval, and the verdict.

Every rule compares a 95% BCa interval over prompt_ids with a bar. Where all prompts agree such an interval is
undefined; a value of 0 or 100% then gets the Wilson bound of that many prompts. Undefined decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from hooks.errors import StatisticsError
from interp import stats
from interp.compare import gap_difference
from interp.figures.base import number
from interp.specialization import arcs_text, served_arcs

__all__ = [
    "SMALLEST_GAP", "Claim", "Finding", "Interval", "Measured", "boundary_claim", "closing_claim", "direction_claim",
    "full_attention_claim", "gap_claim", "heads_claim", "inside_claim", "period_claim", "uncovered_claim",
]  # fmt: skip

SMALLEST_GAP = 10.0
"""Percentage points below which a gap counts as none: about half the smallest published one of a chunked model."""
MOST_PHASES = 3
"""Phases that a specialized unit serves at most."""

Verdict = Literal["supported", "not supported", "undecided"]


@dataclass(frozen=True)
class Measured:
    """The results of one model on one set of prompts."""

    name: str
    sweep: xr.Dataset
    knockout: xr.Dataset
    """With the variables of its specialization."""

    @property
    def stride(self) -> int:
        """S; a placebo for full attention."""
        return int(self.sweep.attrs["stride"])

    @property
    def chunked(self) -> bool:
        """Whether the stride is the model's own."""
        return not self.sweep.attrs.get("placebo", 0)

    @property
    def correct(self) -> np.ndarray:
        """[prompt, residue] booleans."""
        return self.sweep["correct"].values


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval, in percentage points or percent."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, bounds: tuple[Any, Any], n: int, level: float = 0.95) -> Interval:
        """Take BCa bounds; where they are undefined and all of `n` prompts agree on 0 or 100, Wilson's."""
        low, high = (float(bound) for bound in bounds)
        if math.isnan(low) and n >= stats.MIN_BOOTSTRAP_PROMPTS and value in (0.0, 100.0):
            low, high = (100 * float(bound[0]) for bound in stats.wilson([round(n * value / 100)], n, level))
        return cls(float(value), low, high)

    def __str__(self) -> str:
        between = "–" if math.isnan(self.low) else f"{number(self.low, 1)}, {number(self.high, 1)}"
        return f"{number(self.value, 1)} [{between}]"


@dataclass(frozen=True)
class Finding:
    """A claim tested on one model, or on one pair."""

    subject: str
    measured: str
    verdict: Verdict


@dataclass(frozen=True)
class Claim:
    """A claim of the paper with its findings."""

    text: str
    rule: str
    findings: tuple[Finding, ...]
    over: Literal["every", "any"] = "every"
    """Whether it is about every model tested, or says that there is one."""

    def counts(self) -> tuple[int, int, int]:
        """Findings that are supported, not supported, undecided."""
        verdicts = [finding.verdict for finding in self.findings]
        return verdicts.count("supported"), verdicts.count("not supported"), verdicts.count("undecided")

    @property
    def verdict(self) -> Verdict:
        """Of every: supported if all are, not supported if one is not; of any, the other way round."""
        yes, no, _ = self.counts()
        if self.over == "any":
            return "supported" if yes else "not supported" if no and no == len(self.findings) else "undecided"
        return "not supported" if no else "supported" if yes and yes == len(self.findings) else "undecided"

    def verdict_at(self, n_per_residue: int) -> str:
        """The verdict in words."""
        return self.verdict + (f" at n = {n_per_residue}" if self.verdict == "undecided" else "")


def decide(interval: Interval, *, above: float, below: float | None = None) -> Verdict:
    """Supported if the interval lies above one bar, not supported if it lies below the other (or the same)."""
    if interval.low > above:
        return "supported"
    return "not supported" if interval.high < (above if below is None else below) else "undecided"


_NOT: dict[Verdict, Verdict] = {
    "supported": "not supported", "not supported": "supported", "undecided": "undecided",
}  # fmt: skip


# --------------------------------------------------------------------------- gaps


def gap_interval(correct: np.ndarray, stride: int, *, seed: int) -> Interval:
    """Best minus worst phase in percentage points, of [prompt, any multiple of stride]."""
    low, high = stats.gap_interval(correct, stride, seed=seed)
    return Interval.of(100 * stats.phase_gap(correct, stride), (100 * low, 100 * high), len(correct))


def _gap(model: Measured) -> tuple[Interval, float]:
    """The phase gap and what it would be if phases meant nothing."""
    a = model.sweep.attrs
    gap = Interval.of(a["gap_pp"], (a["gap_pp_low"], a["gap_pp_high"]), len(model.correct))
    return gap, float(a["null_gap_pp"])


def _has_gap(model: Measured) -> Verdict:
    gap, null = _gap(model)
    return decide(gap, above=null, below=SMALLEST_GAP)


def _gap_text(gap: Interval, null: float) -> str:
    return f"gap {gap} pp, by chance {number(null, 1)}"


def gap_claim(models: Iterable[Measured]) -> Claim:
    """Chunked models have a gap."""
    return Claim(
        "Chunked models have a phase gap",
        "supported if the gap's interval lies above the gap expected by chance (phase labels permuted within "
        f"prompts); not supported if it lies below {SMALLEST_GAP:g} pp",
        tuple(Finding(m.name, _gap_text(*_gap(m)), _has_gap(m)) for m in models if m.chunked),
    )


def full_attention_claim(models: Iterable[Measured]) -> Claim:
    """Full attention has none."""
    return Claim(
        "Full attention has no phase gap",
        "the rule above, turned round, at a placebo stride",
        tuple(
            Finding(m.name, f"{_gap_text(*_gap(m))} (stride {m.stride})", _NOT[_has_gap(m)])
            for m in models if not m.chunked
        ),
    )  # fmt: skip


def period_claim(models: Iterable[Measured]) -> Claim:
    """The period is the stride."""

    def finding(m: Measured) -> Finding:
        period, p = int(m.sweep.attrs["period"]), float(m.sweep.attrs["period_p"])
        related = period == 0 or period % m.stride == 0 or m.stride % period == 0
        verdict: Verdict = "supported" if period == m.stride else "undecided" if related else "not supported"
        found = f"period {period}" if period else "no period"
        return Finding(m.name, f"{found} (p {p:.3f}), stride {m.stride}", verdict)

    return Claim(
        "The period equals the stride, whether or not windows overlap",
        "the period of the log-probability, tested by permutation over candidates 2 to 16; undecided if none is "
        "found, or a divisor of the stride (too few prompts tell the stride from it) or a multiple (5% of samples give "
        "one); not supported if any other",
        tuple(finding(m) for m in models if m.chunked),
    )


def boundary_claim(models: Iterable[Measured]) -> Claim:
    """The worst phase is the boundary phase."""

    def finding(m: Measured) -> Finding:
        by = 100 * stats.phase_means(m.correct, m.stride)  # [prompt, phase]

        def lead(sample: np.ndarray) -> np.ndarray:
            means = sample.mean(axis=1)
            return means[..., :-1].min(axis=-1) - means[..., -1]

        lowest = Interval.of(lead(by[None])[0], stats.bca(by, lead, seed=_seed(m)), len(by))
        worst = int(m.sweep.attrs["worst_phase"])
        text = f"worst phase {worst}, boundary {m.stride - 1}; lowest other minus boundary {lowest} pp"
        return Finding(m.name, text, decide(lowest, above=0))

    return Claim(
        "The worst phase is the boundary phase",
        "the lowest accuracy at any other phase minus that at phase S−1: supported if its interval lies above 0, "
        "not supported if below; models with a gap",
        tuple(finding(m) for m in _with_gap(models)),
    )


def inside_claim(models: Iterable[Measured]) -> Claim:
    """The gap is not the boundary phase alone."""

    def finding(m: Measured) -> Finding:
        inside = m.correct[:, np.arange(m.correct.shape[1]) % m.stride != m.stride - 1]
        gap = gap_interval(inside, m.stride - 1, seed=_seed(m))
        null = 100 * stats.null_gap(inside, m.stride - 1, seed=_seed(m))
        return Finding(m.name, _gap_text(gap, null), decide(gap, above=null, below=SMALLEST_GAP))

    return Claim(
        "The boundary phase alone does not explain the gap",
        "the first rule on all phases but S−1; models with a gap and a stride of 3 or more",
        tuple(finding(m) for m in _with_gap(models) if m.stride > 2),
    )


# --------------------------------------------------------------------------- pairs


def closing_claim(pairs: Iterable[tuple[Measured, Measured]]) -> Claim:
    """More KV heads do not close the gap: (fewer heads, more heads)."""
    return Claim(
        "More KV heads do not close the gap",
        f"supported if the gap's interval of the model with more heads lies above {SMALLEST_GAP:g} pp, not supported "
        "if below; models with fewer heads that have a gap",
        tuple(
            Finding(
                f"{few.name} → {many.name}",
                f"gap {_gap(few)[0]} → {_gap(many)[0]} pp, difference {_difference(few, many)}",
                decide(_gap(many)[0], above=SMALLEST_GAP),
            )
            for few, many in pairs if _has_gap(few) == "supported"
        ),
    )  # fmt: skip


def direction_claim(text: str, published: float, pairs: Iterable[tuple[Measured, Measured]]) -> Claim:
    """A change moves the gap the way it did in the paper.

    Parameters
    ----------
    text : str
        What is changed.
    published : float
        The paper's difference of gaps, in percentage points; its sign is tested.
    pairs : iterable of (Measured, Measured)
        Without and with the change, on the same prompts.
    """
    sign = math.copysign(1.0, published)

    def finding(pair: tuple[Measured, Measured]) -> Finding:
        found = _difference(*pair)
        turned = Interval(sign * found.value, *sorted((sign * found.low, sign * found.high)))
        return Finding(
            f"{pair[0].name} → {pair[1].name}", f"gap difference {found} pp", decide(turned, above=0)
        )

    return Claim(
        text,
        f"the paper's gap differs by {number(published, 1, sign=True)} pp; supported if the interval of our paired "
        "difference lies on the same side of 0, not supported if on the other",
        tuple(finding(pair) for pair in pairs),
    )


def _difference(first: Measured, second: Measured) -> Interval:
    """The second's phase gap minus the first's, in percentage points, prompts drawn for both at once."""
    for name in ("task", "seed"):
        if first.sweep.attrs[name] != second.sweep.attrs[name]:
            raise StatisticsError(
                f"{first.name} and {second.name} were measured with another {name}; valid: results on the same prompts"
            )
    stride = math.lcm(first.stride, second.stride)
    tables = np.stack([first.correct, second.correct]).astype(float)
    by = 100 * stats.phase_means(tables, stride).swapaxes(0, 1)
    return Interval(*gap_difference(by, seed=_seed(first)))


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
    """Loss of every unit at every phase in percent of clean accuracy: [unit, phase, (value, low, high)].

    NaN where fewer than 20 clean answers were right.
    """
    k, stride = model.knockout, model.stride
    tables = np.concatenate([k["clean_correct"].values[None], k["correct"].values]).astype(float)
    by = (
        stats.by_cycle(tables, stride).sum(axis=-2).swapaxes(0, 1)
    )  # right answers [prompt, clean + unit, phase]

    def loss(sample: np.ndarray) -> np.ndarray:
        total = sample.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return 100 * (1 - total[:, 1:] / total[:, :1])

    values = loss(by[None])[0]
    bounds = stats.bca(by, loss, seed=_seed(model), level=level)
    found = np.full((*values.shape, 3), np.nan)
    for cell in np.argwhere(np.broadcast_to(by[:, 0].sum(axis=0) >= stats.MIN_CLEAN_CORRECT, values.shape)):
        at = tuple(cell)
        one = Interval.of(values[at], (bounds[0][at], bounds[1][at]), len(by), level)
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
    return [m for m in models if m.chunked and _has_gap(m) == "supported"]


def _seed(model: Measured) -> int:
    return int(model.sweep.attrs["seed"])
