"""Models of every architecture in the zoo on the pages that run them: what is there is shown, what is not is said."""

from __future__ import annotations

import pytest

from hooks.checkpoint import zoo

SHAPES = ("hfv4-mix", "v41-ced", "full-4kv")
QUICK = [*(pytest.param(name, marks=pytest.mark.slow) for name in ("hfv4-mix", "v41-ced")), "full-4kv"]


def fine(app) -> list[str]:
    """Notes of a page that has no error and no traceback."""
    assert not app.exception
    assert [error.value for error in app.error] == []
    return [info.value for info in app.info]


@pytest.mark.parametrize("name", QUICK)
def test_the_compressor_opens_or_says_that_there_is_none(name, tmp_path, open_page):
    notes = fine(open_page(tmp_path, "compressor", model=f"zoo:{name}"))
    if name == "full-4kv":
        assert ["full attention in every layer" in note for note in notes] == [True]
    else:
        assert notes == []


@pytest.mark.parametrize("name", QUICK)
def test_interventions_open_with_the_units_of_the_model(name, tmp_path, open_page):
    app = open_page(tmp_path, "interventions", model=f"zoo:{name}", n="2")
    assert fine(app) == []
    assert len(app.multiselect(key="remove").options) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*zoo()} - {"tiny"}))
def test_every_model_runs_on_every_page(name, tmp_path, open_page):
    open_app = open_page(tmp_path, "interventions", model=f"zoo:{name}", n="2")
    fine(open_app.button(key="run-remove").click().run())
    fine(open_page(tmp_path, "compressor", model=f"zoo:{name}"))
    fine(open_page(tmp_path, "models", models=f"zoo:{name}"))


@pytest.mark.slow
@pytest.mark.parametrize("button", ["run-patch", "run-direct"])
@pytest.mark.parametrize("name", SHAPES)
def test_patching_and_paths_run_on_every_architecture(name, button, tmp_path, open_page):
    app = open_page(tmp_path, "interventions", model=f"zoo:{name}", n="2")
    fine(app.button(key=button).click().run())
