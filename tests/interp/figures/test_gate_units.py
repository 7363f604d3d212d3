"""Gates stand beside the units they belong to: a query head reads a KV head's, a gate offset has none."""

from __future__ import annotations

import io
import json

import pytest
import xarray as xr
from rich.console import Console

from interp.figures import FigureError, gate_profiles
from interp.figures.gate_units import gate_unit, pairable
from interp.figures.paper import paper_figure
from interp.figures.table import unit_table
from interp.report import figures
from tests.interp.figures import data


def heads(**attrs) -> xr.Dataset:
    """The effects of data.knockout, as of query heads: two of them read one KV head."""
    return _relabelled("head", **attrs)


def _relabelled(kind: str, **attrs) -> xr.Dataset:
    return data.knockout(unit_kind=kind, **({"heads_per_kv": 2} | attrs))


def drawn_pairs(figure) -> dict[str, str]:
    """KV head of the key gate drawn for each unit, told by its values in data.gates."""
    profile = {tuple(row): label for row, label in zip(
        data.gates()["profile_key"].values.tolist()[:2], ["1.0", "0.0"], strict=True
    )}  # fmt: skip
    traces = [t for t in json.loads(figure.to_json())["data"] if t.get("name") == "key gate"]
    return {t["customdata"][0][0]: profile.get(tuple(t["y"]), "?") for t in traces}


@pytest.mark.parametrize(
    ("attrs", "label", "gate", "why"),
    [
        ({}, "1.1", "1.1", ""),
        ({"unit_kind": "kv_head"}, "1.1", "1.1", ""),
        ({"unit_kind": "head", "heads_per_kv": 2}, "1.1", "1.0", ""),
        ({"unit_kind": "head", "heads_per_kv": 2}, "3.7", "3.3", ""),
        ({"unit_kind": "head", "heads_per_kv": 1}, "1.1", "1.1", ""),
        ({"unit_kind": "head"}, "1.1", None, "does not say which KV head query head 1.1 reads"),
        ({"unit_kind": "gate_offset"}, "0.0", None, "0.0 is one offset of every gate in its layer"),
        ({"unit_kind": "mlp"}, "2", None, "the mlp of layer 2 has no gates"),
        ({"unit_kind": "entry_branch"}, "2", None, "the entry_branch of layer 2 has no gates"),
        ({"unit_kind": "layer"}, "2", None, "layer 2 has the gates of all its KV heads"),
        ({"unit_kind": "kv_head"}, "0.1+1.0", None, "is a set of units"),
    ],
)
def test_the_gate_of_a_unit(attrs, label, gate, why):
    found, reason = gate_unit(xr.Dataset(attrs=attrs), label)
    assert found == gate
    assert why in reason
    assert bool(reason) == (gate is None)


def test_query_heads_are_drawn_beside_the_gates_they_read():
    queries = heads().assign_coords(unit=["1.0", "0.0", "0.1", "1.1"])
    figure = gate_profiles(data.gates(), queries)
    assert drawn_pairs(figure) == {"0.0": "0.0", "0.1": "0.0", "1.0": "1.0", "1.1": "1.0"}
    titles = [a.text for a in figure.layout.annotations]
    assert titles == ["<b>0.0</b>", "<b>0.1 · KV 0.0</b>", "<b>1.0</b>", "<b>1.1 · KV 1.0</b>"]
    assert "query heads" in figure.layout.meta["caption"]
    bars = {t.customdata[0][0]: list(t.y) for t in figure.data if t.type == "bar"}
    assert bars["0.1"] == [-12.0, 1.0, 0.0, 30.0]  # its own effect, not KV head 0.0's
    (one,) = drawn_pairs(gate_profiles(data.gates(), queries, ["1.1"])).items()
    assert one == ("1.1", "1.0")


def test_a_whole_layer_is_drawn_beside_each_of_its_gates():
    layers = _relabelled("layer").isel(unit=[0, 1]).assign_coords(unit=["1", "0"])
    figure = gate_profiles(data.gates(), layers, ["1"])
    assert [a.text for a in figure.layout.annotations] == ["<b>1.0</b>", "<b>1.1</b>"]


@pytest.mark.parametrize("kind", ["gate_offset", "mlp", "picks"])
def test_units_without_gates_are_refused_and_a_report_draws_gates_alone(kind):
    other = _relabelled(kind)
    with pytest.raises(FigureError, match=r"share none \(.*(offset|no gates)"):
        gate_profiles(data.gates(), other)
    assert pairable(data.gates(), other) is None
    found = {"knockout": other, "gates": data.gates()}
    for figure in (figures(found)["gates"], paper_figure(found, ["gates"])):
        assert not [t for t in figure.data if t.type == "bar"]


def test_a_unit_without_gates_is_told_why():
    only = data.gates().isel(unit=[1, 2])  # layer 0 alone
    with pytest.raises(FigureError, match=r"'1\.1' has no gate profile here: its layer has no gates"):
        gate_profiles(only, heads(), ["1.1"])


def printed(table) -> list[str]:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text().splitlines()


def row_of(lines: list[str], unit: str) -> list[str]:
    return next(line for line in lines if line.startswith(f"{unit} ")).split()


def test_the_table_gives_a_query_head_the_peaks_of_the_gate_it_reads():
    everything = data.specialization().assign(p_effect=lambda d: d["p_effect"] * 0)  # list all four
    lines = printed(unit_table(heads(), everything, data.gates()))
    assert row_of(lines, "0.1")[-3:] == ["0", "/", "1"]  # those of KV head 0.0
    assert row_of(lines, "0.0")[-3:] == ["0", "/", "1"]
    assert row_of(lines, "1.1")[-3:] == ["1", "/", "2"]  # those of KV head 1.0
    assert "of the KV head that a query head reads" in " ".join(" ".join(lines).split())
    offsets = printed(unit_table(_relabelled("gate_offset"), everything, data.gates()))
    assert not any("gate peaks" in line for line in offsets)


def test_a_knockout_says_how_many_query_heads_read_one_kv_head():
    from hooks import load
    from interp import knockout

    tiny = load("tiny")  # four query heads, two KV heads
    found = knockout(tiny, unit="head", only=["1.1"], n=24, progress=False)
    assert gate_unit(found, "1.1") == ("1.0", "")
