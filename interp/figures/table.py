"""Results as tables for the terminal, readable at 80 columns; undefined numbers are "–", with a footnote."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xarray as xr
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from interp.figures.base import number, require, unit_order
from interp.figures.chance import untested
from interp.figures.gate_units import gate_unit
from interp.specialization import arcs_text, unserved
from interp.stats import MIN_CLEAN_CORRECT, SIGNIFICANCE, period_label

__all__ = [
    "control_table",
    "effect_table",
    "gate_table",
    "patch_table",
    "report_table",
    "show",
    "sweep_table",
    "unit_table",
]

_MOST_UNITS = 24
_WIDEST_EFFECTS = 12  # phases that fit beside the units at 80 columns


def report_table(
    sweep: xr.Dataset,
    knockout: xr.Dataset,
    specialization: xr.Dataset,
    gates: xr.Dataset | None = None,
    branches: xr.Dataset | None = None,
) -> Group:
    """Return the main job's tables: accuracy by phase, then what each unit serves.

    Parameters
    ----------
    sweep, knockout, specialization, gates, branches : Dataset
        Results of the measurements; gates add the phases at which key and value gates peak, branches a table of
        what the gap becomes without a layer, its window, its entries or its picks.

    Returns
    -------
    rich.console.Group
        Two tables with their footnotes.

    Raises
    ------
    FigureError
        If one lacks its variables.
    """
    tables = [sweep_table(sweep), unit_table(knockout, specialization, gates)]
    if branches is not None:
        tables.append(_branch_table(branches))
    return Group(tables[0], *(part for table in tables[1:] for part in (Text(), table)))


def _branch_table(found: xr.Dataset) -> RenderableType:
    from interp.branches import BRANCH_HEAD, branch_rows

    table = _table([BRANCH_HEAD[0], BRANCH_HEAD[1], "accuracy (pp)", *BRANCH_HEAD[3:]])
    table.columns[1].no_wrap = True
    for row, change in zip(branch_rows(found), found["effect_pp"].mean("phase").values, strict=True):
        table.add_row(*row[:2], number(float(change), sign=True), *row[3:])
    return _titled("Where the gap lives", table, ["Changes by phase are in branches.csv."], undefined="")


def show(name: str, dataset: xr.Dataset, console: Console | None = None) -> None:
    """Print a result as a table, whatever it is.

    Parameters
    ----------
    name : str
        Title of a result that has no table of its own.
    dataset : Dataset
        A result.
    console : rich.console.Console, optional
        Standard output if not given.
    """
    (console or Console()).print(_table_of(name, dataset))


def sweep_table(sweep: xr.Dataset) -> RenderableType:
    """Accuracy by phase with 95% intervals; the worst phase is marked, and the gap is below."""
    require(sweep, ["accuracy", "accuracy_low", "accuracy_high"], kind="phase_sweep")
    a = sweep.attrs
    by_query = a.get("axis") == "query"
    phase_name = "query phase" if by_query else "phase"
    table = _table([phase_name, "accuracy (%)", "95% interval", ""])
    accuracy, low, high = (
        100 * sweep[f"accuracy{end}"].values.astype(float) for end in ("", "_low", "_high")
    )
    for phase in range(len(accuracy)):
        mark = "worst" if phase == a.get("worst_phase") and np.ptp(accuracy) > 0 else ""
        table.add_row(str(phase), number(accuracy[phase], 1), _interval(low[phase], high[phase]), mark)
    lines = []
    if {"gap_pp", "null_gap_pp"} <= set(a):
        between = _interval(a.get("gap_pp_low", np.nan), a.get("gap_pp_high", np.nan))
        null = number(a["null_gap_pp"], 1)
        lines.append(
            f"{'Query gap' if by_query else 'Gap'} {number(a['gap_pp'], 1)} pp (95% {between}); {null} pp if phases meant nothing."
        )
    if by_query:
        lines.append("Query phase: (q + 1) mod S. Period: not tested, every target stays where it is.")
    elif "period" in a:
        period = period_label(a)
        weak = a["period"] and a.get("gap_pp", np.inf) <= a.get("null_gap_pp", 0.0) + 3
        doubt = " in log-probability; the gap itself is hardly more than chance gives" if weak else ""
        lines.append(f"Period found in the data: {period} (p {_p(float(a.get('period_p', np.nan)))}){doubt}.")
    title = f"Accuracy by {phase_name}{_of(sweep)}"
    defined = np.isfinite([accuracy, low, high]).all()
    return _titled(title, table, lines, undefined="" if defined else "all answers agree, or too few prompts")


def unit_table(
    knockout: xr.Dataset,
    specialization: xr.Dataset,
    gates: xr.Dataset | None = None,
) -> RenderableType:
    """Each unit: phases it serves, effect at its preferred phase (largest loss), p values, selectivity.

    Units that serve nothing and change nothing significantly are counted in the footnote, not listed.
    """
    require(knockout, ["effect"], kind="knockout")
    require(
        specialization,
        ["serves", "selectivity", "p_effect", "p_selective", "uncovered"],
        kind="specialization",
    )
    heads = ["unit", "serves", "largest loss", "p", "selectivity", "p (selective)"]
    labels = [str(u) for u in specialization["unit"].values]
    peaks = _peaks_beside(knockout, gates, labels)
    table = _table(heads + (["gate peaks"] if peaks else []))
    undefined, quiet = False, 0
    loss = float(specialization.attrs.get("min_loss", np.inf))
    for i in unit_order(labels):
        unit = specialization.isel(unit=i)
        effect = knockout["effect"].sel(unit=labels[i]).values.astype(float)
        p_effect, serves = unit["p_effect"].values.astype(float), unit["serves"].values.astype(bool)
        if (
            not serves.any()
            and not (p_effect < SIGNIFICANCE).any()
            and not np.nanmin(effect, initial=0) <= -loss
        ):
            quiet += 1
            continue
        worst = int(np.nanargmin(effect)) if np.isfinite(effect).any() else -1
        cells = [
            f"{number(effect[worst])}% at {worst}" if worst >= 0 else "–",
            _p(p_effect[worst]) if worst >= 0 else "–",
            number(float(unit["selectivity"]), 2),
            _p(float(unit["p_selective"])),
        ]
        undefined |= "–" in cells
        row = [labels[i], arcs_text(serves), *cells]
        table.add_row(
            *row, *([peaks.get(labels[i], "–")] if peaks else []), style="bold" if serves.any() else ""
        )
    uncovered, unknown = unserved(specialization)
    plural = "s" if uncovered.sum() > 1 else ""
    none = f"phase{plural} {arcs_text(uncovered)}" if uncovered.any() else "no phase"
    none = "every phase" if uncovered.all() else none
    none += f"; undefined at {arcs_text(unknown)}: too few answers are right there" if unknown.any() else ""
    why_not = (
        ""
        if specialization.attrs.get("tested_on") == "none"
        else untested(specialization["p_effect"], knockout)
    )
    lines = [why_not or f"Served by no unit: {none}."]
    if quiet:
        verbs = ("s serve", "change") if quiet > 1 else (" serves", "changes")
        lines.append(f"{quiet} more unit{verbs[0]} nothing and {verbs[1]} nothing significantly.")
    if peaks:
        whose = " of the KV head that a query head reads" if knockout.attrs.get("unit_kind") == "head" else ""
        lines.append(f"Gate peaks: the phase that the key gate / the value gate{whose} weighs most.")
    why = "serves no phase, no prompts, or too few clean answers right" if undefined else ""
    return _titled(f"What knocking out one unit does{_of(knockout)}", table, lines, undefined=why)


def effect_table(knockout: xr.Dataset) -> RenderableType:
    """Effect of each unit in percent of clean accuracy, by phase; the strongest alone beyond 12 phases."""
    require(knockout, ["effect"], kind="knockout")
    effect = knockout["effect"].transpose("unit", ...).values.astype(float)
    labels = [str(u) for u in knockout["unit"].values]
    stride = effect.shape[1]
    wide = stride <= _WIDEST_EFFECTS
    heads = ["unit", *map(str, range(stride))] if wide else ["unit", "largest loss", "largest gain"]
    table = _table(heads)
    for i in unit_order(labels):
        row = effect[i]
        if wide:
            table.add_row(labels[i], *(number(v) for v in row))
        elif np.isfinite(row).any():
            ends = int(np.nanargmin(row)), int(np.nanargmax(row))
            table.add_row(labels[i], *(f"{number(row[e])}% at {e}" for e in ends))
        else:
            table.add_row(labels[i], "–", "–")
    why = "" if np.isfinite(effect).all() else f"fewer than {MIN_CLEAN_CORRECT} clean answers right"
    return _titled(f"Effect of knocking out one unit, % by phase{_of(knockout)}", table, undefined=why)


def gate_table(gates: xr.Dataset) -> RenderableType:
    """Where each gate peaks, and its static and per-window effective number of offsets."""
    names = [
        f"{kind}_{branch}" for kind in ("profile", "static", "per_window") for branch in ("key", "value")
    ]
    require(gates, names, kind="gate_profile")
    window = f" (1 to W = {gates.attrs['window']})" if "window" in gates.attrs else ""
    heads = [
        "unit",
        "peaks (key / value)",
        "key static",
        "key per window",
        "value static",
        "value per window",
    ]
    table = _table(heads)
    labels = [str(u) for u in gates["unit"].values]
    peaks, undefined = _peaks(gates), False
    for i in unit_order(labels):
        cells = [
            number(float(gates[f"{kind}_{branch}"].values[i]), 2)
            for branch in ("key", "value")
            for kind in ("static", "per_window")
        ]
        undefined |= "–" in cells
        table.add_row(labels[i], peaks[labels[i]], *cells)
    why = "the layer has no such branch" if undefined else ""
    return _titled(f"Effective number of offsets{window}{_of(gates)}", table, undefined=why)


def patch_table(patched: xr.Dataset) -> RenderableType:
    """Change of the answer's log-probability by unit and phase; units with no change that counts are left out."""
    require(patched, ["effect_logprob"], kind="patch")
    effect = patched["effect_logprob"].transpose("unit", "phase").values.astype(float)
    p = (
        patched["effect_logprob_p"].transpose("unit", "phase").values
        if "effect_logprob_p" in patched
        else None
    )
    if (
        p is not None and not np.isfinite(p).any()
    ):  # too few prompts for a test: everything is shown, nothing marked
        p = None
    labels = [str(u) for u in patched["unit"].values]
    wide = effect.shape[1] <= _WIDEST_EFFECTS
    table = _table(["unit", *map(str, range(effect.shape[1]))] if wide else ["unit", "largest change"])
    shown = [i for i in range(len(labels)) if p is None or (p[i] < SIGNIFICANCE).any()]
    shown.sort(key=lambda i: -np.nanmax(np.abs(effect[i]), initial=0))
    for i in shown[:_MOST_UNITS]:
        marks = [
            "*" if p is not None and cell < SIGNIFICANCE else ""
            for cell in (p[i] if p is not None else effect[i])
        ]
        if wide:
            table.add_row(labels[i], *(number(v, 2) + m for v, m in zip(effect[i], marks, strict=True)))
        else:
            at = int(np.nanargmax(np.abs(effect[i])))
            table.add_row(labels[i], f"{number(effect[i, at], 2)} at {at}")
    tested = f"* p < {SIGNIFICANCE} after correction for units and phases."
    lines = [tested if p is not None else untested([], patched)]
    if len(shown) < len(labels):
        lines.append(f"{len(labels) - len(shown)} of {len(labels)} units change nothing significantly.")
    if len(shown) > _MOST_UNITS:
        lines.append(
            f"The {_MOST_UNITS} strongest of {len(shown)} are shown; the others are in the saved result."
        )
    answer = "source's answer" if patched.attrs.get("pairs") == "value" else "answer"
    return _titled(
        f"Change of log p({answer}) by patching one unit, nats by phase{_of(patched)}", table, lines
    )


