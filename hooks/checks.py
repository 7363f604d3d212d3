"""The checks of single values that a user gives, each written once; all end in the one error family."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable
from typing import Any

from hooks.errors import PhaselensError, did_you_mean

__all__ = ["is_real", "require_choice", "whole_number"]


def whole_number(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = None,
    *,
    error: type[PhaselensError] = PhaselensError,
) -> int:
    """Return a value as an int, if it is a whole number in a range.

    Parameters
    ----------
    name : str
        What the user calls it.
    value : object
        What was given; numpy's and torch's integers count, booleans and 1.0 do not.
    least, most : int, optional
        Bounds, both included.
    error : type
        The member of the error family to raise.

    Raises
    ------
    PhaselensError
        If it is none.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    outside = number is not None and (
        (least is not None and number < least) or (most is not None and number > most)
    )
    if number is None or outside:
        if least is not None and most is not None:
            wanted = f" from {least} to {most}"
        else:
            wanted = "" if least is None else f", {least} or more"
        raise error(f"{name}={value!r}; valid: a whole number{wanted}")
    return number


def is_real(value: Any) -> bool:
    """Whether a value, as JSON gives it, is a number that a float can hold: no bool, NaN, infinity or huge integer."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max


def require_choice(name: str, value: Any, valid: Iterable[str]) -> None:
    """Raise unless a value is one of the valid words.

    Raises
    ------
    PhaselensError
        Naming the value and the words.
    """
    words = list(valid)
    if value not in words:
        raise PhaselensError(f"{name}={value!r}; {did_you_mean(str(value), words)}")
