"""The paper's published numbers, shipped as data, so that measured results can be laid beside them."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from hooks.errors import StatisticsError, did_you_mean

__all__ = ["load_published", "published_names"]


def published_names() -> list[str]:
    """Names that :func:`load_published` accepts."""
    return sorted(p.name.removesuffix(".json") for p in files(__name__).iterdir() if p.name.endswith(".json"))


def load_published(name: str) -> dict[str, Any]:
    """Return one published table with its source.

    Parameters
    ----------
    name : str
        E.g. ``"needle_128k"``; see :func:`published_names`.

    Returns
    -------
    dict
        The JSON object; ``"source"`` cites where the numbers were read.

    Raises
    ------
    StatisticsError
        If there is no such table.
    """
    if name not in published_names():
        raise StatisticsError(f"no published table {name!r}; {did_you_mean(name, published_names())}")
    return json.loads((files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
