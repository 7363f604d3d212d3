"""The verb ``figures`` of the command line; nothing heavy is imported until it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from interp.cli_usage import refuse_idle

__all__ = ["figures"]

_OF_PANELS = ("width_mm", "font_pt", "columns", "units", "colours", "dark")


def figures(
    folder: Annotated[
        Path | None,
        Parameter(help="A folder with results, e.g. of phaselens report; may be left out with --panels."),
    ] = None,
    *,
    out: Annotated[
        Path | None, Parameter(name=["--out", "-o"], help="Where to; FOLDER/figures if left out.")
    ] = None,
    formats: Annotated[
        list[Literal["pdf", "svg", "html", "png", "csv"]] | None,
        Parameter(name=["--format", "-f"], help="One or several; all if left out. The data always go along."),
    ] = None,
    panels: Annotated[
        str | None,
        Parameter(
            help="One figure of panels a, b, c …, with commas between: accuracy, knockout, gates, offsets, "
            "cycling, patch, query, needle, completion, models, audit; with --live also removed, patching, direct, "
            "takes-over, offsets-live, attention, windows, shift. Settings follow a name as :KEY=VALUE+VALUE, e.g. "
            "knockout:across=residue, patch:phase=3, models:reports=DIR+DIR, audit:result=DIR/needle; a wrong "
            "one names those there are. Every figure by itself if left out."
        ),
    ] = None,
    live: Annotated[
        str | None,
        Parameter(help="With --panels: zoo name or folder of the model that live panels measure now."),
    ] = None,
    width_mm: Annotated[
        float, Parameter(help="With --panels: width of the figure; 85 for one column, 180 for two.")
    ] = 180.0,
    font_pt: Annotated[float, Parameter(help="With --panels: size of type.")] = 7.0,
    columns: Annotated[
        int | None,
        Parameter(help="With --panels: panels side by side; 2, or 1 where text needs it, if left out."),
    ] = None,
    units: Annotated[
        str | None, Parameter(help='With --panels: units of the panel "gates", with commas between.')
    ] = None,
    colours: Annotated[
        Literal["okabe-ito", "tol"],
        Parameter(help="With --panels: colours; losses are red, or orange, gains blue, or purple."),
    ] = "okabe-ito",
    dark: Annotated[bool, Parameter(help="With --panels: light ink on a dark ground.", negative=())] = False,
    json: Annotated[bool, Parameter(help="Print one JSON object instead of a table.", negative=())] = False,
) -> None:
    """Draw the figures of a results folder again, or one figure of several panels for a paper.

    Example: phaselens figures reports/w8s8-2kv --panels accuracy,knockout,gates --width-mm 180 -o paper

    Example: phaselens figures --live w8s8-2kv --panels windows:unit=1.0,removed:units=1.0 -o paper
    """
    _refuse_idle(locals())
    from interp import report as reporting
    from interp.cli_run import prepare, show_files
    from interp.figures.base import FigureError
    from interp.outputs import output_folder

    if panels is None:
        if folder is None or live is not None:
            raise FigureError(
                "no panel was chosen; name them with --panels, or give a folder alone to draw all its figures"
            )
        drawn = reporting.figures(reporting.load_results(folder))
    else:
        from interp.figures.panel_kinds import Sources
        from interp.figures.paper import Look, paper_figure

        look = Look(
            width_mm=width_mm, font_pt=font_pt, columns=columns, units=_words(units), colours=colours, dark=dark
        )  # fmt: skip
        found = {} if folder is None else reporting.load_results(folder)
        model = None if live is None else prepare(live, device="cpu")[0]
        drawn = {"figure": paper_figure(found, _words(panels), look, sources=Sources(model=model))}
    out = out or (Path("figures") if folder is None else folder / "figures")
    # A figure's table may have the name of a result's, and would take that run's place.
    if folder is not None and os.path.realpath(out) == os.path.realpath(folder):
        raise FigureError(
            f"-o {out} is the folder of the results; valid: another one, or leave -o out for {folder / 'figures'}"
        )
    with output_folder(out) as staging:
        written = reporting.draw(drawn, staging, formats=formats or reporting.FORMATS)
        names = [file.relative_to(staging) for file in written.files]
    show_files([out / name for name in names], as_json=json)
    if written.notice and not json:
        print(written.notice)


def _refuse_idle(given: dict[str, Any]) -> None:
    if given["panels"] is None and given["live"] is None:
        refuse_idle(
            figures, given, _OF_PANELS, why="every figure by itself is drawn in its own look",
            instead="leave it out, or choose --panels",
        )  # fmt: skip
    if "gates" not in {word.split(":")[0] for word in _words(given["panels"])}:
        refuse_idle(
            figures, given, ["units"], why="--panels has no panel gates", instead="leave it out, or add gates"
        )


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())
