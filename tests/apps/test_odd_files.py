"""Odd files in the folder: pages and verbs show what is good beside them, and never hang or end in a traceback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.explorer import folder, parts
from interp import results
from interp.cli import main
from tests.interp.figures import data

PAGES = ("heads", "models", "compressor", "interventions", "deepseek", "figures")
BYTES = os.fsencode


def loop(root: Path) -> None:
    """Links onto themselves, alone and in a circle."""
    for name in ("b/knockout.nc", "b/model.safetensors", "ok/gates.nc", "ok/x.nc", "m/config.json"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to(Path(name).name)
    (root / "m" / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
    (root / "p").symlink_to("q", target_is_directory=True)
    (root / "q").symlink_to("p", target_is_directory=True)


def dangling(root: Path) -> None:
    for name in ("extra.nc", "gates.nc", "report.json"):
        (root / "ok" / name).symlink_to("/nonexistent/x")


def no_text(root: Path) -> None:
    """Names of a folder and of a file that are no UTF-8, and one with a line break."""
    for name in (b"a\xff", b"two\nlines"):
        shutil.copytree(BYTES(root / "ok"), BYTES(root) + b"/" + name)
    shutil.copy(BYTES(root / "ok" / "sweep.nc"), BYTES(root / "ok") + b"/\xfe.nc")
    (root / "ok" / "report.json").write_text("{}")


def pipes(root: Path) -> None:
    """Pipes that nobody writes to."""
    (root / "b").mkdir()
    for name in ("b/sweep.nc", "b/model.safetensors", "ok/gates.nc", "ok/x.nc", "ok/report.json"):
        os.mkfifo(root / name)


def folders(root: Path) -> None:
    """Folders where files should be."""
    for name in ("b/sweep.nc", "b/model.safetensors", "ok/gates.nc", "ok/x.nc"):
        (root / name).mkdir(parents=True)


ODD = (loop, dangling, no_text, pipes, folders)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    results.save(data.sweep(), folder / "sweep.nc")
    results.save(data.knockout(), folder / "knockout.nc")
    return folder


@pytest.fixture
def root(tmp_path: Path, good: Path) -> Iterator[Path]:
    """A good report."""
    shutil.copytree(good, tmp_path / "ok")
    yield tmp_path
    shutil.rmtree(BYTES(tmp_path))  # names that are no text are in the way of pytest's own cleaning


@pytest.mark.parametrize(
    ("odd", "pages"),
    [*((odd, PAGES[:1]) for odd in ODD), *(pytest.param(odd, PAGES, marks=pytest.mark.slow) for odd in ODD)],
)
def test_pages_show_the_good_report_beside(odd, pages, root, open_page):
    odd(root)
    assert "ok" in folder.report_names(root)
    assert folder.stamp(root, "ok") == (root / "ok" / "knockout.nc").stat().st_mtime
    assert {*folder.load_report(root, "ok")} == {"sweep", "knockout"}
    for page in pages:
        app = open_page(root, page, report="ok", model="zoo:full-4kv")
        assert not app.exception
        assert not app.error
        if page in ("heads", "figures"):
            assert app.selectbox(key="report").value == "ok"


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("verb", ["results", "figures"])
def test_verbs_read_the_good_results_beside(verb, odd, root, tmp_path, capsys):
    odd(root)
    more = ["--format", "csv", "-o", str(tmp_path / "out")] if verb == "figures" else []
    code = main([verb, str(root / "ok"), *more])
    assert (code, capsys.readouterr().err) == (0, "")


def test_names_with_line_breaks_open(root, open_page):
    no_text(root)
    app = open_page(root, "heads", report="two\nlines")
    assert app.selectbox(key="report").value == "two\nlines"
    assert not app.exception
    assert folder.report_names(root) == ["ok", "two\nlines"]


def test_a_folder_whose_own_name_is_no_text_opens(root, open_page):
    no_text(root)
    odd = Path(os.fsdecode(BYTES(root) + b"/a\xff"))
    app = open_page(odd, "figures", panels="accuracy")
    assert not app.exception
    assert not app.error


def test_what_the_system_refuses_is_one_line(root, open_page, monkeypatch):
    def refuses(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "ok/sweep.nc")

    monkeypatch.setattr(parts, "load_report", refuses)
    app = open_page(root, "heads")
    assert not app.exception
    assert "Permission denied" in app.error[0].value
    monkeypatch.setattr(parts, "report_names", refuses)
    app = open_page(root, "heads")
    assert not app.exception
    assert "Permission denied" in app.error[0].value


def test_files_that_vanish_after_they_were_listed_are_one_line(root, open_page, monkeypatch):
    listed = folder.report_names(root)
    monkeypatch.setattr(folder, "report_names", lambda _: listed)
    monkeypatch.setattr(parts, "report_names", lambda _: listed)
    shutil.rmtree(root / "ok")
    app = open_page(root, "heads")
    assert not app.exception


@pytest.mark.parametrize(
    "line",
    [
        ["results", "{odd}"],
        ["figures", "{odd}", "--format", "csv"],
        ["figures", "{odd}", "--format", "csv", "-o", "{loop}"],
    ],
)
def test_the_command_line_prints_names_that_are_no_text(line, root, capsys):
    no_text(root)
    loop(root)
    odd = os.fsdecode(BYTES(root) + b"/a\xff")
    code = main([word.format(odd=odd, loop=root / "p") for word in line])
    told = capsys.readouterr()
    assert (code, told.err) == (0, "") or (code == 2 and told.err.count("\n") == 1)
    assert code == (2 if "{loop}" in line else 0)
