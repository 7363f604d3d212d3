"""The example that audits a checkpoint directory, run as it stands."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

from interp import report

EXAMPLE = Path(__file__).parents[2] / "examples" / "audit_checkpoint.py"


def test_it_audits_a_shipped_model_end_to_end(tmp_path, monkeypatch, capsys):
    draw = report.draw  # a browser would take most of the time here
    monkeypatch.setattr(report, "draw", lambda built, folder, formats: draw(built, folder, formats=("html",)))
    out = tmp_path / "audit"
    runpy.run_path(str(EXAMPLE))["main"](["-o", str(out), "-n", "10"])
    attrs = json.loads((out / "report.json").read_text())["results"]["recall"]["attrs"]
    # One KV head cannot serve eight phases: the last ones before the boundary go without.
    assert attrs["worst_phase"] in (6, 7)
    assert attrs["period"] == 8
    assert attrs["gap_pp"] > 20
    told = capsys.readouterr().out
    assert f"gap {attrs['gap_pp']:.1f} pp" in told
    assert re.search(r"gap by query phase +\d", told)
    assert (out / "index.html").is_file()
