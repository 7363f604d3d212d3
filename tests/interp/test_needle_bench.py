"""The needle generator at full size: what its benchmark reports."""

from interp import needle_bench


def test_a_prompt_takes_under_two_seconds_and_moments_agree():
    task = needle_bench.full_size_task()
    assert (task.length, task.n_records) == (131072, 16000)
    found = needle_bench.measure(task, prompts=3)
    assert sorted(found["cpu"])[1] < 2
    assert found["mean"] < 1e-9
    assert found["variance"] < 1e-9


def test_the_page_says_what_was_measured(tmp_path):
    page = tmp_path / "needle.md"
    needle_bench.main(["-o", str(page), "--prompts", "2"])
    text = page.read_text(encoding="utf-8")
    assert "16,000 records of 4 tokens in 131,072, 2 prompts" in text
