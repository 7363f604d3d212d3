"""Maps say when no cell of theirs can be told from chance: 2/2⁵ > 0.05 ≥ 2/2⁶."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

from interp.figures.chance import significant, untested
from interp.figures.change_views import takes_over_map
from interp.figures.heatmap import effect_heatmap
from interp.figures.owner_maps import owner_effects_map
from interp.figures.patch_maps import patch_by_phase
from interp.specialization import specialization
from tests.interp.figures import data

NOTE = "No cell can be told from chance at n = {}; 6 prompts a residue are the least."


def result(prompts, p):
    values = np.array([[0.5, -1.0], [0.0, 2.0]])
    cells = {"effect_logprob": values, "takes_over": values, "effect_logprob_p": p, "takes_over_p": p}
    return xr.Dataset(
        {name: (("unit", "phase"), np.broadcast_to(value, (2, 2))) for name, value in cells.items()}
        | {"mass": (("unit", "phase", "layer"), np.zeros((2, 2, 1)))},
        coords={"unit": ["0", "1"], "phase": [0, 1], "layer": [0], "prompt": np.arange(prompts)},
        attrs={"unit_kind": "layer", "gone": "2", "seed": 0, "n_per_residue": prompts, "stride": 2},
    )


@pytest.mark.parametrize("draw", [patch_by_phase, owner_effects_map, takes_over_map])
def test_a_map_without_a_test_says_so_instead_of_what_outlines_mean(draw):
    said = draw(result(4, np.nan)).layout.meta["caption"]
    assert NOTE.format(4) in said
    assert "Outlined" not in said
    tested = draw(result(6, 0.04)).layout.meta["caption"]
    assert "Outlined: family-wise p < 0.05" in tested
    assert "chance" not in tested


def test_a_heat_map_without_a_test_flags_no_phase_as_served_by_none():
    found = data.knockout()
    few = found.isel(prompt=slice(0, 5)) if "prompt" in found.dims else prompts_of(found, 5)
    drawn: Any = effect_heatmap(few, specialization(few))
    assert NOTE.format(5) in drawn.layout.meta["caption"]
    assert NOTE.format(5) in drawn.layout.meta["alt"]
    assert not any(note.text.startswith(("□", "•", "▼")) for note in drawn.layout.annotations)
    assert not any(trace.mode == "markers" and trace.name != "cells" for trace in drawn.data if trace.mode)


def prompts_of(found, n):
    """The same units with n prompts, all right before and wrong after."""
    units, residues = found.sizes["unit"], found.sizes["phase"]
    return found.assign(
        clean_correct=(("prompt", "residue"), np.ones((n, residues), bool)),
        correct=(("unit", "prompt", "residue"), np.zeros((units, n, residues), bool)),
    )


def test_cells_below_the_level_and_results_without_prompts():
    assert significant([[0.05, 0.049], [np.nan, 0.0]]) == [(0, 1), (1, 1)]
    assert untested([np.nan, 0.2], result(9, 1.0)) == ""
    assert untested([np.nan], xr.Dataset()) == "No cell is tested against chance."
