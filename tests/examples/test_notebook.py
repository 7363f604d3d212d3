"""The notebook that walks through the whole of it, executed as a user would."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "walk_through.ipynb"


def told(notebook: nbformat.NotebookNode) -> str:
    """What its cells printed."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def execute(monkeypatch: pytest.MonkeyPatch, parameters: str) -> nbformat.NotebookNode:
    """Run it with other parameters, in a kernel of this environment."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (cell,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    cell.source += f"\n{parameters}"
    NotebookClient(notebook, timeout=900, kernel_name="python3").execute(cwd=str(ROOT))
    return notebook


def test_it_is_committed_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


SAID = (
    "layer 0: ", "accuracy by phase: ", "served by none", "depends most on the phase",
    "after ", "direct effect by phase", "phaselens figures ",
)  # fmt: skip


def test_its_cells_run_one_after_the_other(tmp_path, monkeypatch):
    """In this process; as a notebook, in a kernel of its own, below."""
    monkeypatch.chdir(ROOT)
    out, printed = tmp_path / "out", io.StringIO()
    names: dict[str, object] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(printed):
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, "a cell", "exec"), names)
            if "parameters" in cell.metadata.get("tags", []):
                names |= {"MODEL": "tiny", "N_PER_RESIDUE": 10, "OUT": str(out), "FORMATS": ("html",)}
    assert {file.name for file in out.iterdir()} >= {"sweep.nc", "index.html", "figure.html", "figure.csv"}
    for said in SAID:
        assert said in printed.getvalue(), said


@pytest.mark.slow
def test_it_runs_from_the_first_cell_to_the_figure(tmp_path, monkeypatch):
    out = tmp_path / "out"
    notebook = execute(
        monkeypatch, f'MODEL, N_PER_RESIDUE, OUT, FORMATS = "tiny", 10, {str(out)!r}, ("html",)'
    )
    assert {file.name for file in out.iterdir()} >= {"sweep.nc", "index.html", "figure.html", "figure.csv"}
    words = told(notebook)
    for said in SAID:
        assert said in words, said
    drawn = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type in ("display_data", "execute_result")
    ]
    assert len(drawn) == 5  # each figure is the value of its cell
    rows = (out / "figure.csv").read_text(encoding="utf-8").splitlines()
    assert {row.split(",")[0] for row in rows[1:]} == {"a", "b", "c"}


@pytest.mark.slow
def test_as_committed_it_finds_the_phase_that_is_served_badly(tmp_path, monkeypatch):
    words = told(execute(monkeypatch, f"OUT = {str(tmp_path / 'out')!r}"))
    assert "period in the data: 8" in words
