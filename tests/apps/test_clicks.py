"""A click on a cell always does what it says, whatever was chosen before by a list or by another click."""

from __future__ import annotations

import json
from typing import Any

from streamlit.testing.v1 import AppTest


def click(app: AppTest, chart: str, *cell: Any) -> AppTest:
    """Select a cell as the browser does: the chart's whole selection is sent, nothing at all to take it away."""
    drawn = next(one for one in app.get("plotly_chart") if f"-{chart}" in one.proto.id)
    points = [{"customdata": list(cell)}] if cell else []
    selection = {"points": points, "point_indices": [], "box": [], "lasso": []}
    sent = app._tree.get_widget_states()
    sent.widgets.add(id=drawn.proto.id, string_value=json.dumps({"selection": selection}))
    return app._run(sent)


def test_a_click_opens_its_unit_again_after_the_list_chose_another(reports, open_page):
    app = open_page(reports, "heads", unit="1.1")
    click(app, "heatmap-phase", "0.0", 1)
    assert app.selectbox(key="unit").value == "0.0"
    app.selectbox(key="unit").set_value("1.0").run()
    assert app.selectbox(key="unit").value == "1.0"
    click(app, "heatmap-phase", "0.0", 3)
    assert app.selectbox(key="unit").value == "0.0"
    app.selectbox(key="unit").set_value("1.0").run()
    click(app, "heatmap-phase")  # the cell that is selected, once more: its selection goes
    assert app.selectbox(key="unit").value == "0.0"
    assert not app.exception


def test_a_clicked_token_is_followed_again_after_another_was_typed(reports, open_page):
    app = open_page(reports, "compressor", model="zoo:tiny", unit="0.1", branch="key")
    click(app, "windows-0.1-key", "entry 1", "2", 0.5, 6)
    assert app.number_input(key="token").value == 6
    app.number_input(key="token").set_value(9).run()
    click(app, "windows-0.1-key", "entry 1", "2", 0.5, 6)
    assert app.number_input(key="token").value == 6
    click(app, "windows-0.1-key", "entry 0", "0", None, None)  # before the first token: there is none to follow
    assert app.number_input(key="token").value == 6
    assert not app.exception
