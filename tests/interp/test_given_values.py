"""A value that cannot be is refused in one line by whatever takes it, never read as another one."""

from __future__ import annotations

import numpy as np
import pytest

from hooks.errors import PhaselensError
from hooks.rng import derive_seed
from interp import attribution, direct_effects, engine, knockout, patch, path_patch, smallest_set, value_path
from interp.backup import takes_over
from interp.engine import Edit, Variant
from tests.interp.intervention_models import TASK, small

N = {"n": 4, "progress": False}


@pytest.mark.parametrize(
    ("said", "verb"),
    [
        ("at='al'; valid: all, final", lambda m: knockout(m, TASK, at="al", **N)),
        ("at='al'", lambda m: knockout(m, TASK, at="al", unit="gate_offset", **N)),
        ("at='al'", lambda m: patch(m, TASK, at="al", **N)),
        ("at='al'", lambda m: patch(m, TASK, at="al", unit="position", **N)),
        ("at=''", lambda m: patch(m, TASK, at="", **N)),
        ("at='al'", lambda m: path_patch(m, TASK, at="al", **N)),
        ("at='al'", lambda m: path_patch(m, TASK, at="al", replace="zero", **N)),
        ("at='al'", lambda m: smallest_set(m, TASK, phase=0, at="al", replace="zero", n=48, progress=False)),
        ("at='al'", lambda m: list(engine.activations(m, TASK.sample(4, seed=0), ["hook_embed"], at="al"))),
        (
            "at='al'",
            lambda m: engine.run(
                m, TASK.sample(4, seed=0), [Variant("x", (Edit("hook_embed", lambda t, r: t),))], at="al"
            ),
        ),
        ("reach=-1; valid: a whole number, 0 or more", lambda m: patch(m, TASK, unit="position", reach=-1, **N)),
        ("reach=1.5", lambda m: patch(m, TASK, unit="entry", reach=1.5, **N)),
        ("shift=1.5; valid: a whole number", lambda m: patch(m, TASK, shift=1.5, **N)),
        ("pairs='both'; valid: shift, value", lambda m: patch(m, TASK, pairs="both", **N)),
        ("replace='bogus'", lambda m: knockout(m, TASK, unit="entry_branch", replace="bogus", **N)),
        ("replace='bogus'", lambda m: smallest_set(m, TASK, phase=0, unit="entry_branch", replace="bogus", n=48)),
        ("replace='bogus'", lambda m: attribution(m, TASK, unit="gate_offset", replace="bogus", **N)),
        ("replace='bogus'", lambda m: direct_effects(m, TASK, replace="bogus", **N)),
        ("n_calibration=0; valid: a whole number, 1", lambda m: knockout(m, TASK, n_calibration=0, **N)),
        ("n_calibration=0", lambda m: knockout(m, TASK, unit="entry_branch", n_calibration=0, **N)),
        ("n_calibration=1.5", lambda m: knockout(m, TASK, n_calibration=1.5, **N)),
        ("n=1.5", lambda m: knockout(m, TASK, n=1.5)),
        ("stride=2.0", lambda m: knockout(m, TASK, stride=2.0, **N)),
        ("seed=1.5; valid: a whole number", lambda m: knockout(m, TASK, seed=1.5, **N)),
        ("seed=True", lambda m: patch(m, TASK, seed=True, **N)),
        ("empty list picks no unit", lambda m: knockout(m, TASK, only=[], **N)),
        ("empty list of sets", lambda m: knockout(m, TASK, sets=[], **N)),
        ("empty list picks no unit", lambda m: smallest_set(m, TASK, phase=0, only=[], n=48)),
        ("empty list picks no unit", lambda m: attribution(m, TASK, only=[], **N)),
        ("empty list picks no unit", lambda m: direct_effects(m, TASK, only=[], **N)),
        ("empty list picks no unit", lambda m: path_patch(m, TASK, senders=[], **N)),
        ("empty list picks no unit", lambda m: patch(m, TASK, only=[], **N)),
        ("unit 1 does not exist", lambda m: knockout(m, TASK, unit="layer", only=1, **N)),
        ("unit 0.1 does not exist", lambda m: knockout(m, TASK, only=[0.1], **N)),
        ("score='kl'", lambda m: attribution(m, TASK, score="kl", **N)),
        ("token=-1; valid: a whole number from 0 to", lambda m: path(m, token=-1)),
        ("token=1000000", lambda m: path(m, token=10**6)),
        ("token=1.0", lambda m: path(m, token=1.0)),
        ("layer=0.5", lambda m: path(m, layer=0.5)),
        ("row=0.5", lambda m: path(m, row=0.5)),
    ],
)  # fmt: skip
def test_it_is_refused(said, verb):
    with pytest.raises(PhaselensError) as raised:
        verb(small())
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def path(model, **given):
    return value_path(model, TASK.sample(4, seed=0), **{"layer": 0, "head": 0, **given})


def test_a_reach_of_nothing_is_the_target_alone():
    found = patch(small(), TASK, unit="position", reach=0, pairs="value", **N)
    assert found.unit.values.tolist() == ["0.+0", "0.query", "1.+0", "1.query"]
    entries = patch(small(), TASK, unit="entry", reach=0, pairs="value", **N)
    assert entries.unit.values.tolist() == ["0.+0", "1.+0"]


def test_integers_of_other_libraries_are_whole_numbers():
    assert derive_seed(np.int64(3), "x") == derive_seed(3, "x")


def test_nothing_can_take_over_where_there_is_one_unit():
    with pytest.raises(PhaselensError, match="no other layer"):
        takes_over(small(n_layers=1), TASK, gone="0", unit="layer", n=24, progress=False)
