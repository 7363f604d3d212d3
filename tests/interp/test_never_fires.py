"""Every verb that takes a site, a unit or a label refuses what this model does not have."""

import pytest

from hooks import SiteError
from interp import (
    attribution,
    cycle_gates,
    cycling,
    direct_effects,
    gate_parts,
    gate_profile,
    knockout,
    patch,
    path_patch,
    smallest_set,
    value_path,
)
from interp.gate_interventions import forced_gates
from tests.interp.intervention_models import TASK, small

SLIDING = {"attention": "sliding"}


def forced(model, task):
    with forced_gates(model, "uniform", task):
        pass


@pytest.mark.parametrize(
    "verb",
    [
        lambda m, t: knockout(m, t, unit="entry_branch", n=8),
        lambda m, t: knockout(m, t, unit="gate_offset", n=8),
        lambda m, t: knockout(m, t, unit="head", only=["1.4"], n=8),
        lambda m, t: knockout(m, t, unit="head", sets=[["0.0", "2.0"]], n=8),
        lambda m, t: patch(m, t, unit="entry", stride=4, n=8),
        lambda m, t: patch(m, t, unit="layer", site="attn.compressor.key.hook_gate", stride=4, n=8),
        lambda m, t: patch(m, t, unit="head", only=["0.9"], stride=4, n=8),
        lambda m, t: attribution(m, t, unit="gate_offset", n=8),
        lambda m, t: direct_effects(m, t, only=["5.0"], n=8),
        lambda m, t: path_patch(m, t, receivers=["5.0"], n=8),
        lambda m, t: smallest_set(m, t, phase=0, unit="entry_branch", n=8),
        lambda m, t: smallest_set(m, t, phase=0, only=["0.7"], n=8),
        lambda m, t: gate_profile(m, t, n=8),
        lambda m, t: cycle_gates(m, 1),
        lambda m, t: cycling(m, t, n_per_residue=2),
        lambda m, t: gate_parts(m, t, n=8),
        forced,
        lambda m, t: value_path(m, t.sample(4, seed=0), layer=2, head=0),
    ],
)  # fmt: skip
def test_the_error_says_so(verb):
    with pytest.raises(SiteError) as raised:
        verb(small(**SLIDING), TASK)
    assert "\n" not in str(raised.value)


def test_a_model_without_mlps_has_none_to_knock_out():
    with pytest.raises(SiteError, match="mlp"):
        knockout(small(d_mlp=0), TASK, unit="mlp", n=8)
