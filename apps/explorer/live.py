"""Live runs: models of this session alone, results kept by model hash and arguments, progress and a stop.

A model belongs to one browser session, so that no intervention is ever seen by another one. Keys are
strings, never tensors.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

import streamlit as st

from apps.explorer.folder import model_folder, model_names
from apps.explorer.state import asked_runs, choice, keep_run, root_folder
from apps.explorer.words import failed, plain
from hooks.errors import PhaselensError

__all__ = ["asked", "begin", "chosen_model", "model", "named", "run", "sources"]

MAX_RESULTS = 24
MAX_MODELS = 3
MOMENT_S = 0.5
_STOP_PRESSED = "stop was pressed"
_stopping: ContextVar[bool] = ContextVar("stopping", default=False)
T = TypeVar("T")


def sources() -> dict[str, str]:
    """Models that can be run, by key: those of the zoo, and saved ones under the folder."""
    from hooks.checkpoint import zoo

    root = root_folder()
    found = {f"zoo:{name}": name for name in zoo()}
    local = model_names(root) if root.is_dir() else []
    return found | {f"folder:{name}": f"{name} (this folder)" for name in local}


def named(key: str) -> str:
    """A model as the command line names it, in the folder that the explorer was opened on."""
    kind, _, name = key.partition(":")
    return name if kind == "zoo" else f"./{name}"


def chosen_model(label: str = "Model", default: str = "zoo:w8s8-2kv") -> tuple[str, Any] | None:
    """Let the user choose a model, and load it; None, with the reason on the page, if that fails."""
    names = sources()
    if not names:
        st.info("No model is bundled and none is in this folder. Make one with: `phaselens train tiny`")
        return None
    key = choice(
        label,
        "model",
        list(names),
        default=default,
        names=names,
        lacking="neither bundled nor in this folder",
    )
    try:
        return key, model(key)
    except PhaselensError as error:
        failed(error, "Choose another model, or save this one again.")
        return None


def model(key: str) -> Any:
    """Load a model once a session.

    Raises
    ------
    PhaselensError
        If it is not among :func:`sources`, too large, or damaged.
    """
    loaded: OrderedDict[str, Any] = st.session_state.setdefault("loaded models", OrderedDict())
    if key not in loaded:
        kind, _, name = key.partition(":")
        if key not in sources():
            raise PhaselensError(f"no model {key!r} here")
        with st.spinner(f"Loading {plain(name)}"):
            import hooks

            loaded[key] = hooks.load(name if kind == "zoo" else model_folder(root_folder(), name))
        while len(loaded) > MAX_MODELS:
            loaded.popitem(last=False)
    loaded.move_to_end(key)
    return loaded[key]


def asked(button: str, key: str, what: str, hooked: Any, arguments: Mapping[str, Any]) -> bool:
    """Draw the button of a run that waits to be asked for, and tell whether it was.

    It was if the button is pressed, if its result is kept, or if a link asks for it: ``run`` in the address
    names every run that is shown, and loses it when settings change.

    Parameters
    ----------
    button : str
        What the button says.
    key : str
        Of the button; without ``run-`` the name in the address.
    what, hooked, arguments
        As for :func:`run`.
    """
    name, run_key = key.removeprefix("run-"), _key(what, hooked, arguments)
    settings: dict[str, str] = st.session_state.setdefault("asked with", {})
    pressed = st.button(button, key=key, type="primary", on_click=_allow, args=(run_key,))
    linked = name in asked_runs() and settings.get(name, run_key) == run_key
    if pressed or linked or run_key in _store():
        settings[name] = run_key
        keep_run(name, True)
        return True
    settings.pop(name, None)
    keep_run(name, False)
    st.caption("Nothing has been run with these settings yet.")
    return False


def run(what: str, hooked: Any, arguments: Mapping[str, Any], work: Callable[[], T]) -> T | None:
    """Run `work` unless its result is kept, with the passes made so far and a button that stops it on the page.

    What was stopped, or failed, is not begun again until the settings change or its button is pressed; a stop holds
    for all that is behind it on the page.

    Parameters
    ----------
    what : str
        What is measured, for the key and the progress line.
    hooked : HookedModel
        Its content hash is part of the key; its forward passes are counted.
    arguments : mapping
        Everything else that decides the result.
    work : function
        Computes it.

    Returns
    -------
    object or None
        None, with the reason on the page, if it failed or was stopped.
    """
    store, key = _store(), _key(what, hooked, arguments)
    if key in store:
        store.move_to_end(key)
        return store[key]
    if _stopping.get():
        _ended().setdefault(key, "")
    if key in _ended():
        _told(what, key)
        return None
    place = st.empty()
    with place.container():
        line, button = st.empty(), st.empty()
    passes, started, offered = 0, time.monotonic(), False

    def tick(*_: Any) -> None:
        """Count a pass; writing to the page is also where Streamlit ends a run that was stopped."""
        nonlocal passes, offered
        passes += 1
        elapsed = time.monotonic() - started
        line.caption(f"Running {plain(what)}: {passes} passes, {elapsed:.0f} s")
        if not offered and elapsed >= MOMENT_S:  # a button that is gone at once would only flicker
            offered = True
            button.button("Stop", key=_widget("stop", key), on_click=_stop, args=(key,))

    try:
        line.caption(f"Running {plain(what)} …")
        # Streamlit draws a page anew before the last drawing has ended, and what that changed in the model is
        # undone only then.
        with st.session_state.setdefault("one run at a time", threading.Lock()):
            counter = hooked.register_forward_pre_hook(tick)
            try:
                store[key] = store[key] if key in store else work()
            finally:
                counter.remove()
    except PhaselensError as error:
        _ended()[key] = str(error)
    finally:
        place.empty()
    if key in _ended():
        _told(what, key)
        return None
    while len(store) > MAX_RESULTS:
        store.popitem(last=False)
    return store[key]


def begin() -> None:
    """Start to draw a page; right after a stop nothing that is measured begins on it."""
    _stopping.set(bool(st.session_state.pop(_STOP_PRESSED, False)))


def _stop(key: str) -> None:
    _ended()[key] = ""
    st.session_state[_STOP_PRESSED] = True


def _allow(key: str) -> None:
    _ended().pop(key, None)


def _ended() -> dict[str, str]:
    """Runs that ended without a result: what went wrong by key, or "" where one was stopped."""
    return st.session_state.setdefault("ended runs", {})


def _told(what: str, key: str) -> None:
    """Say why a run has no result, and offer it again."""
    if error := _ended()[key]:
        failed(f"{what}: {error}")
    else:
        st.info(plain(f"Stopped. Not measured: {what}."))
    st.button("Run it again", key=_widget("again", key), on_click=_allow, args=(key,))


def _widget(kind: str, key: str) -> str:
    """Key of a button: two runs on a page may measure the same with other arguments."""
    return f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _store() -> OrderedDict[str, Any]:
    return st.session_state.setdefault("live results", OrderedDict())


def _key(what: str, hooked: Any, arguments: Mapping[str, Any]) -> str:
    return json.dumps([what, hooked.content_hash(), arguments], sort_keys=True)
