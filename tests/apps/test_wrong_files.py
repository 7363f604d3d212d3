"""Files under a right name with wrong contents, all with a valid hash: one line that says what is wrong."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import xarray as xr

from apps.explorer.folder import load_audit, load_report
from apps.explorer.words import plain
from hooks.errors import CheckpointError
from interp import results
from tests.interp.figures import data

IMAGE = "![x](http://evil.example/p.png)"


def told(app) -> str:
    assert not app.exception
    assert all("\n" not in error.value for error in app.error)
    return " ".join(error.value for error in app.error)


def spoilt(part: str, how: str, **attrs) -> xr.Dataset:
    """A small result with one thing wrong."""
    found = {"sweep": data.sweep, "knockout": data.knockout, "specialization": data.specialization}[part]()
    what, _, name = how.partition(" ")
    if what == "text":
        found[name] = (found[name].dims, np.full(found[name].shape, "x"))
    elif what == "dims":
        found[name] = found[name].expand_dims(prompt=2)
    elif what == "turned":
        found[name] = found[name].transpose()
    elif what == "empty":
        found = found.isel({name: slice(0, 0)})
    elif what == "twice":
        found = found.assign_coords(unit=["0.0", "0.0", "0.1", "1.1"])
    elif what == "numbered":
        found = found.assign_coords(unit=[0.0, 0.1, 1.0, 1.1])
    elif what == "from":
        found = found.assign_coords({name: found[name] + 1})
    return found.assign_attrs(attrs)


WRONG = [
    ("sweep", "attr", {"gap_pp": "abc"}, "attr gap_pp is 'abc', not a number"),
    ("sweep", "attr", {"gap_pp": [1.0, 2.0]}, "attr gap_pp is [1.0, 2.0], not a number"),
    ("sweep", "attr", {"null_gap_pp": "x"}, "attr null_gap_pp"),
    ("sweep", "attr", {"period": "x"}, "attr period is 'x'"),
    ("sweep", "attr", {"period": float("nan")}, "attr period is undefined"),
    ("sweep", "attr", {"worst_phase": -1}, "attr worst_phase is -1, not a whole number"),
    ("sweep", "attr", {"stride": 10**12}, "attr stride is 1000000000000"),
    ("sweep", "attr", {"stride": 3}, "4 phases at stride 3"),
    ("sweep", "attr", {"stride": 0}, "the smallest stride is 1"),
    ("sweep", "attr", {"model": 1.0}, "attr model is 1.0, not text"),
    ("sweep", "dims accuracy_residue", {}, "accuracy_residue has dims (prompt, residue), not (residue)"),
    ("sweep", "empty residue", {}, "it has no residue"),
    ("sweep", "from phase", {}, "phase does not count from 0 to 3"),
    ("knockout", "attr", {"stride": "x"}, "attr stride is 'x', not a number"),
    ("knockout", "text effect", {}, "effect holds str"),
    ("knockout", "turned effect", {}, "effect has dims (phase, unit), not (unit, phase)"),
    ("knockout", "text correct", {}, "correct holds str"),
    ("knockout", "empty unit", {}, "it has no unit"),
    ("knockout", "twice", {}, "two units have the same label"),
    ("knockout", "numbered", {}, "unit does not hold labels"),
    ("specialization", "text serves", {}, "serves holds str"),
    ("specialization", "attr", {"min_loss": "x"}, "attr min_loss is 'x'"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Files with nothing wrong."""
    folder = tmp_path_factory.mktemp("whole")
    for name, found in (("knockout", data.knockout()), ("specialization", data.specialization())):
        results.save(found, folder / f"{name}.nc")
    return folder


