"""Live runs: a stop ends them for good, a link begins those it shows, and failures are not tried again unasked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from apps.explorer import live, parts
from hooks.errors import PhaselensError
from tests.apps.test_links import address


def slow(name: str) -> Any:
    """One of several cases that walk the same way."""
    return pytest.param(name, marks=pytest.mark.slow)


class Presses:
    """Presses "Stop" at the first pass of a model at which it is there, as a browser would at that moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.armed = True
        pending: list[Callable[[], None]] = []
        original, begin = DeltaGenerator.button, parts.begin

        def button(place: Any, label: str, **options: Any) -> bool:
            shown = original(place, label, **options)
            if label == "Stop":
                self.seen.append(options["key"])
                if self.armed:
                    self.armed = False
                    pending.append(partial(options["on_click"], *options.get("args", ())))
                    st.rerun()  # what Streamlit raises within a run when a button is pressed
            return shown

        def begins(page: str) -> None:
            while pending:  # callbacks come before the page is drawn again
                pending.pop()()
            begin(page)

        monkeypatch.setattr(parts, "begin", begins)
        monkeypatch.setattr(DeltaGenerator, "button", button)
        monkeypatch.setattr(live, "MOMENT_S", 0.0)


@pytest.fixture
def presses(monkeypatch: pytest.MonkeyPatch) -> Presses:
    return Presses(monkeypatch)


def again(app: Any) -> list[Any]:
    return [one for one in app.button if one.label == "Run it again"]


def notes(app: Any) -> str:
    return " ".join(info.value for info in app.info)


SOON = {
    "models": {"models": "zoo:tiny"},
    "compressor": {"model": "zoo:tiny"},
    "figures": {"live": "1", "model": "zoo:tiny", "panels": "shift"},
    "heads": {"look": "1", "unit": "0.1"},
}
"""Pages whose runs begin as soon as they are opened."""


@pytest.mark.parametrize("page", [slow(page) if page in ("compressor", "heads") else page for page in SOON])
def test_what_was_stopped_begins_when_it_is_asked_for_and_not_before(page, reports, open_page, presses):
    app = open_page(reports, page, **SOON[page])
    assert not app.exception
    assert not app.error
    assert "Stopped. Not measured: " in notes(app)
    assert len(presses.seen) == 1
    app.run()  # nothing starts by itself
    assert len(presses.seen) == 1
    again(app)[0].click().run()
    assert len(presses.seen) > 1
    assert not again(app)
    assert not app.exception
    assert "Stopped" not in notes(app)


def test_a_stop_holds_for_all_runs_of_the_page_until_each_is_asked_for(reports, open_page, presses):
    app = open_page(reports, "models", models="zoo:tiny,folder:model")
    assert len(again(app)) == 2
    assert len(presses.seen) == 1
    again(app)[1].click().run()
    assert len({*presses.seen}) == 2  # that one is measured, the other is not
    assert len(again(app)) == 1
    assert "sweep of tiny" in notes(app)


@pytest.mark.parametrize("button", ["run-remove", slow("run-patch"), slow("run-direct")])
def test_a_stopped_intervention_is_run_by_its_own_button_too(button, reports, open_page, presses):
    app = open_page(reports, "interventions", model="zoo:tiny", n="2", remove="0.0")
    assert not presses.seen
    app.button(key=button).click().run()
    assert "Stopped. Not measured: " in notes(app)
    app.button(key=button).click().run()
    assert "Stopped" not in notes(app)
    assert len(presses.seen) >= 2


def test_what_failed_is_not_run_again_unasked(reports, open_page, monkeypatch):
    calls = []

    def fails(*_: Any, **__: Any) -> None:
        calls.append(1)
        raise PhaselensError("no such thing")

    monkeypatch.setattr("interp.phase_sweep", fails)
    app = open_page(reports, "models", models="zoo:tiny")
    app.run()
    assert [error.value for error in app.error] == ["sweep of tiny: no such thing."]
    assert len(calls) == 1
    again(app)[0].click().run()
    assert len(calls) == 2


# ---- links


RUNS: dict[str, Callable[[Any], bool]] = {
    "run-remove": lambda app: any("right answer" in one.value for one in app.markdown),
    "run-patch": lambda app: any(one.value.startswith("Map of") for one in app.markdown),
    "run-direct": lambda app: any(one.key == "shown" for one in app.selectbox),
}


@pytest.mark.parametrize("button", ["run-remove", slow("run-patch"), slow("run-direct")])
def test_a_link_to_a_result_runs_it_and_one_from_before_does_not(button, reports, open_page):
    app = open_page(reports, "interventions", model="zoo:tiny", n="2", remove="0.1", part="position")
    before = address(app)
    assert "run" not in before
    app.button(key=button).click().run()
    assert address(app)["run"] == button.removeprefix("run-")
    assert RUNS[button](app)
    assert not RUNS[button](open_page(reports, "interventions", **before))
    other = open_page(reports, "interventions", **address(app))
    assert RUNS[button](other)
    assert not other.exception
    assert address(other) == address(app)


def test_the_address_asks_for_a_run_only_with_its_settings(reports, open_page):
    app = open_page(reports, "interventions", model="zoo:tiny", n="2", remove="0.1", run="remove")
    assert RUNS["run-remove"](app)
    app.slider(key="n").set_value(3).run()
    assert "run" not in address(app)
    assert not RUNS["run-remove"](app)
    app.slider(key="n").set_value(2).run()  # kept, and shown again
    assert address(app)["run"] == "remove"
    assert RUNS["run-remove"](app)


@pytest.mark.slow
def test_a_link_measures_what_takes_over(reports, open_page):
    app = open_page(reports, "heads", look="1", unit="0.1")
    app.button(key="backup").click().run()
    assert address(app)["run"] == "backup"
    other = open_page(reports, "heads", **address(app))
    assert any("once 0.1 is gone" in one.value for one in other.caption)
    other.selectbox(key="unit").set_value("0.0").run()
    assert "run" not in address(other)


def test_every_run_tells_of_its_passes_and_can_be_stopped(reports, open_page, presses):
    presses.armed = False
    app = open_page(reports, "compressor", model="zoo:tiny", gates="cycled 1")
    assert not app.exception
    assert len({*presses.seen}) == 2  # the token that is followed, and the gate profiles
