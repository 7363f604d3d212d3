"""Recall data with known truth: margins from a prompt's difficulty plus noise, all else follows from them.

margin = logit of the answer − best other logit; correct = margin > 0; with `RIVALS` answers at the best other
logit, log-probability = −log(1 + RIVALS·exp(−margin)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

RIVALS = 3.0
PROMPT_SD = 1.0
ROW_SD = 2.0
SPREAD = float(np.hypot(PROMPT_SD, ROW_SD))
BROKEN = -4.0


@dataclass(frozen=True)
class Rows:
    margin: np.ndarray

    @property
    def correct(self) -> np.ndarray:
        return self.margin > 0

    @property
    def logprob(self) -> np.ndarray:
        return -np.log1p(RIVALS * np.exp(-self.margin))

    @property
    def probability(self) -> np.ndarray:
        return np.exp(self.logprob)


def clean_rows(accuracy, n_prompts, rng, *, modulus=24) -> Rows:
    """Margins [prompt, residue] whose accuracy (percent) by phase is the given one."""
    goal = np.clip(np.resize(np.asarray(accuracy, dtype=float), modulus) / 100, 1e-3, 1 - 1e-3)
    mean = SPREAD * scipy_stats.norm.ppf(goal)
    noise = PROMPT_SD * rng.normal(size=(n_prompts, 1)) + ROW_SD * rng.normal(size=(n_prompts, modulus))
    return Rows(mean + noise)


def ablated_rows(clean: Rows, broken_share, rng, *, jitter=0.0) -> Rows:
    """Margins [unit, prompt, residue]: a share, [unit, phase], breaks; the others move by `jitter`."""
    n_prompts, modulus = clean.margin.shape
    share = np.atleast_2d(np.asarray(broken_share, dtype=float))
    share = np.stack([np.resize(row, modulus) for row in share])[:, None]
    shape = (len(share), n_prompts, modulus)
    moved = clean.margin + jitter * rng.normal(size=shape)
    broken = np.minimum(BROKEN + rng.normal(size=shape), moved)
    return Rows(np.where(rng.random(shape) < share, broken, moved))
