"""One HTML page that shows a report's tables and figures and links its files; needs no network."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from interp.specialization import served_text
from interp.stats import period_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["page"]

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem;border-bottom:1px solid #8886;text-align:right}
th:first-child,td:first-child{text-align:left}
caption{text-align:left;font-weight:600}
.scroll{overflow-x:auto}
figure{margin:2rem 0;background:#fff;color:#1a1a1a;padding:1rem}
figure img{max-width:100%;width:40rem;height:auto}
"""


def page(
    found: Mapping[str, xr.Dataset],
    built: Mapping[str, go.Figure],
    *,
    files: Sequence[str],
    notice: str,
) -> str:
    """Return the page.

    Parameters
    ----------
    found : mapping of str to Dataset
        ``sweep``, and any of ``knockout``, ``specialization``, ``gates``, ``branches``.
    built : mapping of str to Figure
        The figures, by the name of their files in ``figures/``.
    files : sequence of str
        Paths to link, relative to the page.
    notice : str
        What was not written and how to get it; empty if nothing is missing.
    """
    attrs = found["sweep"].attrs
    title = f"{attrs['model']}, phase by phase"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(_summary(attrs))}</p>",
        f'<p role="note">{html.escape(notice)}</p>' if notice else "",
        _phase_table(found),
        _unit_table(found["specialization"]) if "specialization" in found else "",
        _branch_table(found["branches"]) if "branches" in found else "",
        *(_figure(name, figure, files) for name, figure in built.items()),
        "<h2>Files</h2>",
        "<ul>"
        + "".join(f'<li><a href="{html.escape(f)}">{html.escape(f)}</a></li>' for f in files)
        + "</ul>",
        "<h2>Where the numbers come from</h2>",
        _table("", ("what", "value"), [(name, str(value)) for name, value in attrs.items()]),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _summary(attrs: Mapping[str, Any]) -> str:
    gap, low, high, null = (_number(attrs[n]) for n in ("gap_pp", "gap_pp_low", "gap_pp_high", "null_gap_pp"))
    period = period_label(attrs)
    return (
        f"Gap {gap} pp (95% interval {low} to {high}) between the best phase and the worst, "
        f"{attrs['worst_phase']}; {null} pp with phases shuffled. "
        f"Period in the data: {period} (p = {_number(attrs['period_p'], 3)}). "
        f"Stride {attrs['stride']}, {attrs['n_per_residue']} prompts per residue, seed {attrs['seed']}."
    )


def _phase_table(found: Mapping[str, xr.Dataset]) -> str:
    sweep, served = found["sweep"], found.get("specialization")
    rows = []
    for i, phase in enumerate(sweep["phase"].values):
        low, high = (100 * float(sweep[f"accuracy_{end}"][i]) for end in ("low", "high"))
        row = [str(phase), _number(100 * float(sweep["accuracy"][i])), f"{_number(low)} – {_number(high)}"]
        if served is not None:
            units = served["unit"].values[served["serves"].sel(phase=phase).values]
            unknown = bool(served["loss"].sel(phase=phase).isnull().all())
            row.append(
                ", ".join(map(str, units)) or ("undefined (accuracy too low)" if unknown else "no unit")
            )
        rows.append(row)
    head = ["phase", "accuracy (%)", "95% interval"] + (["served by"] if served is not None else [])
    return _table("Accuracy by phase", head, rows)


def _unit_table(served: xr.Dataset) -> str:
    rows = []
    for i, unit in enumerate(served["unit"].values):
        loss = served["loss"][i].values
        worst = float(np.nanmax(loss)) if np.isfinite(loss).any() else math.nan
        rows.append(
            [
                str(unit),
                served_text(served["serves"][i].values, loss),
                _number(worst),
                _number(float(served["selectivity"][i]), 2),
                _number(float(served["p_selective"][i]), 3),
            ]
        )
    head = ("unit", "serves phases", "largest loss (%)", "selectivity", "p (selective)")
    return _table("What knocking out one unit does", head, rows)


def _branch_table(found: xr.Dataset) -> str:
    from interp.branches import BRANCH_HEAD, branch_rows

    clean = " ".join(_number(100 * float(v), 0) for v in found["clean_accuracy"].values)
    title = f"Where the gap lives: {found['correct'][0].size} prompts, intact accuracy (%) by phase {clean}"
    return _table(title, BRANCH_HEAD, branch_rows(found))


def _figure(name: str, figure: go.Figure, files: Sequence[str]) -> str:
    layout = figure.to_dict()["layout"]
    meta = layout.get("meta") or {}
    links = [f for f in files if f.rsplit(".", 1)[0] == f"figures/{name}"]
    picture = next((f for end in (".svg", ".png") for f in links if f.endswith(end)), None)
    interactive = next((f for f in links if f.endswith(".html")), None)
    shown = ""
    if picture:
        shown = f'<img src="{picture}" alt="{html.escape(meta.get("alt", name))}">'
    elif interactive:
        height = round(float(layout["height"])) + 120  # the caption's lines below the figure
        place = f'title="{html.escape(name)}" width="100%" height="{height}"'
        shown = f'<iframe src="{interactive}" {place}></iframe>'
    text = html.escape(meta.get("caption", ""))
    as_links = " ".join(f'<a href="{f}">{f.rsplit(".", 1)[1].upper()}</a>' for f in links)
    return f"<figure>{shown}<figcaption>{text} {as_links}</figcaption></figure>"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    named = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{named}<thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def _number(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "undefined"
