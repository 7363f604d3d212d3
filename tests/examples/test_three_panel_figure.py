"""The example that makes a paper figure, on a small report."""

import hooks
from interp import gate_profile, knockout, phase_sweep
from interp.report import save_results
from interp.tasks import RecallTask
from tests.examples.test_examples import run


def test_it_writes_three_lettered_panels_and_their_data(tmp_path):
    model = hooks.load("tiny")
    task = RecallTask.for_model(model)
    found = {
        "sweep": phase_sweep(model, task, n_per_residue=2, progress=False),
        "knockout": knockout(model, task, n=6 * task.modulus, progress=False),
        "gates": gate_profile(model, task, n=task.modulus, progress=False),
    }
    save_results(found, tmp_path / "report")
    run("three_panel_figure.py", str(tmp_path / "report"), str(tmp_path / "figure"), "html")
    rows = (tmp_path / "figure.csv").read_text(encoding="utf-8").splitlines()
    assert {row.split(",")[0] for row in rows[1:]} == {"a", "b", "c"}
    assert sum(row.startswith("a,") for row in rows) == task.modulus
    html = (tmp_path / "figure.html").read_text(encoding="utf-8")
    assert all(f"<b>{letter}</b>" in html or f"\\u003cb\\u003e{letter}" in html for letter in "abc")
