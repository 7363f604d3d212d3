"""The page on performance, made from the JSON of real runs.

``python -m interp.bench.page FILE... > docs/performance.md``
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from interp.bench import page_map, page_parts
from interp.bench.files import load_bench
from interp.bench.markdown import on_gpu

__all__ = ["page", "section"]

_INTRO = """# Performance

Made by `python -m interp.bench.page docs/performance/*.json > docs/performance.md` from the JSON that `phaselens bench` wrote. Every
table is one run of that command; how often and in what order it ran things stands above the table. Ratios are
taken inside a run, from best repeats. CPU seconds count all threads; other programs disturb them less than wall
seconds.

The engine rests on one fact: an intervention at the final position in layer l changes no earlier position and no
earlier layer. One prefill keeps what the final position reads; all units run as one batch of single positions, each
from its own layer on. The *bare run* is that prefill without hooks plus the same single positions in one batch,
nothing replaced, measured beside the others. The *ceilings* are the best rates seen in the run: of a large fp32
matrix product, in operations a second, and of a copy, in bytes a second. The *floor* is what the bare run's matrix
products, their operations and bytes counted from shapes, take at the ceilings, whichever of the two takes longer;
norms, softmaxes and copies count nothing there. Calibration, the runs that give the mean that replaces a unit, is
counted on every side. On a GPU, ours and the bare run record the kernels of a batch once where at least 6 batches
follow each other, and launch them together; recording is part of their times.

`phaselens bench … --compare FILE` holds a run against an earlier one of the same settings on the same machine, and
ends with code 1 if something got slower: medians of at least 3 repeats that differ by 10 % or more, beyond the
spread of the repeats of both.
"""


def page(benches: Iterable[dict[str, Any]]) -> str:
    """The whole page in Markdown."""
    found = list(benches)
    return "\n".join([_INTRO, *(section(bench) for bench in found), *_missing(found)])


def _missing(found: Sequence[dict[str, Any]]) -> list[str]:
    """What the targets ask for and no given run measured, with the command that would."""
    here = [bench for bench in found if not on_gpu(bench)]
    models = {bench["case"]["model"] for bench in here if bench["kind"] == "knockout"}
    lengths = [row["length"] for bench in here if bench["kind"] == "lengths" for row in bench["rows"]]
    kinds = {bench["kind"] for bench in here}
    wanted = [
        ("w8s8-4kv" in models, "The small map: `phaselens bench w8s8-4kv --n 192`."),
        ("random-28" in models, "The large map: `phaselens bench random-28 --n 2 --loop-units 8`."),
        ("hfv4-mix" in models, "The Hugging Face class: `phaselens bench hfv4-mix --unit head --n 48`."),
        (max(lengths, default=0) >= 32768, "Prompts up to 32K: `phaselens bench lengths --length 32768`."),
        ("profile" in kinds, "The report's profile: `phaselens bench report`."),
        ("family" in kinds, "Seeds side by side: `phaselens bench family`."),
        (
            len(here) < len(found),
            "A GPU: the same commands with `--device cuda`, and `phaselens bench sweep`.",
        ),
    ]
    left = [f"- {line}" for done, line in wanted if not done]
    return ["## Not measured here", "", *left, ""] if left else []


def section(bench: dict[str, Any]) -> str:
    """One benchmark's part of the page, also what the terminal shows."""
    makers = {
        "knockout": page_map.knockout, "lengths": page_parts.lengths, "profile": page_parts.profile,
        "family": page_parts.family, "sweep": page_parts.sweep,
    }  # fmt: skip
    return makers[bench["kind"]](bench)


if __name__ == "__main__":
    print(page(load_bench(path) for path in sys.argv[1:]), end="")
