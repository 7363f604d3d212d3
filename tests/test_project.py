"""What the project promises about itself: pinned versions, imports one way, commands that are there."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ALLOWED = {"hooks": {"hooks"}, "interp": {"interp", "hooks"}, "apps": {"apps", "interp", "hooks"}}


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=~ ]", requirement)[0].lower()


def test_every_direct_dependency_is_pinned_and_torch_to_2_13():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pins = dict(line.split("==") for line in lines)
    direct = PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]
    assert {name_of(r) for r in direct} <= set(pins)
    assert pins["torch"] == "2.13.0"


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_run_one_way(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}: a relative import"
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            own = {name.split(".")[0] for name in names} & set(ALLOWED)
            assert own <= ALLOWED[package], f"{file}:{node.lineno}"


def test_both_commands_install_under_the_constraints():
    makefile = (ROOT / "Makefile").read_text()
    installs = [line for line in makefile.splitlines() if "install" in line and "--editable" in line]
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in line for line in installs)


def test_ci_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("make test")


def test_the_readme_lists_every_verb():
    from interp.cli import app

    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(verb for verb in app if not verb.startswith("-"))
