"""What a claim is made of: results of one model, values with intervals, findings, and how they decide a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from interp import stats
from interp.figures.base import number

__all__ = ["Claim", "Finding", "Interval", "Measured", "Verdict", "decide"]

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
    note: str = ""
    """What a reader of the verdict must know besides."""

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
