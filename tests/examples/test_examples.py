"""Every example runs as a user would run it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_report_names_heads_and_the_phase_nobody_serves():
    out = run("first_report.py", "tiny", "8")
    assert out.startswith("tiny: accuracy by phase ")
    assert "KV head" in out
    assert "served by none" in out
