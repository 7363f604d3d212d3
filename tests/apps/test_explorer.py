"""Every page of the explorer on a real folder, run by Streamlit's own test harness."""

import json
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from apps.explorer.folder import load_report
from hooks import load
from interp.published import load_published

APP = Path(__file__).parents[2] / "apps" / "explorer" / "app.py"
PAGES = ("heads", "models", "compressor", "interventions", "deepseek", "figures")


def asked(app: AppTest, key: str) -> str:
    value = app.query_params[key]
    return value[0] if isinstance(value, list) else value


def metric(app: AppTest, label: str) -> str:
    return next(m.value for m in app.metric if m.label == label)


# ---- the app as a whole


def test_the_app_opens_on_the_heads_of_the_report(reports, monkeypatch):
    monkeypatch.setattr("sys.argv", [str(APP), str(reports)])
    app = AppTest.from_file(str(APP), default_timeout=120).run()
    assert not app.exception
    assert app.title[0].value == "Which heads serve which phases"


@pytest.mark.parametrize("page", PAGES)
def test_every_page_says_what_to_do_in_an_empty_folder(page, tmp_path, open_page):
    app = open_page(tmp_path, page, model="zoo:tiny")
    assert not app.exception
    if page in ("heads", "figures"):
        assert "phaselens report" in app.info[0].value
    if page == "deepseek":
        assert "phaselens audit" in app.info[0].value


@pytest.mark.parametrize("page", PAGES)
def test_every_page_shrugs_off_a_link_that_makes_no_sense(page, reports, open_page):
    nonsense = dict.fromkeys(
        ("report", "unit", "model", "models", "shift", "token", "prompt", "panels", "width", "n", "filler"),
        "../../etc/passwd",
    )
    app = open_page(reports, page, **nonsense | ({"model": "zoo:tiny"} if page == "compressor" else {}))
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("page", ["heads", "figures"])
def test_a_damaged_file_is_one_line_not_a_traceback(page, tmp_path, open_page):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "knockout.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    app = open_page(tmp_path, page)
    assert not app.exception
    assert "Remove the file" in app.error[0].value


# ---- heads


def test_heads_opens_on_the_unit_with_the_largest_loss(reports, open_page):
    app = open_page(reports, "heads")
    effect = load_report(reports, "tiny")["knockout"]["effect"]
    losses = {str(u): float(effect.sel(unit=u).min()) for u in effect.unit.values}
    assert app.selectbox(key="unit").value == min(losses, key=losses.__getitem__)
    assert not app.exception


def test_choosing_a_head_by_an_ordinary_widget_changes_text_and_address(reports, open_page):
    app = open_page(reports, "heads")
    app.selectbox(key="unit").set_value("1.1").run()
    assert not app.exception
    assert asked(app, "unit") == "1.1"
    assert any(m.value.startswith("**1.1 serves") for m in app.markdown)


def test_a_link_reproduces_the_view_and_a_changed_link_changes_it(reports, open_page):
    app = open_page(reports, "heads", report="tiny", unit="0.0", across="residue")
    assert (app.selectbox(key="unit").value, app.selectbox(key="across").value) == ("0.0", "residue")
    app.query_params["unit"] = "1.0"  # as the browser's back button does
    assert app.run().selectbox(key="unit").value == "1.0"


def test_what_takes_over_is_measured_on_request(reports, open_page):
    app = open_page(reports, "heads", unit="0.1")
    app.toggle(key="look").set_value(True).run()
    app.button(key="backup").click().run()
    assert not app.exception
    assert any("once 0.1 is gone" in c.value for c in app.caption)


# ---- models


def test_models_lists_reports_and_published_results_in_one_table(reports, open_page):
    app = open_page(reports, "models", models="report:tiny,published:DeepSeek-V4-Flash-Base")
    rows = app.table[0].value
    assert list(rows.index) == ["tiny", "DeepSeek-V4-Flash-Base (published)"]
    counts = load_published("needle_128k")["models"][0]["correct"]
    by_phase = [(counts[p] + counts[p + 4]) / 512 for p in range(4)]
    assert float(rows["gap (pp)"].iloc[1]) == pytest.approx(100 * (max(by_phase) - min(by_phase)), abs=0.05)
    assert rows["worst phase"].iloc[1] == str(int(np.argmin(by_phase)))


def test_models_measures_a_bundled_one_live(reports, open_page):
    app = open_page(reports, "models", models="zoo:tiny")
    assert not app.exception
    assert list(app.table[0].value.index) == ["tiny (live)"]


# ---- compressor


def test_shifting_the_prompt_moves_the_target_by_one_token(reports, open_page):
    app = open_page(reports, "compressor", model="zoo:tiny", unit="0.1")
    first = int(metric(app, "Target").split()[-1])
    app.slider(key="shift").set_value(1).run()
    assert not app.exception
    assert int(metric(app, "Target").split()[-1]) == first + 1
    assert metric(app, "Phase") == str((first + 1) % 4)
    assert asked(app, "shift") == "1"


