"""Panels that are drawn from saved and published results."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go
import xarray as xr

from interp.figures.accuracy import accuracy_by_residue
from interp.figures.base import FigureError
from interp.figures.change_views import target_by_query
from interp.figures.completion import completion_by_length
from interp.figures.cycling import cycling_figure
from interp.figures.gate_units import gates_beside, pairable
from interp.figures.gates_plane import effective_offsets
from interp.figures.heatmap import effect_heatmap
from interp.figures.panel_kinds import Kind, Setting, View
from interp.figures.patch_maps import patch_by_place, patching_map
from interp.figures.profiles import gate_profiles
from interp.outputs import as_word

__all__ = ["SAVED", "audit_figure"]

LIVE_PER_RESIDUE = 12


def audit_figure(found: xr.Dataset, view: View) -> go.Figure:
    """Draw whatever curve or map one result of an audit holds.

    Raises
    ------
    FigureError
        If it holds none.
    """
    there, theme = set(map(str, found.variables)), view.theme
    if {"accuracy_residue", "accuracy_residue_low"} <= there:
        return accuracy_by_residue(found, theme=theme)
    if {"p_8", "p_32", "length"} <= there:
        return completion_by_length(
            {name: found[name].values for name in ("p_8", "p_32")}, [int(n) for n in found["length"].values],
            cycle=int(found.attrs.get("period", 0)), caption=str(found.attrs.get("task", "")), theme=theme,
        )  # fmt: skip
    if "query_phase" in there:
        return target_by_query(found, theme=theme)
    raise FigureError(f"an audit result without a curve to draw; it holds {', '.join(sorted(there)[:6])}")


def _knockout(view: View) -> go.Figure:
    across = view.one("across")
    return effect_heatmap(
        view.found["knockout"], view.found.get("specialization"),
        axis="residue" if across == "residue" else "phase", theme=view.theme,
    )  # fmt: skip


def _across(view: View) -> tuple[Setting, ...]:
    return (Setting(key="across", title="Across", choices=("phase", "residue"), default=("phase",)),)


def _gates(view: View) -> go.Figure:
    """Gate profiles of the chosen units, or of the two that cost most."""
    gates, units = view.found["gates"], list(view.many("units") or view.units)
    knockout = pairable(gates, view.found.get("knockout"))
    gated = [str(u) for u in gates["unit"].values]
    if not units and knockout is not None:
        loss = knockout["effect"].min("phase").fillna(0.0).to_series().sort_values(kind="stable")
        units = [u for u in map(str, loss.index) if gates_beside(knockout, u, gated)][:2]
    return gate_profiles(gates, knockout, units or gated[:2], theme=view.theme)


def _gate_units(view: View) -> tuple[Setting, ...]:
    gates = view.found["gates"]
    knockout = pairable(gates, view.found.get("knockout"))
    gated = [str(u) for u in gates["unit"].values]
    if knockout is not None:
        gated = [u for u in map(str, knockout["unit"].values) if gates_beside(knockout, u, gated)]
    return (
        Setting(key="units", title="Units (empty: the two that cost most)", choices=tuple(gated), many=True),
    )


def _patch(view: View) -> go.Figure:
    found, phase = view.found["patch"], view.one("phase")
    if phase in (None, "all"):
        return patching_map(found, theme=view.theme)
    return patch_by_place(found, phase=int(phase or 0), theme=view.theme)


def _patch_phase(view: View) -> tuple[Setting, ...]:
    found = view.found["patch"]
    if found.attrs.get("unit_kind") not in ("position", "entry"):
        return ()  # phases are its columns
    phases = ("all", *(str(int(phase)) for phase in found["phase"].values))
    return (Setting(key="phase", title="Phase of the target", choices=phases, default=("all",)),)


def _models(view: View) -> go.Figure:
    """Accuracy of several models on one axis: reports, published ones, and models that are measured now."""
    named: dict[str, xr.Dataset] = {}
    for name in view.many("reports"):
        found = view.sources.report(name)
        if "sweep" not in found:
            raise FigureError(
                f"report {name!r} has no sweep.nc; make it with: phaselens sweep MODEL -o {as_word(name)}"
            )
        named["this folder" if name == "." else name] = found["sweep"]
    named |= {f"{name} (published)": _published()[name] for name in view.many("published")}
    named |= {f"{name} (live)": _measured(view, name) for name in view.many("live")}
    if not named:
        raise FigureError("panel 'models' has no model; give reports=DIR+DIR, published=NAME or live=MODEL")
    return accuracy_by_residue(named, theme=view.theme)


def _measured(view: View, name: str) -> xr.Dataset:
    from interp.sweep import phase_sweep

    model = view.sources.load(name)
    arguments = {"n_per_residue": LIVE_PER_RESIDUE, "seed": 0}
    return view.run(
        f"sweep of {name}", model, arguments,
        lambda: phase_sweep(model, n_per_residue=LIVE_PER_RESIDUE, seed=0, memory=1 << 26, progress=False),
    )  # fmt: skip


def _model_choices(view: View) -> tuple[Setting, ...]:
    s, published = view.sources, tuple(_published())
    shown_anyway = not view.panel.given and s.reports is not None  # nothing is added to what was asked for
    reports = (s.reports or ())[:3] if shown_anyway else ()
    others = published[:2] if shown_anyway and not reports else ()
    return (
        Setting(key="reports", title="Reports", choices=s.reports, default=reports, many=True),
        Setting(
            key="published",
            title="Published",
            choices=published,
            default=others,
            many=True,
        ),
        Setting(key="live", title="Measured now", choices=s.models, many=True),
    )


def _audit(view: View) -> go.Figure:
    name = view.one("result")
    if name is None:
        raise FigureError("panel 'audit' has no result; give result=FILE, e.g. result=reports/audit/needle")
    return audit_figure(view.sources.audit(name), view)


def _audits(view: View) -> tuple[Setting, ...]:
    names = view.sources.audits
    return (Setting(key="result", title="Audit result", choices=names, default=(names or ())[:1]),)


def _published() -> Mapping[str, xr.Dataset]:
    from interp.published.sweeps import published_sweeps

    return published_sweeps()


def _needle(view: View) -> go.Figure:
    return accuracy_by_residue({name: _published()[name] for name in view.many("models")}, theme=view.theme)


def _needle_models(view: View) -> tuple[Setting, ...]:
    names = tuple(_published())
    return (Setting(key="models", title="Models", choices=names, default=names[:2], many=True),)


def _completion(view: View) -> go.Figure:
    from interp.published import load_published

    found, length = load_published("completion_fp8"), view.one("length")
    return completion_by_length(
        found, [int(n) for n in found["filler_tokens"]], cycle=4, caption=f"{found['task']}.",
        chosen=None if length is None else int(length), theme=view.theme,
    )  # fmt: skip


def _lengths(view: View) -> tuple[Setting, ...]:
    from interp.published import load_published

    lengths = tuple(str(int(n)) for n in load_published("completion_fp8")["filler_tokens"])
    return (Setting(key="length", title="Filler length that is marked", choices=lengths),)


SAVED = {
    "accuracy": Kind(
        "Accuracy by residue",
        lambda view: accuracy_by_residue(view.found["sweep"], theme=view.theme),
        "sweep",
    ),
    "knockout": Kind("Knockout effect, unit × phase or residue", _knockout, "knockout", _across),
    "gates": Kind("Gate profiles over knockout profiles", _gates, "gates", _gate_units),
    "offsets": Kind(
        "Static and per-window offsets",
        lambda view: effective_offsets(view.found["gates"], theme=view.theme),
        "gates",
    ),
    "cycling": Kind(
        "Effect of cycled gates",
        lambda view: cycling_figure(view.found["cycling"], theme=view.theme),
        "cycling",
    ),
    "patch": Kind("Patching map", _patch, "patch", _patch_phase),
    "query": Kind(
        "Target × query phase",
        lambda view: target_by_query(view.found["sweep"], theme=view.theme),
        "query sweep",
    ),
    "needle": Kind("Needle in 128K tokens (published)", _needle, settings=_needle_models),
    "completion": Kind("Completion by filler length (published)", _completion, settings=_lengths),
    "models": Kind("Accuracy of several models", _models, "sources", _model_choices),
    "audit": Kind("One result of an audit", _audit, "sources", _audits),
}
