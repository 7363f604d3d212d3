"""Sizes, colours and labels that all figures share."""

from __future__ import annotations

import numpy as np
import pytest

from interp.figures.base import number, tick_step, unit_order
from interp.figures.theme import Theme, contrast, mm, pt


def test_sizes_are_those_of_css():
    assert mm(25.4) == pytest.approx(96)
    assert pt(72) == 96
    assert Theme(width_mm=85).width == pytest.approx(321.26, abs=0.01)
    assert Theme(font_pt=9).font == 12


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.01)  # WebAIM's well-known limit grey


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_on_every_cell_and_ground(dark):
    theme = Theme(dark=dark)
    for value in np.linspace(-1, 1, 81):
        ground = theme.diverging(value)
        assert contrast(theme.text_on(ground), ground) >= 4.5
    assert contrast(theme.muted, theme.paper) >= 4.5
    assert contrast(theme.ink, theme.paper) >= 7


@pytest.mark.parametrize("dark", [False, True])
def test_signed_colours_are_centred_on_zero_and_clipped(dark):
    theme = Theme(dark=dark)
    red, green, blue = (int(theme.diverging(0)[i : i + 2], 16) for i in (1, 3, 5))
    assert max(red, green, blue) - min(red, green, blue) <= 12  # neutral
    loss, gain = theme.diverging(-0.6), theme.diverging(0.6)
    assert int(loss[1:3], 16) > int(loss[5:7], 16)  # red over blue
    assert int(gain[1:3], 16) < int(gain[5:7], 16)
    assert theme.diverging(-7) == theme.diverging(-1)


def test_losses_and_gains_stay_apart_without_red_and_green():
    """Viénot, Brettel & Mollon (1999): deuteranopes see about (0.29 R + 0.71 G, same, B), linear."""

    def seen(colour):
        linear = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
        return np.array([0.29 * linear[0] + 0.71 * linear[1], linear[2]])

    theme = Theme()
    for size in (0.4, 0.7, 1.0):
        assert np.abs(seen(theme.diverging(-size)) - seen(theme.diverging(size))).max() > 0.2


@pytest.mark.parametrize(
    ("value", "digits", "sign", "text"),
    [(-98.2, 0, False, "−98"), (-0.2, 0, False, "0"), (0.0, 1, True, "0.0"), (2.5, 1, True, "+2.5"),
     (np.nan, 0, False, "–")],
)  # fmt: skip
def test_numbers(value, digits, sign, text):
    assert number(value, digits, sign=sign) == text


def test_units_are_ordered_as_numbers_not_as_text():
    labels = ["10.0", "2.1", "2.0", "1.10", "1.9"]
    assert [labels[i] for i in unit_order(labels)] == ["1.9", "1.10", "2.0", "2.1", "10.0"]


def test_tick_steps_keep_every_cycle_alike():
    assert tick_step(24, 30, 15, cycle=8) == 1
    assert tick_step(24, 10, 16, cycle=8) == 2
    assert tick_step(24, 6, 16, cycle=8) == 4  # not 3: it would label 3, 6, 9 …
    assert tick_step(24, 1, 16, cycle=8) == 16
    assert tick_step(28, 5, 9) == 2
