"""Every example runs: in this process, and one as a user would run it."""

import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str) -> str:
    """What a script prints that runs as ``__main__``, without importing every library once more."""
    path, printed = str(ROOT / "examples" / script), io.StringIO()
    with mock.patch.object(sys, "argv", [path, *arguments]), contextlib.redirect_stdout(printed):
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()


def test_first_report_names_heads_and_the_phase_nobody_serves():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "first_report.py"), "tiny", "8"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert out.startswith("tiny: accuracy by phase ")
    assert "KV head" in out
    assert "served by none" in out
