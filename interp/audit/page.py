"""The audit's page: one HTML file with all its charts and tables, light or dark, asking for nothing else."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import xarray as xr

from interp import stats
from interp.audit import wording
from interp.audit.chart import Interval, Line, intervals_chart, line_chart
from interp.audit.style import STYLE
from interp.audit.wording import interval, number, p_value

__all__ = ["page"]

_TITLES = {"needle": "Needle test", "completion": "Completion test", "recall": "Recall test"}


def page(
    found: Mapping[str, xr.Dataset],
    *,
    title: str,
    beside: Mapping[str, xr.Dataset] | None = None,
    files: Sequence[str] = (),
    notice: str = "",
) -> str:
    """Return the page.

    Parameters
    ----------
    found : mapping of str to Dataset
        Results by name: tests, and their target × query tables as ``{test}_query``.
    title : str
        Its heading.
    beside : mapping of str to Dataset, optional
        Published needle results to show beside them.
    files : sequence of str
        Paths to link, relative to the page.
    notice : str
        What was not written and how to get it.
    """
    tests = {name: dataset for name, dataset in found.items() if not name.endswith("_query")}
    parts = [f"<header><h1>{_text(title)}</h1>{_verdicts(tests)}</header>"]
    overview = _beside(tests, beside or {})
    if not beside:
        parts.append(overview)  # several published models: all at a glance, then one by one
    for name, dataset in tests.items():
        section = _series if "p_8" in dataset else _section
        parts.append(section(name, dataset, found.get(f"{name}_query")))
    if beside:
        parts.append(overview)
    parts += [_files(files, notice), _provenance(tests)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{_text(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main></body></html>\n"
    )


def _verdicts(tests: Mapping[str, xr.Dataset]) -> str:
    lines = []
    for name, dataset in tests.items():
        if "p_8" in dataset:
            text = f"P(8) and P(32) have period {dataset.attrs['period'] or 'none'} in the docstring's length"
        else:
            text = wording.verdict(dataset)
        lines.append(f"<p><strong>{_text(_title(name))}:</strong> {_text(text)}.</p>")
    return f'<div class="verdict" role="note">{"".join(lines)}</div>'


def _title(name: str) -> str:
    return _TITLES.get(name, name)


# --------------------------------------------------------------------------- one test


def _section(name: str, sweep: xr.Dataset, crossed: xr.Dataset | None) -> str:
    a = sweep.attrs
    parts = [f'<section aria-label="{_text(_title(name))}"><h2>{_text(_title(name))}</h2>']
    parts.append(f"<p>{_text(_what(a))}</p>")
    parts.append(_tiles(a))
    parts.append(_accuracy_figure(name, sweep))
    parts.append('<div class="columns">' + _phase_table(sweep) + _placebo_table(sweep) + "</div>")
    if crossed is not None:
        parts.append(_crossing(crossed))
    said = wording.notes(sweep)
    parts.append('<ul class="notes">' + "".join(f"<li>{_text(line)}</li>" for line in said) + "</ul>")
    parts.append(_residue_table(sweep))
    return "".join(parts) + "</section>"


def _what(a: Mapping[str, object]) -> str:
    if "published" in a:
        return f"{a['task']}. {a['n_per_residue']} prompts per residue, position mod {a['modulus']}."
    settings = wording.settings(a)
    what = {
        "needle": f"{settings.get('n_records')} records, one of which is asked for",
        "completion": "The type named before a docstring is to be repeated",
        "recall": f"{settings.get('n_records')} key-value pairs, one of which is asked for",
    }[str(a["test"])]
    return (
        f"{what}; {a['prompt_tokens']} tokens a prompt. {a['n_per_residue']} prompts at each of "
        f"{a['modulus']} residues, query phase {a['query_phase']}. The target's position is counted "
        f"at {wording.position_text(a)}."
    )


def _tiles(a: Mapping[str, float]) -> str:
    gap = f"{number(a['gap_pp'])} pp"
    tiles = [
        ("mean accuracy", f"{number(100 * a['mean_accuracy'])}%", ""),
        ("phase gap", gap, f"95% {interval(a['gap_pp_low'], a['gap_pp_high'])}"),
        ("gap by chance", f"{number(a['null_gap_pp'])} pp", p_value(a["gap_p"])),
        ("residue gap", f"{number(a['gap_residue_pp'])} pp", f"over {a['modulus']} residues"),
        ("worst phase", str(a["worst_phase"]) if a["gap_pp"] else "–", f"of 0 to {int(a['stride']) - 1}"),
        (
            "period",
            stats.period_label(a),
            "; ".join(filter(None, [p_value(a["period_p"]), wording.period_rest(a)])),
        ),
        (
            "would have been seen",
            f"{number(a['detectable_gap_pp'])} pp",
            f"with {number(100 * a['power'], 0)}% power",
        ),
    ]
    cells = "".join(
        f"<div><dt>{_text(label)}</dt><dd>{_text(value)}<small>{_text(more)}</small></dd></div>"
        for label, value, more in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _accuracy_figure(name: str, sweep: xr.Dataset) -> str:
    a = sweep.attrs
    y, low, high = ((100 * sweep[f"accuracy_residue{end}"].values).tolist() for end in ("", "_low", "_high"))
    line = Line(str(a["model"]), [int(r) for r in sweep["residue"].values], y, low, high)
    best, worst = int(np.argmax(y)), int(np.argmin(y))
    label = (
        f"Accuracy by residue: from {number(y[worst])}% at residue {worst} to {number(y[best])}% at residue "
        f"{best}. The table of residues has every number."
    )
    stride = 0 if a["placebo"] else int(a["stride"])
    chart = line_chart(
        [line], cycle=stride, label=label, y_title="accuracy (%)",
        x_title=f"target position mod {a['modulus']} (residue)",
    )  # fmt: skip
    shading = " Every other cycle of phases is shaded; darker columns are boundary phases." if stride else ""
    return (
        f"<figure>{chart}<figcaption>{_text(_title(name))}: accuracy by residue with Wilson 95% intervals."
        f"{shading}</figcaption></figure>"
    )


def _phase_table(sweep: xr.Dataset) -> str:
    rows = []
    for i, phase in enumerate(sweep["phase"].values):
        mark = "worst" if int(phase) == sweep.attrs["worst_phase"] and sweep.attrs["gap_pp"] else ""
        low, high = (100 * float(sweep[f"accuracy_{end}"][i]) for end in ("low", "high"))
        rows.append([str(phase), number(100 * float(sweep["accuracy"][i])), interval(low, high), mark])
    head = ("phase", "accuracy (%)", "95% interval", "")
    table = _table(f"By phase (target position mod {sweep.attrs['stride']})", head, rows)
    if not any(row[2] == "undefined" for row in rows):
        return table
    return f'<div>{table}<p class="small">Undefined: too few prompts, or all answers agree.</p></div>'


def _placebo_table(sweep: xr.Dataset) -> str:
    a = sweep.attrs
    kind = "placebo" if a["placebo"] else "stride"
    rows = [[f"{a['stride']} ({kind})", number(a["gap_pp"]), number(a["null_gap_pp"]), _p(a["gap_p"])]]
    for i, stride in enumerate(sweep["placebo_stride"].values):
        gap, null, p = (float(sweep[f"placebo_{x}"][i]) for x in ("gap_pp", "null_pp", "p"))
        rows.append([f"{stride} (placebo)", number(gap), number(null), _p(p)])
    head = ("counted mod", "gap (pp)", "by chance (pp)", "p")
    text = "Placebo strides are balanced jointly with the stride: their gaps should be chance."
    if not sweep.sizes["placebo_stride"]:
        text = f"No placebo stride is balanced jointly with {a['stride']} over {a['modulus']} residues."
    return f'<div>{_table("Stride and placebo strides", head, rows)}<p class="small">{_text(text)}</p></div>'


def _p(p: float) -> str:
    return p_value(p).removeprefix("p = ").removeprefix("p ")


def _residue_table(sweep: xr.Dataset) -> str:
    stride = int(sweep.attrs["stride"])
    rows = []
    for i, residue in enumerate(sweep["residue"].values):
        y, low, high = (100 * float(sweep[f"accuracy_residue{end}"][i]) for end in ("", "_low", "_high"))
        rows.append([str(residue), str(residue % stride), number(y), interval(low, high)])
    head = ("residue", "phase", "accuracy (%)", "Wilson 95% interval")
    return f"<details><summary>Every residue</summary>{_table('By residue', head, rows)}</details>"


# --------------------------------------------------------------------------- target × query


def _crossing(crossed: xr.Dataset) -> str:
    a = crossed.attrs
    table = 100 * crossed["accuracy"].values
    phases, queries = crossed["phase"].values, crossed["query_phase"].values
    head = ["query phase", *(f"target {p}" for p in phases), "mean"]
    lines = []
    for i, query in enumerate(queries):
        cells = "".join(_shaded(value) for value in table[i])
        lines.append(f'<tr><th scope="row">{query}</th>{cells}<td>{number(table[i].mean())}</td></tr>')
    means = "".join(f"<td>{number(value)}</td>" for value in table.mean(axis=0))
    lines.append(f'<tr class="total"><th scope="row">mean</th>{means}<td>{number(table.mean())}</td></tr>')
    rows = [
        [name, number(a[f"{key}_gap_pp"]), number(a[f"{key}_null_pp"]), _p(a[f"{key}_p"]), _share(a, key)]
        for name, key in (("target's phase", "target"), ("query's phase", "query"))
    ]
    rows.append(["the two together", "", "", "", _share(a, "interaction")])
    split = _table(
        "How much each explains", ("", "gap (pp)", "by chance (pp)", "p", "share of what varies (%)"), rows
    )
    text = " ".join(wording.cross_lines(crossed))
    return (
        "<h3>Target phase or query phase</h3>"
        f"<p>{_text(text)} {a['n_per_residue']} base prompts were shown at every query phase: "
        "(q+1) mod the stride, how full the open window is.</p>"
        + _raw_table("Accuracy (%) by target phase and query phase", head, lines, "heat")
        + split
    )


def _shaded(value: float) -> str:
    return f'<td style="--v:{value:.0f}%">{number(value)}</td>'


def _share(a: Mapping[str, float], key: str) -> str:
    return number(100 * a[f"share_{key}"], 0)


# --------------------------------------------------------------------------- published series


def _series(name: str, data: xr.Dataset, _crossed: xr.Dataset | None) -> str:
    a = data.attrs
    x = [int(v) for v in data["length"].values]
    named = {"P(8)": "p_8", "P(32)": "p_32"}
    lines = [Line(label, x, (100 * data[key].values).tolist()) for label, key in named.items()]
    period = int(a["period"])
    chart = line_chart(
        lines, cycle=period, shade_last=False, y_title="probability (%)",
        x_title="tokens of the docstring",
        label="P(8) and P(32) by the length of the docstring; the table has every number.",
    )  # fmt: skip
    rows = [
        [label, str(a[f"{key}_period"] or "none"), _p(a[f"{key}_period_p"])] for label, key in named.items()
    ]
    tables = _table("Period in the length", ("", "period", "p"), rows)
    if period:
        by = [
            [str(k), *(number(100 * float(data[f"{key}_phase"][k])) for key in named.values())]
            for k in range(period)
        ]
        by.append(["gap (pp)", *(number(a[f"{key}_gap_pp"]) for key in named.values())])
        tables += _table(f"Mean by length mod {period} (%)", ("length mod", *named), by)
    every = [[str(length), *(number(float(line.y[i])) for line in lines)] for i, length in enumerate(x)]
    details = _table("By length (%)", ("length", *named), every)
    return (
        f'<section aria-label="{_text(_title(name))}"><h2>{_text(_title(name))}: {_text(a["model"])}</h2>'
        f"<p>{_text(a['task'])}.</p><figure>{chart}<figcaption>Every other cycle of {period or 'no'} "
        f'tokens is shaded.</figcaption></figure><div class="columns">{tables}</div>'
        f"<details><summary>Every length</summary>{details}</details></section>"
    )


# --------------------------------------------------------------------------- beside, files, provenance


def _beside(tests: Mapping[str, xr.Dataset], beside: Mapping[str, xr.Dataset]) -> str:
    own = {_row_name(name, d): d for name, d in tests.items() if "gap_pp" in d.attrs}
    shown = {**own, **beside}
    if len(shown) < 2:
        return ""
    rows, intervals = [], []
    for name, dataset in shown.items():
        a = dataset.attrs
        stride = f"{a['stride']}{' (placebo)' if a['placebo'] else ''}"
        rows.append(
            [
                name, stride, number(100 * a["mean_accuracy"]), str(a["worst_phase"]), number(a["gap_pp"]),
                interval(a["gap_pp_low"], a["gap_pp_high"]), number(a["gap_residue_pp"]),
                stats.period_label(a),
            ]
        )  # fmt: skip
        emphasis = name in own and bool(beside)
        intervals.append(Interval(name, a["gap_pp"], a["gap_pp_low"], a["gap_pp_high"], emphasis))
    label = "Phase gaps with 95% intervals; the table below has every number."
    chart = intervals_chart(intervals, x_title="phase gap (pp)", label=label)
    head = (
        "", "stride", "mean (%)", "worst phase", "phase gap (pp)", "95% interval", "residue gap (pp)",
        "period",
    )  # fmt: skip
    title, source = ("All models", "") if not beside else ("Beside published models", "")
    if beside:
        a = next(iter(beside.values())).attrs
        source = f"<p>Published: {_text(a['task'])}. Prompts taken as independent. {_text(a['source'])}</p>"
    return (
        f'<section aria-label="{title}"><h2>{title}</h2><figure>{chart}<figcaption>Best minus worst phase, '
        f"with 95% intervals.</figcaption></figure>{_table('Gaps and periods', head, rows)}{source}</section>"
    )


def _row_name(name: str, dataset: xr.Dataset) -> str:
    return name if "published" in dataset.attrs else f"{dataset.attrs['model']}, {name}"


def _files(files: Sequence[str], notice: str) -> str:
    links = "".join(f'<li><a href="{_text(f)}">{_text(f)}</a></li>' for f in files)
    note = f"<p>{_text(notice)}</p>" if notice else ""
    listed = f'<ul class="files">{links}</ul>' if links else ""
    return f'<section aria-label="Files"><h2>Files</h2>{note}{listed}</section>' if links or note else ""


def _provenance(tests: Mapping[str, xr.Dataset]) -> str:
    shown = dict.fromkeys(key for dataset in tests.values() for key in dataset.attrs)
    parts = []
    for name, dataset in tests.items():
        rows = [(key, _value(dataset.attrs[key])) for key in shown if key in dataset.attrs]
        parts.append(
            f"<details><summary>{_text(_title(name))}</summary>"
            f"{_table('', ('what', 'value'), rows, 'wide')}</details>"
        )
    return f'<section aria-label="Provenance"><h2>Where the numbers come from</h2>{"".join(parts)}</section>'


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in rest)
        lines.append(f'<tr><th scope="row">{_text(first)}</th>{cells}</tr>')
    return _raw_table(caption, head, lines, kind)


def _raw_table(caption: str, head: Sequence[str], lines: Sequence[str], kind: str = "") -> str:
    top = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in head)
    named = f"<caption>{_text(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}">{named}<thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _text(value: object) -> str:
    return html.escape(str(value))
