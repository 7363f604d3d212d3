"""Measurements of hooked models, phase by phase. Knows models only through :mod:`hooks.sites`.

Names load on first use, so that ``phaselens --help`` does not import torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.attribution import attribution as attribution
    from interp.audit import audit as audit
    from interp.controls import controls as controls
    from interp.gate_interventions import cycling as cycling
    from interp.gate_interventions import forced_gates as forced_gates
    from interp.gate_interventions import gate_parts as gate_parts
    from interp.gates import cycle_gates as cycle_gates
    from interp.gates import gate_profile as gate_profile
    from interp.greedy import smallest_set as smallest_set
    from interp.knockout import knockout as knockout
    from interp.patching import patch as patch
    from interp.paths import direct_effects as direct_effects
    from interp.paths import path_patch as path_patch
    from interp.query_phase import query_sweep as query_sweep
    from interp.reading import reading as reading
    from interp.reading import value_path as value_path
    from interp.specialization import specialization as specialization
    from interp.sweep import phase_sweep as phase_sweep
    from interp.tasks import CompletionTask as CompletionTask
    from interp.tasks import NeedleTask as NeedleTask
    from interp.tasks import Prompts as Prompts
    from interp.tasks import RecallTask as RecallTask

_HOME = {
    "CompletionTask": "tasks",
    "NeedleTask": "tasks",
    "Prompts": "tasks",
    "RecallTask": "tasks",
    "attribution": "attribution",
    "audit": "audit",
    "controls": "controls",
    "cycle_gates": "gates",
    "cycling": "gate_interventions",
    "direct_effects": "paths",
    "forced_gates": "gate_interventions",
    "gate_parts": "gate_interventions",
    "gate_profile": "gates",
    "knockout": "knockout",
    "patch": "patching",
    "path_patch": "paths",
    "phase_sweep": "sweep",
    "query_sweep": "query_phase",
    "reading": "reading",
    "smallest_set": "greedy",
    "specialization": "specialization",
    "value_path": "reading",
}

__all__ = sorted(_HOME)


class _Package(ModuleType):
    """A package whose verbs keep their names.

    Importing ``interp.knockout`` binds the module to the attribute ``knockout`` of this package, which
    would hide the verb of the same name; here the verb wins. ``from interp.knockout import …`` still works.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _HOME.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'interp' has no attribute {name!r}")
    return getattr(importlib.import_module(f"interp.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
