"""The conditions that conftest promises really hold."""

from __future__ import annotations

import inspect
import os
import re
import socket
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from hooks import attention, compressor, numerics, softmax
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


@check_shapes
def halve(
    values: Float[Tensor, "batch pos"], times: int = 1, *, flat: bool = False
) -> Float[Tensor, "batch pos"]:
    return values.flatten() if flat else values / 2**times


@check_shapes
@dataclass
class Pair:
    one: Float[Tensor, "batch pos"]
    other: Float[Tensor, " pos"] | None = None


def test_shapes_are_checked_and_plain_annotations_are_not():
    wrong: Any = "1"
    assert halve(torch.ones(2, 3), times=True).shape == (2, 3)
    for call in (
        lambda: halve(torch.ones(3)),
        lambda: halve(torch.ones(2, 3).long()),
        lambda: halve(torch.ones(2, 3), flat=True),  # what is returned
        lambda: Pair(torch.ones(2)),
        lambda: Pair(torch.ones(2, 3), torch.ones(2)),  # "pos" is one length within a call
    ):
        with pytest.raises(Exception, match="pos"):
            call()
    Pair(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(TypeError, match="unsupported operand"):
        halve(torch.ones(2, 3), wrong)


def test_a_function_without_shapes_is_left_as_it_is():
    def plain(values: list[int], other: Any = None) -> Tensor:
        return torch.tensor(values)

    assert check_shapes(plain) is plain


def test_every_function_of_ours_that_names_a_shape_is_checked():
    text = re.compile(r"\b(Bool|Float|Int|Int64|Shaped|UInt8)\[")
    found = [
        (function, any(text.search(str(hint)) for hint in function.__annotations__.values()))
        for module in (attention, compressor, numerics, softmax)
        for holder in (module, *(one for one in vars(module).values() if isinstance(one, type)))
        for function in vars(holder).values()
        if inspect.isfunction(function) and function.__module__ == module.__name__
    ]
    assert {hasattr(function, "__wrapped__") for function, shaped in found if shaped} == {True}
    assert sum(shaped for _, shaped in found) > 10
    with pytest.raises(Exception, match="Float"):
        numerics.rotate(*(torch.ones(1) for _ in inspect.signature(numerics.rotate).parameters))


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
