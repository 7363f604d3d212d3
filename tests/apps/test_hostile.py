"""Files and links that mean harm, or are merely wrong: one line on the page, never a traceback."""

from __future__ import annotations

import json
import shutil

import h5py
import numpy as np
import pytest
import xarray as xr

from apps.explorer.folder import load_audit, load_report, model_folder
from hooks.checkpoint import zoo_path
from hooks.errors import PhaselensError
from interp import results
from tests.interp.figures import data

PAGES = ("heads", "models", "compressor", "interventions", "deepseek", "figures")


def told(app) -> str:
    """All errors of a page, which must be one line each."""
    assert not app.exception
    assert all("\n" not in error.value and "Traceback" not in error.value for error in app.error)
    return " ".join(error.value for error in app.error)


def huge(path) -> None:
    """A few kilobytes on disk that unfold to eight terabytes."""
    path.parent.mkdir(parents=True)
    with h5py.File(path, "w") as file:
        file.attrs["phaselens_format"] = results.FORMAT
        file.create_dataset(
            "effect", shape=(10**6, 10**6), dtype="f8", chunks=(1000, 1000), compression="gzip"
        )


def leading_out(path, target) -> None:
    """A variable that is stored in another file."""
    path.parent.mkdir(parents=True)
    with h5py.File(path, "w") as file:
        file.attrs["phaselens_format"] = results.FORMAT
        file["effect"] = h5py.ExternalLink(str(target), "effect")


@pytest.mark.parametrize("page", ["heads", "figures"])
def test_a_small_file_that_unfolds_to_terabytes_is_refused(page, tmp_path, open_page):
    huge(tmp_path / "r" / "knockout.nc")
    assert (tmp_path / "r" / "knockout.nc").stat().st_size < 100_000
    assert "bytes of values, more than" in told(open_page(tmp_path, page))


def test_a_file_over_the_cap_is_refused_unread(tmp_path, open_page, monkeypatch):
    (tmp_path / "r").mkdir()
    with (tmp_path / "r" / "knockout.nc").open("wb") as stream:
        stream.write(b"\x89HDF\r\n\x1a\n")
        stream.truncate(1 << 30)  # sparse
    assert "more than max_bytes" in told(open_page(tmp_path, "heads"))


def test_a_variable_in_another_file_is_refused(reports, tmp_path, open_page):
    leading_out(tmp_path / "r" / "knockout.nc", reports / "tiny" / "knockout.nc")
    assert "links and external data are refused" in told(open_page(tmp_path, "heads"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04pickle", b"CDF\x01" + bytes(60), b"\x80\x04."])
def test_other_files_under_the_name_are_no_results(content, tmp_path, open_page):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "sweep.nc").write_bytes(content)
    assert "not a netCDF-4 file" in told(open_page(tmp_path, "heads"))


@pytest.mark.parametrize("page", ["heads", "figures"])
def test_a_result_of_another_kind_is_named(page, tmp_path, open_page):
    (tmp_path / "r").mkdir()
    results.save(data.sweep(), tmp_path / "r" / "knockout.nc")
    assert "knockout.nc of report 'r' is no knockout: it has no 'effect'" in told(open_page(tmp_path, page))


@pytest.mark.parametrize("page", ["heads", "figures"])
def test_results_that_do_not_belong_together_are_one_line(page, tmp_path, open_page):
    (tmp_path / "r").mkdir()
    results.save(data.knockout(), tmp_path / "r" / "knockout.nc")
    other = data.specialization().isel(unit=[0, 1], phase=[0, 1])
    results.save(other, tmp_path / "r" / "specialization.nc")
    assert told(open_page(tmp_path, page, panels="knockout"))


def test_an_audit_without_a_curve_says_so(tmp_path, open_page):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "report.json").write_text("{}")
    results.save(xr.Dataset({"x": ("y", np.arange(3.0))}), tmp_path / "a" / "recall.nc")
    app = open_page(tmp_path, "deepseek")
    assert told(app) == ""
    assert any("no curve to draw" in info.value for info in app.info)


# ---- paths and links


@pytest.mark.parametrize(
    "name", ["..", "../..", "/", "/etc/passwd", "tiny/..", "./tiny", "tiny\x00", "~", "C:\\x"]
)
def test_no_path_but_a_listed_name_is_opened(reports, name):
    for opens in (load_report, load_audit, model_folder):
        with pytest.raises(PhaselensError, match=r"^no "):
            opens(reports, name)


def test_a_link_made_after_the_list_was_read_is_not_followed(reports, tmp_path):
    (tmp_path / "in" / "r").mkdir(parents=True)
    shutil.copy(reports / "tiny" / "knockout.nc", tmp_path / "in" / "r")
    (tmp_path / "in" / "r" / "sweep.nc").symlink_to(reports / "tiny" / "sweep.nc")
    assert set(load_report(tmp_path / "in", "r")) == {"knockout"}


@pytest.mark.parametrize("page", PAGES)
def test_unknown_and_absurd_query_parameters_are_ignored(page, reports, open_page):
    odd = {
        "nonsense": "1", "folder": "/etc", "report": "/etc", "model": "zoo:tiny", "unit": "99.99", "prompt": "-5",
        "shift": "1e9", "token": "999999", "columns": "0", "width": "0", "type": "10000", "colours": "jet",
        "format": "exe", "units": "<script>", "panels": "x" * 5000, "at": "nan", "by": "0", "dark": "maybe",
        "remove": "9.9", "replace": "pickle", "part": "none", "residue": "9999", "n": "100000000",
    }  # fmt: skip
    assert told(open_page(reports, page, **odd)) == ""


# ---- models


def saved(folder, **changes):
    """A copy of a bundled model with changes to its configuration, by table and key."""
    shutil.copytree(zoo_path("tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    for where, value in changes.items():
        table, _, key = where.partition("__")
        config[table][key] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config__d_model": 10**9}, "d_model = 1e+09, over 1048576"),
        ({"task__context": 10**12}, "context = 1e+12"),
        ({"config__window": [4, 10**9]}, "window = 1e+09"),
        ({"config__rope_base": float("inf")}, "rope_base = inf"),
        ({"config__d_model": 128}, ""),
        ({"config__n_layers": 0}, ""),
        ({"config__stride": "four"}, ""),
    ],
)
def test_a_model_that_asks_for_too_much_or_does_not_fit_is_one_line(changes, said, tmp_path, open_page):
    saved(tmp_path / "m", **changes)
    message = told(open_page(tmp_path, "compressor", model="folder:m"))
    assert message
    assert said in message


@pytest.mark.parametrize("content", ["", "[]", "null", '{"a":', "[" * 100_000, '"text"'])
def test_a_configuration_that_is_none_is_one_line(content, tmp_path, open_page):
    saved(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(content)
    assert told(open_page(tmp_path, "interventions", model="folder:m"))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x04\x95pickle", (1 << 62).to_bytes(8, "little") + b"{}", b"\x02" + bytes(7) + b"{}"],
)
def test_weights_that_are_none_are_one_line(content, tmp_path, open_page):
    saved(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(content)
    assert told(open_page(tmp_path, "compressor", model="folder:m"))


def test_a_pickle_is_not_even_listed(tmp_path, open_page):
    (tmp_path / "m").mkdir()
    for name in ("model.pt", "pytorch_model.bin", "model.pkl", "model.npz"):
        (tmp_path / "m" / name).write_bytes(b"\x80\x04\x95")
    app = open_page(tmp_path, "compressor")
    assert not any("folder" in option for option in app.selectbox(key="model").options)
