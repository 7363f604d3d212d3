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
from interp.figures.panel_kinds import Panel, Sources
from interp.figures.paper import PANELS, Look, available, command, paper_figure, settings
from interp.figures.theme import COLOURS
from interp.report import save_results
from interp.results import save
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
    saved = ["accuracy", "knockout", "gates", "offsets", "patch", "needle", "completion"]
    assert available(found()) == saved
    assert available({}) == ["needle", "completion"]
    assert available({}, Sources()) == ["needle", "completion", "models", "audit"]
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


# ---- panels with settings


@pytest.mark.parametrize(
    "text", ["patch", "needle:models=A", "models:reports=a/b+c%2Cd%2Be:published=100%25 X%3A1"]
)
def test_a_panel_reads_as_it_is_written(text):
    assert str(Panel.read(text)) == text


def test_special_signs_in_a_value_are_written_with_percent():
    assert Panel.read("models:reports=a%2Cb+c%2Bd%3Ae").given == {"reports": ("a,b", "c+d:e")}


def test_a_knockout_panel_by_residue_counts_its_prompts():
    drawn = paper_figure(found(), ["knockout:across=residue"])
    cells = next(t for t in drawn.data if t.name == "cells")
    assert len(cells.customdata) == 4 * 8  # units × residues
    assert drawn.layout.xaxis.title.text == "target position mod 8 (residue)"


def test_a_patch_panel_of_one_phase_has_its_values():
    drawn = paper_figure(found(), ["patch:phase=1"])
    assert "layer 1 at position 0" in drawn.layout.meta["alt"]
    assert "−2.00 nats" in drawn.layout.meta["alt"]
    assert "targets at phase 1" in drawn.layout.meta["caption"]


def test_a_needle_panel_draws_the_chosen_models():
    drawn = paper_figure({}, ["needle:models=DeepSeek-V4-Pro-Base+DeepSeek-V4.1-Flash"])
    assert [t.name for t in drawn.data] == ["DeepSeek-V4-Pro-Base", "DeepSeek-V4.1-Flash"]
    assert drawn.data[0].y[0] == pytest.approx(100 * 156 / 256)


def test_a_completion_panel_marks_the_chosen_length():
    assert not paper_figure({}, ["completion"]).layout.shapes
    lengths = [int(v) for v in paper_figure({}, ["completion"]).data[0].x]
    (mark,) = paper_figure({}, [f"completion:length={lengths[2]}"]).layout.shapes
    assert mark.x0 == mark.x1 == lengths[2]


def test_units_of_a_gate_panel_are_its_own_setting():
    drawn = paper_figure(found(), ["gates:units=1.1+0.1"], units=("1.0",))
    titles = [a.text for a in drawn.layout.annotations if a.text.startswith("<b>")]
    assert titles == ["<b>1.1</b>", "<b>0.1</b>"]


def test_several_models_stand_on_one_axis():
    others = {"a,b": {"sweep": data.sweep()}, "c": {"sweep": data.sweep((0.5, 0.25))}}
    sources = Sources(reports=tuple(others), report=others.__getitem__)
    drawn = paper_figure(
        {}, ["models:reports=a%2Cb+c:published=DeepSeek-V4.1-Flash"], sources=sources, width_mm=150
    )
    assert [t.name for t in drawn.data] == ["a,b", "c", "DeepSeek-V4.1-Flash (published)"]
    assert list(drawn.data[1].y[:2]) == [50, 25]
    assert [t.name for t in paper_figure({}, ["models"], sources=sources).data] == ["a,b", "c"]
    none = Sources(reports=())
    assert "(published)" in paper_figure({}, ["models"], sources=none).data[0].name
    mixed = {"a": {"sweep": data.sweep()}, "b": {"sweep": crossed()}}
    with pytest.raises(FigureError, match="different axes"):
        paper_figure({}, ["models:reports=a+b"], sources=Sources(report=mixed.__getitem__))


def crossed() -> xr.Dataset:
    """A query sweep of two phases each way; worst: target phase 1 at query phase 0."""
    swept = data.sweep((0.9, 0.6), modulus=2, axis="query")
    cell = np.array([[1.0, 0.8], [0.125, 0.75]])
    return swept.assign(accuracy_cell=(("target_phase", "phase"), cell)).assign_coords(target_phase=[0, 1])


