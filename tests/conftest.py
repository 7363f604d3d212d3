"""Conditions every test runs under: no network, few threads, checked shapes, no silent skips."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import ipaddress
import os
import re
import socket
import sys
import types
import typing
from typing import Any

import jaxtyping
import pytest
from beartype import beartype
from jaxtyping import AbstractArray, AbstractDtype, install_import_hook, jaxtyped

# Before torch is imported anywhere: xdist workers share the cores, so each gets one thread.
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
    os.environ[variable] = "1"
os.environ["STREAMLIT_BROWSER_GATHER_USAGE_STATS"] = "false"

ALLOWED_SKIPS: dict[str, str] = {}
"""Tests that may be skipped or expected to fail: beginning of the node id → reason. Others fail the run."""


# --------------------------------------------------------------------------- shapes


def _names_a_shape(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray | AbstractDtype):
        return True
    return any(_names_a_shape(part) for part in typing.get_args(annotation))


def _shape(hint: Any, names: dict[str, Any]) -> Any:
    """Return an annotation, mostly still a text, as what it stands for if it names a shape, else None."""
    if isinstance(hint, str):
        if not any(_names_a_shape(names.get(word)) for word in re.findall(r"\w+", hint)):
            return None
        hint = eval(hint, names)
    return hint if _names_a_shape(hint) else None


def check_shapes(given: Any) -> Any:
    """Let beartype check the jaxtyping annotations of a function, or of what makes a dataclass, and only those.

    Plain annotations are for readers and pyright: wrong plain values are what many tests feed on purpose, and
    must meet the library's own one-line errors. A function without shapes is left as it is, and the arguments of
    the others are not bound once more: `jaxtyping.jaxtyped` does both to everything, which doubles the time of
    a pass through a small model.
    """
    if isinstance(given, type):
        if dataclasses.is_dataclass(given):
            given.__init__ = check_shapes(given.__init__)
        return given
    shapes = {name: _shape(hint, given.__globals__) for name, hint in given.__annotations__.items()}
    shapes = {name: shape for name, shape in shapes.items() if shape is not None}
    if not shapes:
        return given
    copy = types.FunctionType(
        given.__code__, given.__globals__, given.__name__, given.__defaults__, given.__closure__
    )
    copy.__kwdefaults__, copy.__annotations__ = given.__kwdefaults__, shapes
    checked = beartype(copy)

    @functools.wraps(given)
    def with_shapes(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return given(*args, **kwargs)
        with jaxtyped("context"):  # a name of an axis means one length within a call
            return checked(*args, **kwargs)

    return with_shapes


class _FirstOthers:
    """Imports the large libraries before the first of our modules.

    While one of ours is executed, jaxtyping's hook changes where bytecode is looked for, and with it for whatever
    that module imports first: torch would be compiled from its sources, which takes as long as ten tests.
    """

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] in ("hooks", "interp"):
            sys.meta_path.remove(self)
            for library in ("h5netcdf", "scipy.stats", "transformer_lens", "xarray"):
                importlib.import_module(library)


jaxtyping.jaxtyped = lambda *, typechecker: typechecker  # what the hook puts before each function and class
install_import_hook(["hooks", "interp"], "tests.conftest.check_shapes")
sys.meta_path.insert(0, _FirstOthers())


# --------------------------------------------------------------------------- network


class NetworkBlocked(RuntimeError):
    """Something tried to leave this machine; not an OSError, which libraries swallow and retry."""


def _is_local(family: int, address: Any) -> bool:
    if family not in (socket.AF_INET, socket.AF_INET6):
        return True
    host = address[0] if isinstance(address, tuple) else address
    if isinstance(host, bytes):
        host = host.decode()
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _block(name: str) -> None:
    original = getattr(socket.socket, name)

    def guarded(self: socket.socket, *args: Any) -> Any:
        address = args[-1]
        if not _is_local(self.family, address):
            raise NetworkBlocked(
                f"a test tried to reach {address!r}; only loopback and Unix sockets are open"
            )
        return original(self, *args)

    setattr(socket.socket, name, guarded)


for _name in ("connect", "connect_ex", "sendto"):
    _block(_name)

_getaddrinfo = socket.getaddrinfo


def _local_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else host
    if name not in (None, "", "localhost", "0.0.0.0", "::", socket.gethostname()) and not _is_local(
        socket.AF_INET, (name,)
    ):
        raise NetworkBlocked(f"a test tried to look up {name!r}; only loopback and Unix sockets are open")
    return _getaddrinfo(host, *args, **kwargs)


socket.getaddrinfo = _local_getaddrinfo


# --------------------------------------------------------------------------- skips


class _Skips:
    """Collects skipped and expectedly failing tests on the process that writes the summary."""

    def __init__(self) -> None:
        self.unlisted: list[str] = []

    def note(self, nodeid: str, skipped: bool) -> None:
        if skipped and not any(nodeid.startswith(allowed) for allowed in ALLOWED_SKIPS):
            self.unlisted.append(nodeid)


_skips = _Skips()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _skips.note(report.nodeid, report.skipped)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _skips.note(report.nodeid, report.skipped)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skips.unlisted and not hasattr(session.config, "workerinput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for nodeid in dict.fromkeys(_skips.unlisted):
        terminalreporter.write_line(
            f"SKIPPED WITHOUT A LISTED REASON {nodeid} (tests/conftest.py, ALLOWED_SKIPS)"
        )
