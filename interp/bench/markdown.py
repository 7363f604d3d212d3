"""What all parts of the page on performance share: tables, numbers, machines and commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from interp.memory import parse_bytes, show_bytes

__all__ = [
    "command",
    "kept",
    "machine_line",
    "memory_option",
    "on_gpu",
    "ratio",
    "repeated",
    "spread",
    "table",
    "where",
]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table, first column left, the rest right."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """Smallest and largest of some repeats."""
    low, high = min(values) * scale, max(values) * scale
    return f"{low:.3g}" if len(values) == 1 else f"{low:.3g} … {high:.3g}"


def ratio(value: float | None) -> str:
    """A factor, or nothing."""
    return "" if value is None else f"{value:.3g}×"


def repeated(repeats: int, how: str) -> str:
    """How often everything was run."""
    return "one run of each" if repeats == 1 else f"{repeats} repeats, {how}"


def on_gpu(bench: dict[str, Any]) -> bool:
    """Whether a benchmark was made on a GPU."""
    return "gpu" in bench["machine"]


def where(bench: dict[str, Any]) -> str:
    """End of a heading."""
    return ", on a GPU" if on_gpu(bench) else ""


def machine_line(bench: dict[str, Any]) -> str:
    """Processor, threads, GPU, and the limit on memory."""
    found = bench["machine"]
    gpu = f"one {found['gpu']}, " if on_gpu(bench) else ""
    most = found.get("address_space_bytes")
    limit = "" if most is None else f", address space of a process limited to {show_bytes(most)}"
    return f"{gpu}{found['threads']} thread(s) of {found['processor']}, torch {found['torch']}{limit}"


def command(bench: dict[str, Any], what: str, *options: str, repeats: int | None, seed: int) -> str:
    """The command that makes a benchmark again, in backticks."""
    words = ["phaselens bench", what, *options]
    if repeats is not None:
        words.append(f"--repeats {repeats}")
    words.append(f"--threads {bench['machine']['threads']}")
    if seed:
        words.append(f"--seed {seed}")
    if on_gpu(bench):
        words.append("--device cuda")
    return f"`{' '.join(words)}`"


def memory_option(size: int, default: int) -> list[str]:
    """``--memory`` as it can be typed, where it is not the default."""
    short = show_bytes(size).replace(" ", "")
    return [] if size == default else [f"--memory {short if parse_bytes(short) == size else size}"]


def kept(rows: Iterable[str]) -> list[str]:
    """Sentences as a list."""
    return [f"- {row}" for row in rows]
