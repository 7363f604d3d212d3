"""One unit in the model its results were measured on: attention for a prompt, and what takes over without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import streamlit as st
import xarray as xr

from apps.explorer import live
from apps.explorer.parts import figure
from apps.explorer.state import on_paper, screen_theme, whole_number
from apps.explorer.words import plain
from hooks.errors import PhaselensError
from interp.figures.change_views import REPLACED, takes_over_map

__all__ = ["look_inside"]

PER_RESIDUE = 8


@dataclass(frozen=True)
class _Run:
    """The model of a result, and the settings that the result was measured with."""

    key: str
    model: Any
    task: Any
    seed: int
    kind: str
    replace: str

    @property
    def own_prompts(self) -> bool:
        """Whether panels, which have the model's own task, show the same prompts."""
        from interp.tasks import RecallTask

        return self.task.padding == RecallTask.for_model(self.model).padding


def look_inside(unit: str, knockout: xr.Dataset) -> None:
    """Draw both, with the settings of the report; say on the page why one cannot be run."""
    try:
        run = _same_settings(knockout.attrs)
    except PhaselensError as error:
        st.info(plain(f"{error}."))
        return
    _attention(unit, knockout, run)
    _takes_over(unit, knockout.attrs, run)


def _same_settings(attrs: Mapping[str, Any]) -> _Run:
    """Find what these results were measured on and how; never another model or other prompts in their place."""
    if changed := attrs.get("altered"):
        raise PhaselensError(
            f"These results were measured on a changed model ({changed}), which is not run here"
        )
    key, model = _model_of(attrs)
    task = _task_of(attrs, model)
    seed = attrs.get("seed", 0)
    if not 0 <= seed < 2**63 or seed != int(seed):
        raise PhaselensError(f"These results have seed {seed}, with which nothing is run here")
    replace = str(attrs.get("replace", "mean"))
    if replace not in (*REPLACED, "masked"):
        raise PhaselensError(f"These results have units replaced by {replace!r}, which is not known here")
    return _Run(key, model, task, int(seed), str(attrs.get("unit_kind", "kv_head")), replace)


def _model_of(attrs: Mapping[str, Any]) -> tuple[str, Any]:
    """The model and its key, told by the hash of its weights among those of the same name."""
    name, wanted = str(attrs.get("model", "")), attrs.get("model_hash")
    for key in live.sources():
        if key.partition(":")[2].rpartition("/")[2] == name:
            found = live.model(key)
            if found.content_hash() == wanted:
                return key, found
    raise PhaselensError(
        f"The weights these results were measured on ({name}) are neither bundled nor in this folder. Put the "
        "model's folder beside the results, or make the report again"
    )


def _task_of(attrs: Mapping[str, Any], model: Any) -> Any:
    """The model's own recall task, if that is what the results say they were measured on."""
    from interp.tasks import RecallTask
    from interp.tasks.recall import Padding

    tasks = [RecallTask.for_model(model, padding=padding) for padding in get_args(Padding)]
    stored = str(attrs.get("task", ""))
    for task in tasks:
        if not stored or json.dumps(task.describe(), sort_keys=True) == stored:
            return task
    raise PhaselensError(
        "These results were measured on other prompts than the model's own recall task, and only that is run here"
    )


def _attention(unit: str, knockout: xr.Dataset, run: _Run) -> None:
    from interp.figures.gate_units import gate_unit, gates_beside
    from interp.figures.prompt_views import attention_over_entries
    from interp.follow import follow, shifted

    prompt = whole_number("Prompt", "prompt", 0, 99, default=0)
    followed = live.run(
        "follow", run.model, {"prompt": prompt, "padding": run.task.padding, "seed": run.seed},
        lambda: follow(run.model, run.task, prompt=prompt, seed=run.seed),
    )  # fmt: skip
    if followed is None:
        return
    known = knockout.assign_attrs(heads_per_kv=followed.attrs["heads_per_kv"])
    readers = gates_beside(known, unit, [str(u) for u in followed["unit"].values])
    if not readers:
        why = "" if run.kind in ("kv_head", "layer") else gate_unit(known, unit)[1]
        st.caption(
            plain(
                f"No attention over entries to show: {why or 'its layer reads what another one stores, or none'}."
            )
        )
    one = {"shift": 0, "gates": "trained", "prompt": prompt}
    for reader in readers:
        drawn = attention_over_entries(
            followed, reader, residue=shifted(followed, 0), theme=screen_theme(190)
        )
        paper = on_paper("attention", {"unit": reader, **one}, live=True, model=run.key)
        figure(drawn, f"attention-{reader}", paper=paper if run.own_prompts and not run.seed else None)


def _takes_over(unit: str, attrs: Mapping[str, Any], run: _Run) -> None:
    if "+" in unit:
        st.caption("What takes over is not measured for sets of units.")
        return
    replace: Any = "mean" if run.replace == "masked" else run.replace  # nothing is written where it masks
    at: Literal["final", "all"] = "all" if attrs.get("at") == "all" else "final"
    arguments = {
        "gone": unit, "unit": run.kind, "replace": run.replace, "at": at, "padding": run.task.padding,
        "seed": run.seed,
    }  # fmt: skip
    what = "what takes over"
    if not live.asked("Measure what takes over when it is gone", "backup", what, run.model, arguments):
        return

    def work() -> xr.Dataset:
        from interp.backup import takes_over

        return takes_over(
            run.model, run.task, gone=unit, unit=run.kind, replace=replace, at=at,
            n=PER_RESIDUE * run.task.modulus, seed=run.seed, progress=False,
        )  # fmt: skip

    found = live.run(what, run.model, arguments, work)
    if found is not None:
        given = {"kind": run.kind, "unit": unit, "replace": replace, "n": PER_RESIDUE, "seed": run.seed}
        paper = on_paper("takes-over", given, live=True, model=run.key)
        same = run.own_prompts and at == "final"
        drawn = takes_over_map(found, theme=screen_theme(150))
        figure(drawn, f"takes-over-{unit}", paper=paper if same else None)
