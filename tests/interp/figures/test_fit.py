"""Text of figures keeps inside, and off other text, at every size that the page and the verb offer."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from PIL import ImageFont

from interp.figures.base import FigureError, TooNarrow, weight
from interp.figures.browser import browser_path, render_many
from interp.figures.paper import Look, command, paper_figure
from interp.figures.point_names import Name, named_points
from interp.figures.text import text_width, wrapped
from interp.figures.theme import mm
from tests.apps.server import browser
from tests.interp.figures.test_cycling import result as cycled
from tests.interp.figures.test_paper import found

SETS = (
    ["accuracy", "gates", "offsets", "knockout"],
    ["knockout:across=residue", "needle", "completion"],
    ["cycling", "patch", "needle:models=DeepSeek-V4-Pro-Base+DeepSeek-V4.1-Flash", "knockout"],
)
_BOXES = """() => [...document.querySelectorAll('svg text')].filter(t => t.textContent.trim()).map(t => {
  const r = t.getBoundingClientRect();
  return [t.textContent, r.left, r.top, r.right, r.bottom];
})"""


def results() -> dict[str, Any]:
    return found() | {"cycling": cycled()}


def drawn(names: list[str], **look: Any) -> Any:
    """A figure, or None where one line says that its text has no room."""
    with contextlib.suppress(TooNarrow):
        return paper_figure(results(), names, **look)
    return None


def inked(box: list[Any]) -> tuple[float, float, float, float]:
    """A text's box without the room above and below its letters."""
    text, left, top, right, bottom = box
    upright = bottom - top > right - left and len(text) > 2
    across, down = (0.2 * (right - left), 0.5) if upright else (0.5, 0.2 * (bottom - top))
    return left + across, top + down, right - across, bottom - down


def faults(figure: Any, boxes: list[list[Any]], gaps: list[float]) -> list[str]:
    """What Chromium measures of the drawn text: outside of the figure, across a gap, over other text."""
    width, height = figure.layout.width, figure.layout.height
    wrong = [
        f"{b[0]!r} outside" for b in boxes if min(b[1], b[2], width - b[3], height - b[4]) < -0.6
    ] + [f"{b[0]!r} in the next panel" for b in boxes for gap in gaps if b[1] < gap < b[3]]  # fmt: skip
    for one, other in itertools.combinations(boxes, 2):
        a, b = inked(one), inked(other)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]:
            wrong.append(f"{one[0]!r} over {other[0]!r}")
    return wrong


def measured(cases: Sequence[tuple[list[str], float, float, int | None]]) -> dict[str, list[str]]:
    """Faults by case, of those that can be drawn."""
    made = [(case, drawn(case[0], width_mm=case[1], font_pt=case[2], columns=case[3])) for case in cases]
    figures = [(case, figure) for case, figure in made if figure is not None]
    rendered = render_many([figure for _, figure in figures], ["svg"], timeout_s=300)
    found_wrong = {}
    with browser() as started:
        page = started.new_page(viewport={"width": 900, "height": 2000})
        for ((names, width, font, columns), figure), made_of in zip(figures, rendered, strict=True):
            page.set_content(
                "<!DOCTYPE html><style>html,body{margin:0}svg{display:block}</style>"
                + made_of["svg"].decode()
            )
            count = min(columns or 1, len(names))
            slot = (mm(width) - mm(4) * (count - 1)) / count
            gaps = [(i + 1) * slot + (i + 0.5) * mm(4) for i in range(count - 1)]
            if wrong := faults(figure, page.evaluate(_BOXES), gaps):
                found_wrong[f"{names[0]} {width} mm {font} pt {columns} columns"] = wrong
    return found_wrong


@pytest.mark.slow
@pytest.mark.parametrize("names", SETS, ids=lambda names: names[0])
def test_no_text_leaves_its_panel_or_covers_another(names):
    cases = [
        (names, width, font, columns)
        for width, font in itertools.product((60, 85, 120, 180, 200), (5, 7, 9, 12))
        for columns in (None, 1, 2, 3)
    ]
    if browser_path() is None:  # without one nothing can be rendered, which test_export.py shows
        assert any(drawn(case[0], width_mm=case[1], font_pt=case[2], columns=case[3]) for case in cases)
        return
    assert measured(cases[:: 3 if len(names) > 3 else 2]) == {}


def test_two_figures_that_lost_text_keep_it():
    cases = [(SETS[0], 85, 9, None), (SETS[1], 180, 12, None)]
    if browser_path() is None:
        assert all(drawn(case[0], width_mm=case[1], font_pt=case[2]) for case in cases)
        return
    assert measured(cases) == {}


