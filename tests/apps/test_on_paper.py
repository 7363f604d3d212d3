"""Every chart leads to the Figures page, which draws it alone, of the same numbers and with the same choices."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

import plotly.graph_objects as go
import pytest

from interp.figures.export import figure_csv


def drawn(app: Any) -> list[str]:
    """What the charts of a page show, as rows in any order."""
    assert not app.exception
    assert not app.error
    assert not app.warning
    figures = [go.Figure(json.loads(one.proto.spec)) for one in app.get("plotly_chart")]
    return ["\n".join(sorted(figure_csv(figure).splitlines())) for figure in figures]


REMOVED = {"model": "zoo:tiny", "n": "2", "remove": "0.1,0.0", "replace": "zero", "run": "remove"}
PAGES = [
    (
        "compressor",
        {
            "model": "zoo:tiny",
            "gates": "uniform",
            "prompt": "1",
            "shift": "2",
            "token": "9",
            "branch": "value",
        },
        3,
    ),
    ("interventions", REMOVED, 1),
    ("deepseek", {"needle": "DeepSeek-V4.1-Flash", "filler": "27", "audit": "audit/completion"}, 3),
]
MORE = [
    ("heads", {"across": "residue", "unit": "0.1", "look": "1", "prompt": "1", "run": "backup"}, 5),
    ("models", {"models": "report:tiny,published:DeepSeek-V4.1-Flash,zoo:tiny"}, 1),
    ("interventions", {"model": "folder:model", "n": "2", "part": "entry", "by": "2", "at": "1", "run": "patch"}, 1),
    ("interventions", {"model": "zoo:tiny", "n": "2", "kind": "layer", "shown": "0", "run": "direct"}, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("page", "asked", "count"), [*PAGES, *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE)]
)
def test_a_chart_is_drawn_alone_on_the_figures_page(page, asked, count, reports, open_page):
    app = open_page(reports, page, **asked)
    shown, links = drawn(app), app.get("page_link")
    assert len(shown) == len(links) == count
    for here, link in zip(shown, links, strict=True):
        assert link.proto.page == "figures"
        query = dict(parse_qsl(link.proto.query_string, keep_blank_values=True))
        figures = open_page(reports, "figures", **query)
        assert drawn(figures) == [here], query
        kept = {k: v[0] if isinstance(v, list) else v for k, v in figures.query_params.items()}
        assert query.items() <= kept.items()
