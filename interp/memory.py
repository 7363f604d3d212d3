"""Sizes of memory as people write them."""

from __future__ import annotations

import re

from hooks.errors import ConfigError

__all__ = ["parse_bytes", "show_bytes"]

_UNITS = {"": 1, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes of "2GiB", "512M" or "1073741824"; units are powers of 1024.

    Raises
    ------
    ConfigError
        If it is no such size, or below 1 MiB.
    """
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * (1 << _UNITS[found[2].lower()] if found[2] else 1)) if found else 0
    if size < 1 << 20:
        raise ConfigError(f"memory={text!r}; valid: 1MiB or more, e.g. 512MiB, 4GiB")
    return size


def show_bytes(size: float) -> str:
    """Bytes with a unit, three digits."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"
