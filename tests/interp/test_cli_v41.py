"""Verbs on shared caches, end to end on the smallest model, and the page that they make together."""

import json

import pytest
import xarray as xr

import hooks
from interp import results, v41_report
from interp.cli import main
from interp.tasks import RecallTask
from tests.interp.intervention_models import small

SHARED = dict(
    n_layers=4, d_head=32, index_dim=32, roles=("full", "reindex", "full", "reuse"), decoder_start=2,
    window=(2, 2, 1, 1), stride=(2, 2, 1, 1), gate=("vector", "vector", "uniform", "uniform"), exact_window=3,
    index_topk=2, index_heads=2, n_kv_heads=1, tied_kv=True, payload="shared", index_style="latent",
)  # fmt: skip
STORED = dict(exact_precision="fp8", entry_precision="fp4", index_precision="mxfp4")


def made(name, device="cpu"):
    model = small(len(name), **SHARED, **(STORED if name == "v41-ced" else {}))
    model.name = name
    return model


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    monkeypatch.setattr(hooks, "load", made)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("compare v41-ced --unquantized", "compare"),
        ("compare v41-ced --picks 0", "compare"),
        ("compare v41-ced v41-ced-bf", "compare"),
        ("periods v41-ced --unit layer", "periods"),
    ],
)
def test_verbs_save_results(line, name, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*line.split(), "--n-per-residue", "3", "-o", str(out)]) == 0, capsys.readouterr().err
    found = results.load(out / f"{name}.nc")
    assert found.attrs["model"] == "v41-ced"
    assert found.attrs["stride"] == 2
    if name == "compare":
        assert found.attrs["other_model"] == found["model"].values[1] != "v41-ced"


def test_owners_prints_json(capsys):
    assert main(["owners", "v41-ced", "--n-per-residue", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"owners", "files"}


@pytest.mark.parametrize("line", ["compare v41-ced", "compare v41-ced v41-ced-bf --unquantized"])
def test_compare_needs_one_other_model(line, capsys):
    assert main(line.split()) == 2
    assert "give one of: OTHER (a model), --unquantized, --picks K" in capsys.readouterr().err


def test_a_model_without_quantization_or_picks_is_told_so(capsys):
    assert main(["compare", "v41-ced-bf", "--unquantized"]) == 2
    assert "stores nothing at a lower precision" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_states_every_number_with_its_n(tmp_path, monkeypatch):
    page, kept = tmp_path / "page.md", tmp_path / "kept"
    line = ["-o", str(page), "-n", "3", "--n-owners", "2", "--results", str(kept)]
    for part in ("owners", "rest"):
        v41_report.main([*line, "--only", part])
        assert not page.exists()
    for verb in ("owner_effects", "knockout", "compare"):  # everything is there already
        monkeypatch.setattr(v41_report, verb, None)
    v41_report.main(line)
    text = page.read_text(encoding="utf-8")
    modulus = RecallTask.for_model(made("v41-ced")).modulus
    prompts = 3 * modulus
    for name in ("v41-ced", "v41-ced-bf", "dsv4-csa"):
        assert f"| `{name}` | {prompts} |" in text
    for unit in ("0→0", "0→1", "0→all", "2→2", "2→3", "2→all"):
        assert f"| {unit} | " in text
    assert f"{2 * modulus} prompts. The target's record is dropped" in text
    assert "| 46 |" not in text  # the prompts are shorter than the longest replay
    # Untrained models answer nothing: said, and no loss of accuracy is made of it.
    assert "Phase 0 stays lost in every layer that reads." in text
    assert "There is no accuracy to lose there, only log p." in text
    assert "nan" not in text
    assert "-0.0" not in text


def test_a_kept_result_is_taken_only_if_every_attribute_is_the_wanted_one(tmp_path):
    path, made_so_far = tmp_path / "kept" / "a.nc", []

    def taken(**wanted):
        def make():
            made_so_far.append(wanted)
            return xr.Dataset({"x": ("phase", [float(len(made_so_far))])}, attrs=wanted)

        return float(v41_report.kept_result(path, make, wanted)["x"][0])

    assert taken(model_hash="a", seed=1) == 1
    assert taken(model_hash="a", seed=1) == 1
    assert taken(model_hash="a", seed=1, other_model_hash="b") == 2
    assert taken(model_hash="a", seed=1, other_model_hash="b") == 2
    assert taken(model_hash="a", seed=1, other_model_hash="retrained") == 3


@pytest.mark.parametrize(
    ("line", "holds"),
    [
        (
            "compare v41-ced --unquantized",
            ["gap, best minus worst phase", "accuracy (pp)", "log p(answer) (nats)"],
        ),
        (
            "periods v41-ced --unit layer",
            ["Period of each unit's effect", "detectable", "Follows stride 2: "],
        ),
        ("owners v41-ced", ["owner→reader", "nats, 1", "Unchanged accuracy (%) by phase: "]),
    ],
)
def test_verbs_print_the_answer(line, holds, capsys):
    assert main([*line.split(), "--n-per-residue", "3"]) == 0
    text = capsys.readouterr().out
    for each in holds:
        assert each in text
    assert "lowest  highest" not in text  # the table of a result that has none of its own
