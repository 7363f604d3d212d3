"""The completion test: probability of the right number, here and in the docstring, by filler length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures.base import FigureError
from interp.figures.series import Series, lines
from interp.figures.theme import Theme

__all__ = ["completion_by_length"]

_NUMBERS = (8, 32)
"""The right number, and the docstring's."""


def completion_by_length(
    found: Mapping[str, Any],
    lengths: Sequence[int],
    *,
    cycle: int = 0,
    caption: str = "",
    chosen: int | None = None,
    theme: Theme | None = None,
) -> go.Figure:
    """Draw P(8) and P(32) by filler length.

    Parameters
    ----------
    found : mapping
        ``p_8`` and ``p_32``, one probability a length: published counts, or the Dataset of an audit.
    lengths : sequence of int
        Filler lengths in tokens.
    cycle : int
        Period, for the ticks; 0 for none.
    caption : str
        What was asked.
    chosen : int, optional
        A length that is marked.
    theme : Theme
        Size, fonts, light or dark.

    Raises
    ------
    FigureError
        If either is missing, or not as long as `lengths`.
    """
    missing = [f"p_{n}" for n in _NUMBERS if f"p_{n}" not in found]
    if missing:
        raise FigureError(f"not a completion result: {', '.join(missing)} missing")
    named = {f"P({n})": Series(np.asarray(found[f"p_{n}"], dtype=float).tolist()) for n in _NUMBERS}
    return lines(
        named, lengths, x_title="filler length (tokens)", y_title="probability", y_range=(-0.03, 1.03),
        chosen=chosen, cycle=cycle, theme=theme, caption=caption,
    )  # fmt: skip