def test_uniform_gates_give_every_token_the_same_weight(reports, open_page):
    app = open_page(reports, "compressor", model="zoo:tiny", gates="uniform", unit="1.0")
    assert metric(app, "Key gate weight") == "0.25"


def test_the_value_gates_weight_names_the_token_it_is_on(reports, open_page):
    app = open_page(reports, "compressor", model="zoo:tiny", unit="1.0", branch="value")
    word, _, place = metric(app, "Target").split()
    (label,) = [one.label for one in app.metric if one.label.startswith("Value gate weight")]
    on = label.removeprefix("Value gate weight on ").split()
    assert word.startswith("k")
    assert on[0].startswith("v")
    assert int(on[2]) == int(place) + 1


@pytest.mark.parametrize(("gates", "at"), [("uniform", "4.00 static"), ("static", None)])
def test_the_plane_is_of_the_gates_that_were_chosen(reports, open_page, gates, at):
    """Uniform gates stand at (W, W); gates that do not change between windows stand on the diagonal."""
    app = open_page(reports, "compressor", model="zoo:tiny", gates=gates)
    assert not app.exception
    assert any(one.value == f"How static each gate is, gates {gates}" for one in app.header)
    spec = json.loads(app.get("plotly_chart")[-1].proto.spec)
    clouds = [trace for trace in spec["data"] if str(trace.get("name", "")).endswith(" gate")]
    points = [row[2:] for trace in clouds for row in trace["customdata"]]
    assert len(points) == 8  # four KV heads, keys and values
    for static, per_window in points:
        assert per_window == pytest.approx(4.0 if at else static, abs=1e-3)


def test_a_model_of_the_folder_can_be_opened_and_full_attention_says_so(reports, open_page):
    assert not open_page(reports, "compressor", model="folder:model").exception
    app = open_page(reports, "compressor", model="zoo:full-4kv")
    assert "full attention" in app.info[0].value


# ---- interventions


def test_removing_a_head_runs_on_request_and_is_kept(reports, open_page):
    app = open_page(reports, "interventions", model="zoo:tiny", remove="0.0,0.1", n="2")
    assert not any("right answer" in m.value for m in app.markdown)
    app.button(key="run-remove").click().run()
    assert not app.exception
    assert any("right answer" in m.value for m in app.markdown)
    app.slider(key="residue").set_value(3).run()
    assert any("right answer" in m.value for m in app.markdown)


@pytest.mark.parametrize("button", ["run-patch", "run-direct"])
def test_patching_and_direct_effects_run_on_request(button, reports, open_page):
    app = open_page(reports, "interventions", model="zoo:tiny", n="2", kind="kv_head")
    app.button(key=button).click().run()
    assert not app.exception
    assert not app.error


def test_two_sessions_share_no_model_and_no_result(reports, open_page):
    one = open_page(reports, "interventions", model="zoo:tiny", remove="0.0", n="2")
    other = open_page(reports, "interventions", model="zoo:tiny", remove="0.0", n="2")
    one.button(key="run-remove").click().run()
    models = [app.session_state["loaded models"]["zoo:tiny"] for app in (one, other)]
    assert models[0] is not models[1]
    assert not any("right answer" in m.value for m in other.run().markdown)
    assert models[1].content_hash() == load("tiny").content_hash()


# ---- DeepSeek


def test_the_slider_over_filler_length_reads_the_published_probabilities(reports, open_page):
    app = open_page(reports, "deepseek", filler="27")
    published = load_published("completion_fp8")
    at = published["filler_tokens"].index(27)
    assert metric(app, "P(8), right here") == f"{published['p_8'][at]:.3f}"
    assert metric(app, "P(32)") == f"{published['p_32'][at]:.3f}"
    assert app.selectbox(key="audit").value == "audit/completion"


# ---- figures


@pytest.mark.parametrize("suffix", ["html", "csv", pytest.param("svg", marks=pytest.mark.slow)])
def test_the_figures_page_makes_the_file_its_command_line_makes(
    suffix, reports, open_page, tmp_path, monkeypatch
):
    import shlex

    from interp.cli import main
    from interp.figures.browser import browser_path

    if suffix == "svg" and browser_path() is None:
        suffix = "html"  # all that can be made on such a machine
    app = open_page(
        reports, "figures", report="tiny", panels="accuracy,knockout", width="150", type="8", colours="tol",
        format=suffix,
    )  # fmt: skip
    app.button(key="make").click().run()
    assert not app.exception
    assert not app.error
    content = next(iter(app.session_state["files"].values()))
    words = shlex.split(app.code[0].value)
    assert words[:2] == ["phaselens", "figures"]
    monkeypatch.chdir(reports)
    words[words.index("-o") + 1] = str(tmp_path)
    assert main(words[1:]) == 0
    assert (tmp_path / f"figure.{suffix}").read_bytes() == content