def control_table(controls: xr.Dataset) -> RenderableType:
    """How far effects spread over phases, at the model's stride and where no spread can mean anything."""
    table = _table(["control", "largest spread (nats)", "bar", "units above"])
    for name in controls["control"].values:
        one = controls.sel(control=name)
        above = [str(u) for u, over in zip(one["unit"].values, one["exceeds"].values, strict=True) if over]
        listed = ", ".join(above[:6]) + (f" and {len(above) - 6} more" if len(above) > 6 else "")
        table.add_row(
            str(name),
            number(float(one["spread"].max()), 3),
            number(float(one["null_spread"].max()), 3),
            listed or ("none" if np.isfinite(one["spread"]).any() else "–"),
        )
    lines = ["Bar: 95% of permutations of phases within prompts stay below it, over all units at once."]
    if not any(str(name).startswith("placebo") for name in controls["control"].values):
        lines.append("No placebo stride: none that divides R is independent of the model's stride.")
    known = np.isfinite(controls["spread"]).any()
    return _titled(f"Controls{_of(controls)}", table, lines, undefined="" if known else "too few prompts")


# ---- parts -------------------------------------------------------------------------------------------------


def _table_of(name: str, dataset: xr.Dataset) -> RenderableType:
    from interp.figures import gate_tables, v41_tables  # they build on this module

    there = set(map(str, dataset.data_vars))
    if (of_gates := gate_tables.table_of(dataset)) is not None:  # first: they hold a sweep's variables, too
        return of_gates
    if {"accuracy", "accuracy_low", "accuracy_high"} <= there:
        return sweep_table(dataset)
    if {"serves", "loss", "selectivity", "p_effect", "p_selective", "uncovered"} <= there:
        effect = dataset.rename(loss="effect").assign(effect=-dataset["loss"].rename(None))
        return unit_table(effect[["effect"]], dataset)
    if "effect" in there and dataset["effect"].ndim == 2 and "unit" in dataset["effect"].dims:
        return effect_table(dataset)
    if {"profile_key", "static_key", "per_window_key"} <= there:
        return gate_table(dataset)
    if {"spread", "null_spread", "exceeds"} <= there:
        return control_table(dataset)
    if {"effect_logprob", "normalised", "difference"} <= there:
        return patch_table(dataset)
    if (found := v41_tables.table_of(dataset)) is not None:
        return found
    table = _table(["variable", "dims", "mean", "lowest", "highest"])
    for variable in dataset.data_vars.values():
        sizes = " × ".join(f"{d} {n}" for d, n in variable.sizes.items()) or "scalar"
        table.add_row(str(variable.name), sizes, *_summary(variable.values))
    return _titled(name, table)


