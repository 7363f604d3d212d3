"""Published tables on the audit's page: every number recomputed from the counts."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from hooks.errors import StatisticsError
from interp.audit import audit_published
from interp.audit.published import from_published, load_table

# By hand from the counts: best minus worst residue, and the same of the phases' sums.
GAPS = {
    "DeepSeek-V4-Flash-Base": (40.2, 100 * ((178 + 179) - (76 + 84)) / 512, 4),
    "DeepSeek-V4-Flash-0731": (19.1, 100 * ((251 + 255) - (206 + 208)) / 512, 4),
    "DeepSeek-V4-Pro-Base": (34.8, 100 * ((226 + 233) - (144 + 149)) / 512, 4),
    "DeepSeek-V4-Pro-0813": (14.8, 100 * ((234 + 236) - (200 + 198)) / 512, 4),
    "DeepSeek-V4.1-Flash": (
        6.1,
        100 * ((2432 + 2435 + 2424 + 2440) - (2284 + 2296 + 2312 + 2297)) / 10240,
        2,
    ),
}


@pytest.fixture(scope="module")
def needle(tmp_path_factory):
    out = tmp_path_factory.mktemp("published") / "needle"
    return audit_published("needle_128k.json", out=out, formats=("html",)), out


def test_gaps_and_periods_of_the_needle_test(needle):
    found, _ = needle
    assert list(found) == list(GAPS)
    for name, (residue_gap, phase_gap, period) in GAPS.items():
        a = found[name].attrs
        assert round(a["gap_residue_pp"], 1) == residue_gap
        assert a["gap_pp"] == pytest.approx(phase_gap)
        assert (a["period"], a["found"]) == (period, 1)
        assert a["gap_pp_low"] < phase_gap < a["gap_pp_high"]


def test_accuracies_are_the_counts(needle):
    correct = np.array([112, 178, 169, 76, 115, 179, 165, 84])
    flash = needle[0]["DeepSeek-V4-Flash-Base"]
    assert np.allclose(flash["accuracy_residue"], correct / 256)
    assert np.allclose(flash["accuracy"], [227 / 512, 357 / 512, 334 / 512, 160 / 512])
    assert flash.attrs["worst_phase"] == 3


def test_the_page_shows_them(needle):
    _, out = needle
    text = (out / "index.html").read_text(encoding="utf-8")
    for name, (residue_gap, phase_gap, period) in GAPS.items():
        row = re.search(rf"<tr><th scope=\"row\">{re.escape(name)}</th>(.*?)</tr>", text)
        assert row is not None
        cells = re.findall(r"<td>(.*?)</td>", row[1])
        assert cells[3] == f"{phase_gap:.1f}"
        assert cells[5] == str(residue_gap)
        assert cells[6] == str(period)
    assert "arXiv 2609.36322" in text
    assert (
        json.loads((out / "report.json").read_text())["results"]["DeepSeek-V4.1-Flash"]["attrs"]["period"]
        == 2
    )


def test_beside_something_else_the_numbers_are_the_same(needle):
    brief = from_published(load_table("needle_128k"), brief=True)
    for name, dataset in needle[0].items():
        for key in ("gap_pp", "gap_pp_low", "gap_pp_high", "gap_residue_pp", "period", "mean_accuracy"):
            assert brief[name].attrs[key] == dataset.attrs[key]


def test_the_completion_test_has_period_4(tmp_path):
    found = audit_published("completion_fp8", out=tmp_path / "c", formats=("html",))["completion"]
    assert found.attrs["period"] == 4
    p8 = {24: 0.101, 28: 0.361, 32: 0.378, 36: 0.258}  # lengths of phase 0 mod 4
    assert found["p_8_phase"].values[0] == pytest.approx(np.mean(list(p8.values())))
    text = (tmp_path / "c" / "index.html").read_text(encoding="utf-8")
    assert "P(8) and P(32) have period 4" in text


def test_a_flat_table_of_one_s_own_has_no_gap(tmp_path):
    rng = np.random.default_rng(0)
    model = {
        "name": "mine/../x",
        "stride": 4,
        "n_per_residue": 64,
        "correct": rng.binomial(64, 0.7, 8).tolist(),
    }
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"models": [model]}))
    found = audit_published(str(path), out=tmp_path / "o", formats=("html",))
    assert found["mine/../x"].attrs["found"] == 0
    assert (tmp_path / "o" / "mine-..-x.nc").is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o", "own.json"]


@pytest.mark.parametrize("name", ["needle", "knockout_w8s8_1kv_seed42", "controlled_runs.json"])
def test_a_table_that_cannot_be_drawn_names_those_that_can(name):
    with pytest.raises(StatisticsError, match=r"completion_fp8.*needle_128k|needle_128k.*completion_fp8"):
        load_table(name)


MODEL = {"name": "a", "stride": 4, "n_per_residue": 8, "correct": [1, 2, 3, 4, 5, 6, 7, 8]}
SERIES = {"filler_tokens": [1, 2, 3], "p_8": [0.1, 0.2, 0.3], "p_32": [0.5, 0.5, 0.5]}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"models": [3]}, "is not a needle test"),
        ({"models": [MODEL, 3]}, "model 2 is 3; valid: name, stride"),
        ({"models": [{k: v for k, v in MODEL.items() if k != "stride"}]}, "model 1 has no stride"),
        ({"models": [MODEL | {"name": 5}]}, "model 1: name=5"),
        ({"models": [MODEL | {"name": "…"}]}, "a letter or digit"),
        ({"models": [MODEL | {"correct": "abc"}]}, "model 'a': correct='abc'; valid: one count a residue"),
        ({"models": [MODEL | {"correct": [1] * 7}]}, "whole cycles of stride 4"),
        ({"models": [MODEL | {"correct": [9] * 8}]}, "correct holds 9; valid: whole numbers 0 to 8"),
        ({"models": [MODEL | {"correct": [None] * 8}]}, "correct holds None"),
        ({"models": [MODEL | {"stride": "x"}]}, "model 'a': stride='x'; valid: a whole number from 2 on"),
        ({"models": [MODEL | {"stride": 0}]}, "stride=0"),
        ({"models": [MODEL | {"n_per_residue": True}]}, "n_per_residue=True"),
        ({"models": [MODEL | {"n_per_residue": 10**300}]}, "…; valid: a whole number from 1 to 100000"),
        ({"models": [MODEL, MODEL]}, "model 'a': a second model of that name"),
        ({"models": [MODEL | {"name": "a/b"}, MODEL | {"name": "a:b"}]}, "a second model of that name"),
        (SERIES | {"p_32": [0.5, "x", 0.5]}, "p_32 holds 'x'; valid: probabilities 0 to 1"),
        (SERIES | {"p_8": [0.5, float("nan"), 0.5]}, "p_8 holds nan"),
        (SERIES | {"p_8": [0.5]}, "one number for each length"),
        (SERIES | {"p_8": 3}, "p_8=3; valid: a list"),
        (SERIES | {"filler_tokens": 3}, "filler_tokens=3; valid: a list"),
        (SERIES | {"filler_tokens": [1, "2", 3]}, "filler_tokens holds '2'"),
        (SERIES | {"filler_tokens": [1, 1, 3]}, "filler_tokens holds a length twice"),
    ],
)
def test_a_table_with_a_mistake_names_the_model_and_the_field(table, told, tmp_path):
    path = tmp_path / "own.json"
    path.write_text(json.dumps(table))
    with pytest.raises(StatisticsError, match=re.escape(told)) as error:
        audit_published(str(path), out=tmp_path / "o")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "o").exists()