@pytest.mark.parametrize(("width", "font", "columns"), [(180, 7, 2), (200, 5, 2), (85, 9, 1), (60, 7, 1)])
def test_the_most_columns_that_fit_are_taken(width, font, columns):
    whole: Any = paper_figure(found(), SETS[0], width_mm=width, font_pt=font)
    letters = [note for note in whole.layout.annotations if note.text in {f"<b>{c}</b>" for c in "abcd"}]
    assert len({round(note.x, 3) for note in letters}) == columns


def test_columns_without_room_are_refused_and_what_fits_is_named():
    with pytest.raises(FigureError, match=r"^columns=4: .* too narrow for .*; columns=3 fits$"):
        paper_figure(found(), SETS[0], width_mm=120, columns=4)
    with pytest.raises(FigureError, match=r"too narrow .*; use a larger width_mm or a smaller font_pt"):
        paper_figure(found(), SETS[0], width_mm=20, columns=2)


def test_columns_left_out_stay_out_of_the_command():
    assert "--columns" not in command("r", ["accuracy"], Look(), suffix="pdf")
    assert "--columns 3" in command("r", ["accuracy"], Look(columns=3), suffix="pdf")


def test_every_unit_is_in_the_legend_of_a_narrow_panel():
    whole: Any = paper_figure(found(), ["gates", "offsets"], width_mm=60, font_pt=9, columns=1)
    traces: Any = whole.data
    shown = [trace.name for trace in traces if trace.showlegend]
    assert shown == ["key gate", "value gate", "knockout effect", "key gate", "value gate"]


# ---- widths and lines


def test_widths_are_those_of_the_face():
    """Liberation Sans is drawn where it is installed; its widths are Arial's."""
    try:
        face = ImageFont.truetype("LiberationSans-Regular.ttf", 1000)
        cases = {
            t: face.getlength(t) for t in ("target position mod 24 (residue)", "−100", "per-window W", "Δ@%")
        }
    except OSError:
        cases = {"−100": 584 + 3 * 556, "W": 944, "il": 444}  # Adobe's metrics of Helvetica
    for text, width in cases.items():
        assert text_width(text, 1000) == pytest.approx(width, abs=3)


def test_bold_tags_take_no_room_and_lines_are_measured_alone():
    assert text_width("<b>0.1</b>", 10) == pytest.approx(1.08 * text_width("0.1", 10))
    assert text_width("ab<br>abc", 10) == text_width("abc", 10)


def test_lines_break_at_spaces_then_within_names():
    wide = text_width("DeepSeek-V4-", 10)
    assert wrapped("DeepSeek-V4-Pro Base", 10, wide) == "DeepSeek-V4-<br>Pro Base"
    assert wrapped("one two", 10, 1000) == "one two"
    assert wrapped("unbreakable", 10, 1) == "unbreakable"


# ---- names of points


def names_of(points: list[tuple[str, float, float]], side: float = 150.0) -> tuple[list[Name], int]:
    return named_points(points, 7.0, (side, side))


def test_points_close_together_have_names_at_the_end_of_lines_and_none_is_lost():
    points = [(f"{i // 4}.{i % 4}", 70.0 + 5 * (i % 4), 70.0 + 5 * (i // 4)) for i in range(16)]
    names, lost = names_of(points)
    assert lost == 0
    assert {name.text for name in names} == {name for name, *_ in points}
    assert {name.point for name in names} == {(x, y) for _, x, y in points}
    assert any(name.line for name in names)


def test_points_in_one_place_share_a_name():
    names, lost = names_of([("0.0", 75, 75), ("0.1", 75, 75.5), ("1.0", 20, 20)])
    assert [name.text for name in names] == ["0.0, 0.1", "1.0"]
    assert lost == 0
    (every,), _ = names_of([(f"0.{i}", 75, 75) for i in range(4)])
    assert every.text == "all"


def test_of_many_points_those_without_room_are_counted():
    names, lost = names_of([(f"{i}.0", 75 + 1.5 * i, 75) for i in range(30)], side=200)
    assert len(names) + lost == 30
    assert lost > 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.125, "0.125"), (0.5, "0.50"), (0.0, "0.00"), (1.0, "1.00"), (0.1234, "0.123"), (0.0625, "0.0625"),
     (0.999, "0.999"), (float("nan"), "–")],
)  # fmt: skip
def test_weights_have_three_digits_where_two_say_something_else(value, text):
    assert weight(value) == text