def _summary(values: np.ndarray) -> list[str]:
    if values.dtype.kind not in "biuf" or not values.size or not np.isfinite(values).any():
        return ["–"] * 3
    finite = values[np.isfinite(values)].astype(float)
    return [f"{x:.4g}".replace("-", "−") for x in (finite.mean(), finite.min(), finite.max())]


def _peaks(gates: xr.Dataset) -> dict[str, str]:
    """Phase of the highest gate profile, key / value, by unit."""
    peaks = {}
    for i, unit in enumerate(gates["unit"].values):
        profiles = [
            gates[f"profile_{branch}"].transpose("unit", "phase").values[i] for branch in ("key", "value")
        ]
        peaks[str(unit)] = " / ".join(
            str(int(np.nanargmax(p))) if np.isfinite(p).any() else "–" for p in profiles
        )
    return peaks


def _peaks_beside(knockout: xr.Dataset, gates: xr.Dataset | None, labels: list[str]) -> dict[str, str]:
    """Peaks by knocked-out unit, for those that have a gate of their own or read one KV head's."""
    peaks = {} if gates is None else _peaks(gates)
    own = {label: gate_unit(knockout, label)[0] for label in labels}
    return {label: peaks[gate] for label, gate in own.items() if gate is not None and gate in peaks}


def _table(heads: Iterable[str]) -> Table:
    table = Table(header_style="", box=None, pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i == 0 else "right", no_wrap=i == 0)
    return table


def _titled(title: str, table: Table, lines: Iterable[str] = (), *, undefined: str = "") -> Group:
    """Title, table, notes; `undefined` says why a number is "–", empty if none is."""
    notes = [*lines, *([f"– undefined: {undefined}."] if undefined else [])]
    return Group(Text(title, style="bold"), table, *(Text(note, style="dim") for note in notes))


def _of(dataset: xr.Dataset) -> str:
    model = dataset.attrs.get("model", "")
    return f", {model}" if model else ""


def _interval(low: float, high: float) -> str:
    return f"{number(low, 1)} to {number(high, 1)}" if np.isfinite([low, high]).all() else "–"


def _p(value: float) -> str:
    if not np.isfinite(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
