"""The page's parts on long prompts, the report's profile, families of seeds, and sweeps."""

from __future__ import annotations

import math
from typing import Any

from interp.bench.lengths import BRIEF, READ
from interp.bench.markdown import command, kept, machine_line, ratio, repeated, spread, table, where
from interp.memory import show_bytes

__all__ = ["family", "lengths", "profile", "sweep"]

_SIDES = {"ours": "Ours", "hugging_face": "Hugging Face eager"}


def lengths(bench: dict[str, Any]) -> str:
    """Table, reach and fits of :func:`interp.bench.lengths.bench_lengths`."""
    rows = [
        [
            f"{row['length']:,}",
            *(_cell(row[side], key) for key in ("seconds", "cpu_seconds", "peak_bytes") for side in _SIDES),
        ]
        for row in bench["rows"]
    ]
    head = ["T", "ours wall s", "HF wall s", "ours CPU s", "HF CPU s", "ours memory", "HF memory"]
    width, layers = bench["d_model"], bench["layers"]
    again = command(
        bench,
        "lengths",
        f"--length {bench['longest']}",
        repeats=bench.get("asked_repeats"),
        seed=bench["seed"],
    )
    lines = [
        f"## Long prompts: {layers} layers like DeepSeek-V4's, d_model {width}{where(bench)}",
        "",
        again,
        "",
        f"One prompt. Ours runs all but its last {READ} tokens first, into a cache, then those with hooks that read the "
        "streams, the heads' outputs and the patterns of every layer there; its layers have a dense MLP of width "
        f"{2 * width}. Hugging Face runs `DeepseekV4ForCausalLM`, eager, in one call without cache or hooks, with logits of the "
        f"last {READ} positions; its layers have low-rank queries and grouped low-rank outputs and, in place of the MLP, "
        f"4 experts of width {width} of which each token uses 2. So sizes agree, and answers do not. {_order(bench)} "
        f"Measured on {machine_line(bench)}.",
        "",
        table(head, rows),
        "",
        *kept([*_reach(bench), *(line for name, fit in bench["fits"].items() for line in _fit(name, fit, bench))]),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _cell(found: dict[str, Any], key: str) -> str:
    if "stopped" in found:
        return found["stopped"]
    return show_bytes(max(found[key])) if key == "peak_bytes" else spread(found[key])


def _order(bench: dict[str, Any]) -> str:
    """How often a side ran at a length, and whether anything had warmed it up."""
    runs = [row[side] for row in bench["rows"] for side in _SIDES if "stopped" not in row[side]]
    counts = {len(run["seconds"]) for run in runs}
    if not any(run.get("warmed") for run in runs):
        return (
            "Each side ran once at each length." if counts == {1} else "A side's repeats follow each other."
        )
    return (
        f"Runs below {BRIEF:.0f} s were repeated, one side after the other, after one at that length to warm up; a "
        "single number is of one run."
    )


def _reach(bench: dict[str, Any]) -> list[str]:
    lines = []
    for side, name in _SIDES.items():
        done = [row["length"] for row in bench["rows"] if "seconds" in row[side]]
        end = next((row for row in bench["rows"] if "stopped" in row[side]), None)
        reached = f"{name} ran up to T = {max(done):,}" if done else f"{name} did not run"
        if end is None:
            lines.append(f"{reached}, the longest asked for.")
        else:
            lines.append(
                f"{reached}; at {end['length']:,}: {end[side]['stopped']} (limit {bench['most_seconds']:.0f} s a run)."
            )
    return lines


def _fit(name: str, fit: dict[str, Any], bench: dict[str, Any]) -> list[str]:
    powers = ("", "·(T/1024)", "·(T/1024)²")
    terms = list(zip(fit["coefficients"], fit["shares"], powers, strict=False))
    sums = " + ".join(f"{value:.3g}{power}" for value, _, power in terms)
    longest = max(row["length"] for row in bench["rows"] if "seconds" in row["ours"])
    shares = ", ".join(
        f"{share:.0%} {label}"
        for (_, share, _), label in zip(terms, ("the constant", "T", "T²"), strict=False)
    )
    lines = [
        f"Fit of our {name}: {sums} {fit['unit']}. At T = {longest:,} it is made of: {shares}. Residuals relative to "
        f"the measured value, in order of T: {_percents(fit['relative_residuals'])}."
    ]
    if len(terms) > 2:
        straight = max(map(abs, fit["straight_residuals"]))
        curved = max(map(abs, fit["relative_residuals"]))
        lines.append(
            "The T² term is there for what grows so in DeepSeek's design and here: the indexer scores all earlier entries "
            "of its layer for every query, one every 4 positions, and layers without an indexer attend to all of theirs, "
            f"one every 128. Without it the residuals of the {name} reach {straight:.0%}, with it {curved:.0%}."
        )
    return lines


def _percents(values: list[float]) -> str:
    return ", ".join(f"{value:+.0%}" for value in values)


def profile(bench: dict[str, Any]) -> str:
    """Stages of :func:`interp.bench.profile.profile_report`."""
    rows = [
        [stage["stage"], spread(stage["seconds"]), f"{stage['share']:.0%}", stage.get("reason", "")]
        for stage in bench["stages"]
    ]
    again = command(
        bench, "report", f"--n {bench['n_per_residue']}", repeats=bench["repeats"], seed=bench["seed"]
    )
    lines = [
        f"## Where `phaselens report {bench['model']}` spends its time",
        "",
        again,
        "",
        f"Imports included, {repeated(bench['repeats'], 'one after the other')}, {machine_line(bench)}; "
        f"{spread(bench['total'])} s in all, {spread(bench['cpu_total'])} CPU s of the report's own process (Chromium, "
        "which draws the figures, runs in others, whose CPU time is not counted).",
        "",
        table(["stage", "wall s", "share", "why"], rows),
        "",
    ]
    return "\n".join(lines)


def family(bench: dict[str, Any]) -> str:
    """Ways of :func:`interp.bench.family.bench_family`."""
    rows = [[name, spread(way["seconds"]), spread(way["cpu_seconds"])] for name, way in bench["ways"].items()]
    lines = [
        f"## {bench['models']} models of one shape side by side{where(bench)}",
        "",
        command(bench, "family", f"--n {bench['n']}", repeats=bench["repeats"], seed=bench.get("seed", 0)),
        "",
        f"{bench['what']} {repeated(bench['repeats'], 'both ways in turn').capitalize()}, {machine_line(bench)}.",
        "",
        table(["way", "wall s", "CPU s"], rows),
        "",
        f"- One after the other takes {bench['ratio']:.3g} times the wall time of side by side (CPU time "
        f"{bench['cpu_ratio']:.3g}); largest difference in logits {bench['max_difference']:.1e}.",
    ]
    if "training_ratio" in bench:
        lines.append(
            f"- Training one after the other takes {bench['training_ratio']:.3g} times the wall time of side by side (CPU "
            f"time {bench['training_cpu_ratio']:.3g}); largest difference of weights after "
            f"{bench['training_steps'] + 1} steps {bench['training_max_difference']:.1e}."
        )
    return "\n".join([*lines, ""])


def sweep(bench: dict[str, Any]) -> str:
    """Ways of :func:`interp.bench.sweeps.bench_sweep`, and from when on each pays."""
    plain = min(bench["ways"]["plain fp32"]["seconds"])
    rows = [
        [
            name, f"{way['setup']:.2f}", spread(way["seconds"]), ratio(plain / min(way["seconds"])), f"{way['max_difference']:.1e}",
            f"{way['accuracy_change']:.2f}",
        ]
        for name, way in bench["ways"].items()
    ]  # fmt: skip
    head = ["way", "set-up s", "sweep s", "plain ÷ way", "log-probability moves by", "accuracy moves by (pp)"]
    order = "all ways in turn" if bench.get("interleaved") else "those of one way after those of another"
    again = command(
        bench, "sweep", f"--n {bench['n_per_residue']}", repeats=bench["repeats"], seed=bench["seed"]
    )
    lines = [
        f"## Forward passes of a phase sweep of `{bench['model']}`{where(bench)}",
        "",
        again,
        "",
        f"{bench['batches']} batches of {bench['batch']} prompts, {repeated(bench['repeats'], order)}, {machine_line(bench)}.",
        "",
        table(head, rows),
        "",
        f"- Moves are the largest against plain fp32, over prompts and over phases; its accuracies have {_half(bench)}.",
        *kept(_pays(bench)),
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
    for name, way in bench["ways"].items():
        saved = min(plain["seconds"]) - min(way["seconds"])
        if way is plain:
            continue
        if saved <= 0:
            lines.append(f"{name}: no faster.")
        else:
            after = max(1, math.ceil((way["setup"] - plain["setup"]) / saved))
            lines.append(
                f"{name}: saves {saved:.3g} s of {min(plain['seconds']):.3g} s a sweep; has paid for its set-up after "
                f"{after} sweep(s)."
            )
    return lines
