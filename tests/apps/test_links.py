"""A link reproduces its view: what a page writes into its address, another session reads back."""

from __future__ import annotations

import shutil

import pytest


def address(app) -> dict[str, str]:
    """What the address of a page says, one text a name."""
    return {name: value[0] if isinstance(value, list) else value for name, value in app.query_params.items()}


def test_a_link_opens_the_same_tab(tmp_path, open_page):
    app = open_page(tmp_path, "interventions", model="zoo:tiny", n="2")
    assert address(app)["tab"] == "Remove"
    app.session_state["tab"] = "Patch"  # what the browser does when the tab is clicked
    app.run()
    assert address(app)["tab"] == "Patch"
    again = open_page(tmp_path, "interventions", **address(app))
    assert again.session_state["tab"] == "Patch"
    assert not again.exception
    assert (
        open_page(tmp_path, "interventions", **address(app) | {"tab": "?"}).session_state["tab"] == "Remove"
    )


def test_a_link_opens_with_the_model_loaded(reports, open_page):
    app = open_page(reports, "heads", unit="0.1")
    app.toggle(key="look").set_value(True).run()
    assert address(app)["look"] == "1"
    again = open_page(reports, "heads", **address(app))
    assert again.toggle(key="look").value
    assert again.button(key="backup").label.startswith("Measure what takes over")


@pytest.mark.parametrize(("page", "key"), [("models", "models"), ("figures", "panels")])
def test_an_empty_choice_stays_empty(page, key, reports, open_page):
    app = open_page(reports, page)
    assert app.multiselect(key=key).value
    app.multiselect(key=key).set_value([]).run()
    assert address(app)[key] == ""
    again = open_page(reports, page, **address(app))
    assert again.multiselect(key=key).value == []
    assert any("Choose at least one" in info.value for info in again.info)
    assert open_page(reports, page, **{key: "nonsense"}).multiselect(key=key).value


@pytest.mark.slow
def test_names_with_commas_and_percent_signs_are_kept(reports, tmp_path, open_page):
    for name in ("a,b", "a", "b", "100%2C"):
        shutil.copytree(reports / "tiny", tmp_path / name)
    app = open_page(tmp_path, "models", models="report:a")
    wanted = ["report:100%2C", "report:a,b"]
    app.multiselect(key="models").set_value(wanted).run()
    assert app.multiselect(key="models").value == wanted
    again = open_page(tmp_path, "models", **address(app))
    assert again.multiselect(key="models").value == wanted
    assert list(again.table[0].value.index) == ["100%2C", "a,b"]
    assert open_page(tmp_path, "models", models="report:a,report:b").multiselect(key="models").value == [
        "report:a", "report:b",
    ]  # fmt: skip
