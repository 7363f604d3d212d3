"""Patching on the Interventions page: by unit and phase, and by layer and place."""

import pytest


def words(app):
    return [m.value for m in app.markdown]


@pytest.mark.parametrize(("part", "axis"), [("position", "position"), ("entry", "entry")])
def test_a_map_of_layers_and_places_runs_on_request(part, axis, reports, open_page):
    app = open_page(reports, "interventions", model="zoo:tiny", n="2", part=part)
    assert not any("Map of" in text for text in words(app))
    app.button(key="run-patch").click().run()
    assert not app.exception
    assert not app.error
    (told,) = (text for text in words(app) if text.startswith("Map of"))
    assert told.startswith("Map of 2 layers by ")
    assert f"at {axis} " in told
    app.selectbox(key="at").set_value("3").run()  # kept: nothing runs again
    assert not app.exception
    assert any("targets at phase 3" in c.value for c in app.caption)
