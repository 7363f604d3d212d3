"""A report folder is complete, links what it holds, and needs no network."""

from __future__ import annotations

import html.parser
import json
import re

import numpy as np
import pytest
import xarray as xr

from hooks import CompressedTransformer, preset
from hooks.errors import CheckpointError
from interp import RecallTask
from interp.report import figures, load_results, report
from interp.report_page import page
from interp.results import equal


@pytest.fixture(scope="module")
def model():
    made = CompressedTransformer(preset("tiny"))
    made.name = "tiny <untrained> & co"
    return made


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "r"
    found = report(model, out=out, n_per_residue=4, formats=("html",), progress=False)
    return out, found


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.targets, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.targets += [value for name, value in attrs if name in ("href", "src")]


def test_every_file_is_listed_and_linked_and_there(made):
    out, _ = made
    listed = json.loads((out / "report.json").read_text())["files"]
    there = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert sorted(listed) == there
    assert {"sweep.nc", "knockout.csv", "figures/accuracy.html", "figures/accuracy.csv"} <= set(there)
    assert set(Links((out / "index.html").read_text()).targets) >= set(there)


def test_the_page_asks_for_nothing_from_outside(made):
    links = Links((made[0] / "index.html").read_text())
    assert not [t for t in links.targets if re.match(r"\w+:|//|/|\.\.", t)]
    assert "script" not in links.tags


def test_the_results_come_back_equal(made):
    out, found = made
    loaded = load_results(out)
    assert set(loaded) == set(found)
    assert all(equal(loaded[name], found[name]) for name in found)


def test_the_same_seed_gives_the_same_results(model, made, tmp_path, monkeypatch):
    monkeypatch.setattr("interp.report.figures", lambda *_, **__: {})  # results are compared
    again = report(model, out=tmp_path / "r", n_per_residue=4, formats=("html",), progress=False)
    other = report(model, out=tmp_path / "s", n_per_residue=4, seed=1, formats=("html",), progress=False)
    assert all(equal(again[name], made[1][name]) for name in again)
    assert not equal(other["sweep"], made[1]["sweep"])


def test_names_are_escaped(made):
    text = (made[0] / "index.html").read_text()
    assert "tiny &lt;untrained&gt; &amp; co" in text
    assert "<untrained>" not in text


def test_the_tables_say_what_the_results_say():
    sweep = xr.Dataset(
        {
            "accuracy": ("phase", [1.0, 0.25]),
            "accuracy_low": ("phase", [np.nan, 0.125]),
            "accuracy_high": ("phase", [np.nan, 0.5]),
        },
        {"phase": [0, 1]},
        {
            "model": "m", "gap_pp": 75.0, "gap_pp_low": 50.0, "gap_pp_high": 87.5, "null_gap_pp": 3.0,
            "stride": 2, "worst_phase": 1, "period": 0, "period_p": 0.25, "n_per_residue": 8, "seed": 5,
        },
    )  # fmt: skip
    served = xr.Dataset(
        {
            "serves": (("unit", "phase"), [[True, False], [False, False]]),
            "loss": (("unit", "phase"), [[97.0, 2.0], [np.nan, np.nan]]),
            "selectivity": ("unit", [0.875, np.nan]),
            "p_selective": ("unit", [0.001, np.nan]),
        },
        {"unit": ["0.1", "1.0"], "phase": [0, 1]},
    )
    text = page({"sweep": sweep, "specialization": served}, {}, files=["sweep.nc"], notice="install <x>")
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]
    assert ["0", "100.0", "undefined – undefined", "0.1"] in rows
    assert ["1", "25.0", "12.5 – 50.0", "no unit"] in rows
    assert ["0.1", "0", "97.0", "0.88", "0.001"] in rows
    assert ["1.0", "undefined (accuracy too low)", "undefined", "undefined", "undefined"] in rows
    assert "Gap 75.0 pp (95% interval 50.0 to 87.5)" in text
    assert "Period in the data: none (p = 0.250)" in text
    assert "install &lt;x&gt;" in text


def test_a_model_without_a_compressor_has_no_gates(tmp_path):
    full = CompressedTransformer(preset("tiny").replace(attention="full"))
    full.name = "full"
    task = RecallTask.for_model(full)
    found = report(full, out=tmp_path / "r", task=task, n_per_residue=4, formats=("html",), progress=False)
    assert set(found) == {"sweep", "knockout", "specialization"}
    assert set(figures(found)) == {"accuracy", "knockout"}


def test_an_error_leaves_no_folder(model, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("interp.report.save_results", broken)
    with pytest.raises(ZeroDivisionError):
        report(model, out=tmp_path / "r", n_per_residue=4, formats=("html",), progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_results_says_what_to_do(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match="phaselens report"):
            load_results(folder)
