"""Names beside the points of a scatter plot: each where nothing is covered, with a line to its point if need be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from interp.figures.text import LINE, text_width, wrapped

__all__ = ["Name", "named_points"]

_RADIUS = 4.0
"""Of a marker, in pixels."""
_SAME = 1.0
"""Points that are no farther apart, in pixels, have one name together."""
_MANY = 24
"""So many names may have lines to their points; of more, those that find no place beside theirs are left out."""
_ANGLES = 24
_BESIDE = ("middle right", "middle left", "top center", "bottom center")

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Name:
    """A name and where it stands.

    Attributes
    ----------
    text : str
        With ``<br>`` between lines.
    point, at : tuple of float
        Its point, and the end of the line to it (the point itself without one), in pixels.
    place : str
        Plotly's ``textposition``, from `at`.
    """

    text: str
    point: tuple[float, float]
    at: tuple[float, float]
    place: str

    @property
    def line(self) -> bool:
        """Whether it needs a line to its point."""
        return self.at != self.point


def named_points(
    points: Sequence[tuple[str, float, float]],
    size: float,
    area: tuple[float, float],
    taken: Sequence[Box] = (),
) -> tuple[list[Name], int]:
    """Place a name for every point, and count the points that are left without one.

    Parameters
    ----------
    points : sequence of (name, x, y)
        In pixels from the lower left of the plot.
    size : float
        Of the type, in pixels.
    area : tuple of float
        Width and height of the plot in pixels; names stay inside.
    taken : sequence of (left, bottom, right, top)
        Where no name may be.
    """
    groups = _grouped(points, size, area[0])
    obstacles = [*taken, *((x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for _, x, y, _ in groups)]
    placed: list[Name] = []
    waiting: list[tuple[str, float, float, int]] = []
    for group in groups:
        found = next((c for c in _beside(group, size) if _free(c[1], obstacles, area)), None)
        if found is None:
            waiting.append(group)
            continue
        placed.append(found[0])
        obstacles.append(found[1])
    if len(groups) > _MANY:
        return placed, sum(count for *_, count in waiting)
    lost = 0
    lines: list[tuple[tuple[float, float], tuple[float, float]]] = []
    names = obstacles[len(taken) + len(groups) :]
    for group in waiting:
        # The nearest place whose line meets nothing; else the nearest place at all.
        free = (c for c in _around(group, size, area) if _free(c[1], obstacles, area))
        first = found = next(free, None)
        while found is not None and (
            any(_crosses(found[0], line) for line in lines) or any(_runs_through(found[0], b) for b in names)
        ):
            found = next(free, None)
        found = found or first
        if found is None:
            lost += group[3]
            continue
        placed.append(found[0])
        obstacles.append(found[1])
        names.append(found[1])
        lines.append((found[0].point, found[0].at))
    return placed, lost


def _grouped(
    points: Sequence[tuple[str, float, float]], size: float, width: float
) -> list[tuple[str, float, float, int]]:
    """Names of points that cover each other, together: text, place, and number of points."""
    groups: list[tuple[list[str], float, float, list[int]]] = []
    for i, (name, x, y) in enumerate(points):
        for names, gx, gy, members in groups:
            if math.hypot(x - gx, y - gy) <= _SAME:
                names.append(name)
                members.append(i)
                break
        else:
            groups.append(([name], x, y, [i]))
    every = {name for name, *_ in points}
    done = []
    for names, x, y, members in groups:
        own = list(dict.fromkeys(names))
        text = (
            "all" if len(own) == len(every) > 2 else wrapped(", ".join(own), size, max(width / 3, 6 * size))
        )
        done.append((text, x, y, len(members)))
    return done


def _extent(text: str, size: float) -> tuple[float, float]:
    return text_width(text, size) + 1, size * (1 + LINE * text.count("<br>"))


def _beside(group: tuple[str, float, float, int], size: float) -> list[tuple[Name, Box]]:
    text, x, y, _ = group
    width, height = _extent(text, size)
    off = _RADIUS + 0.5
    corners = (
        (x + off, y - height / 2), (x - off - width, y - height / 2), (x - width / 2, y + off),
        (x - width / 2, y - off - height),
    )  # fmt: skip
    return [
        (Name(text, (x, y), (x, y), place), (left, bottom, left + width, bottom + height))
        for place, (left, bottom) in zip(_BESIDE, corners, strict=True)
    ]


def _around(
    group: tuple[str, float, float, int], size: float, area: tuple[float, float]
) -> Iterator[tuple[Name, Box]]:
    """Places at the end of a line, nearest first."""
    text, x, y, _ = group
    width, height = _extent(text, size)
    for step in range(int(max(area) / 4)):
        radius = 2.5 * _RADIUS + 4 * step
        for turn in range(_ANGLES):
            angle = 2 * math.pi * (turn + 0.5) / _ANGLES
            end = (x + radius * math.cos(angle), y + radius * math.sin(angle))
            right = math.cos(angle) > 0
            left = end[0] + 1 if right else end[0] - 1 - width
            box = (left, end[1] - height / 2, left + width, end[1] + height / 2)
            yield Name(text, (x, y), end, _BESIDE[0] if right else _BESIDE[1]), box


def _free(box: Box, obstacles: Sequence[Box], area: tuple[float, float]) -> bool:
    inside = box[0] >= 0 and box[1] >= 0 and box[2] <= area[0] and box[3] <= area[1]
    return inside and not any(
        box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for o in obstacles
    )


def _crosses(name: Name, line: tuple[tuple[float, float], tuple[float, float]]) -> bool:
    def side(p: tuple[float, float], q: tuple[float, float], r: tuple[float, float]) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    a, b, (c, d) = name.point, name.at, line
    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def _runs_through(name: Name, box: Box) -> bool:
    """Whether the line to a point runs through a box, at one of 20 places along it."""
    (x, y), (to_x, to_y) = name.point, name.at
    return any(
        box[0] < x + (to_x - x) * i / 20 < box[2] and box[1] < y + (to_y - y) * i / 20 < box[3]
        for i in range(21)
    )
