"""The Figures page offers every panel there is, with its settings, and prints a command that makes the same file."""

from __future__ import annotations

import shlex

import pytest

from hooks import load
from interp.cli import main
from interp.figures.panel_kinds import Sources
from interp.figures.paper import PANELS, available, settings


def made_here_and_there(app, folder, out, monkeypatch) -> tuple[bytes, bytes]:
    """The page's HTML file, and the one that its command line makes in the folder."""
    app.button(key="make").click().run()
    assert not app.exception
    assert not app.error
    words = shlex.split(app.code[0].value)
    words[words.index("-o") + 1] = str(out)
    monkeypatch.chdir(folder)
    assert main(words[1:]) == 0
    return next(iter(app.session_state["files"].values())), (out / "figure.html").read_bytes()


SAVED = {
    "panels": "knockout,models,audit", "knockout.across": "residue", "models.reports": "tiny",
    "models.published": "DeepSeek-V4.1-Flash", "audit.result": "audit/completion",
}  # fmt: skip
LIVE = {
    "panels": "shift,removed,needle", "live": "1", "model": "zoo:tiny", "shift.unit": "0.1", "shift.shift": "2",
    "removed.units": "0.0,0.1", "removed.n": "1", "needle.models": "DeepSeek-V4-Pro-Base",
}  # fmt: skip
FOLDER = {"panels": "windows", "live": "1", "model": "folder:model", "windows.unit": "0.0"}


@pytest.mark.parametrize(
    "asked", [LIVE, pytest.param(SAVED, marks=pytest.mark.slow), pytest.param(FOLDER, marks=pytest.mark.slow)]
)
def test_panels_with_settings_are_what_their_command_makes(asked, reports, open_page, tmp_path, monkeypatch):
    app = open_page(reports, "figures", report="tiny", width="170", format="html", **asked)
    assert not app.exception
    line = app.code[0].value
    for key, value in asked.items():
        if "." in key:
            assert f"{key.split('.')[1]}={value.replace(',', '+')}" in line
    page, command = made_here_and_there(app, reports, tmp_path / "out", monkeypatch)
    assert page == command


def test_every_panel_is_offered_where_its_numbers_are(reports, open_page):
    saved = open_page(reports, "figures", report="tiny").multiselect(key="panels").options
    live = open_page(reports, "figures", report="tiny", live="1", model="zoo:tiny")
    names = live.multiselect(key="panels").options
    missing = {PANELS[name] for name in ("cycling", "patch", "query")}  # not in this report
    assert set(names) == set(PANELS.values()) - missing
    assert set(names) > set(saved)


def test_without_a_report_published_and_live_panels_remain(tmp_path, open_page):
    app = open_page(tmp_path, "figures", live="1", model="zoo:tiny", panels="shift")
    assert not app.exception
    words = shlex.split(app.code[0].value)
    assert words[:4] == ["phaselens", "figures", "--panels", "shift"]
    assert words[words.index("--live") + 1] == "tiny"


@pytest.mark.parametrize(
    ("asked", "lists"),
    [
        ({"panels": "needle", "needle.models": ""}, "Models"),
        ({"panels": "models", "models.reports": "", "models.published": "", "models.live": ""}, "Reports, Published, Measured now"),
        ({"panels": "removed", "live": "1", "model": "zoo:tiny", "removed.units": ""}, "Removed together"),
    ],
)  # fmt: skip
def test_an_emptied_list_draws_nothing_in_its_place(asked, lists, reports, open_page):
    app = open_page(reports, "figures", report="tiny", **asked)
    assert [w.value for w in app.warning] == [
        f"{PANELS[asked['panels']]} is left out. Choose at least one: {lists}."
    ]
    assert not app.code  # neither a figure nor its command
    assert not app.exception


def test_settings_are_what_the_model_can_have():
    def choices(name: str, panel: str) -> dict:
        sources = Sources(model=load(name))
        assert panel in available({}, sources)
        return {one.key: one.choices for one in settings(panel, {}, sources)}

    shared = choices("v41-ced", "windows")
    assert set(shared["unit"]) == {"0.0", "4.0"}  # layers that store entries; the others read theirs
    assert shared["gates"] == ("trained", "uniform", "static")
    assert choices("w4s4-4kv", "offsets-live")["gates"][3:] == ("cycled 1", "cycled 2", "cycled 3")
    offered = available({}, Sources(model=load("full-4kv")))
    assert "removed" in offered
    assert not {"windows", "shift", "attention", "offsets-live"} & set(offered)