@pytest.mark.parametrize(("part", "how", "attrs", "said"), WRONG)
def test_what_is_wrong_with_a_file_is_said(part, how, attrs, said, whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    results.save(spoilt(part, how, **attrs), tmp_path / f"{part}.nc")
    with pytest.raises(CheckpointError) as raised:
        load_report(tmp_path, ".")
    assert f"{part}.nc of report '.' is no {part}" in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.parametrize("page", ["heads", "figures", "models"])
def test_a_wrong_file_is_one_line_on_every_page_that_opens_it(page, tmp_path, open_page):
    results.save(data.sweep(gap_pp="abc"), tmp_path / "sweep.nc")
    message = told(open_page(tmp_path, page, models="report:."))
    assert "attr gap" in message
    assert "Remove the file" in message


@pytest.mark.parametrize(
    ("audit", "said"),
    [
        (data.sweep(gap_pp="abc"), "attr gap_pp"),
        (spoilt("sweep", "dims accuracy_residue"), "accuracy_residue has dims"),
        (spoilt("sweep", "text accuracy_residue_low"), "holds str"),
        (data.sweep(period="x"), "attr period"),
        (xr.Dataset({"p_8": ("length", [0.1]), "p_32": ("x", [0.1, 0.2])}), "p_32 has dims"),
        (xr.Dataset({"p_8": ("length", [0.1]), "p_32": ("length", [0.2])}, {"length": ["a"]}), "length does not"),
        (xr.Dataset({"p_8": ("length", [0.1]), "p_32": ("length", [0.2])}, {"length": [9]}, {"period": "x"}), "period"),
    ],
)  # fmt: skip
def test_a_wrong_audit_is_refused(audit, said, tmp_path):
    (tmp_path / "report.json").write_text("{}")
    results.save(audit, tmp_path / "recall.nc")
    with pytest.raises(CheckpointError, match=said):
        load_audit(tmp_path, "recall")


def test_more_cells_than_a_page_can_draw_are_refused(tmp_path):
    units = [f"{i}.0" for i in range(40_000)]
    many = xr.Dataset(
        {"effect": (("unit", "phase"), np.zeros((40_000, 1)))}, {"unit": units, "phase": [0]}, {"stride": 1}
    )
    results.save(many, tmp_path / "knockout.nc")
    with pytest.raises(CheckpointError, match="40000 cells are too many to draw"):
        load_report(tmp_path, ".")


# ---- words from files


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (IMAGE, r"!\[x\](http\://evil.example/p.png)"),
        ("**a** _b_ `c` ~~d~~", r"\*\*a\*\* \_b\_ \`c\` \~\~d\~\~"),
        (":material/home: :red[x] $x$", r"\:material/home: \:red\[x\] \$x\$"),
        ("<img src=x>", r"\<img src=x\>"),
        ("# one\n\n    two", r"\# one two"),
        ("max_bytes of __init__", r"max_bytes of \_\_init\_\_"),
        ("- item", r"\- item"),
        ("1. item", r"1\. item"),
        ("effect of 1.0: −3.5 (S = 4)", "effect of 1.0: −3.5 (S = 4)"),
    ],
)
def test_words_are_shown_letter_for_letter(text, shown):
    assert plain(text) == shown


@pytest.mark.parametrize("page", ["heads", "figures", "models"])
def test_no_image_is_made_of_a_label_or_a_model_name(page, tmp_path, open_page):
    labels = [IMAGE, "0.0", "0.1", "1.1"]
    for name, found in (
        ("sweep", data.sweep()), ("knockout", data.knockout()), ("specialization", data.specialization())
    ):  # fmt: skip
        renamed = found.assign_coords(unit=labels) if "unit" in found.dims else found
        results.save(renamed.assign_attrs(model=IMAGE), tmp_path / f"{name}.nc")
    app = open_page(tmp_path, page, unit=IMAGE, models="report:.", look="1")
    assert told(app) == ""
    kinds = (app.markdown, app.caption, app.info, app.header, app.subheader, app.metric, app.expander)
    rendered = [str(one.value if hasattr(one, "value") else one.label) for kind in kinds for one in kind]
    assert any("evil.example" in text for text in rendered) or page == "models"
    rendered += [str(cell) for one in app.table for cell in [*one.value.to_numpy().flat, *one.value.index]]
    assert not any(re.search(r"(?<!\\)\[", text) for text in rendered)
