"""Intervals, tests and corrections; the resampling unit is the prompt_id throughout.

Arrays come in as [prompt, residue] or [unit, prompt, residue]: column r holds residue r, row p one prompt_id.
Undefined results (n below a stated minimum, ratios over about 0, no spread) are NaN, never 0.
"""

from interp.stats._data import (
    MIN_BOOTSTRAP_PROMPTS,
    MIN_CLEAN_CORRECT,
    MIN_SEEDS,
    MIN_TEST_PROMPTS,
    SIGNIFICANCE,
    by_cycle,
    phase_gap,
    phase_means,
    unanswered,
)
from interp.stats.controls import CONFIRMATORY_SEED, discover_confirm, placebo_strides
from interp.stats.gaps import gap_bounds, gap_difference_bounds, gap_test, paired_bounds
from interp.stats.intervals import bca, family_interval, gap_interval, phase_intervals, wilson
from interp.stats.period import (
    CANDIDATES,
    Period,
    candidates_for,
    find_period,
    period_label,
    period_of_counts,
)
from interp.stats.permutation import (
    EffectTest,
    SelectivityTest,
    benjamini_hochberg,
    effect_test,
    null_gap,
    selectivity_test,
)
from interp.stats.position import WithoutPosition, without_position

__all__ = [
    "CANDIDATES",
    "CONFIRMATORY_SEED",
    "MIN_BOOTSTRAP_PROMPTS",
    "MIN_CLEAN_CORRECT",
    "MIN_SEEDS",
    "MIN_TEST_PROMPTS",
    "SIGNIFICANCE",
    "EffectTest",
    "Period",
    "SelectivityTest",
    "WithoutPosition",
    "bca",
    "benjamini_hochberg",
    "by_cycle",
    "candidates_for",
    "discover_confirm",
    "effect_test",
    "family_interval",
    "find_period",
    "gap_bounds",
    "gap_difference_bounds",
    "gap_interval",
    "gap_test",
    "null_gap",
    "paired_bounds",
    "period_label",
    "period_of_counts",
    "phase_gap",
    "phase_intervals",
    "phase_means",
    "placebo_strides",
    "selectivity_test",
    "unanswered",
    "wilson",
    "without_position",
]
