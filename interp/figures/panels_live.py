"""Panels that are measured now, on one model; the same measurements and builders as the explorer's charts."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import xarray as xr

from interp.figures.change_views import REPLACED, before_and_after, direct_and_total, takes_over_map
from interp.figures.gates_plane import effective_offsets
from interp.figures.panel_kinds import Kind, Setting, View
from interp.figures.patch_maps import patch_by_place, patching_map
from interp.figures.prompt_views import attention_over_entries, sharpest, target_by_shift, token_windows

__all__ = ["LIVE"]

_MEMORY = 1 << 26
_KINDS = ("kv_head", "head", "layer")
_PARTS = (*_KINDS, "mlp", "position", "entry")
_N = Setting(key="n", title="Prompts a residue", default=("6",), whole=True)
_KIND = Setting(key="kind", title="Units", choices=_KINDS, default=("kv_head",))
_REPLACE = Setting(key="replace", title="Replaced by its", choices=tuple(REPLACED), default=("mean",))
_PROMPT = Setting(key="prompt", title="Prompt", default=("0",), whole=True)


def _task(view: View) -> Any:
    from interp.tasks import RecallTask

    return RecallTask.for_model(view.model)


def _stride(view: View) -> int:
    from interp.phases import measured_stride

    return measured_stride(view.model, _task(view))


def _labels(view: View) -> tuple[str, ...]:
    """Units of the kind that is asked for."""
    from interp.units import units

    kind = (view.panel.given.get("kind") or _KIND.default)[0]
    return tuple(one.label for one in units(view.model, kind if kind in _KINDS else _KIND.default[0]))


# ---- removing, patching ------------------------------------------------------------------------------------


def _removed(view: View) -> go.Figure:
    from interp.knockout import knockout

    task, kind, only, replace = _task(view), view.one("kind"), list(view.many("units")), view.one("replace")
    options: Any = {"unit": kind, "replace": replace, "sets": [only], "n": view.whole("n") * task.modulus}
    found = view.run(
        "removal", view.model, {"kind": kind, "only": only, "replace": replace, "blocks": view.whole("n")},
        lambda: knockout(view.model, task, **options, memory=_MEMORY, progress=False),
    )  # fmt: skip
    return before_and_after(found, theme=view.theme)


def _removed_settings(view: View) -> tuple[Setting, ...]:
    labels = _labels(view)
    chosen = Setting(key="units", title="Removed together", choices=labels, default=labels[:1], many=True)
    return (_KIND, chosen, _REPLACE, _N)


def _patching(view: View) -> go.Figure:
    from interp.patching import patch

    task, kind, shift, phase = _task(view), view.one("kind"), view.whole("shift"), view.one("phase")
    options: Any = {"unit": kind, "shift": shift, "n": view.whole("n") * task.modulus}
    found = view.run(
        "patching", view.model, {"unit": kind, "shift": shift, "blocks": view.whole("n")},
        lambda: patch(view.model, task, **options, memory=_MEMORY, progress=False),
    )  # fmt: skip
    if phase is None or phase == "all":
        return patching_map(found, theme=view.theme)
    return patch_by_place(found, phase=int(phase), theme=view.theme)


def _patching_settings(view: View) -> tuple[Setting, ...]:
    phases = tuple(map(str, range(_stride(view))))
    there = any(name.endswith("attn.hook_entry_k") for name in view.model.site_names())
    return (
        Setting(
            key="kind",
            title="What is patched",
            choices=_PARTS if there else _PARTS[:-1],
            default=("position",),
        ),
        Setting(key="shift", title="Shift (tokens)", choices=phases[1:], default=phases[1:2]),
        Setting(key="phase", title="Phase of the target", choices=("all", *phases), default=("all",)),
        _N,
    )


def _direct(view: View) -> go.Figure:
    from interp.paths import direct_effects

    task, kind = _task(view), view.one("kind")
    options: Any = {"unit": kind, "n": view.whole("n") * task.modulus}
    found = view.run(
        "direct and total effects", view.model, {"kind": kind, "blocks": view.whole("n")},
        lambda: direct_effects(view.model, task, **options, memory=_MEMORY, progress=False),
    )  # fmt: skip
    return direct_and_total(found, view.one("unit"), theme=view.theme)


def _direct_settings(view: View) -> tuple[Setting, ...]:
    return (_KIND, Setting(key="unit", title="Unit (empty: the largest loss)", choices=_labels(view)), _N)


def _takes_over(view: View) -> go.Figure:
    from interp.backup import takes_over

    task, gone, kind, replace = _task(view), view.one("unit"), view.one("kind"), view.one("replace")
    options: Any = {"gone": gone, "unit": kind, "replace": replace, "seed": view.whole("seed")}
    blocks = view.whole("n")
    found = view.run(
        "what takes over", view.model, options | {"blocks": blocks},
        lambda: takes_over(
            view.model, task, **options, n=blocks * task.modulus, memory=_MEMORY, progress=False
        ),
    )  # fmt: skip
    return takes_over_map(found, theme=view.theme)


def _takes_over_settings(view: View) -> tuple[Setting, ...]:
    labels = _labels(view)
    return (
        _KIND,
        Setting(key="unit", title="Unit that is gone", choices=labels, default=labels[:1]),
        _REPLACE,
        Setting(key="n", title="Prompts a residue", default=("8",), whole=True),
        Setting(key="seed", title="Seed of the prompts", default=("0",), whole=True),
    )


# ---- gates -------------------------------------------------------------------------------------------------


def _offsets(view: View) -> go.Figure:
    from interp.follow import changed_gates
    from interp.gates import gate_profile

    task, gates = _task(view), view.one("gates") or "trained"

    def work() -> xr.Dataset:
        with changed_gates(view.model, gates, task) as changed:
            return gate_profile(changed, task, n=task.modulus, progress=False)

    arguments: dict[str, Any] = {"blocks": 1, "seed": 0} | ({} if gates == "trained" else {"gates": gates})
    return effective_offsets(view.run("gate profiles", view.model, arguments, work), theme=view.theme)


# ---- one prompt --------------------------------------------------------------------------------------------


def _followed(view: View) -> xr.Dataset:
    from interp.follow import changed_gates, follow

    task, prompt, gates = _task(view), view.whole("prompt"), view.one("gates") or "trained"

    def work() -> xr.Dataset:
        with changed_gates(view.model, gates, task) as changed:
            return follow(changed, task, prompt=prompt)

    return view.run("follow", view.model, {"prompt": prompt, "gates": gates}, work)


def _unit_and_residue(view: View, found: xr.Dataset) -> tuple[str, int]:
    from interp.follow import shifted

    return view.one("unit") or sharpest(found), shifted(found, view.whole("shift"))


def _attention(view: View) -> go.Figure:
    found = _followed(view)
    unit, residue = _unit_and_residue(view, found)
    return attention_over_entries(found, unit, residue=residue, theme=view.theme)


def _windows(view: View) -> go.Figure:
    found, token = _followed(view), view.one("token")
    unit, residue = _unit_and_residue(view, found)
    return token_windows(
        found, unit, residue=residue, branch=view.one("branch") or "key",
        token=None if token is None else int(token), theme=view.theme,
    )  # fmt: skip


def _by_shift(view: View) -> go.Figure:
    found = _followed(view)
    unit, _ = _unit_and_residue(view, found)
    return target_by_shift(found, unit, chosen=view.whole("shift"), theme=view.theme)


def _gates_of(view: View) -> Setting:
    from interp.follow import gate_changes

    gates = tuple(gate_changes(view.model, _stride(view)))
    return Setting(key="gates", title="Gates", choices=gates, default=gates[:1])


def _prompt_settings(view: View) -> tuple[Setting, ...]:
    from interp.follow import followed_units

    shifts, gated = tuple(map(str, range(_stride(view)))), tuple(followed_units(view.model))
    return (
        Setting(key="unit", title="KV head (empty: the sharpest key gate)", choices=gated),
        Setting(key="shift", title="Shift of the target (tokens)", choices=shifts, default=("0",)),
        _gates_of(view),
        _PROMPT,
    )


def _windows_settings(view: View) -> tuple[Setting, ...]:
    positions = tuple(map(str, range(_task(view).length)))
    return (
        *_prompt_settings(view),
        Setting(key="branch", title="Gates of", choices=("key", "value"), default=("key",)),
        Setting(key="token", title="Token that is outlined (empty: the target)", choices=positions),
    )


LIVE = {
    "removed": Kind("Before and after units are removed", _removed, "model", _removed_settings),
    "patching": Kind("Patching map, measured now", _patching, "model", _patching_settings),
    "direct": Kind("Direct and total effect of a unit", _direct, "model", _direct_settings),
    "takes-over": Kind("What takes over when a unit is gone", _takes_over, "model", _takes_over_settings),
    "offsets-live": Kind(
        "Static and per-window offsets, measured now",
        _offsets,
        "gates of a model",
        lambda view: (_gates_of(view),),
    ),
    "attention": Kind("Attention over entries, one prompt", _attention, "gates of a model", _prompt_settings),
    "windows": Kind("Tokens in their windows, one prompt", _windows, "gates of a model", _windows_settings),
    "shift": Kind("Target by shift, one prompt", _by_shift, "gates of a model", _prompt_settings),
}
