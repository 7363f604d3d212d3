"""The numbers on shared caches, picks and stored precision in docs/: python -m interp.v41_report -o docs/v41.md.

Seeds are confirmatory (:data:`interp.stats.CONFIRMATORY_SEED`): they were never used while developing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from interp import results, stats
from interp.compare import compare
from interp.knockout import knockout
from interp.owners import owner_effects
from interp.periods import unit_periods
from interp.sweep import phase_sweep
from interp.tasks.recall import RecallTask

__all__ = ["main", "markdown"]

_ENDS = ("", "_low", "_high")
MODEL, TWIN, PICKING = "v41-ced", "v41-ced-bf", "dsv4-csa"
REPLAYS = (1, 4, 16, 46)
"""Tokens replayed through the decoder; (4 decoder layers − 1)·(16 − 1) + 1 = 46 are exact."""


def markdown(found: dict[str, Any]) -> str:
    """Write what :func:`measure` found as a page."""
    lines = [
        "# Shared caches, picks and stored precision",
        "",
        "Made by `python -m interp.v41_report -o docs/v41.md`; intervals are 95%, over prompts, seed "
        f"{found['seed']}. Each verb repeats its part: `phaselens sweep`, `periods`, `compare`, `owners`.",
        "",
        "## Accuracy by phase and period",
        "",
        "A period is looked for in the log-probability of the answer. The last column is the gap between one phase "
        "and the others, in nats, that the test would have found with 80% power at this n.",
        "",
        *_table(
            [
                "model",
                "prompts",
                "accuracy (%) by phase",
                "gap (pp)",
                "gap (nats)",
                "period",
                "p",
                "detectable (nats)",
            ],
            [_sweep_row(name, *pair) for name, pair in found["sweeps"].items()],
        ),
        "",
        "## Does the period follow the encoder's stride in the decoder?",
        "",
        *_periods(found["periods"]),
        "",
        "## What quantization and picking do to the gap",
        "",
        "Widening is the gap of the second model minus that of the first on the same prompts; an interval that holds "
        '0 supports no difference. "–": undefined, all answers agree.',
        "",
        *_table(
            ["first", "second", "prompts", "gaps (pp)", "widening (pp)", "gaps (nats)", "widening (nats)"],
            [_compare_row(one) for one in found["compared"]],
        ),
        "",
        "## Owner → reuse",
        "",
        *_owners(found["owners"]),
        "",
        "## Prefill that stops at the encoder",
        "",
        f"`{MODEL}`: the encoder runs over the whole prompt, the decoder over its last tokens; against the full "
        f"forward pass on {found['n_replay']} recall prompts, at the last token.",
        "",
        *_table(
            ["replayed tokens", "largest logit error", "KL (nats)", "same top token (%)"],
            [
                [str(e.replay), f"{e.max_logit:.2g}", f"{e.kl:.2g}", f"{100 * e.agreement:.1f}"]
                for e in found["replays"]
            ],
        ),
        "",
    ]
    return "\n".join(lines)


def measure(
    n: int, *, n_owners: int, seed: int, device: str, folder: Path | None = None, only: str | None = None
) -> dict[str, Any]:
    """Measure everything on the page.

    Parameters
    ----------
    n, n_owners : int
        Prompts per residue; for the owner → reuse matrix, whose every variant is a whole pass.
    seed : int
        Of the prompts.
    device : str
        Where models run.
    folder : path, optional
        Results are kept there, and taken from there where they are of the same models, prompts and seed.
    only : str, optional
        Measure this part alone ("owners" or "rest") into `folder`, and return nothing.
    """
    import hooks
    from hooks.variants import entries_seen, with_picks, without_quantization

    models = {name: hooks.load(name, device=device) for name in (MODEL, TWIN, PICKING)}
    tasks = {name: RecallTask.for_model(model) for name, model in models.items()}
    model, task = models[MODEL], tasks[MODEL]

    def kept(name: str, of: Any, count: int, make: Callable[[], xr.Dataset]) -> xr.Dataset:
        path = None if folder is None else folder / f"{name}.nc"
        if path is not None and path.is_file():
            found, wanted = results.load(path), (of.content_hash(), seed, count)
            if tuple(found.attrs[key] for key in ("model_hash", "seed", "n_per_residue")) == wanted:
                return found
        found = make()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            results.save(found, path)
        return found

    owners = None
    if only != "rest":
        owners = kept(
            "owners", model, n_owners,
            lambda: owner_effects(model, task, n=n_owners * task.modulus, seed=seed, progress=False),
        )  # fmt: skip
    if only == "owners":
        return {}

    def knocked(name: str, unit: str) -> xr.Dataset:
        each, size = models[name], n * tasks[name].modulus
        return kept(
            f"{unit}-{name}", each, n,
            lambda: knockout(each, tasks[name], unit=unit, n=size, seed=seed, progress=False),
        )  # fmt: skip

    layers = {name: knocked(name, "layer") for name in models}
    heads = knocked(MODEL, "head")
    length = task.sample(task.modulus, seed=seed).tokens.shape[1]

    def compared(
        first: str, label: str, make: Callable[[], Any], other: xr.Dataset | None = None
    ) -> xr.Dataset:
        return kept(
            f"compare-{first}-{label}", models[first], n,
            lambda: compare(
                models[first], make(), n_per_residue=n, seed=seed, known=(layers[first], other), progress=False
            ),
        )  # fmt: skip

    pairs = [
        compared(MODEL, "unquantized", lambda: without_quantization(model)),
        compared(MODEL, "twin", lambda: models[TWIN], layers[TWIN]),
    ]
    for name in models:
        pairs.append(
            compared(
                name, "all-entries", lambda name=name: with_picks(models[name], entries_seen(model, length))
            )
        )
    if only is not None:
        return {}
    replayed = task.sample(2 * task.modulus, seed=seed)
    return {
        "seed": seed,
        "sweeps": {
            name: (
                phase_sweep(models[name], tasks[name], n_per_residue=n, seed=seed, clean=one),
                unit_periods(one, seed=seed),
            )
            for name, one in layers.items()
        },
        "periods": [unit_periods(layers[MODEL], seed=seed), unit_periods(heads, seed=seed)],
        "compared": pairs,
        "owners": owners,
        "replays": [model.prefill_error(replayed.tokens.to(device), replay) for replay in REPLAYS],
        "n_replay": len(replayed),
    }


# ---- parts -------------------------------------------------------------------------------------------------


def _sweep_row(name: str, sweep: xr.Dataset, periods: xr.Dataset) -> list[str]:
    clean = periods.sel(unit="clean")
    a = sweep.attrs
    return [
        f"`{name}`", str(sweep["correct"].size), " ".join(f"{100 * v:.1f}" for v in sweep["accuracy"].values),
        _interval([a[f"gap_pp{end}"] for end in _ENDS], 1), f"{float(clean['gap']):.4f}",
        str(a["period"]) if a["period"] else "none", f"{a['period_p']:.3f}", f"{float(clean['detectable']):.4f}",
    ]  # fmt: skip


def _periods(found: Sequence[xr.Dataset]) -> list[str]:
    layers, heads = (one.sel(unit=one["unit"].values[1:]) for one in found)
    stride = int(layers.attrs["stride"])
    others = [int(c) for c in layers["candidate"].values if c != stride]
    start = layers.sizes["unit"] // 2
    follow = [
        str(u) for u in heads["unit"].values[heads["follows"].values] if int(str(u).split(".")[0]) >= start
    ]
    told = (
        f"Period {stride} in decoder head{'s' * (len(follow) > 1)} {', '.join(follow)}"
        if follow
        else f"Not supported: no decoder head's effect has period {stride}"
    )
    below = heads["detectable"].values[heads["layer"].values >= start]
    return [
        f"`{MODEL}` pools pairs of tokens in the encoder (layers 0 to {start - 1}) and single tokens in the decoder. "
        f"{told}, at n = {layers.attrs['n_prompts']} prompts a residue and p < 0.05 after Holm over {heads.sizes['unit']} "
        f"heads. For a decoder head a gap of {below.min():.3f} to {below.max():.3f} nats would have been found with "
        f"{100 * layers.attrs['power']:.0f}% power. Shares are of the effect's variance, adjusted for the number of "
        "classes; placebo strides mean nothing to the model.",
        "",
        *_table(
            ["layer", f"share at {stride}", *(f"at placebo {c}" for c in others), "period", "p (Holm)", "gap (nats)",
             "detectable"],
            [
                [
                    str(u), *(f"{float(layers['score'].sel(unit=u, candidate=c)):.4f}" for c in (stride, *others)),
                    str(int(layers["period"].sel(unit=u))) if int(layers["period"].sel(unit=u)) else "none",
                    f"{float(layers['p'].sel(unit=u)):.3f}", f"{float(layers['gap'].sel(unit=u)):.3f}",
                    f"{float(layers['detectable'].sel(unit=u)):.3f}",
                ]
                for u in layers["unit"].values
            ],
        ),
    ]  # fmt: skip


def _compare_row(one: xr.Dataset) -> list[str]:
    a = one.attrs
    cells = [f"`{name}`" for name in map(str, one["model"].values)]
    cells.append(str(one.sizes["prompt"] * one.sizes["residue"]))
    for unit, digits in (("pp", 1), ("nats", 4)):
        cells.append(" / ".join(f"{gap:.{digits}f}" for gap in a[f"gap_{unit}"]))
        cells.append(_interval([a[f"widening_{unit}{end}"] for end in _ENDS], digits))
    return cells


def _owners(found: xr.Dataset) -> list[str]:
    rows = []
    for unit in found["unit"].values:
        one = found.sel(unit=unit)
        rows.append([
            str(unit),
            *(
                _interval([float(one[f"effect_logprob{end}"].sel(phase=p)) for end in _ENDS], 2)
                for p in found["phase"].values
            ),
            " ".join(f"{v:.0f}" for v in one["effect_pp"].values),
            " ".join(f"{v:+.2f}" if np.isfinite(v) else "–" for v in one["mass"].mean("phase").values),
        ])  # fmt: skip
    picked = found["picked"].values
    shown = "; ".join(
        f"layer {layer} {' '.join(f'{100 * v:.1f}' for v in picked[layer])}"
        for layer in range(len(picked)) if np.isfinite(picked[layer]).all()
    )  # fmt: skip
    return [
        f"`{found.attrs['model']}`, {found.sizes['prompt'] * found.sizes['residue']} prompts. The target's record is "
        "dropped from an owner's entries as one layer reads them, or where they are stored (all): change of the "
        "answer's log-probability (nats) and of accuracy (pp), by phase of the target, and of the final query's "
        "attention on the entries that held it, in each layer (mean over heads and phases). "
        "Drawn by `phaselens owners`.",
        "",
        *_table(
            ["owner→reader", *(f"nats, phase {p}" for p in found["phase"].values), "pp by phase", "attention, layer by layer"],
            rows,
        ),
        "",
        f"Picks of the final query hold one of those entries (%, by phase): {shown}.",
        "",
        _lost(found),
    ]  # fmt: skip


def _lost(found: xr.Dataset) -> str:
    """Say owner by owner whether what is dropped where it is stored is lost."""
    told = []
    for owner in dict.fromkeys(found["owner"].values.tolist()):
        mine = found.sel(unit=found["unit"].values[found["owner"].values == owner])
        whole = mine.sel(unit=mine["unit"].values[mine["reader"].values < 0]).isel(unit=0)
        alone = mine.sel(unit=mine["unit"].values[mine["reader"].values >= 0])
        worst = alone.isel(unit=int(alone["effect_logprob"].mean("phase").values.argmin()))
        cost, p = whole["effect_logprob"].values, whole["effect_logprob_p"].values
        each = ", ".join(
            f"phase {i} {c:.2f} nats (p {q:.3f})" for i, (c, q) in enumerate(zip(cost, p, strict=True))
        )
        told.append(
            f"Dropped where layer {owner} stores it, the record costs {each}; dropped for one reader, most in layer "
            f"{int(worst['reader'])}: {' '.join(f'{v:.2f}' for v in worst['effect_logprob'].values)}."
        )
    return " ".join(told)


def _interval(bounds: Sequence[float], digits: int) -> str:
    value, low, high = bounds
    between = f"{low:.{digits}f} to {high:.{digits}f}" if np.isfinite([low, high]).all() else "–"
    return f"{value:.{digits}f} ({between})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="Measure shared caches, picks and stored precision.")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/v41.md"))
    parser.add_argument("-n", "--n-per-residue", type=int, default=10)
    parser.add_argument("--n-owners", type=int, default=10, help="prompts per residue for the owner matrix")
    parser.add_argument("--seed", type=int, default=stats.CONFIRMATORY_SEED)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--results", type=Path, help="folder that keeps results, and spares measuring them again"
    )
    parser.add_argument(
        "--only", choices=("owners", "rest"), help="measure a part into --results, write no page"
    )
    given = parser.parse_args(argv)
    if given.only is not None and given.results is None:
        parser.error("--only needs --results")
    found = measure(
        given.n_per_residue, n_owners=given.n_owners, seed=given.seed, device=given.device,
        folder=given.results, only=given.only,
    )  # fmt: skip
    if not found:
        return
    with results.atomic_path(given.out) as path:
        path.write_text(markdown(found), encoding="utf-8")


if __name__ == "__main__":
    main()
