"""The query axis: targets stay, queries move, and a model that only minds its open window is found out."""

import numpy as np
import pytest
import torch

from hooks import CompressedTransformer, ModelConfig
from hooks.errors import PhaselensError, TaskError
from interp import phase_sweep, query_phase
from interp.query_phase import query_sweep
from interp.tasks import RecallTask

TASK = RecallTask(
    n_keys=10, n_values=10, n_filler=4, n_records=5, context=24, n_queries=2, n_demonstrations=1, modulus=4
)


@pytest.fixture(scope="module")
def model():
    cfg = ModelConfig(
        n_layers=1, d_model=16, n_heads=2, n_kv_heads=1, d_head=8, d_mlp=16, d_vocab=TASK.d_vocab,
        window=4, stride=4, exact_window=4,
    )  # fmt: skip
    made = CompressedTransformer(cfg).eval()
    made.task = TASK.describe()
    return made


def test_every_pair_of_phases_is_what_one_prompt_at_a_time_gives(model):
    found = phase_sweep(model, TASK, n_per_residue=12, axis="query", progress=False)
    assert found.sizes == {"prompt": 48, "residue": 4, "phase": 4, "target_phase": 4}
    assert (found.target_position.values % 4 == found.row_target_phase.values[:, None]).all()
    for row in (0, 5, 23, 47):
        block, target = found.prompt_id.values[row], found.target_position.values[row, 0]
        for phase in range(4):
            prompts = TASK.sample(48, seed=0, query_phase=phase, query_stride=4)
            assert (prompts.query_position + 1) % 4 == phase
            mine = (prompts.prompt_id == block) & (prompts.target_position == int(target))
            with torch.no_grad():
                logits = model(prompts.tokens[mine])[0, -1]
            expected = logits.log_softmax(-1)[prompts.answer[mine][0]]
            assert found.logprob.values[row, phase] == pytest.approx(float(expected), abs=1e-5)


def test_gaps_and_shares_tell_the_open_window_from_the_target(model, monkeypatch):
    rng = np.random.default_rng(0)

    def planted(depends):
        def run(model, prompts, **_):
            query = (prompts.query_position + 1) % 4
            p = {"query": torch.full((len(prompts),), [0.9, 0.8, 0.7, 0.2][query]),
                 "target": torch.tensor([0.9, 0.8, 0.7, 0.2])[prompts.target_position % 4]}[depends]  # fmt: skip
            right = torch.from_numpy(rng.random(len(prompts))) < p
            return {"correct": right[None], "logprob": p.log()[None], "margin": p[None]}

        return run

    monkeypatch.setattr(query_phase.engine, "run", planted("query"))
    found = query_sweep(model, TASK, n_per_residue=100)
    assert found.attrs["share_query"] > 0.95
    assert found.attrs["query_p"] < 0.01 < found.attrs["target_p"]
    assert found.attrs["worst_phase"] == 3
    assert found.attrs["gap_pp"] == pytest.approx(70, abs=8)
    monkeypatch.setattr(query_phase.engine, "run", planted("target"))
    found = query_sweep(model, TASK, n_per_residue=100)
    assert found.attrs["share_target"] > 0.95
    assert found.attrs["target_p"] < 0.01 < found.attrs["query_p"]
    assert found.target_gap.values == pytest.approx([70] * 4, abs=15)
    assert found.accuracy_cell.dims == ("target_phase", "phase")
    assert found.accuracy_cell.values[3].max() < 0.4


def test_a_task_that_cannot_move_its_query_is_named(model):
    class Fixed:
        modulus, d_vocab = 4, TASK.d_vocab

    with pytest.raises(TaskError, match="Fixed"):
        query_sweep(model, Fixed(), n_per_residue=2)


@pytest.mark.parametrize("number", [0, 1.5])
def test_a_number_of_prompts_that_cannot_be_is_named(model, number):
    with pytest.raises(PhaselensError, match=f"n_per_residue={number}"):
        query_sweep(model, TASK, n_per_residue=number)
