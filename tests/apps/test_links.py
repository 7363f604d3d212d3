"""A link reproduces its view: what a page writes into its address, another session reads back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

ROOT = Path(__file__).parents[2]


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


# ---- links to what is not there


def warnings(app) -> list[str]:
    return [one.value for one in app.warning]


@pytest.mark.parametrize(
    ("page", "asked", "said"),
    [
        ("heads", {"report": "was-renamed"}, r"report 'was-renamed', which is not in this folder; shown: tiny"),
        pytest.param("heads", {"across": "time"}, r"across 'time', which is no choice here; shown: phases", marks=pytest.mark.slow),
        pytest.param("heads", {"look": "yes"}, r"look 'yes', which is neither 0 nor 1; shown: 0", marks=pytest.mark.slow),
        ("figures", {"panels": "x_1,accuracy,y z"}, r"panels 'x_1', 'y z', which are no choice here; shown: "),
        pytest.param("figures", {"width": "1e3"}, r"'1e3', which is no whole number from 60 to 200", marks=pytest.mark.slow),
        pytest.param("figures", {"columns": "99"}, r"side '99', which is no whole number from 1 to 4", marks=pytest.mark.slow),
        (
            "interventions",
            {"model": "zoo:../../etc"},
            r"model 'zoo:../../etc', which is neither bundled nor in this folder; shown: w8s8-2kv",
        ),
        ("interventions", {"model": "zoo:tiny", "tab": "<b>_x_"}, r"tab '\<b\>\_x\_', which is no choice here; shown: Remove"),
        ("deepseek", {"audit": "audit/gone"}, r"audit result 'audit/gone', which is not in this folder; shown: audit/completion"),
    ],
)  # fmt: skip
def test_what_a_link_asks_for_in_vain_is_said(page, asked, said, reports, open_page):
    app = open_page(reports, page, **asked)
    (told,) = warnings(app)
    assert told.startswith("The link asks for ")
    assert said in told
    assert warnings(app.run()) == [told]  # Streamlit may draw the page again at once
    assert warnings(open_page(reports, page, **address(app))) == []


def test_it_is_said_until_another_is_chosen(reports, open_page):
    app = open_page(reports, "heads", unit="9.9")
    assert len(warnings(app)) == 1
    app.selectbox(key="unit").set_value("0.1").run()
    app.selectbox(key="unit").set_value("0.0").run()
    assert warnings(app) == []


def test_a_value_that_no_longer_fits_another_choice_is_no_fault_of_a_link(tmp_path, open_page):
    app = open_page(tmp_path, "interventions", model="zoo:tiny", kind="kv_head", remove="1.1", n="2")
    app.selectbox(key="kind").set_value("layer").run()
    assert address(app)["remove"] != "1.1"
    assert warnings(app) == []


def test_a_long_wish_is_cut(tmp_path, open_page):
    app = open_page(tmp_path, "deepseek", needle="x" * 5000 + "\u202e")
    assert len(warnings(app)[0]) < 300
    app = open_page(tmp_path, "deepseek", needle="a\u202eb")
    assert "\u202e" not in warnings(app)[0]


def test_a_panel_that_a_link_names_twice_is_drawn_once(reports, open_page):
    app = open_page(reports, "figures", panels="knockout,knockout,accuracy")
    assert not app.exception
    assert address(app)["panels"] == "knockout,accuracy"


def test_what_two_pages_share_is_kept_from_one_to_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["app.py", str(tmp_path)])
    app = AppTest.from_file(str(ROOT / "apps" / "explorer" / "app.py"), default_timeout=240)

    def go_to(page: str, **query: str) -> None:
        app._page_hash = calc_hash(page)  # what a click on its link sends
        app.query_params.clear()
        for key, value in query.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception

    go_to("interventions", model="zoo:tiny")
    go_to("compressor")
    assert app.selectbox(key="model").value == address(app)["model"] == "zoo:tiny"
    app.selectbox(key="model").set_value("zoo:w8s8-1kv").run()
    go_to("interventions")
    assert app.selectbox(key="model").value == address(app)["model"] == "zoo:w8s8-1kv"
    go_to("compressor", model="zoo:tiny")
    assert app.selectbox(key="model").value == address(app)["model"] == "zoo:tiny"
