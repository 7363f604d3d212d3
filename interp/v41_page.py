"""The page of :mod:`interp.v41_report`, from what it measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from interp import stats
from interp.figures.base import number

__all__ = ["markdown"]

_ENDS = ("", "_low", "_high")


def markdown(found: dict[str, Any]) -> str:
    """Write what :func:`interp.v41_report.measure` found as a page."""
    model = found["owners"].attrs["model"]
    sections = {
        "Accuracy by phase and period": _accuracy(found["sweeps"], found["notes"]),
        "Does the period follow the encoder's stride in the decoder?": _periods(*found["periods"]),
        "What quantization and picking do to the gap": _compared(found["compared"], found["every_entry"]),
        "Owner → reuse": _owners(found["owners"]),
        "Prefill that stops at the encoder": [
            f"`{model}`: the encoder runs over the whole prompt, the decoder over its last tokens; against the full "
            f"forward pass on {found['n_replay']} recall prompts, at the last token.",
            "",
            *_table(
                ["replayed tokens", "largest logit error", "KL (nats)", "same top token (%)"],
                [
                    [str(e.replay), f"{e.max_logit:.2g}", f"{e.kl:.2g}", f"{100 * e.agreement:.1f}"]
                    for e in found["replays"]
                ],
            ),
        ],
    }
    lines = [
        "# Shared caches, picks and stored precision",
        "",
        f"Made by `{found['command']}`; intervals are 95%, over prompts, seed "
        f'{found["seed"]}; "–" is undefined. Each verb repeats its part: `phaselens sweep`, `periods`, `compare`, '
        "`owners`.",
        "",
    ]
    for title, body in sections.items():
        lines += [f"## {title}", "", *body, ""]
    return "\n".join(lines)


def _accuracy(sweeps: dict[str, tuple[xr.Dataset, xr.Dataset]], notes: dict[str, str]) -> list[str]:
    rows = []
    for name, (sweep, periods) in sweeps.items():
        clean, a = periods.sel(unit="clean"), sweep.attrs
        rows.append([
            f"`{name}`", str(sweep["correct"].size), _each(100 * sweep["accuracy"].values, 1),
            _each(clean["by_phase"].values, 2), _interval([a[f"gap_pp{end}"] for end in _ENDS], 1),
            number(float(clean["gap"]), 3), stats.period_label(a), _p(a["period_p"]), number(float(clean["detectable"]), 3),
        ])  # fmt: skip
    guess = math.log(_n_values(next(iter(sweeps.values()))[0]))
    return [
        "A period is looked for in log p, the log-probability of the answer. The last column is the gap between one "
        "phase and the others, in nats, that the test would have found with 80% power at this n. The interval of the gap "
        "is the bootstrap's, of the measured gap, which lies above the true one where phases differ little. A guess among the "
        f"values has log p {number(-guess, 2)}, and is right in {number(100 * math.exp(-guess), 1)}%.",
        "",
        *(f"- `{name}` is {note}." for name, note in notes.items()),
        "",
        *_table(
            ["model", "prompts", "accuracy (%) by phase", "log p by phase", "gap (pp)", "gap (nats)", "period", "p",
             "detectable (nats)"],
            rows,
        ),
    ]  # fmt: skip


# ---- periods -------------------------------------------------------------------------------------------------


def _periods(layers: xr.Dataset, heads: xr.Dataset) -> list[str]:
    stride, start = int(layers.attrs["stride"]), (layers.sizes["unit"] - 1) // 2
    others = [int(c) for c in layers["candidate"].values if c != stride]
    decoder = heads.sel(unit=heads["unit"].values[heads["layer"].values >= start])
    seen, n = decoder["detectable"].values, int(layers.attrs["n_prompts"])
    whole = layers.sel(unit=layers["unit"].values[layers["layer"].values >= start])
    return [
        f"`{layers.attrs['model']}` pools {stride} tokens an entry in the encoder (layers 0 to {start - 1}) and single "
        f"tokens in the decoder. At n = {n} prompts a residue and p < {stats.SIGNIFICANCE}, after Holm over "
        f"{heads.sizes['unit'] - 1} heads and over {layers.sizes['unit'] - 1} layers, the effect has period {stride} in "
        f"{_following(decoder, 'head')} and in {_following(whole, 'layer')}. For a decoder head a gap of "
        f"{number(seen.min(), 3)} to {number(seen.max(), 3)} nats would have been found with "
        f"{100 * layers.attrs['power']:.0f}% power.",
        "",
        *_inherited(layers),
        "Effects are changes of log p when a layer is knocked out; \"clean\" is log p itself. Shares are of the "
        "variance, adjusted for the number of classes; placebo strides mean nothing to the model.",
        "",
        *_table(
            ["layer", "effect (nats) by phase", "gap", "detectable", "period", "p (Holm)", f"share at {stride}",
             *(f"at placebo {c}" for c in others)],
            [_period_row(layers.sel(unit=unit), (stride, *others)) for unit in layers["unit"].values],
        ),
    ]  # fmt: skip


def _period_row(one: xr.Dataset, candidates: Sequence[int]) -> list[str]:
    return [
        str(one["unit"].values), _each(one["by_phase"].values, 2), number(float(one["gap"]), 3),
        number(float(one["detectable"]), 3), str(int(one["period"]) or "none"), _p(float(one["p"])),
        *(number(float(one["score"].sel(candidate=c)), 3) for c in candidates),
    ]  # fmt: skip


def _following(units: xr.Dataset, what: str) -> str:
    """Name the decoder units whose effect follows the stride, and the phase at which each costs most."""
    told = [
        f"{unit} (costs most at phase {int(by.argmin())})"
        for unit, by, follows in zip(
            units["unit"].values, units["by_phase"].values, units["follows"].values, strict=True
        )
        if follows
    ]
    return f"decoder {what}{'s' * (len(told) > 1)} {', '.join(told)}" if told else f"no decoder {what}"


def _inherited(layers: xr.Dataset) -> list[str]:
    """Warn that effects may have the period of the answers, where those have one."""
    clean = layers.sel(unit="clean")
    if int(clean["period"]) == 0:
        return []
    best = int(clean["by_phase"].values.argmax())
    return [
        f"The answers themselves have period {int(clean['period'])}. A unit that costs most at phase {best}, where they "
        "are best, may have it only because there is more to lose there; one that costs most elsewhere does not.",
        "",
    ]


# ---- pairs ---------------------------------------------------------------------------------------------------


def _compared(pairs: Sequence[xr.Dataset], every: int) -> list[str]:
    rows = []
    for one in pairs:
        cells = [f"`{name}`" for name in map(str, one["model"].values)]
        cells.append(str(one.sizes["prompt"] * one.sizes["residue"]))
        cells.append(" / ".join(_each(100 * row, 1) for row in one["accuracy"].values))
        for unit, digits in (("pp", 1), ("nats", 3)):
            a = one.attrs
            cells.append(" / ".join(number(gap, digits) for gap in a[f"gap_{unit}"]))
            cells.append(_interval([a[f"widening_{unit}{end}"] for end in _ENDS], digits))
        rows.append([*cells, _each(one["change"].values, 3)])
    return [
        "Widening is the gap of the second model minus that of the first on the same prompts; its interval is that of the "
        "true difference, whichever phases are best and worst, and one that holds 0 supports no difference. Between a "
        "phase that is always and one that is never right the gap cannot widen in pp, only in nats. The last column is the "
        f"mean change of log p. With {every} picks every entry is attended.",
        "",
        *_table(
            ["first", "second", "prompts", "accuracy (%) by phase", "gaps (pp)", "widening (pp)", "gaps (nats)",
             "widening (nats)", "change (nats) by phase"],
            rows,
        ),
    ]  # fmt: skip


# ---- owners --------------------------------------------------------------------------------------------------


def _owners(found: xr.Dataset) -> list[str]:
    phases = [int(p) for p in found["phase"].values]
    clean = 100 * found["clean_accuracy"].values
    rows = [["nothing dropped", *("" for _ in phases), _each(clean, 1), *("" for _ in phases)]]
    for unit in found["unit"].values:
        one = found.sel(unit=unit)
        rows.append([
            str(unit),
            *(_interval([float(one[f"effect_logprob{end}"].sel(phase=p)) for end in _ENDS], 2) for p in phases),
            _each(clean + one["effect_pp"].values, 1),
            *(_each(one["mass"].sel(phase=p).values, 2, sign=True) for p in phases),
        ])  # fmt: skip
    layers = [
        [
            str(layer),
            _each(100 * found["picked"].values[layer], 1),
            _each(found["clean_mass"].values[layer], 3),
        ]
        for layer in found["layer"].values
        if np.isfinite(found["clean_mass"].values[layer]).all()
    ]
    n = found.sizes["prompt"] * found.sizes["residue"]
    return [
        f"`{found.attrs['model']}`, {n} prompts. The target's record is dropped from an owner's entries as one layer "
        "reads them, or where they are stored (all): change of log p (nats), the accuracy that is left, and the change "
        "of the final query's attention on the entries that held it, layer by layer (mean over heads), by phase of the "
        "target. Drawn by `phaselens owners`.",
        "",
        *_table(
            ["owner→reader", *(f"nats, phase {p}" for p in phases), "accuracy left (%) by phase",
             *(f"attention, phase {p}" for p in phases)],
            rows,
        ),
        "",
        "With nothing dropped, the entries that hold the record:",
        "",
        *_table(["layer", "among the final query's picks (%) by phase", "its attention on them by phase"], layers),
        "",
        *_lost(found),
    ]  # fmt: skip


def _lost(found: xr.Dataset) -> list[str]:
    """Say what each owner's record is worth by phase, through which reader, and which phase none gets back."""
    told = []
    nats, p = found["effect_logprob"].values, found["effect_logprob_p"].values
    for owner in dict.fromkeys(found["owner"].values.tolist()):
        mine = found["owner"].values == owner
        whole = int(np.flatnonzero(mine & (found["reader"].values < 0))[0])
        alone = np.flatnonzero(mine & (found["reader"].values >= 0))
        each = []
        for phase in range(found.sizes["phase"]):
            most = alone[nats[alone, phase].argmin()]
            reader = f", layer {int(found['reader'].values[most])} alone {number(nats[most, phase], 2)}"
            each.append(
                f"phase {phase} {number(nats[whole, phase], 2)} nats (p {_p(p[whole, phase])}"
                f"{reader if round(nats[most, phase], 2) < 0 else ''})"
            )
        told.append(f"Dropped where layer {owner} stores it, the record costs {'; '.join(each)}.")
    if not np.isfinite(p).any():
        told.append("No tests: too few prompts a residue.")
    few = stats.unanswered(found["clean_correct"].values, found.sizes["phase"])
    return [
        " ".join(told),
        *(line for phase in np.flatnonzero(few) for line in ("", _unanswered(found, int(phase)))),
    ]


