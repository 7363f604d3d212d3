"""The zoo, measured: ``python -m interp.zoo_table > docs/zoo.md`` writes the page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tqdm.auto import tqdm

from interp.stats import CONFIRMATORY_SEED, period_label

__all__ = ["zoo_page"]


def zoo_page(
    names: Sequence[str] | None = None, *, n_per_residue: int = 64, seed: int = CONFIRMATORY_SEED
) -> str:
    """Measure zoo models on fresh prompts and return a Markdown page.

    Parameters
    ----------
    names : sequence of str or None
        All of the zoo if None.
    n_per_residue : int
        Prompts per residue.
    seed : int
        Of the prompts; confirmatory seeds are never used while developing.

    Returns
    -------
    str
        A table of what each model does by phase and which heads serve which phases, and under it how each was
        made and what every other run gave.
    """
    from hooks.checkpoint import zoo, zoo_info

    chosen = list(names or zoo())
    lines = [
        "# The zoo",
        "",
        "Made by `python -m interp.zoo_table > docs/zoo.md`; every number is measured by it: "
        f"{n_per_residue} prompts per residue, seed {seed}, KV heads knocked out at the final position.",
        "",
        "| model | accuracy (%) by phase | gap (pp) [95%] | null gap | period (p) | KV head → phases | by none |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(name, n_per_residue, seed) for name in tqdm(chosen, desc="zoo")]
    note = (
        '"–" is undefined. Heads that serve no phase are left out. Periods are looked for in the log-probability of the '
        "answer, where gaps too small for accuracy show; in 5% of samples a multiple of the period passes its nested test."
        " docs/deepseek.md has the periods of the hfv4 models at eight more seeds."
    )
    lines += ["", note, "", "## How each was made", ""]
    listed: dict[str, str] = {}
    lines += [line for name in chosen for line in _origin(name, zoo_info(name), listed)]
    return "\n".join(lines) + "\n"


def _row(name: str, n_per_residue: int, seed: int) -> str:
    from hooks import load
    from interp.knockout import knockout
    from interp.specialization import arcs_text, specialization, unserved
    from interp.sweep import phase_sweep
    from interp.tasks import RecallTask

    model = load(name)
    task = RecallTask.for_model(model)
    effects = knockout(model, task, n=n_per_residue * task.modulus, seed=seed, progress=False)
    sweep = phase_sweep(model, task, n_per_residue=n_per_residue, seed=seed, clean=effects, progress=False)
    served = specialization(effects, seed=seed)
    heads = [
        f"{unit} → {arcs_text(row)}"
        for unit, row in zip(served["unit"].values, served["serves"].values, strict=True)
        if row.any()
    ]
    bare, unknown = unserved(served)
    attrs = sweep.attrs
    low, high = attrs["gap_pp_low"], attrs["gap_pp_high"]
    interval = f"[{low:.1f}, {high:.1f}]" if low == low else "[–]"
    period = period_label(attrs)
    cells = [
        f"`{name}`",
        " ".join(f"{100 * a:.0f}" for a in sweep["accuracy"].values),
        f"{attrs['gap_pp']:.1f} {interval}",
        f"{attrs['null_gap_pp']:.1f}",
        f"{period} ({attrs['period_p']:.3f})",
        "; ".join(heads) or "none",
        arcs_text(bare) + (f"; undefined at {arcs_text(unknown)}" if unknown.any() else ""),
    ]
    return "| " + " | ".join(cells) + " |"


def _origin(name: str, info: dict[str, Any], listed: dict[str, str]) -> list[str]:
    """Lines on one model; `listed` maps a list of seeds to the model under which it was printed."""
    lines = [
        f"- `{name}`: `{info.get('command', 'no record')}` ({info.get('stored_as', '')}, {info.get('device', '')})"
    ]
    if info.get("chosen"):
        lines.append(f"  - **chosen**: {info['note'].removeprefix('chosen').lstrip(' :')}")
    started = info.get("started_from")
    while started:
        lines.append(f"  - went on from `{started.get('command')}`" + _numbers(started))
        started = started.get("started_from")
    seeds = info.get("seeds", [])
    others = [run for run in seeds if run["command"] != info.get("command")]
    if others and (first := listed.setdefault(repr(seeds), name)) != name:
        lines.append(f"  - {len(seeds)} seeds were trained: listed under `{first}`")
    else:
        lines += _family(seeds)
        lines += [f"  - seed {run['seed']}: `{run['command']}`" + _numbers(run) for run in others]
    for run in info.get("other_runs", []):
        lines.append(f"  - not shipped: `{run['command']}` ({run.get('note', '')})" + _numbers(run))
    return lines


def _family(seeds: Sequence[dict[str, Any]]) -> list[str]:
    """How often the gap came, where enough seeds were trained to say so."""
    found = [run["accuracy_by_phase"] for run in seeds if run.get("accuracy_by_phase")]
    if len(found) < 10:
        return []
    wide = sum(max(one) - min(one) >= 50 for one in found)
    boundary = sum(min(one) == one[-1] for one in found if max(one) - min(one) >= 50)
    closed = sum(one[-1] >= 85 for one in found)
    return [
        f"  - of {len(found)} seeds {wide} have a gap of 50 pp or more, {boundary} of these at the boundary phase; {closed} retrieve "
        "the boundary phase in 85% of prompts or more"
    ]


def _numbers(run: dict[str, Any]) -> str:
    accuracy = run.get("accuracy_by_phase")
    return ": " + " ".join(f"{a:.0f}" for a in accuracy) if accuracy else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure zoo models and print a Markdown page.")
    parser.add_argument("names", nargs="*", help="zoo models; all if left out")
    parser.add_argument("--n-per-residue", type=int, default=64)
    parser.add_argument("--seed", type=int, default=CONFIRMATORY_SEED)
    given = parser.parse_args()
    print(zoo_page(given.names or None, n_per_residue=given.n_per_residue, seed=given.seed), end="")
