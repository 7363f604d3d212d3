"""Figures as files: PDF, SVG, PNG, HTML without a network, and the data as CSV beside them."""

from __future__ import annotations

import csv
import hashlib
import html
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from interp.figures.base import FigureError, layout_of
from interp.figures.browser import RENDERED, render_many
from interp.results import atomic_path, to_csv

__all__ = ["FORMATS", "Exported", "export", "export_many", "figure_csv", "figure_rows", "to_html"]

FORMATS = (*RENDERED, "html", "csv")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes
    ----------
    files : tuple of Path
        Every file written, each whole.
    notice : str
        One line saying what was not written and how to get it; empty if nothing is missing.
    """

    files: tuple[Path, ...]
    notice: str = ""


def export(
    figure: go.Figure,
    stem: str | os.PathLike[str],
    formats: Sequence[str] = FORMATS,
    *,
    data: pd.DataFrame | xr.Dataset | None = None,
    timeout_s: float = 60.0,
) -> Exported:
    """Write one figure as ``stem.pdf``, ``.svg``, ``.png``, ``.html`` and its data as ``stem.csv``.

    See :func:`export_many`, which is faster for several.
    """
    tables = None if data is None else {stem: data}
    return export_many({stem: figure}, formats, data=tables, timeout_s=timeout_s)


def export_many(
    figures: Mapping[str | os.PathLike[str], go.Figure],
    formats: Sequence[str] = FORMATS,
    *,
    data: Mapping[str | os.PathLike[str], pd.DataFrame | xr.Dataset] | None = None,
    timeout_s: float = 60.0,
) -> Exported:
    """Write figures, all rendered in one browser session; every file appears whole or not at all.

    HTML and CSV are written first and need no browser. If PDF, SVG or PNG cannot be rendered for want of a
    working browser, the rest stands and ``notice`` names the fix.

    Parameters
    ----------
    figures : mapping of path to Figure
        The path without a suffix; its folder must exist.
    formats : sequence of str
        Of ``pdf svg png html csv``; the CSV is always written.
    data : mapping of path to DataFrame or Dataset, optional
        Data to write instead of what the figure's traces carry, by the same path.
    timeout_s : float
        Limit for the browser session.

    Raises
    ------
    FigureError
        If a format is unknown.
    CheckpointError
        If a folder cannot be written.
    """
    wrong = [f for f in formats if f not in FORMATS]
    if wrong:
        raise FigureError(f"format {wrong[0]!r} is not known; valid: {', '.join(FORMATS)}")
    files: list[Path] = []
    for stem, figure in figures.items():
        if "html" in formats:
            files.append(_write(_named(stem, "html"), to_html(figure).encode()))
        files.append(_write_table(_named(stem, "csv"), figure, (data or {}).get(stem)))
    wanted = [f for f in formats if f in RENDERED]
    try:
        rendered = render_many(list(figures.values()), wanted, timeout_s=timeout_s)
    except FigureError as error:
        return Exported(tuple(files), f"no {', '.join(f.upper() for f in wanted)}: {error}")
    for stem, by_format in zip(figures, rendered, strict=True):
        files += [_write(_named(stem, suffix), content) for suffix, content in by_format.items()]
    return Exported(tuple(files))


def to_html(figure: go.Figure) -> str:
    """One page with the figure, its caption, alternative text and all scripts inside.

    A content security policy forbids every request, so opening it never touches a network. The same figure
    gives the same page.
    """
    layout = layout_of(figure)
    meta, font = layout["meta"], layout.get("font", {})
    name = "figure-" + hashlib.sha256((figure.to_json() or "").encode()).hexdigest()[:12]
    body = figure.to_html(
        full_html=False,
        include_plotlyjs=True,
        include_mathjax=False,
        div_id=name,
        default_width=f"{layout['width']}px",
        default_height=f"{layout['height']}px",
        config={"displaylogo": False, "showTips": False},
    )
    caption = html.escape(meta.get("caption", ""))
    style = (
        f"body{{margin:16px;background:{layout.get('paper_bgcolor', '#FFF')};"
        f"color:{font.get('color', '#000')};font:14px/1.5 {font.get('family', 'sans-serif')}}}"
        "figure{margin:0}figcaption{max-width:60em}"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{caption[:80] or 'figure'}</title><style>{style}</style></head><body>"
        f'<figure role="group" aria-label="{html.escape(meta.get("alt", ""))}">{body}'
        f"<figcaption>{caption}</figcaption></figure></body></html>\n"
    )


def figure_rows(figure: go.Figure) -> tuple[list[str], list[list[Any]]]:
    """Return the data that a figure's traces carry: column names and rows.

    Builders name the columns of a trace's ``customdata`` in its ``meta["columns"]``; traces without them only
    decorate. In a figure of several panels the first column is the panel.
    """
    plain = json.loads(str(figure.to_json()))["data"]
    traces = [t for t in plain if t.get("meta", {}).get("columns")]
    columns = list(dict.fromkeys(name for t in traces for name in t["meta"]["columns"]))
    panels = any("panel" in t["meta"] for t in traces)
    rows = []
    for trace in traces:
        for values in trace["customdata"]:
            given = dict(zip(trace["meta"]["columns"], values, strict=True))
            rows.append(
                ([trace["meta"].get("panel", "")] if panels else []) + [given.get(c) for c in columns]
            )
    return (["panel"] if panels else []) + columns, rows


def figure_csv(figure: go.Figure) -> str:
    """The data that a figure's traces carry as CSV: booleans are 0 and 1, undefined values empty."""
    columns, rows = figure_rows(figure)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([int(v) if isinstance(v, bool) else v for v in row] for row in rows)
    return out.getvalue()


def _write_table(path: Path, figure: go.Figure, data: pd.DataFrame | xr.Dataset | None) -> Path:
    if isinstance(data, xr.Dataset):
        return to_csv(data, path)
    with atomic_path(path) as temporary:
        if isinstance(data, pd.DataFrame):
            flags = {name: int for name in data.columns if data[name].dtype == bool}
            data.astype(flags).to_csv(temporary, index=False, lineterminator="\n")
        else:
            temporary.write_text(figure_csv(figure), encoding="utf-8", newline="")
    return path


def _write(path: Path, content: bytes) -> Path:
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    return path


def _named(stem: str | os.PathLike[str], suffix: str) -> Path:
    """`stem` with a suffix; a dot within the stem, as in "head1.0", is not a suffix."""
    return Path(f"{os.fspath(stem)}.{suffix}")