def test_target_and_query_phase_cross_in_a_map():
    drawn = paper_figure({"sweep": crossed()}, ["query"])
    cells = next(t for t in drawn.data if t.name == "cells")
    assert [tuple(row) for row in cells.customdata] == [
        ("0", "0", 100), ("0", "1", 80), ("1", "0", 12.5), ("1", "1", 75)
    ]  # fmt: skip
    assert "from 12% at target phase 1, query phase 0" in drawn.layout.meta["alt"]
    assert "query" not in available(found())


@pytest.mark.parametrize("kind", ["accuracy", "completion", "crossed"])
def test_audits_of_the_user_are_panels(kind, tmp_path):
    lengths = ("length", np.array([0.5, 0.25, 1.0]))
    audits = {
        "accuracy": data.sweep(),
        "completion": xr.Dataset({"p_8": lengths, "p_32": lengths}, {"length": [5, 6, 7]}, {"task": "t"}),
        "crossed": xr.Dataset(
            {"accuracy": (("query_phase", "phase"), [[0.0, 0.5], [1.0, 0.25]])},
            {"query_phase": [1, 3], "phase": [0, 1]},
        ),
    }
    save(audits[kind], tmp_path / f"{kind}.nc")
    drawn = paper_figure({}, [f"audit:result={tmp_path}/{kind}"], sources=Sources())
    if kind == "crossed":
        rows = next(t for t in drawn.data if t.name == "cells").customdata
        assert [tuple(row) for row in rows][1] == ("0", "3", 100)  # target phase 0 at query phase 3
    else:
        first = {"accuracy": [100, 90, 80], "completion": [0.5, 0.25, 1.0]}[kind]
        assert list(drawn.data[0].y)[:3] == pytest.approx(first)


@pytest.mark.parametrize(
    ("panel", "match"),
    [
        ("knockout:across=diagonal", "panel 'knockout': across='diagonal'; .*phase"),
        ("knockout:across=phase+residue", "valid: one value"),
        ("knockout:nonsense=1", "panel 'knockout' has no setting 'nonsense'; .*across"),
        ("accuracy:phase=1", "panel 'accuracy' has no setting 'phase'; it has no settings"),
        ("patch:phase=7", "phase='7'; .*all, 0, 1"),
        ("patch:phase", "'phase' is no setting; write KEY=VALUE"),
        ("patch:phase=1:phase=0", "each key once"),
        ("needle:models=GPT", "models='GPT'; .*DeepSeek-V4-Pro-Base"),
        ("gates:units=9.9", r"units='9.9'; .*1\.0"),
        ("models", "panel 'models' has no model"),
        ("audit", "panel 'audit' has no result"),
        ("audit:result=nowhere/x", "nowhere/x.nc"),
        ("windows:unit=1.0", "panel 'windows' is measured now and needs a model: --live MODEL"),
    ],
)
def test_a_wrong_setting_is_one_line(panel, match):
    with pytest.raises(PhaselensError, match=match) as error:
        paper_figure(found(), [panel], sources=Sources())
    assert "\n" not in str(error.value)


# ---- panels that are measured now


@pytest.fixture(scope="module")
def live() -> Sources:
    from hooks import load

    return Sources(model=load("tiny"))


def test_windows_and_shift_panels_are_the_followed_prompt(live):
    from interp.follow import follow, shifted

    followed = follow(live.model, prompt=1)
    words = ["windows:unit=0.1:shift=2:prompt=1", "shift:unit=0.1:shift=2:prompt=1"]
    windows, by_shift = (paper_figure({}, [one], sources=live) for one in words)
    at = followed.sel(residue=shifted(followed, 2))
    middle = next(r for r in windows.data[0].customdata if r[3] == int(at["target_position"]))
    weight = float(at["target_key"].sel(unit="0.1"))  # W = S: one window holds it
    assert middle[2] == pytest.approx(weight)
    shown = next(t for t in by_shift.data if t.name == "p(answer)")
    assert shown.y[2] == pytest.approx(float(at["probability"]))
    entries = paper_figure({}, ["attention:unit=0.1:shift=2:prompt=1"], sources=live)
    assert entries.data[0].customdata[-1][1] == "exact"
    assert entries.data[0].customdata[-1][2] == pytest.approx(float(at["on_exact"].sel(reader="0.3").sum()))


