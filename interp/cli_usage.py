"""Mistakes in a command line, as one line each: what cannot be parsed, and options that would do nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from hooks.errors import PhaselensError, did_you_mean

__all__ = ["refuse_idle", "usage_line"]


def refuse_idle(
    verb: Callable[..., Any], given: Mapping[str, Any], idle: Iterable[str], *, why: str, instead: str
) -> None:
    """Raise for an option that was set and would do nothing beside the others.

    Parameters
    ----------
    verb : function
        The verb, whose defaults count as left out.
    given : mapping
        What it was called with.
    idle : iterable of str
        Options that change nothing.
    why, instead : str
        The beginning of the error, and what can be done besides leaving the option out.

    Raises
    ------
    PhaselensError
        Naming the first such option.
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(verb).parameters.items()}
    for name in sorted(idle, key=list(defaults).index):
        if given[name] != defaults[name]:
            option = name.replace("_", "-")
            raise PhaselensError(f"{why}, so --{option} would do nothing; {instead}")


def usage_line(error: CycloptsError, app: App) -> str:
    """One line for a parse error, with the valid choices where cyclopts does not name them."""
    verb = " ".join(error.command_chain or ())
    text = str(error)
    if isinstance(error, UnknownCommandError):
        given = (error.unused_tokens or ["?"])[0]
        text = (
            f"Unknown verb {given!r}; {did_you_mean(given, [v for v in app if not v.startswith('-')], 30)}."
        )
    elif isinstance(error, UnknownOptionError):
        given = error.token.keyword or error.token.value
        options = [name for argument in error.argument_collection for name in argument.names]
        text = (
            f"Unknown option {given}; {did_you_mean(given, [o for o in options if o.startswith('-')], 30)}."
        )
    elif isinstance(error, UnusedCliTokensError):
        text = f"{text.rstrip('.')}: more values than {verb or 'phaselens'} takes."
    elif isinstance(error, MissingArgumentError) and error.argument is not None:
        names = [name for name in error.argument.names if name.startswith("-")]
        word = (
            error.argument.name.lstrip("-").upper()
            if error.argument.index is not None
            else " or ".join(names)
        )
        text = f"{word} is missing: {error.argument.parameter.help}"
    return f"{text} See: phaselens {verb + ' ' if verb else ''}--help"
