"""The explorer on a real report folder, run by Streamlit's own test harness."""

from pathlib import Path

import pytest
import xarray as xr
from streamlit.testing.v1 import AppTest

import hooks
from apps.explorer.folder import load_report, report_names
from hooks.errors import CheckpointError
from interp import gate_profile, knockout, phase_sweep, specialization
from interp.report import save_results
from interp.tasks import RecallTask

APP = Path(__file__).parents[2] / "apps" / "explorer" / "app.py"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reports")
    model = hooks.load("tiny")
    task = RecallTask.for_model(model)
    effects = knockout(model, task, n=6 * task.modulus, progress=False)
    found: dict[str, xr.Dataset] = {
        "sweep": phase_sweep(model, task, n_per_residue=6, progress=False),
        "knockout": effects,
        "specialization": specialization(effects, n_permutations=99),
        "gates": gate_profile(model, task, n=task.modulus, progress=False),
    }
    save_results(found, root / "tiny")
    return root


def run(root: Path, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setattr("sys.argv", [str(APP), str(root)])
    app = AppTest.from_file(str(APP), default_timeout=60)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def test_page_shows_the_report_and_its_most_telling_head(reports, monkeypatch):
    app = run(reports, monkeypatch)
    assert not app.exception
    assert [box.label for box in app.selectbox] == ["Report", "Unit (layer.head)"]
    effect = load_report(reports, "tiny")["knockout"]["effect"]
    losses = {str(u): float(effect.sel(unit=u).min()) for u in effect.unit.values}
    assert app.selectbox(key="unit").value == min(losses, key=losses.__getitem__)


def test_choosing_a_head_by_an_ordinary_widget_changes_text_and_address(reports, monkeypatch):
    app = run(reports, monkeypatch)
    app.selectbox(key="unit").set_value("1.1").run()
    assert not app.exception
    assert app.query_params["unit"] in ("1.1", ["1.1"])
    assert any(m.value.startswith("**1.1 serves") for m in app.markdown)


def test_a_link_reproduces_the_view(reports, monkeypatch):
    app = run(reports, monkeypatch, report="tiny", unit="0.0")
    assert app.selectbox(key="unit").value == "0.0"


def test_empty_folder_says_what_to_do(tmp_path, monkeypatch):
    app = run(tmp_path, monkeypatch)
    assert not app.exception
    assert "phaselens report" in app.info[0].value


def test_damaged_file_is_one_line_not_a_traceback(reports, tmp_path, monkeypatch):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "knockout.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    app = run(tmp_path, monkeypatch)
    assert not app.exception
    assert app.error


@pytest.mark.parametrize("name", ["..", "../tiny", "/etc", "tiny/../../x", ""])
def test_nothing_outside_the_folder_is_opened(reports, name):
    with pytest.raises(CheckpointError, match="no report"):
        load_report(reports, name)


def test_links_that_lead_out_are_not_listed(reports, tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "knockout.nc").symlink_to(reports / "tiny" / "knockout.nc")
    assert report_names(tmp_path) == []
    assert report_names(reports) == ["tiny"]
