"""The example that audits a checkpoint directory, run as it stands."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from hooks.checkpoint import zoo_path
from interp import report

EXAMPLE = Path(__file__).parents[2] / "examples" / "audit_checkpoint.py"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the example; return the attributes of its recall test and what it printed."""
    draw = report.draw  # a browser would take most of the time here
    monkeypatch.setattr(report, "draw", lambda built, folder, formats: draw(built, folder, formats=("html",)))

    def main(*arguments: str) -> tuple[dict, str]:
        out = tmp_path / "audit"
        runpy.run_path(str(EXAMPLE))["main"]([*arguments, "-o", str(out)])
        assert (out / "index.html").is_file()
        attrs = json.loads((out / "report.json").read_text())["results"]["recall"]["attrs"]
        return attrs, capsys.readouterr().out

    return main


def test_it_audits_a_directory_end_to_end(run):
    attrs, told = run(str(zoo_path("tiny")), "-n", "10")
    assert (attrs["model"], attrs["stride"], attrs["n_per_residue"]) == ("tiny", 4, 10)
    assert f"gap {attrs['gap_pp']:.1f} pp" in told
    assert re.search(r"gap by query phase +\d", told)
    assert attrs["found"] or f"a gap over {attrs['detectable_gap_pp']:.1f} pp" in told


@pytest.mark.slow
def test_the_model_it_names_by_default_has_a_gap(run):
    attrs, told = run()
    # One KV head cannot serve eight phases: the last ones before the boundary go without.
    assert attrs["worst_phase"] in (6, 7)
    assert attrs["period"] == 8
    assert attrs["gap_pp"] > 20
    assert "period 8" in told
