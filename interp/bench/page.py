"""The page on performance, made from the JSON of real runs.

``python -m interp.bench.page FILE... > docs/performance.md``
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from interp.bench.compare import load_bench
from interp.bench.knockouts import LOOPS
from interp.memory import show_bytes

__all__ = ["page", "section"]

_NAMES = {
    "ours": "ours", "floor": "floor", "transformer_lens": "TransformerLens loop", "nnsight": "nnsight loop",
    "hugging_face": "Hugging Face eager loop",
}  # fmt: skip
SMALL_TARGET, LARGE_TARGET, FLOOR_TARGET = 20, 50, 2
LARGE_WIDTH = "random-"
BUSY = 3
"""Wall time over CPU time per thread from which on a run is called disturbed."""

_INTRO = """# Performance

Made by `python -m interp.bench.page docs/performance/*.json > docs/performance.md` from the JSON that `phaselens bench` wrote. Every
table is one run; ratios are taken inside a run, from the best of its interleaved repeats. CPU seconds count all
threads; other programs disturb them less than wall seconds.

The engine rests on one fact: an intervention at the final position in layer l changes no earlier position and no
earlier layer. One prefill keeps what the final position reads; all units run as one batch of single positions, each
from its own layer on. The *floor* is that prefill without hooks plus the same single positions in one batch. The
*ceiling* is the floor's matrix products, counted from shapes, at the best rate of a large fp32 product (or its
bytes at the best copy rate, whichever takes longer): nothing reaches it, since norms, softmaxes and copies count
nothing there. Calibration, the runs that give the mean that replaces a unit, is counted on every side.
"""


def page(benches: Iterable[dict[str, Any]]) -> str:
    """The whole page in Markdown."""
    found = list(benches)
    return "\n".join([_INTRO, *(section(bench) for bench in found), *_missing(found)])


def _missing(found: Sequence[dict[str, Any]]) -> list[str]:
    """What the targets ask for and no given run measured, with the command that would."""
    here = [bench for bench in found if "gpu" not in bench["machine"]]
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
        "knockout": _knockout,
        "lengths": _lengths,
        "profile": _profile,
        "family": _family,
        "sweep": _sweep,
    }
    return makers[bench["kind"]](bench)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table, first column left, the rest right."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _spread(values: Sequence[float], scale: float = 1.0) -> str:
    low, high = min(values) * scale, max(values) * scale
    return f"{low:.3g}" if len(values) == 1 else f"{low:.3g} … {high:.3g}"


def _knockout(bench: dict[str, Any]) -> str:
    case, summary = bench["case"], bench["summary"]
    rows, notes = [], []
    for name, method in bench["methods"].items():
        if "skipped" in method:
            notes.append(f"{_NAMES[name]}: {method['skipped']}.")
            continue
        scale = method.get("scale", 1.0)
        if scale > 1:
            notes.append(
                f"{_NAMES[name]}: {case['loop_units']} of {bench['units']} units were run, evenly spaced; its times are "
                f"those times {scale:.3g}, the number of full forward passes left out (each costs the same)."
            )
        rows.append([
            _NAMES[name], _spread(method["seconds"], scale), _spread(method["cpu_seconds"], scale),
            _ratio(summary["times_ours"].get(name)), _ratio(summary["cpu_times_ours"].get(name)),
            show_bytes(max(method["peak_bytes"])), _difference(method.get("max_difference")),
        ])  # fmt: skip
    head = ["way", "wall s", "CPU s", "wall ÷ ours", "CPU ÷ ours", "peak memory", "difference"]
    floor = bench["methods"]["floor"]
    length = f", T = {case['length']}" if case["model"].startswith(LARGE_WIDTH) else ""
    lines = [
        f"## Knockout map of `{case['model']}`: {bench['units']} {case['unit']} units{length}{_where(bench)}",
        "",
        f"`{_command(bench)}`",
        "",
        f"{case['n']} prompts measured, {case['n_calibration']} for calibration, {bench['repeats']} repeats, "
        f"{_machine(bench)}.",
        "",
        table(head, rows),
        "",
        *(f"- {note}" for note in notes),
        f"- Ceiling: {floor['operations'][0] / 1e9:.4g} billion operations, {show_bytes(floor['bytes'][0])} of operands; best "
        f"rates {max(floor['matmul']) / 1e9:.4g} billion operations/s and {show_bytes(max(floor['copy']))}/s: "
        f"{summary['ceiling_seconds']:.3g} s. Ours takes {summary['of_ceilings']:.3g} times that.",
        *_busy(bench),
        *_targets(bench),
        "",
    ]
    return "\n".join(lines)


def _busy(bench: dict[str, Any]) -> list[str]:
    """Say so where other programs took the cores: wall times of such a run mean little."""
    threads = bench["case"]["threads"]
    if "gpu" in bench["machine"]:  # there the cores only wait
        return []
    waits = [
        wall * threads / cpu
        for way in bench["methods"].values()
        for wall, cpu in zip(way.get("seconds", []), way.get("cpu_seconds", []), strict=True)
    ]
    if max(waits) < BUSY:
        return []
    return [
        f"- The machine was busy with other programs: wall time was {min(waits):.2g} to {max(waits):.2g} times what the CPU time "
        "needs, so this run's ratios of wall times say little, and those of CPU times are to be read."
    ]


def _targets(bench: dict[str, Any]) -> list[str]:
    """What was aimed at and what was reached, in words."""
    summary = bench["summary"]
    lines = []
    wanted = LARGE_TARGET if bench["case"]["model"].startswith(LARGE_WIDTH) else SMALL_TARGET
    loop = summary["times_ours"].get("transformer_lens")
    if loop is not None and bench["case"]["unit"] == "kv_head" and bench["units"] >= 16:
        cpu = summary["cpu_times_ours"]["transformer_lens"]
        lines.append(
            f"- Target: at least {wanted}× below the TransformerLens loop. {_verdict(min(loop, cpu) >= wanted)}: {loop:.3g}× (wall), "
            f"{cpu:.3g}× (CPU)."
        )
    reached = summary["of_floor"]
    lines.append(
        f"- Target: within {FLOOR_TARGET}× of the floor. {_verdict(reached <= FLOOR_TARGET)}: {reached:.3g}× (wall), "
        f"{summary['cpu_of_floor']:.3g}× (CPU)."
    )
    return lines


def _verdict(reached: bool) -> str:
    return "Reached" if reached else "Missed"


def _command(bench: dict[str, Any]) -> str:
    case = bench["case"]
    words = ["phaselens bench", case["model"], f"--n {case['n']} --calibration {case['n_calibration']}"]
    if case["model"].startswith(LARGE_WIDTH):
        words.append(f"--length {case['length']}")
    if case["unit"] != "kv_head":
        words.append(f"--unit {case['unit']}")
    loops = [name for name in LOOPS if name in bench["methods"]]
    if len(loops) < len(LOOPS):
        words += [f"--method {name}" for name in loops]
    if case["loop_units"]:
        words.append(f"--loop-units {case['loop_units']}")
    return " ".join([*words, f"--repeats {bench['repeats']} --threads {case['threads']}"]) + _device(bench)


def _device(bench: dict[str, Any]) -> str:
    return " --device cuda" if "gpu" in bench["machine"] else ""


def _where(bench: dict[str, Any]) -> str:
    return ", on a GPU" if "gpu" in bench["machine"] else ""


def _machine(bench: dict[str, Any]) -> str:
    found = bench["machine"]
    gpu = f"one {found['gpu']}, " if "gpu" in found else ""
    most = found.get("address_space_bytes")
    limit = "" if most is None else f", address space limited to {show_bytes(most)}"
    return f"{gpu}{found['threads']} thread(s) of {found['processor']}, torch {found['torch']}{limit}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}×"


def _difference(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _lengths(bench: dict[str, Any]) -> str:
    rows = []
    for row in bench["rows"]:
        rows.append([
            f"{row['length']:,}",
            *(_cell(row.get(name), key) for key in ("seconds", "cpu_seconds", "peak_bytes") for name in ("ours", "hugging_face")),
        ])  # fmt: skip
    head = ["T", "ours wall s", "HF wall s", "ours CPU s", "HF CPU s", "ours memory", "HF memory"]
    lines = [
        f"## Long prompts: {bench['layers']} layers like DeepSeek-V4's, d_model {bench['d_model']}{_where(bench)}",
        "",
        f"`phaselens bench lengths --length {bench['longest']} --threads {bench['machine']['threads']}{_device(bench)}`",
        "",
        f"{bench['what']} {_machine(bench)}.",
        "",
        table(head, rows),
        "",
        *(f"- {note}" for note in bench["notes"]),
        *(f"- {_fit(name, fit)}" for name, fit in bench["fits"].items()),
        "",
    ]
    return "\n".join(lines)


def _cell(found: dict[str, Any] | None, key: str) -> str:
    if found is None:
        return "not run"
    if "stopped" in found:
        return found["stopped"]
    return show_bytes(found[key]) if key == "peak_bytes" else f"{found[key]:.3g}"


def _fit(name: str, fit: dict[str, Any]) -> str:
    residuals = ", ".join(f"{value:+.0%}" for value in fit["relative_residuals"])
    return (
        f"Linear fit of our {name}: {fit['intercept']:.3g} + {fit['slope']:.3g}·T/1024 {fit['unit']}; residuals relative "
        f"to the measured value, in order of T: {residuals}."
    )


def _profile(bench: dict[str, Any]) -> str:
    rows = [
        [s["stage"], f"{s['seconds']:.2f}", f"{s['share']:.0%}", s.get("reason", "")] for s in bench["stages"]
    ]
    lines = [
        f"## Where `phaselens report {bench['model']}` spends its time",
        "",
        f"`phaselens bench report --n {bench['n_per_residue']} --threads {bench['machine']['threads']}`",
        "",
        f"Imports included, {_machine(bench)}; {bench['total']:.1f} s in all, {bench['cpu_total']:.1f} CPU s.",
        "",
        table(["stage", "wall s", "share", "why"], rows),
        "",
    ]
    return "\n".join(lines)


def _family(bench: dict[str, Any]) -> str:
    rows = [
        [name, _spread(found["seconds"]), _spread(found["cpu_seconds"])] for name, found in bench["ways"].items()
    ]  # fmt: skip
    lines = [
        f"## {bench['models']} models of one shape side by side{_where(bench)}",
        "",
        f"`phaselens bench family --n {bench['n']} --repeats {bench['repeats']} --threads {bench['machine']['threads']}"
        f"{_device(bench)}`",
        "",
        f"{bench['what']} {_machine(bench)}.",
        "",
        table(["way", "wall s", "CPU s"], rows),
        "",
        f"- One after the other takes {bench['ratio']:.3g} times the wall time of side by side (CPU time "
        f"{bench['cpu_ratio']:.3g}); largest difference in logits {bench['max_difference']:.1e}.",
        *(
            [
                f"- Training one after the other takes {bench['training_ratio']:.3g} times the wall time of side by side "
                f"(CPU time {bench['training_cpu_ratio']:.3g}); largest difference of weights after "
                f"{bench['training_steps'] + 1} steps {bench['training_max_difference']:.1e}."
            ]
            if "training_ratio" in bench
            else []
        ),
        "",
    ]
    return "\n".join(lines)


def _sweep(bench: dict[str, Any]) -> str:
    rows = [
        [
            name, f"{found['setup']:.2f}", _spread(found["seconds"]),
            f"{min(bench['ways']['plain fp32']['seconds']) / min(found['seconds']):.3g}×",
            f"{found['max_difference']:.1e}", f"{found['accuracy_change']:.2f}",
        ]
        for name, found in bench["ways"].items()
    ]  # fmt: skip
    lines = [
        f"## Forward passes of `phaselens sweep {bench['model']}`{_where(bench)}",
        "",
        f"`phaselens bench sweep --n {bench['n_per_residue']} --repeats {bench['repeats']} "
        f"--threads {bench['machine']['threads']}{_device(bench)}`",
        "",
        f"{bench['batches']} batches of {bench['batch']} prompts, {_machine(bench)}.",
        "",
        table(
            [
                "way",
                "set-up s",
                "sweep s",
                "plain ÷ way",
                "log-probability moves by",
                "accuracy moves by (pp)",
            ],
            rows,
        ),
        "",
        f"- Moves are the largest against plain fp32, over prompts and over phases; its accuracies have {_half(bench)}.",
        *_pays(bench),
        "- `phaselens sweep` runs the plain way in fp32: what the others save is less than loading its libraries takes.",
        "",
    ]
    return "\n".join(lines)


def _half(bench: dict[str, Any]) -> str:
    width = bench["half_width"]  # NaN, or null once it was written
    known = width is not None and not math.isnan(width)
    return f"intervals of up to ±{width:.1f} pp" if known else "no intervals at this n"


def _pays(bench: dict[str, Any]) -> list[str]:
    """From how many sweeps on a way has paid for its set-up, or that it never does."""
    plain = bench["ways"]["plain fp32"]
    lines = []
    for name, found in bench["ways"].items():
        saved = min(plain["seconds"]) - min(found["seconds"])
        if found is plain:
            continue
        if saved <= 0:
            lines.append(f"- {name}: no faster.")
        else:
            after = max(1, math.ceil((found["setup"] - plain["setup"]) / saved))
            lines.append(
                f"- {name}: saves {saved:.3g} s a sweep; has paid for its set-up after {after} sweeps."
            )
    return lines


if __name__ == "__main__":
    print(page(load_bench(path) for path in sys.argv[1:]), end="")
