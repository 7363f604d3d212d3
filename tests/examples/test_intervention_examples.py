"""The two examples of interventions, run as scripts."""

import re

from tests.examples.test_examples import run


def test_ablate_one_head_prints_every_phase():
    out = run("ablate_one_head.py", "tiny", "0.1", "12")
    assert out.startswith("tiny without KV head 0.1")
    assert len(re.findall(r"^  \d: [+-]\d+\.\d$", out, re.MULTILINE)) == 4
    assert "phases it serves:" in out


def test_patch_shifted_prompt_names_heads_with_intervals():
    out = run("patch_shifted_prompt.py", "tiny", "12")
    assert len(re.findall(r"^  head \d\.\d at phase \d: [+-]\d\.\d\d \(", out, re.MULTILINE)) == 5
