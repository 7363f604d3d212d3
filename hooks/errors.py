"""The one error family of phaselens.

Every mistake a user can make ends in a :class:`PhaselensError` whose message is one line: the value that was
given, why it cannot be used, and what can. The command line prints that line and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ModelCheckError",
    "PhaselensError",
    "SiteError",
    "StatisticsError",
    "TaskError",
    "did_you_mean",
]


class PhaselensError(ValueError):
    """Base of all errors that a user's input can cause; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ConfigError(PhaselensError):
    """A model configuration that cannot exist, or a key that is unknown or missing."""


class CheckpointError(PhaselensError):
    """A file that cannot be read as a model, or a folder that cannot be written."""


class SiteError(PhaselensError):
    """A hook site that does not exist, does not fire in this layer, or an index outside of it."""


class ModelCheckError(PhaselensError):
    """A model that fails its own checks: non-finite numbers, gates or heads that do not add up."""


class TaskError(PhaselensError):
    """Settings from which no phase-balanced prompts can be made."""


class StatisticsError(PhaselensError):
    """A statistic that is undefined for the given data, e.g. below its minimum n."""


def did_you_mean(given: str, valid: Iterable[str], limit: int = 12) -> str:
    """Return a clause naming the closest valid choices, for the end of an error message.

    Parameters
    ----------
    given : str
        What the user wrote.
    valid : iterable of str
        The valid choices.
    limit : int
        At most so many choices are listed; the number left out is stated.

    Returns
    -------
    str
        ``"valid: a, b, c"``, closest first, or ``"there are none"``.
    """
    choices = list(dict.fromkeys(valid))
    if not choices:
        return "there are none"
    close = difflib.get_close_matches(given, choices, n=limit, cutoff=0.5)
    ordered = close + [choice for choice in choices if choice not in close]
    more = f" … ({len(ordered) - limit} more)" if len(ordered) > limit else ""
    return f"valid: {', '.join(ordered[:limit])}{more}"