def test_a_removal_panel_is_the_knockout_it_names(live):
    from interp import knockout

    both = knockout(
        live.model, sets=[["0.0", "0.1"]], unit="kv_head", replace="zero", n=2 * 12, progress=False
    )
    assert both.attrs["modulus"] == 12
    stride = both.attrs["stride"]
    drawn = paper_figure({}, ["removed:units=0.0+0.1:replace=zero:n=2"], sources=live)
    after = both["correct"].values[0].reshape(2, -1, stride).mean((0, 1)) * 100
    assert {t.name for t in drawn.data} == {"before", "after"}
    assert list(drawn.data[1].y) == pytest.approx(after)
    assert "0.0+0.1 is replaced by zero at the final position" in drawn.layout.meta["caption"]


def test_direct_patching_and_takes_over_panels_name_what_they_measured(live):
    names = [
        "direct:unit=0.1:n=1",
        "patching:kind=kv_head:shift=2:n=1",
        "takes-over:unit=0.1:replace=zero:n=1:seed=3",
    ]
    drawn = [paper_figure({}, [name], sources=live) for name in names]
    captions = [figure.layout.meta["caption"] for figure in drawn]
    assert "0.1 is replaced by its mean" in captions[0]
    assert "target shifted by 2" in captions[1]
    assert "once 0.1 is gone" in captions[2]
    assert "replaced by zero" in captions[2]
    assert "1 prompts a residue, seed 3" in captions[2]


def test_panels_of_one_figure_share_what_they_measure(live):
    passes: list[int] = []
    model = live.model
    counter = model.register_forward_pre_hook(lambda *_: passes.append(1))
    fresh = Sources(model=model)
    paper_figure({}, ["windows:unit=0.1"], sources=fresh)
    once = len(passes)
    paper_figure({}, ["windows:unit=0.0:shift=1", "shift", "attention:unit=0.1"], sources=fresh)
    counter.remove()
    assert len(passes) == once > 0


def test_the_settings_of_every_panel_have_choices_that_work(live):
    for name in available({}, live):
        for one in settings(name, {}, live):
            assert one.title
            assert one.choices is None or set(one.default) <= set(one.choices)
    by_layer = settings("removed:kind=layer", {}, live)
    assert next(one for one in by_layer if one.key == "units").choices == ("0", "1")


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


def test_a_live_figure_needs_no_folder_and_its_command_makes_it_again(tmp_path, monkeypatch, capsys):
    from hooks import load
    from interp.figures.export import to_html

    names, look = ["shift:unit=0.1:shift=1", "needle:models=DeepSeek-V4.1-Flash"], Look(width_mm=150)
    words = shlex.split(command(None, names, look, suffix="html", live="tiny"))
    monkeypatch.chdir(tmp_path)
    assert main(words[1:]) == 0
    made = (tmp_path / "paper" / "figure.html").read_text(encoding="utf-8")
    assert made == to_html(paper_figure({}, names, look, sources=Sources(model=load("tiny"))))


@pytest.mark.parametrize("words", [["figures"], ["figures", "--live", "tiny"]])
def test_without_panels_a_folder_is_needed(words, capsys):
    assert main(words) == 2
    assert "no panel was chosen" in one_line(capsys)


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


def test_the_command_takes_folders_whose_names_begin_with_a_dash(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-neg").mkdir()
    save_results({"sweep": data.sweep()}, tmp_path / "-neg")
    words = shlex.split(command("-neg", ["accuracy", "models:reports=-neg"], Look(), suffix="csv"))
    assert main(words[1:]) == 0
    assert (tmp_path / "paper" / "figure.csv").is_file()
    live = shlex.split(command(None, ["shift"], Look(), suffix="csv", live="-model"))
    assert main(live[1:]) == 2
    assert "'./-model'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["-neg", "two words", "a'b", "plain/er"])
def test_the_advice_for_an_empty_folder_is_a_command_that_can_be_pasted(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["figures", f"./{name}"]) == 2
    advice = shlex.split(capsys.readouterr().err.split("make some with: ")[1])
    assert advice == ["phaselens", "report", "w8s8-2kv", "-o", "./-neg" if name == "-neg" else name]
