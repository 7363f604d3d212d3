"""A folder as a user would have it: a report of a bundled model, a saved model, and an audit."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xarray as xr
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

import hooks
from hooks.checkpoint import zoo_path
from interp import gate_profile, knockout, phase_sweep, specialization
from interp.audit.published import from_published, load_table
from interp.report import save_results
from interp.tasks import RecallTask

Opener = Callable[..., AppTest]


@pytest.fixture(scope="session", autouse=True)
def scanned_once() -> Iterator[None]:
    """Each AppTest looks for components in every installed package: the longest part of it, and always the same."""
    scan = functools.cache(manifest_scanner.scan_component_manifests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", scan)
        yield


def make_folder(root: Path) -> Path:
    """Write the folder."""
    model = hooks.load("tiny")
    task = RecallTask.for_model(model)
    effects = knockout(model, task, n=10 * task.modulus, progress=False)
    found: dict[str, xr.Dataset] = {
        "sweep": phase_sweep(model, task, n_per_residue=10, progress=False),
        "knockout": effects,
        "specialization": specialization(effects, n_permutations=199),
        "gates": gate_profile(model, task, n=task.modulus, progress=False),
    }
    save_results(found, root / "tiny")
    shutil.copytree(zoo_path("tiny"), root / "model")
    save_results(from_published(load_table("completion_fp8")), root / "audit")
    (root / "audit" / "report.json").write_text("{}", encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("reports"))


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Opener:
    """Open one page on a folder, with what its address says."""

    def opened(root: Path, page: str, **query: str) -> AppTest:
        monkeypatch.setattr("sys.argv", ["app.py", str(root)])
        app = AppTest.from_string(
            f"from apps.explorer.parts import shown\nshown({page!r})", default_timeout=240
        )
        for key, value in query.items():
            app.query_params[key] = value
        return app.run()

    return opened
