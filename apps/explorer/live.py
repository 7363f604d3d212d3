"""Live runs: models of this session alone, results kept by model hash and arguments, progress and a stop.

A model belongs to one browser session, so that no intervention is ever seen by another one. Keys are
strings, never tensors.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import streamlit as st

from apps.explorer.folder import model_folder, model_names
from apps.explorer.state import choice, root_folder
from apps.explorer.words import failed, plain
from hooks.errors import PhaselensError

__all__ = ["chosen_model", "kept", "model", "run", "sources"]

MAX_RESULTS = 24
MAX_MODELS = 3
T = TypeVar("T")


def sources() -> dict[str, str]:
    """Models that can be run, by key: those of the zoo, and saved ones under the folder."""
    from hooks.checkpoint import zoo

    root = root_folder()
    found = {f"zoo:{name}": name for name in zoo()}
    local = model_names(root) if root.is_dir() else []
    return found | {f"folder:{name}": f"{name} (this folder)" for name in local}


def chosen_model(label: str = "Model", default: str = "zoo:w8s8-2kv") -> tuple[str, Any] | None:
    """Let the user choose a model, and load it; None, with the reason on the page, if that fails."""
    names = sources()
    if not names:
        st.info("No model is bundled and none is in this folder. Make one with: `phaselens train tiny`")
        return None
    key = choice(label, "model", list(names), default=default, names=names)
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


def kept(what: str, hooked: Any, arguments: Mapping[str, Any]) -> Any | None:
    """The result of an earlier run of this session with the same model weights and arguments, if any."""
    return _store().get(_key(what, hooked, arguments))


def run(
    what: str, hooked: Any, arguments: Mapping[str, Any], work: Callable[[], T], *, stop: bool = False
) -> T | None:
    """Run `work` unless its result is kept, with the passes made so far on the page.

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
    stop : bool
        Offer a button that stops; any other widget stops as well.

    Returns
    -------
    object or None
        None, with the reason on the page, if it failed.
    """
    store, key = _store(), _key(what, hooked, arguments)
    if key in store:
        store.move_to_end(key)
        return store[key]
    place = st.empty()
    with place.container():
        line = st.empty()
        if stop:
            st.button("Stop", key=f"stop-{what}")
    passes, started = 0, time.monotonic()

    def tick(*_: Any) -> None:
        """Count a pass; writing to the page is also where Streamlit ends a run that was stopped."""
        nonlocal passes
        passes += 1
        line.caption(f"Running {plain(what)}: {passes} passes, {time.monotonic() - started:.0f} s")

    counter = hooked.register_forward_pre_hook(tick)
    try:
        line.caption(f"Running {plain(what)} …")
        store[key] = work()
    except PhaselensError as error:
        failed(f"{what}: {error}")
        return None
    finally:
        counter.remove()
        place.empty()
    while len(store) > MAX_RESULTS:
        store.popitem(last=False)
    return store[key]


def _store() -> OrderedDict[str, Any]:
    return st.session_state.setdefault("live results", OrderedDict())


def _key(what: str, hooked: Any, arguments: Mapping[str, Any]) -> str:
    return json.dumps([what, hooked.content_hash(), arguments], sort_keys=True)
