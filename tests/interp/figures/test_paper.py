"""Figures of several panels for a paper, from the library and from the command line."""

from __future__ import annotations

import json
import re
import shlex
import subprocess

import numpy as np
import pytest
import xarray as xr

from hooks.errors import PhaselensError
from interp.cli import main
from interp.cli_figures import figures
from interp.figures.base import FigureError
from interp.figures.browser import browser_path
from interp.figures.paper import PANELS, Look, available, command, paper_figure
from interp.figures.theme import COLOURS
from interp.report import save_results
from tests.interp.figures import data


def found() -> dict[str, xr.Dataset]:
    return {
        "sweep": data.sweep(),
        "knockout": data.knockout(),
        "specialization": data.specialization(),
        "gates": data.gates(),
        "patch": patched(),
    }


def patched() -> xr.Dataset:
    """Two layers by three positions, at two phases; the largest change is layer 1 at the target."""
    labels = [f"{layer}.{place}" for layer in (0, 1) for place in ("-1", "0", "query")]
    effect = np.array([[0.1, 0.1], [-0.4, -0.2], [0.0, 0.0], [0.2, 0.0], [-3.0, -2.0], [0.0, 0.3]])
    return xr.Dataset(
        {
            "effect_logprob": (("unit", "phase"), effect),
            "effect_logprob_p": (("unit", "phase"), np.where(np.abs(effect) > 1, 0.001, 0.9)),
        },
        {"unit": labels, "phase": [0, 1]},
        {"unit_kind": "position", "shift": 1, "model": "toy"},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper") / "report"
    save_results(found(), out)
    return out


def one_line(capsys) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


# ---- the library


def test_every_panel_there_is_can_be_drawn():
    assert available(found()) == [name for name in PANELS if name != "cycling"]
    assert available({}) == ["needle", "completion"]
    for name in available(found()):
        drawn = paper_figure(found(), [name], width_mm=120)
        assert drawn.layout.width == pytest.approx(120 / 25.4 * 96, abs=0.01)
        assert drawn.layout.meta["caption"]
        assert not drawn.layout.images


def test_sizes_and_colours_are_those_that_were_asked_for():
    drawn = paper_figure(
        found(), ["accuracy", "patch"], Look(width_mm=150, font_pt=9, columns=1, colours="tol")
    )
    assert drawn.layout.width == pytest.approx(150 / 25.4 * 96, abs=0.01)
    assert {axis.tickfont.size for axis in drawn.select_xaxes()} == {12}  # 9 pt at 96 per inch
    assert "purple helps, orange hurts" in drawn.layout.meta["caption"]
    letters = [a.text for a in drawn.layout.annotations if re.fullmatch("<b>[a-z]</b>", a.text or "")]
    assert letters == ["<b>a</b>", "<b>b</b>"]
    other = paper_figure(found(), ["accuracy", "patch"], width_mm=150, font_pt=9, columns=1)
    assert "blue helps, red hurts" in other.layout.meta["caption"]
    assert other.to_json() != drawn.to_json()


def test_a_map_of_places_has_a_row_a_layer_and_means_over_phases():
    drawn = paper_figure(found(), ["patch"])
    assert "layer 1 at position 0" in drawn.layout.meta["alt"]
    assert "−2.50 nats" in drawn.layout.meta["alt"]  # the mean of −3 and −2
    cells = next(trace for trace in drawn.data if trace.name == "cells")
    assert [list(row[:2]) for row in cells.customdata] == [
        [layer, place] for layer in "01" for place in ("-1", "0", "query")
    ]


def test_the_same_input_gives_the_same_figure():
    names = available(found())
    assert paper_figure(found(), names).to_json() == paper_figure(found(), names).to_json()


@pytest.mark.parametrize(
    ("names", "options", "match"),
    [
        (["nonsense"], {}, r"no panel 'nonsense' in these results; .*accuracy"),
        (["cycling"], {}, r"no panel 'cycling'"),
        ([], {}, "no panel was chosen; valid: accuracy"),
        (["accuracy"], {"width_mm": 5}, "width_mm=5 is out of range; valid: 20 to 400"),
        (["accuracy"], {"font_pt": 90}, "font_pt=90 is out of range; valid: 4 to 24"),
        (["accuracy"], {"columns": 0}, "columns=0"),
        (["accuracy"], {"colours": "jet"}, "no colours 'jet'; valid: okabe-ito, tol"),
        (["gates"], {"units": ("9.9",)}, "9.9"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(names, options, match):
    with pytest.raises(PhaselensError, match=match):
        paper_figure(found(), names, **options)


# ---- the command line


def test_the_verb_names_every_colour_and_panel():
    text = str(figures.__annotations__)
    assert all(f"'{name}'" in text for name in COLOURS)
    assert all(name in text for name in PANELS)


def test_the_verb_writes_one_figure_of_panels_with_its_data(folder, tmp_path, capsys):
    words = ["figures", str(folder), "--panels", "accuracy,knockout,gates", "--width-mm", "170"]
    assert (
        main([*words, "--units", "1.0", "-f", "html", "-f", "csv", "-o", str(tmp_path / "out"), "--json"])
        == 0
    )
    files = json.loads(capsys.readouterr().out)["files"]
    assert sorted(file.rsplit("/", 1)[1] for file in files) == ["figure.csv", "figure.html"]
    rows = (tmp_path / "out" / "figure.csv").read_text(encoding="utf-8").splitlines()
    assert {row.split(",")[0] for row in rows[1:]} == {"a", "b", "c"}


def test_the_command_names_all_that_decides_the_figure(folder, tmp_path, monkeypatch, capsys):
    look = Look(width_mm=140, font_pt=8, columns=3, units=("1.0", "0.1"), colours="tol", dark=True)
    names = ["gates", "accuracy", "offsets"]
    words = shlex.split(command(folder.name, names, look, suffix="html"))
    assert words[:2] == ["phaselens", "figures"]
    words[words.index("-o") + 1] = str(tmp_path)
    monkeypatch.chdir(folder.parent)
    assert main(words[1:]) == 0
    from interp.figures.export import to_html

    assert (tmp_path / "figure.html").read_text(encoding="utf-8") == to_html(
        paper_figure(found(), names, look)
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--panels", "nonsense"], "no panel 'nonsense'"),
        (["--panels", ","], "no panel was chosen"),
        (["--panels", "accuracy", "--width-mm", "1"], "width_mm=1"),
        (["--panels", "accuracy", "--colours", "jet"], "jet"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(words, said, folder, tmp_path, capsys):
    assert main(["figures", str(folder), *words, "-o", str(tmp_path / "out")]) == 2
    assert said in one_line(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_runs_give_the_same_svg_and_text_is_text(folder, tmp_path):
    if browser_path() is None:  # nothing can be rendered then, which test_export.py shows
        with pytest.raises(FigureError, match="no Chromium"):
            from interp.figures.browser import render

            render(paper_figure(found(), ["accuracy"]), "svg")
        return
    words = ["figures", str(folder), "--panels", "accuracy,knockout,gates,patch"]
    for run in ("one", "two"):
        assert main([*words, "-f", "svg", "-f", "pdf", "-o", str(tmp_path / run)]) == 0
    one, two = ((tmp_path / run / "figure.svg").read_text(encoding="utf-8") for run in ("one", "two"))
    assert one == two
    assert "<image" not in one
    texts = re.findall(r"<text[^>]*>(?:<tspan[^>]*>)*([^<]+)", one)
    assert {"a", "b", "c", "d", "−99"} <= set(texts)
    pdf = tmp_path / "one" / "figure.pdf"
    assert not re.search(rb"/Subtype\s*/Image", pdf.read_bytes())
    told = subprocess.run(["pdftotext", pdf, "-"], capture_output=True, text=True, check=True).stdout
    assert {"accuracy (%)", "layer"} <= set(told.splitlines())
