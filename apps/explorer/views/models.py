"""Models: the zoo, the reports of the folder and published results on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import streamlit as st
import xarray as xr

from apps.explorer import live
from apps.explorer.folder import report_names
from apps.explorer.parts import figure, heading, period_told, report, table, worst_told
from apps.explorer.state import choices, on_paper, root_folder, screen_theme
from interp.figures import accuracy_by_residue
from interp.published import load_published
from interp.published.sweeps import published_sweeps

LIVE_PER_RESIDUE = 12


def page() -> None:
    """Draw the page."""
    heading(
        "Models side by side",
        "Accuracy by residue of reports in this folder, of published results, and of bundled models that are "
        "measured here and now.",
    )
    options = _options()
    reports = [key for key in options if key.startswith("report:")]
    published = [key for key in options if key.startswith("published:")]
    chosen = choices("Models", "models", list(options), default=reports[:3] or published[:2], names=options)
    sweeps = {options[key]: sweep for key in chosen if (sweep := _sweep(key)) is not None}
    if not chosen:
        st.info("Choose at least one model in the list above.")
    by_query = {name: sweep for name, sweep in sweeps.items() if sweep.attrs.get("axis") == "query"}
    for phase, part in (
        ("phase", {name: sweep for name, sweep in sweeps.items() if name not in by_query}),
        ("query phase", by_query),
    ):
        if part:  # the phase of the target and that of the query are two axes, never drawn as one
            if by_query:
                st.subheader(
                    f"By {phase} of the target" if phase == "phase" else f"By {phase}, (q + 1) mod S"
                )
            drawn = accuracy_by_residue(part, theme=screen_theme(190), height_mm=80)
            paper = _on_paper([key for key in chosen if options[key] in part])
            figure(drawn, f"accuracy-of-models{'' if phase == 'phase' else '-by-query-phase'}", paper=paper)
            table([_row(name, sweep, phase) for name, sweep in part.items()])
    _zoo()
    _published()


def _on_paper(keys: Sequence[str]) -> dict[str, str]:
    """These models as a panel: a list for each place that they are from."""
    saved = {
        setting: [key.partition(":")[2] for key in keys if key.startswith(f"{kind}:")]
        for setting, kind in (("reports", "report"), ("published", "published"))
    }
    others = [live.named(key) for key in keys if key in live.sources()]
    return on_paper("models", {**saved, "live": others})


def _options() -> dict[str, str]:
    root = root_folder()
    names = report_names(root) if root.is_dir() else []
    found = {f"report:{name}": "this folder" if name == "." else name for name in names}
    found |= {f"published:{name}": f"{name} (published)" for name in published_sweeps()}
    return found | {key: f"{shown} (live)" for key, shown in live.sources().items()}


def _sweep(key: str) -> xr.Dataset | None:
    kind, _, name = key.partition(":")
    if kind == "report":
        return (report(name) or {}).get("sweep")
    if kind == "published":
        return published_sweeps()[name]
    hooked = live.model(key)
    arguments: dict[str, Any] = {"n_per_residue": LIVE_PER_RESIDUE, "seed": 0}

    def work() -> xr.Dataset:
        from interp import phase_sweep

        return phase_sweep(hooked, **arguments, memory=1 << 26, progress=False)

    return live.run(f"sweep of {name}", hooked, arguments, work)


def _row(name: str, sweep: xr.Dataset, phase: str = "phase") -> dict[str, Any]:
    a = sweep.attrs
    return {
        "model": name,
        "mean (%)": 100 * float(sweep["accuracy_residue"].mean()),
        f"worst {phase}": worst_told(a),
        "at it (%)": 100 * float(sweep["accuracy"].min()),
        "gap (pp)": float(a["gap_pp"]),
        "null gap (pp)": float(a.get("null_gap_pp", np.nan)),
        "period": period_told(a),
        "prompts a residue" if phase == "phase" else "base prompts": str(a.get("n_per_residue", "–")),
    }


def _zoo() -> None:
    from hooks.checkpoint import zoo, zoo_info

    st.header("Bundled models")
    rows = []
    for name in zoo():
        info = zoo_info(name)
        by_phase = [float(v) for v in info.get("accuracy_by_phase", [])]
        rows.append(
            {
                "model": name,
                "accuracy by phase (%)": " ".join(f"{v:.0f}" for v in by_phase) or "–",
                "gap (pp)": max(by_phase) - min(by_phase) if by_phase else float("nan"),
                "seeds trained": str(len(info.get("seeds", []))),
            }
        )
    table(rows)
    st.caption("As recorded when each was trained. `phaselens zoo NAME` prints the command that made it.")


def _published() -> None:
    published = load_published("controlled_runs")
    st.header("Published runs")
    with st.expander("Controlled pretraining: mean and worst accuracy, and gap by residue, of every run"):
        table(
            [
                {
                    "run": run["name"], "mean (%)": float(run["mean"]), "worst (%)": float(run["worst"]),
                    "gap (pp)": float(run["gap_pp"]),
                }
                for run in published["runs"]
            ]
        )  # fmt: skip
        st.caption(str(published["source"]))
