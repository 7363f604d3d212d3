"""The verb audit: output, one line per mistake, prompts for a server without any weights."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from interp import report, results
from interp.cli import main
from tests.interp.audit_models import save


@pytest.fixture(autouse=True)
def no_browser(monkeypatch):
    """Figures are tested elsewhere; a browser would take most of the time here."""
    draw = report.draw
    monkeypatch.setattr(report, "draw", lambda built, folder, formats: draw(built, folder, formats=("html",)))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save(tmp_path_factory.mktemp("llama") / "llama", "llama")


SMALL = ["--test", "needle", "--context", "200", "--records", "8", "--n-per-residue", "1"]
ONE = [*SMALL, "--query-phase", "0"]


def test_a_folder_is_audited(llama, tmp_path, capsys):
    assert main(["audit", str(llama), "-o", str(tmp_path / "a"), *ONE]) == 0
    captured = capsys.readouterr()
    text = " ".join(captured.out.split())
    assert re.search(r"phase sensitivity found, (at this n a gap over|but at this n)", text)
    assert f"Page: {tmp_path / 'a' / 'index.html'}" in captured.out.replace("\n", "") + captured.out
    assert max(map(len, captured.out.splitlines()[:-1])) <= 80
    assert (tmp_path / "a" / "index.html").is_file()


def test_json_is_one_object(llama, tmp_path, capsys):
    assert main(["audit", str(llama), "-o", str(tmp_path / "a"), "--json", *ONE]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["results"]["needle"]["attrs"]["seed"] == 0
    assert found["results"]["needle"]["attrs"]["placebo"] == 1


def test_prompts_are_exported_without_weights_and_answers_scored(tmp_path, capsys):
    folder = save(tmp_path / "v4", "deepseek_v4")
    (folder / "model.safetensors").unlink()
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    assert main(["audit", str(folder), "--export", str(prompts), *ONE]) == 0
    assert f"24 prompts: {prompts}" in capsys.readouterr().out
    rows = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
    # As the served model of vLLM #55927 might: right unless the target's phase is 2.
    answers.write_text(
        "".join(
            json.dumps({"id": r["id"], "text": r["answer"] if r["target_position"] % 4 != 2 else "?"}) + "\n"
            for r in rows
        )
    )
    out = tmp_path / "a"
    assert main(["audit", str(folder), "--answers", str(answers), "-o", str(out), *ONE]) == 0
    attrs = json.loads((out / "report.json").read_text())["results"]["needle"]["attrs"]
    assert (attrs["stride"], attrs["worst_phase"], attrs["gap_pp"]) == (4, 2, 100)
    assert not (out / "state.jsonl").exists()


def test_without_o_the_page_goes_to_reports(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "--published", "completion_fp8.json"]) == 0
    assert (tmp_path / "reports" / "audit-completion_fp8" / "index.html").is_file()
    assert "P(8) has period 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("audit", "give a MODEL"),
        ("audit tiny --published needle_128k", "not both"),
        ("audit --published needle", "needle_128k"),
        ("audit ./nothing", "no folder"),
        ("audit tiny --test needle", "--tokenizer"),
        ("audit tiny --device tpu", "cpu"),
        ("audit tiny --stride 1", "2"),
        ("audit tiny --stride 5", "valid: "),
        ("audit tiny --limit 3", "12 or more|24 or more"),
        ("audit tiny --position nowhere", "key_first"),
        ("audit tiny --answers nothing.jsonl", "--export"),
        ("audit tiny --export no/such/folder/p.jsonl", "no folder"),
        ("audit tiny --tokenizer nothing", "token ids"),
        ("audit tinny", "valid: tiny"),
        ("audit --published needle_128k --answers a.jsonl", "--published .* --answers would do nothing"),
        ("audit --published needle_128k --limit 24", "--published .* --limit would do nothing"),
        ("audit --published needle_128k --n-per-residue 8", "--n-per-residue would do nothing"),
        ("audit tiny --export p.jsonl --answers a.jsonl", "--export .* --answers would do nothing"),
        ("audit tiny --export p.jsonl -o x", "--export .* --out would do nothing"),
        ("audit tiny --answers a.jsonl --resume", "--answers .* --resume would do nothing"),
        ("audit tiny --answers a.jsonl --device cuda", "--answers .* --device would do nothing"),
        ("audit tiny --context 300", "--test recall .* --context would do nothing"),
        ("audit tiny --test recall --tokenizer x", "--test recall .* --tokenizer would do nothing"),
        (
            "audit x/y --test completion --position value_first",
            "--test completion .* --position would do nothing",
        ),
        (
            "audit x/y --test completion --records 7 --export p.jsonl",
            "--records would do nothing; .* --test needle",
        ),
        ("audit tiny --revision main", "revision 'main' would do nothing"),
        ("audit . --revision main", "revision 'main' would do nothing"),
        ("audit tiny --crossed 0 --query-phase 1", "--crossed 0 .* --query-phase 1 would do nothing"),
    ],
)
def test_a_mistake_is_one_line(line, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert re.search(told, captured.err)
    assert "Traceback" not in captured.err
    assert not list(tmp_path.rglob("*.html"))


def test_a_model_longer_than_it_reads(llama, tmp_path, capsys):
    assert main(["audit", str(llama), "-o", str(tmp_path), "--context", "9999"]) == 2
    assert "valid: up to 512" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_found_first(llama, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert main(["audit", str(llama), "-o", str(tmp_path / "file" / "a"), *ONE]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_the_json_option_of_an_export(llama, tmp_path, capsys):
    assert main(["audit", str(llama), "--export", str(tmp_path / "p.jsonl"), "--json", *ONE]) == 0
    assert json.loads(capsys.readouterr().out)["prompts"] == 24


def test_an_export_names_the_tests_it_leaves_out(llama, tmp_path, capsys):
    lossy = shutil.copytree(llama, tmp_path / "lossy")
    tokenizer = json.loads((lossy / "tokenizer.json").read_text())
    cut = {"type": "Replace", "pattern": {"String": "\n    "}, "content": "\n"}
    tokenizer["decoder"] = {"type": "Sequence", "decoders": [tokenizer["decoder"], cut]}
    (lossy / "tokenizer.json").write_text(json.dumps(tokenizer))
    command = [
        "audit",
        str(lossy),
        "--export",
        str(tmp_path / "p.jsonl"),
        "--n-per-residue",
        "1",
        "--query-phase",
        "0",
    ]
    assert main(command) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Left out")]
    assert re.match(r"Left out: completion: .* does not give the text back", line)
    assert main([*command, "--json"]) == 0
    assert [f"Left out: {test}." for test in json.loads(capsys.readouterr().out)["tests_left_out"]] == [line]
    assert {json.loads(row)["test"] for row in (tmp_path / "p.jsonl").read_text().splitlines()} == {"needle"}


@pytest.mark.slow
def test_a_run_killed_by_the_system_goes_on(llama, tmp_path, capsys):
    out, whole = tmp_path / "killed", tmp_path / "whole"
    options = ["--context", "200", "--records", "8", "--n-per-residue", "24", "--seed", "1"]
    code = "import sys; from interp.cli import main; sys.exit(main(['audit', *sys.argv[1:]]))"
    command = [sys.executable, "-c", code, str(llama), "-o", str(out), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        state = out / "state.jsonl"
        while run.poll() is None and not (state.exists() and state.stat().st_size > 10_000):
            time.sleep(0.02)
        os.kill(run.pid, signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL
    assert sorted(p.name for p in out.iterdir()) == ["state.jsonl"]
    assert main(["audit", str(llama), "-o", str(out), "--resume", *options]) == 0
    assert main(["audit", str(llama), "-o", str(whole), *options]) == 0
    for name in ("needle", "needle_query", "completion", "completion_query"):
        assert results.equal(results.load(out / f"{name}.nc"), results.load(whole / f"{name}.nc"))
