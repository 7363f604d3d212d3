"""Every verb keeps its changes by prompt and says what they are held against, so that all statistics apply to it."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from hooks.errors import StatisticsError
from interp import attribution, direct_effects, knockout, patch, path_patch, phase_sweep, reading, results
from interp.backup import takes_over
from interp.controls import controls, discover_then_confirm, over_seeds
from interp.gate_interventions import gate_parts
from tests.interp.intervention_models import TASK, small

N = {"n": 12 * TASK.modulus, "progress": False}
VERBS = {
    "knockout": lambda: knockout(small(), TASK, **N),
    "patch": lambda: patch(small(), TASK, unit="kv_head", pairs="value", **N),
    "direct_effects": lambda: direct_effects(small(), TASK, unit="kv_head", **N),
    "path_patch": lambda: path_patch(small(), TASK, unit="kv_head", **N),
    "takes_over": lambda: takes_over(small(), TASK, gone="1.0", **N),
    "attribution": lambda: attribution(small(), TASK, unit="kv_head", **N),
    "reading": lambda: reading(small(), TASK, **N),
    "gate_parts": lambda: gate_parts(small(), TASK, to=["uniform"], **N),
}
# verb, variable (None: what the result names first), its clean counterpart, the published mean by phase
SCORES = [
    ("knockout", None, "clean_logprob", None),
    ("knockout", "margin", "clean_margin", None),
    ("patch", None, "base_logprob", "effect_logprob"),
    ("patch", "kl", None, "kl_mean"),
    ("direct_effects", None, "clean_logprob", "total"),
    ("direct_effects", "logprob_direct", "clean_logprob", "direct"),
    ("path_patch", None, None, "effect"),
    ("takes_over", None, "change_after", "takes_over"),
    ("attribution", None, None, "true"),
    ("attribution", "attributed_prompt", None, "attributed"),
    ("reading", None, "mean_mass_entries", None),
    ("reading", "mass_exact", "mean_mass_exact", None),
    ("gate_parts", None, "clean_logprob", "change"),
]
FIRST = {
    "knockout": "logprob", "patch": "logprob", "direct_effects": "logprob_total", "path_patch": "change",
    "takes_over": "change_before", "attribution": "true_prompt", "reading": "mass_entries", "gate_parts": "logprob",
}  # fmt: skip


@functools.cache
def found(verb):
    return VERBS[verb]()


def by_hand(data, variable, clean):
    """Mean change [*units, phase], prompt by prompt."""
    values = data[variable].astype(float)
    if clean is not None:
        values = values - data[clean].astype(float)
    values = values.transpose(..., "prompt", "residue").values
    return np.stack([values[..., phase::4].mean(axis=(-2, -1)) for phase in range(4)], axis=-1)


@pytest.mark.parametrize(("verb", "variable", "clean", "published"), SCORES)
def test_the_kept_changes_are_what_is_published_and_are_tested(verb, variable, clean, published):
    data = found(verb)
    means = by_hand(data, variable or FIRST[verb], clean)
    if published:
        np.testing.assert_allclose(data[published].values, means, atol=1e-6)
    split = discover_then_confirm(data, variable=variable)
    units = [dim for dim in data[variable or FIRST[verb]].dims if dim not in ("prompt", "residue")]
    assert split["confirmed"].dims == (*units, "phase")
    defined = ~np.isnan(means)
    np.testing.assert_array_equal(np.isfinite(split["q_discover"].values), defined)
    assert not split["discovered"].values[~defined].any()
    held = controls(small(), data, lambda other: data, variable=variable)
    np.testing.assert_allclose(held["spread"].values[0], np.ptp(means, axis=-1), atol=1e-6)
    assert held["exceeds"].dims == ("control", *units)
    assert held.attrs["scored"] == split.attrs["scored"] == (variable or FIRST[verb])


def test_changes_of_a_family_and_from_a_file(tmp_path):
    data = found("path_patch")
    path = results.save(data, tmp_path / "path.nc")
    again = results.load(path)
    family = over_seeds([data, again, data])
    np.testing.assert_allclose(family["change"].values, data["effect"].values, atol=1e-6)
    assert family["by_seed"].dims == ("model_seed", "sender", "receiver", "phase")


def test_what_is_held_against_nothing_is_an_error_in_one_line():
    sweep = phase_sweep(small(), TASK, n_per_residue=12, progress=False)
    for verb in (discover_then_confirm, lambda data: controls(small(), data, lambda other: data)):
        with pytest.raises(
            StatisticsError, match="'logprob' is not held against a clean run here; there are none"
        ):
            verb(sweep)
    with pytest.raises(StatisticsError, match="valid: logprob_total, logprob_direct"):
        discover_then_confirm(found("direct_effects"), variable="logprob")
    with pytest.raises(StatisticsError, match="mass_sink is undefined throughout"):
        discover_then_confirm(found("reading"), variable="mass_sink")
    with pytest.raises(StatisticsError, match="not finite"):
        broken = found("knockout").copy(deep=True)
        broken["logprob"].values[0, 0, 0] = np.nan
        discover_then_confirm(broken)
