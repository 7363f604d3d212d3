"""The command line: help, one line per mistake, nothing left behind."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import types
from importlib.metadata import version
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from hooks.errors import SiteError
from interp import cli, cli_run, cli_usage
from interp.cli import app, main

VERBS = [
    "audit",
    "bench",
    "compare",
    "explore",
    "figures",
    "gates",
    "grid",
    "knockout",
    "owners",
    "patch",
    "periods",
    "replicate",
    "report",
    "results",
    "sweep",
    "train",
    "zoo",
]


def one_line(capsys) -> str:
    """The only line on stderr; stdout must be empty."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1
    return captured.err


def test_the_verbs_are_these():
    assert sorted(name for name in app if not name.startswith("-")) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb, capsys):
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"^Example: phaselens {verb}\b", text, re.MULTILINE)


@pytest.mark.parametrize("verb", VERBS)
def test_no_line_of_a_paragraph_is_too_long_for_80_columns(verb):
    told = inspect.cleandoc(app[verb].default_command.__doc__ or "")
    for paragraph in told.split("\n\n"):  # a paragraph of one line is wrapped as a whole
        lines = paragraph.splitlines()
        assert len(lines) < 2 or max(map(len, lines)) <= 79, paragraph


def test_the_list_of_verbs_describes_every_one_from_its_docstring(capsys):
    assert main(["--help"]) == 0
    rows = re.findall(r"^│ (\S*) +(.*?) *│$", capsys.readouterr().out, re.MULTILINE)
    told: dict[str, str] = {}
    for name, text in rows:  # a row without a name goes on with the last one
        verb = name or list(told)[-1]
        told[verb] = f"{told[verb]} {text}" if verb in told else text
    for verb in VERBS:
        first = (app[verb].default_command.__doc__ or "").splitlines()[0]
        assert first
        assert told[verb] == first


