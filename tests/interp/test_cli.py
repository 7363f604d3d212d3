"""The command line: help, one line per mistake, nothing left behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest

from interp import cli, cli_run, cli_usage
from interp.cli import app, main

VERBS = ["explore", "figures", "gates", "knockout", "patch", "report", "results", "sweep", "train", "zoo"]


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


@pytest.mark.parametrize("verb", [v for v in VERBS if v not in ("explore", "zoo", "results", "figures")])
def test_the_example_in_the_help_parses(verb, capsys):
    main([verb, "--help"])
    example = re.search(r"^Example: phaselens (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert example is not None
    command, bound, _ = app.parse_args(example[1].split(), exit_on_error=False, print_error=False)
    assert command.__name__ == verb
    assert bound.arguments


def test_help_is_fast_and_imports_nothing_heavy():
    code = (
        "import sys; from interp.cli import main; main(['report', '--help']);"
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
        ("knockout w8s8-2kv --unit mlp", ['"mlp"', "kv_head", "layer"]),
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


def test_explore_says_what_to_do_without_results(tmp_path, capsys):
    assert main(["explore", str(tmp_path)]) == 2
    assert "phaselens report" in one_line(capsys)
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
