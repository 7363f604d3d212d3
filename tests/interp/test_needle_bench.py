"""The needle generator at full size: what its benchmark reports."""

import math

import numpy as np

from interp import needle_bench


def test_a_prompt_takes_under_two_seconds_and_moments_agree():
    task = needle_bench.full_size_task()
    assert (task.length, task.n_records) == (131072, 16000)
    found = needle_bench.measure(task, prompts=3)
    assert sorted(found["cpu"])[1] < 2
    assert found["mean"] < 1e-9
    assert found["variance"] < 1e-9


def test_moments_of_the_drawn_positions_are_those_of_whole_blocks():
    task = needle_bench.full_size_task(modulus=2)  # R² = 4 base prompts, R³ = 8 rows
    found = needle_bench.measure(task, prompts=8, seed=3)
    rows = [task.sample(2, seed=3), *(next(task.batches(i + 2, seed=3, first=i, rows=2)) for i in (2, 4, 6))]
    by = np.stack([one.target_position.numpy() for one in rows]).astype(float)
    assert (by % 2 == [0, 1]).all()
    assert found["drawn_mean"] == abs(by[:, 0].mean() - by[:, 1].mean()) == 0
    assert found["drawn_variance"] == abs(by[:, 0].var() - by[:, 1].var()) == 0
    assert math.isnan(needle_bench.measure(task, prompts=1)["drawn_mean"])
    few = needle_bench.measure(task, prompts=2, seed=3)["drawn_mean"]  # one base prompt: a token apart
    assert few == abs(by[0, 0] - by[0, 1]) / by[0].max() > 0


def test_the_page_says_what_was_measured(tmp_path):
    page = tmp_path / "needle.md"
    needle_bench.main(["-o", str(page), "--prompts", "2"])
    text = page.read_text(encoding="utf-8")
    assert "16,000 records of 4 tokens in 131,072, 2 prompts" in text
