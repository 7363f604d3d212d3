"""The conditions that conftest promises really hold."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tests.conftest import NetworkBlocked, check_shapes

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "example.org"])
def test_no_test_leaves_this_machine(host):
    with pytest.raises(NetworkBlocked, match=host):
        socket.create_connection((host, 80), timeout=1)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as plain, pytest.raises(NetworkBlocked, match=host):
        plain.connect((host, 80))


def test_loopback_stays_open():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def test_shapes_are_checked_and_plain_annotations_are_not():
    def halve(values: Float[Tensor, "batch pos"], times: int = 1) -> Float[Tensor, "batch pos"]:
        return values / 2**times

    halve.__annotations__ = {
        "values": Float[Tensor, "batch pos"], "times": int, "return": Float[Tensor, "batch pos"],
    }  # fmt: skip
    checked = check_shapes(halve)
    assert checked(torch.ones(2, 3), times=True).shape == (2, 3)
    with pytest.raises(Exception, match="batch pos"):
        checked(torch.ones(3))


@pytest.mark.parametrize(("body", "code"), [("pytest.skip('why')", 1), ("assert True", 0)])
def test_a_skip_without_a_listed_reason_fails_the_run(tmp_path, body, code):
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_one.py").write_text(
        textwrap.dedent(f"""
        import pytest
        def test_one():
            {body}
        """)
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    assert ("SKIPPED WITHOUT A LISTED REASON" in done.stdout) == bool(code)
