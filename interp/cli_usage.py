"""Parse errors of the command line, as one line each."""

from __future__ import annotations

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from hooks.errors import did_you_mean

__all__ = ["usage_line"]


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
