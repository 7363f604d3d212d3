"""What changes a model while it is measured: forced gates, or hooks that someone set around a measurement.

Results state it, so that a run under changed gates is never taken for one of the intact model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from hooks.sites import HookedModel

__all__ = ["alterations", "altered"]

_MARKS = "_alterations"


@contextlib.contextmanager
def altered(
    model: HookedModel, words: str, hooks: Sequence[tuple[str, Callable[..., Tensor]]]
) -> Iterator[HookedModel]:
    """Context in which hooks change a model, known by `words` to every result measured inside.

    Parameters
    ----------
    model : HookedModel
        What is changed.
    words : str
        How, with every setting that makes a difference, e.g. "gates forced to uniform".
    hooks : sequence of (site, function)
        As in :meth:`hooks.sites.HookedModel.hooks`.
    """
    before = getattr(model, _MARKS, ())
    setattr(model, _MARKS, (*before, (words, {name for name, _ in hooks})))
    try:
        with model.hooks(fwd_hooks=hooks):
            yield model
    finally:
        setattr(model, _MARKS, before)


def alterations(model: Any) -> str:
    """Say what changes a model now: words of :func:`altered`, and the sites of any other hook; "" if nothing."""
    marks = getattr(model, _MARKS, ())
    known = {name for _, names in marks for name in names}
    points = getattr(model, "hook_dict", {})
    other = [name for name, point in points.items() if point.fwd_hooks and name not in known]
    told = [words for words, _ in marks] + ([f"hooks at {', '.join(other)}"] if other else [])
    return "; ".join(told)
