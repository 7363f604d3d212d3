"""What replaces an activation: which prompts stand behind it, told by running them by hand."""

import dataclasses

import pytest
import torch

from hooks.errors import PhaselensError, TaskError
from interp.engine import Rows
from interp.replacement import calibrate
from interp.rng import derive_seed
from tests.interp.intervention_models import TASK, small

SITE = "blocks.1.attn.hook_z"
R = TASK.modulus


def values(replace, prompts, n=None, names=(SITE,)):
    """What every prompt's final z is replaced by."""
    options = {"replace": replace, "at": "final", "stride": R, "seed": 3, "n": n, "progress": False}
    found = calibrate(small(), TASK, prompts, names, **options)
    rows = Rows(torch.arange(len(prompts)), torch.tensor([prompts.query_position]))
    return found.at(SITE, torch.empty(len(prompts), 1, 4, 4), rows)


def final_z(prompts):
    with torch.no_grad():
        return small().run_with_cache(prompts.tokens, [SITE])[1][SITE][:, -1:]


def test_donors_are_whole_prompts_of_the_same_residue_and_neither_n_nor_the_others_matter():
    prompts = TASK.sample(6 * R, seed=0)
    found = values("resample", prompts)
    for n in (R, 20 * R):
        assert torch.equal(values("resample", prompts, n), found)
    assert torch.equal(values("resample", prompts.select(slice(2 * R, 3 * R))), found[2 * R : 3 * R])
    source = TASK.sample(8 * R, seed=derive_seed(3, "calibration"))
    donors = final_z(source)
    for row in range(len(prompts)):
        same = (donors - found[row]).abs().flatten(1).max(1).values < 1e-6
        assert same.any()
        assert (source.residue[same] == prompts.residue[row]).all()


@pytest.mark.parametrize(("n", "blocks"), [(None, 8), (3 * R, 3)])
def test_means_are_over_eight_base_prompts_or_as_many_as_asked(n, blocks):
    prompts = TASK.sample(R, seed=0)
    source = final_z(TASK.sample(blocks * R, seed=derive_seed(3, "calibration")))
    mean = source.mean(0, keepdim=True)
    assert torch.allclose(values("mean", prompts, n), mean.expand(R, 1, 4, 4), atol=1e-6)
    by_residue = torch.stack([source[r::R].mean(0) for r in range(R)])
    assert torch.allclose(values("phase_mean", prompts, n), by_residue, atol=1e-6)


def test_what_cannot_be_calibrated_is_named():
    prompts = TASK.sample(R, seed=0)
    with pytest.raises(PhaselensError, match="replace='bogus'"):
        values("bogus", prompts, names=())
    longer = dataclasses.replace(TASK, context=28).sample(R, seed=0)
    with pytest.raises(TaskError, match=r"calibration prompts have \d+ tokens, measured ones \d+"):
        values("resample", longer)
