"""The page's part on one knockout map."""

from __future__ import annotations

from typing import Any

from interp.bench.knockouts import LOOPS, REFERENCE, TOLERANCE
from interp.bench.markdown import (
    command,
    kept,
    machine_line,
    memory_option,
    on_gpu,
    ratio,
    repeated,
    spread,
    table,
    where,
)
from interp.engine import MEMORY
from interp.memory import show_bytes

__all__ = ["knockout"]

_NAMES = {
    "ours": "ours", "bare": "bare run", "transformer_lens": "TransformerLens loop", "nnsight": "nnsight loop",
    "hugging_face": "Hugging Face eager loop", "float64": "ours in float64",
}  # fmt: skip
SMALL_TARGET, LARGE_TARGET, BARE_TARGET = 20, 50, 2
LEAST_OF_BARE = 0.8
"""Ours over the bare run, which does less: below this the bare run was cold or disturbed."""
LARGE_WIDTH = "random-"
BUSY = 3
"""Wall time over CPU time per thread from which on a run is called disturbed."""


def knockout(bench: dict[str, Any]) -> str:
    """Table, notes and targets of :func:`interp.bench.knockouts.bench_knockout`."""
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
            _NAMES[name], spread(method["seconds"], scale), spread(method["cpu_seconds"], scale),
            ratio(summary["times_ours"].get(name)), ratio(summary["cpu_times_ours"].get(name)),
            show_bytes(max(method["peak_bytes"])), _difference(method.get("max_difference")),
        ])  # fmt: skip
    head = ["way", "wall s", "CPU s", "wall ÷ ours", "CPU ÷ ours", "peak memory", "difference"]
    length = f", T = {case['length']}" if case["model"].startswith(LARGE_WIDTH) else ""
    lines = [
        f"## Knockout map of `{case['model']}`: {bench['units']} {case['unit']} units{length}{where(bench)}",
        "",
        _command(bench),
        "",
        f"{case['n']} prompts measured, {case['n_calibration']} for calibration, "
        f"{repeated(bench['repeats'], 'all ways in turn')}, {machine_line(bench)}.",
        "",
        table(head, rows),
        "",
        *kept([*notes, *_disagreement(bench), _floor(bench), *_busy(bench), *_targets(bench)]),
        "",
    ]
    return "\n".join(lines)


def _difference(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _floor(bench: dict[str, Any]) -> str:
    bare, summary = bench["methods"]["bare"], bench["summary"]
    return (
        f"Floor: {bare['operations'][0] / 1e9:.4g} billion operations, {show_bytes(bare['bytes'][0])} of operands; ceilings "
        f"{max(bare['matmul']) / 1e9:.4g} billion operations/s and {show_bytes(max(bare['copy']))}/s: "
        f"{summary['floor_seconds']:.3g} s."
    )


def _disagreement(bench: dict[str, Any]) -> list[str]:
    """Times of different answers are no comparison: say so."""
    if bench["summary"]["agree"]:
        return []
    ways = bench["methods"]
    most = max(ways[name].get("max_difference", 0.0) for name in LOOPS if name in ways)
    line = f"The ways differ by up to {most:.1e}, above the {TOLERANCE:.0e} that count as the same answer."
    exact = [
        f"{_NAMES[name]} by {way['from_float64']:.1e}" for name, way in ways.items() if "from_float64" in way
    ]
    return [line + (f" From float64 they are off: {', '.join(exact)}." if exact else "")]


def _busy(bench: dict[str, Any]) -> list[str]:
    """Say so where other programs took the cores: wall times of such a run mean little."""
    threads = bench["case"]["threads"]
    if on_gpu(bench):  # there the cores only wait
        return []
    waits = [
        wall * threads / cpu
        for way in bench["methods"].values()
        for wall, cpu in zip(way.get("seconds", []), way.get("cpu_seconds", []), strict=True)
    ]
    if max(waits) < BUSY:
        return []
    return [
        f"The machine was busy with other programs: wall time was {min(waits):.2g} to {max(waits):.2g} times what the CPU time "
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
            f"Target: at least {wanted}× below the TransformerLens loop. {_verdict(min(loop, cpu) >= wanted)}: {loop:.3g}× (wall), "
            f"{cpu:.3g}× (CPU)."
        )
    reached = summary["of_bare"]
    once = bench["repeats"] == 1
    if once or min(reached, summary["cpu_of_bare"]) < LEAST_OF_BARE:
        cause = "one run of each" if once else f"below {LEAST_OF_BARE}×, so the bare run was disturbed"
        verdict = f"The ratio means nothing ({cause}); repeat"
    else:
        verdict = _verdict(reached <= BARE_TARGET)
    lines.append(
        f"Target: within {BARE_TARGET}× of the bare run. {verdict}: {reached:.3g}× (wall), "
        f"{summary['cpu_of_bare']:.3g}× (CPU). Of the floor it is {summary['of_floor']:.3g}× (wall)."
    )
    return lines


def _verdict(reached: bool) -> str:
    return "Reached" if reached else "Missed"


def _command(bench: dict[str, Any]) -> str:
    case = bench["case"]
    words = [f"--n {case['n']} --calibration {case['n_calibration']}"]
    if case["model"].startswith(LARGE_WIDTH):
        words.append(f"--length {case['length']}")
    if case["unit"] != "kv_head":
        words.append(f"--unit {case['unit']}")
    loops = [name for name in LOOPS if name in bench["methods"]]
    reference = [name for name in bench["methods"] if name == REFERENCE]
    if len(loops) < len(LOOPS) or reference:
        words += [f"--method {name}" for name in [*loops, *reference]]
    if case["loop_units"]:
        words.append(f"--loop-units {case['loop_units']}")
    words += memory_option(case["memory"], MEMORY)
    return command(bench, case["model"], *words, repeats=bench["repeats"], seed=case["seed"])