def _unanswered(found: xr.Dataset, phase: int) -> str:
    """Say what is read, and not answered, at a phase where hardly anything is answered."""
    picked, mass = found["picked"].values[:, phase], found["clean_mass"].values
    held = 100 * picked[np.isfinite(picked)]
    layer = int(np.nanargmax(mass[:, phase]))
    others = [p for p in range(found.sizes["phase"]) if p != phase]
    logprob = float(found["clean_logprob"].values[:, phase :: found.sizes["phase"]].mean())
    picks = (
        f"picks hold its entries in {number(held.min(), 1)} to {number(held.max(), 1)}% of prompts, and "
        if held.size
        else ""
    )
    return (
        f"Phase {phase} stays lost in every layer that reads. With nothing dropped, {picks}layer {layer} gives them "
        f"{number(mass[layer, phase], 2)} of its attention ({_each(mass[layer, others], 2)} at the other "
        f"phase{'s' * (len(others) > 1)}), yet {number(100 * float(found['clean_accuracy'][phase]), 1)}% are answered, at "
        f"log p {number(logprob, 2)} (a guess: {number(-math.log(_n_values(found)), 2)}). There is no accuracy to lose "
        "there, only log p."
    )


# ---- cells ---------------------------------------------------------------------------------------------------


def _n_values(found: xr.Dataset) -> int:
    return int(json.loads(str(found.attrs["task"]))["n_values"])


def _each(values: np.ndarray, digits: int, sign: bool = False) -> str:
    return " ".join(number(float(value), digits, sign=sign) for value in values)


def _p(value: float) -> str:
    return number(float(value), 3)


def _interval(bounds: Sequence[float], digits: int) -> str:
    value, low, high = bounds
    between = f"{number(low, digits)} to {number(high, digits)}" if np.isfinite([low, high]).all() else "–"
    return f"{number(value, digits)} ({between})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