@pytest.mark.parametrize("verb", [v for v in VERBS if v not in ("explore", "zoo", "results", "figures")])
def test_the_example_in_the_help_parses(verb, capsys):
    main([verb, "--help"])
    example = re.search(r"^Example: phaselens (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert example is not None
    command, bound, _ = app.parse_args(example[1].split(), exit_on_error=False, print_error=False)
    assert command.__name__ == verb
    assert bound.arguments


def test_the_module_runs_as_the_command_does():
    done = subprocess.run([sys.executable, "-m", "interp.cli", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, version("phaselens"))


def test_help_is_fast_and_imports_nothing_heavy():
    code = (
        "import sys; from interp.cli import main; main(['report', '--help']); main(['--help']);"
        "heavy = {'torch', 'xarray', 'scipy', 'plotly', 'transformers', 'streamlit'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    elapsed = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    assert elapsed < 3  # the promise is 1 s on an idle machine; tests share two cores


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nokout w8s8-2kv", ["'nokout'", "knockout", "sweep", "report"]),
        ("sweep w8s8-2kv --sede 1", ["--sede", "--seed"]),
        ("knockout w8s8-2kv --unit mpl", ['"mpl"', "kv_head", "layer"]),
        ("sweep w8s8-2kv --n-per-residue 0", ["--n-per-residue", "1"]),
        ("sweep w8s8-2kv --seed one", ["--seed", '"one"']),
        ("sweep w8s8-2kv extra", ["extra"]),
        ("report w8s8-2kv", ["--out", "-o"]),
        ("report -o somewhere", ["MODEL", "zoo"]),
        ("--bogus", ["--bogus", "report"]),
    ],
)
def test_a_parse_error_is_one_line_that_names_the_choices(line, told, capsys):
    assert main(line.split()) == 2
    text = one_line(capsys)
    for word in told:
        assert word in text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("knockout tiny --unit exact_branch --replace zero", "--replace would do nothing"),
        ("patch tiny --pairs value --shift 3", "--shift would do nothing"),
        ("grid tiny --verb gates --verb sweep --unit head -o x", "--unit would do nothing"),
        ("figures x --width-mm 85", "--width-mm would do nothing"),
        ("figures x --dark", "--dark would do nothing"),
        ("figures x --panels accuracy --units 1.0", "--units would do nothing"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(line, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    assert told in one_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_masked_units_are_those_that_nothing_replaces():
    from hooks import load
    from interp.cli import _MASKED
    from interp.tasks import RecallTask
    from interp.units import UNIT_KINDS, units

    model = load("v41-ced")  # has an indexer; none of the bundled models has every kind
    prompts = RecallTask.for_model(model).sample(RecallTask.for_model(model).modulus, seed=0)
    for kind in UNIT_KINDS:
        try:
            masked = {not unit.replaced for unit in units(model, kind, prompts)}
        except SiteError:
            continue
        assert masked == {kind in _MASKED}, kind


@pytest.mark.parametrize("verb", ["sweep", "knockout", "gates", "patch"])
def test_an_unknown_model_is_one_line_and_leaves_nothing(verb, tmp_path, capsys):
    out = tmp_path / "new" / "deep"
    assert main([verb, "no-such-model", "-o", str(out)]) == 2
    assert "no-such-model" in one_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_for_report(tmp_path, capsys):
    assert main(["report", "no-such-model", "-o", str(tmp_path / "r")]) == 2
    assert "no-such-model" in one_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_found_before_the_model_is_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli_run, "prepare", lambda *_, **__: pytest.fail("work began"))
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "below"):
        for verb in ("report", "sweep"):
            assert main([verb, "w8s8-2kv", "-o", str(out)]) == 2
            assert str(file) in one_line(capsys)
    assert file.read_text() == "mine"


def test_an_unknown_device_is_named(capsys):
    assert main(["sweep", "w8s8-2kv", "--device", "tpu"]) == 2
    assert "'tpu'" in one_line(capsys)


def test_ctrl_c_exits_130_in_one_line_and_removes_the_staging_folder(tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_run, "prepare", interrupted)
    assert main(["sweep", "w8s8-2kv", "-o", str(tmp_path / "out")]) == 130
    assert one_line(capsys) == "interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_a_bug_keeps_its_traceback(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(cli_run, "prepare", broken)
    with pytest.raises(ZeroDivisionError):
        main(["sweep", "w8s8-2kv"])


def test_a_closed_pipe_prints_no_traceback():
    code = "import sys; from interp.cli import main; sys.exit(main(['--help']))"
    done = subprocess.run(
        f"{sys.executable} -c \"{code}\" | true",
        shell=True, executable="/bin/bash", capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == ""


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_explore_says_what_to_do_without_a_folder(tmp_path, capsys):
    assert main(["explore", str(tmp_path / "none")]) == 2
    assert "phaselens report" in one_line(capsys)


def test_results_of_a_foreign_file(tmp_path, capsys):
    file = tmp_path / "x.nc"
    file.write_bytes(b"not netCDF")
    assert main(["results", str(file)]) == 2
    assert str(file) in one_line(capsys)


def test_json_on_stdout_is_one_object_without_nan(capsys):
    cli_run.print_json({"a": float("nan"), "b": [1.5, float("inf")], "c": range(2)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1.5, None], "c": [0, 1]}


def test_the_modules_say_what_they_export():
    for module in (cli, cli_run, cli_usage):
        assert all(hasattr(module, name) for name in module.__all__)


# --------------------------------------------------------------------------- models that cannot be loaded


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    """A folder with an untrained tiny model."""
    from hooks.checkpoint import save
    from hooks.config import preset
    from hooks.transformer import CompressedTransformer

    model = CompressedTransformer(preset("tiny"))
    model.name = "untrained"
    return save(model, tmp_path_factory.mktemp("model") / "untrained")


@pytest.fixture
def damaged(saved_model, tmp_path):
    """Copy the model with one change to its config or weights."""

    def make(config=None, weights=None):
        folder = tmp_path / "damaged"
        shutil.copytree(saved_model, folder)
        if config:
            path = folder / "config.json"
            described = json.loads(path.read_text())
            config(described)
            path.write_text(json.dumps(described))
        if weights:
            weights(folder / "model.safetensors")
        return folder

    return make


def _truncate(path):
    path.write_bytes(path.read_bytes()[:1000])


def _foreign(path):
    save_file({"other": torch.zeros(3)}, path)


def _nan(path):
    weights = load_file(path)
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, path)


@pytest.mark.parametrize(
    ("config", "weights", "told"),
    [
        (None, _truncate, ["model.safetensors", "truncated"]),
        (None, _foreign, ["missing"]),
        (None, _nan, ["nan"]),
        (None, lambda path: path.unlink(), ["model.safetensors"]),
        (lambda c: c["config"].update(window=2), None, ["window=2", "stride=4"]),
        (lambda c: c["config"].update(strid=4), None, ["'strid'", "stride"]),
        (lambda c: c["config"].pop("d_model"), None, ["'d_model'", "missing"]),
        (lambda c: c.update(phaselens=99), None, ["99"]),
    ],
    ids=["truncated", "foreign", "nan", "no-weights", "window", "unknown-key", "missing-key", "format"],
)
def test_a_model_that_cannot_be_loaded_is_one_line(damaged, config, weights, told, tmp_path, capsys):
    folder = damaged(config, weights)
    before = sorted(tmp_path.iterdir())
    assert main(["report", str(folder), "-o", str(tmp_path / "out")]) == 2
    text = one_line(capsys)
    for word in told:
        assert word.lower() in text.lower()
    assert sorted(tmp_path.iterdir()) == before


# --------------------------------------------------------------------------- verbs that run


SMALL = ["--n-per-residue", "4"]


def test_sweep_prints_one_json_object(saved_model, capsys):
    assert main(["sweep", str(saved_model), *SMALL, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)["sweep"]
    assert found["attrs"]["model"] == "untrained"
    assert len(found["variables"]["accuracy"]["values"]) == 4
    assert "correct" not in found["variables"]  # per-prompt values stay in the file


@pytest.mark.parametrize("verb", ["sweep", "knockout", "gates", "patch"])
def test_a_verb_writes_results_that_load_and_shows_a_table(verb, saved_model, tmp_path, capsys):
    size = SMALL if verb == "sweep" else ["--n", "48"]
    assert main([verb, str(saved_model), *size, "-o", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    names = {"knockout": ["knockout", "specialization"]}.get(verb, [verb])
    written = [f"{name}.{end}" for name in names for end in ("csv", "nc")]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted([*written, "files.json"])
    for name in names:
        assert str(tmp_path / "out" / f"{name}.nc") in captured.out
        assert main(["results", str(tmp_path / "out" / f"{name}.nc"), "--json"]) == 0
        (described,) = json.loads(capsys.readouterr().out).values()
        assert described["attrs"]["model"] == "untrained"


def test_report_and_figures(saved_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", "/nonexistent")  # what a machine without a browser gives
    out = tmp_path / "report"
    assert main(["report", str(saved_model), "-o", str(out), *SMALL]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert f"Report: {out / 'index.html'}" in captured.out
    assert "chromium" in captured.out  # one line says what to install
    assert (out / "figures" / "accuracy.html").is_file()
    assert (
        main(["figures", str(out), "-o", str(out)]) == 2
    )  # tables of one name would take the results' place
    assert "folder of the results" in capsys.readouterr().err
    assert (out / "sweep.nc").is_file()
    assert main(["figures", str(out), "-o", str(tmp_path / "again"), "-f", "html"]) == 0
    assert (tmp_path / "again" / "accuracy.html").read_bytes() == (
        out / "figures" / "accuracy.html"
    ).read_bytes()


def test_report_as_json_is_the_manifest(saved_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", "/nonexistent")
    assert main(["report", str(saved_model), "-o", str(tmp_path / "r"), *SMALL, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "r" / "report.json").read_text())
    results = {"sweep", "knockout", "specialization", "gates"}
    assert set(printed) == {"model", "files", "notice", "made_by", "digests", *results}


def test_zoo_lists_every_bundled_model(capsys):
    from hooks import zoo

    assert main(["zoo"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in zoo())
    assert main(["zoo", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == zoo()
    assert main(["zoo", "no-such-model"]) == 2
    assert "no-such-model" in one_line(capsys)


def test_the_cache_table(capsys):
    assert main(["zoo", "--cache"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"deepseek-v4\.1-flash.* 890\.00 ", text)
    assert re.search(r"deepseek-v4-flash.* 3,514\.25 ", text)
    assert main(["zoo", "deepseek-v4.1-flash", "--cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes_per_token"] == 890
    assert main(["zoo", "gpt2", "--cache"]) == 2
    assert "deepseek-v4-pro" in one_line(capsys)


def test_train_makes_a_model_that_loads(tmp_path, capsys):
    assert main(["train", "tiny", "--steps", "2", "--device", "cpu", "-o", str(tmp_path / "t")]) == 0
    assert str(tmp_path / "t") in capsys.readouterr().out
    assert main(["sweep", str(tmp_path / "t"), *SMALL, "--json"]) == 0
    assert main(["train", "no-such-recipe", "-o", str(tmp_path / "u")]) == 2
    assert "tiny" in capsys.readouterr().err
    assert not (tmp_path / "u").exists()


# --------------------------------------------------------------------------- explore


class _Streamlit:
    """Stands in for the process of the app and remembers how it was started."""

    started: ClassVar[list[list[str]]] = []
    code = 0

    def __init__(self, command, **_):
        self.started.append(command)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def wait(self):
        return self.code

    def terminate(self):
        pass


@pytest.fixture
def explorer(tmp_path, monkeypatch):
    """A folder with a result, an installed app, and a Streamlit that ends at once."""
    (tmp_path / "apps" / "explorer").mkdir(parents=True)
    (tmp_path / "apps" / "explorer" / "app.py").touch()
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "sweep.nc").touch()
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "apps")])
    monkeypatch.setattr(cli_run.importlib.util, "find_spec", lambda name: {"apps": spec}.get(name))
    monkeypatch.setattr(cli_run.subprocess, "Popen", _Streamlit)
    _Streamlit.started.clear()
    return tmp_path


def test_explore_listens_on_this_machine_only_and_reports_nothing_home(explorer, monkeypatch, capsys):
    monkeypatch.chdir(explorer)
    assert main(["explore", "r"]) == 0
    (command,) = _Streamlit.started
    options = dict(zip(command[5::2], command[6::2], strict=False))
    assert options["--server.address"] == "127.0.0.1"
    assert options["--server.headless"] == "true"
    assert options["--browser.gatherUsageStats"] == "false"
    assert options["--client.showErrorDetails"] == "none"
    assert command[-2:] == ["--", str(explorer / "r")]
    assert f"http://127.0.0.1:{options['--server.port']}" in capsys.readouterr().out


def test_explore_opens_a_folder_that_has_no_results(explorer):
    (explorer / "r" / "sweep.nc").unlink()  # bundled models need none
    assert main(["explore", str(explorer / "r")]) == 0
    assert _Streamlit.started


def test_explore_on_a_taken_port_and_with_an_app_that_fails(explorer, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["explore", str(explorer / "r"), "--port", port]) == 2
    assert port in one_line(capsys)
    assert not _Streamlit.started
    monkeypatch.setattr(_Streamlit, "code", 3)
    assert main(["explore", str(explorer / "r")]) == 2
    assert "code 3" in capsys.readouterr().err


def test_a_word_of_a_page_is_cut_in_the_middle(capsys):
    assert main(["sweep", "tiny", "--n-per-residue", "9" * 400]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "9" * 30 in err
    assert "…" in err
    assert len(err) < 400


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "tiny", "--n-per-residue", str(10**20)],
        ["knockout", "tiny", "--n", str(10**12)],
        ["train", "tiny", "--batch", str(10**12), "--steps", "1"],
        ["patch", "tiny", "--n", "24", "--shift", str(4 * 10**30)],
    ],
)
def test_more_than_a_computer_holds_is_one_line(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("phaselens: ")
    assert not list(tmp_path.rglob("*.nc"))
