"""Heads and Models on results of other kinds: query heads, layers, offsets, sweeps by query phase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import interp.backup
from apps.explorer import live
from apps.explorer.views import head_live
from hooks import load
from hooks.errors import PhaselensError
from interp import results
from interp.follow import gate_changes
from interp.tasks import RecallTask
from tests.interp.figures import data


def charts(app) -> dict[str, Any]:
    """Figures of a page by the name of their chart."""
    found = {
        one.proto.id.rpartition("-chart-")[2]: json.loads(one.proto.spec) for one in app.get("plotly_chart")
    }
    assert not app.exception
    assert not app.error
    return found


def key_gates(figure: Any) -> list[list[float]]:
    return [trace["y"] for trace in figure["data"] if trace["name"] == "key gate"]


def write(folder: Path, kind: str, units: list[str], **attrs: Any) -> xr.Dataset:
    """A knockout of another kind beside the gates of KV heads 1.0, 0.0, 0.1 and 1.1; returns those."""
    knockout = data.knockout(unit_kind=kind, **attrs).isel(unit=range(len(units))).assign_coords(unit=units)
    results.save(knockout, folder / "knockout.nc")
    results.save(data.gates(), folder / "gates.nc")
    return data.gates()


def test_a_query_head_stands_beside_the_gates_of_the_kv_head_it_reads(tmp_path, open_page):
    gates = write(tmp_path, "head", ["1.0", "1.1", "1.2", "1.3"], heads_per_kv=2)
    drawn = charts(open_page(tmp_path, "heads", unit="1.1"))
    assert key_gates(drawn["profiles-1.1"]) == [gates["profile_key"].sel(unit="1.0").values.tolist()]
    drawn = charts(open_page(tmp_path, "heads", unit="1.3"))
    assert key_gates(drawn["profiles-1.3"]) == [gates["profile_key"].sel(unit="1.1").values.tolist()]


def test_a_layer_stands_beside_the_gates_of_all_its_kv_heads(tmp_path, open_page):
    gates = write(tmp_path, "layer", ["1", "0"])
    app = open_page(tmp_path, "heads", unit="0")
    shown = key_gates(charts(app)["profiles-0"])
    assert shown == gates["profile_key"].sel(unit=["0.0", "0.1"]).values.tolist()
    assert app.selectbox(key="unit").label == "Unit (layer)"
    assert not app.info


@pytest.mark.parametrize(
    ("kind", "units", "said"),
    [
        ("gate_offset", ["0.0", "0.1"], "0.1 is one offset of every gate"),
        ("mlp", ["0", "1"], "the mlp of layer 1 has no gates"),
        ("layer", ["1", "2"], "layer 2 has no gates"),
        ("kv_head", ["0.0", "2.0"], "layer 2 has no gates"),
        ("head", ["0.0", "0.1"], "does not say which KV head query head 0.1 reads"),
    ],
)
def test_why_there_is_no_gate_profile_is_said_as_it_is(kind, units, said, tmp_path, open_page):
    write(tmp_path, kind, units)
    app = open_page(tmp_path, "heads", unit=units[1])
    assert not [name for name in charts(app) if name.startswith("profiles")]
    assert said in app.info[0].value.replace("\\", "")


def test_the_gate_panel_offers_what_was_removed(tmp_path, open_page):
    write(tmp_path, "head", ["1.0", "1.3", "2.0"], heads_per_kv=2)
    app = open_page(tmp_path, "figures", panels="gates", units="1.3")
    assert app.multiselect(key="units").options == ["1.0", "1.3"]  # layer 2 has no gates
    shown = key_gates(*charts(app).values())
    assert shown == [data.gates()["profile_key"].sel(unit="1.1").values.tolist()]


# ---- sweeps by query phase


def by_query() -> xr.Dataset:
    return data.sweep(
        (1.0, 0.5, 0.6, 0.7), modulus=4, axis="query", period=0, period_p=float("nan"), worst_phase=1
    )


def test_a_sweep_by_query_phase_is_called_one(tmp_path, open_page):
    results.save(by_query(), tmp_path / "sweep.nc")
    app = open_page(tmp_path, "heads")
    assert [(one.label, one.value) for one in app.metric] == [
        ("Query phase gap", "90.0 pp"), ("Null gap", "3.5 pp"), ("Worst query phase", "1"),
        ("Period in the data", "not tested"),
    ]  # fmt: skip
    assert app.header[-1].value == "Accuracy by query phase"
    assert "query phase" in charts(app)["accuracy-report"]["layout"]["xaxis"]["title"]["text"]


def test_a_period_that_was_not_tested_is_not_called_none(tmp_path, open_page):
    results.save(data.sweep(period=0, period_p=float("nan")), tmp_path / "sweep.nc")
    assert open_page(tmp_path, "heads").metric[-1].value == "not tested"
    results.save(data.sweep(period=0, period_p=0.8), tmp_path / "sweep.nc")
    assert open_page(tmp_path, "heads").metric[-1].value == "none"


def test_no_phase_is_the_worst_where_all_are_alike(tmp_path, open_page):
    results.save(data.sweep((0.9, 0.9), modulus=2, gap_pp=0.0, worst_phase=0), tmp_path / "sweep.nc")
    assert open_page(tmp_path, "heads").metric[2].value == "–"


def test_models_never_draws_two_axes_as_one(tmp_path, open_page):
    for name, found in (("q", by_query()), ("t", data.sweep())):
        (tmp_path / name).mkdir()
        results.save(found, tmp_path / name / "sweep.nc")
    app = open_page(tmp_path, "models", models="report:q,report:t")
    drawn = charts(app)
    series = {name: [trace["name"] for trace in one["data"]] for name, one in drawn.items()}
    assert series == {"accuracy-of-models": ["t"], "accuracy-of-models-by-query-phase": ["q"]}
    target, query = (one.value for one in app.table[:2])
    assert list(target["period"]) == ["4"]
    assert list(query["worst query phase"]) == ["1"]
    assert list(query["period"]) == ["not tested"]


# ---- what takes over, as the report was made


def reported(folder: Path, reports: Path, **attrs: Any) -> None:
    knockout = results.load(reports / "tiny" / "knockout.nc").assign_attrs(attrs)
    results.save(knockout, folder / "knockout.nc")


def test_what_takes_over_is_run_as_the_report_was_made(reports, tmp_path, open_page, monkeypatch):
    task = RecallTask.for_model(load("tiny"), padding="prefix")
    reported(
        tmp_path, reports, replace="zero", at="all", seed=3, task=json.dumps(task.describe(), sort_keys=True)
    )
    asked: list[Any] = []

    def instead(model: Any, task: Any, **options: Any) -> xr.Dataset:
        asked.append((task, options))
        raise PhaselensError("seen")

    monkeypatch.setattr(interp.backup, "takes_over", instead)
    app = open_page(tmp_path, "heads", unit="0.1", look="1")
    app.button(key="backup").click().run()
    assert not app.exception
    assert app.error[0].value.endswith("seen.")
    ((task_run, options),) = asked
    assert task_run == task
    assert {name: options[name] for name in ("gone", "unit", "replace", "at", "seed")} == {
        "gone": "0.1", "unit": "kv_head", "replace": "zero", "at": "all", "seed": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("attrs", "said"),
    [
        ({"task": '{"task": "needle"}'}, "measured on other prompts"),
        ({"altered": "gates forced to uniform"}, "measured on a changed model (gates forced to uniform)"),
        ({"model_hash": "0"}, "neither bundled nor in this folder"),
        ({"model": ""}, "neither bundled nor in this folder"),
        ({"seed": -1}, "seed -1"),
        ({"replace": "nothing"}, "'nothing', which is not known here"),
    ],
)
def test_what_cannot_be_run_as_it_was_is_not_run(attrs, said, reports, monkeypatch):
    tiny = load("tiny")
    monkeypatch.setattr(live, "sources", lambda: {"zoo:tiny": "tiny"})
    monkeypatch.setattr(live, "model", lambda key: tiny)
    stored = results.load(reports / "tiny" / "knockout.nc").attrs
    assert head_live._same_settings(stored).task == RecallTask.for_model(tiny)
    with pytest.raises(PhaselensError) as raised:
        head_live._same_settings(stored | attrs)
    assert said in str(raised.value)


# ---- what can be done to gates


@pytest.mark.parametrize(
    ("name", "shifts"), [("tiny", [1, 2, 3]), ("w8s8-2kv-uniform", []), ("w8s6-4kv", [])]
)
def test_only_gates_that_can_be_had_are_offered(name, shifts):
    model = load(name)
    assert gate_changes(model, 4) == ["trained", "uniform", "static", *(f"cycled {i}" for i in shifts)]


def test_a_run_that_failed_is_told_once(tmp_path, open_page, monkeypatch):
    import interp.follow

    def failing(*_: Any, **__: Any) -> None:
        raise PhaselensError("it failed")

    monkeypatch.setattr(interp.follow, "follow", failing)
    app = open_page(tmp_path, "compressor", model="zoo:tiny")
    assert [one.value for one in app.error] == ["follow: it failed."]
    assert not app.info
