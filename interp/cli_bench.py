"""The verb ``bench`` of the command line; nothing heavy is imported until it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, validators

__all__ = ["bench"]

_positive = validators.Number(gte=1)


def bench(
    what: Annotated[
        str,
        Parameter(
            help="A model's knockout map: a zoo name, a folder, or random-L (L layers of d_model 1024, random weights). "
            "Or: lengths, report, family, sweep."
        ),
    ] = "w8s8-4kv",
    *,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"], help="A JSON file.")] = None,
    repeats: Annotated[int, Parameter(validator=_positive, help="Runs of everything, interleaved.")] = 3,
    n: Annotated[
        int | None, Parameter(validator=_positive, help="Prompts measured; whole blocks of residues.")
    ] = None,
    calibration: Annotated[
        int | None,
        Parameter(validator=_positive, help="Prompts whose mean replaces a unit; n / 8 if left out."),
    ] = None,
    length: Annotated[
        int,
        Parameter(
            validator=validators.Number(gte=16),
            help="T of a random model's prompts; of lengths, the longest.",
        ),
    ] = 512,
    unit: Annotated[Literal["kv_head", "head", "layer"], Parameter(help="What is knocked out.")] = "kv_head",
    method: Annotated[
        list[Literal["transformer_lens", "nnsight", "hugging_face"]] | None,
        Parameter(help="Loops to run beside ours and the floor; repeatable; all if left out."),
    ] = None,
    loop_units: Annotated[
        int | None,
        Parameter(
            validator=_positive, help="Loops run so many units and their time is scaled up; all if left out."
        ),
    ] = None,
    memory: Annotated[str, Parameter(help="Budget for activations, e.g. 512MiB.")] = "1GiB",
    threads: Annotated[
        int | None, Parameter(validator=_positive, help="Of every process; all cores if left out.")
    ] = None,
    device: Annotated[str, Parameter(help="cpu, cuda or cuda:N.")] = "cpu",
    seed: Annotated[
        int, Parameter(validator=validators.Number(gte=0), help="Of prompts and random weights.")
    ] = 0,
    compare: Annotated[
        Path | None, Parameter(help="An earlier JSON file; what got slower beyond the noise is an error.")
    ] = None,
    json: Annotated[bool, Parameter(help="Print the JSON instead of a table.")] = False,
) -> None:
    """Time our engine against loops of full forward passes, and against what the machine allows.

    Ours, a TransformerLens loop, an nnsight loop and, for models of that class, Hugging Face eager compute one
    knockout map, each in a process of its own. Exit code 1 if answers differ or --compare finds something slower.

    Example: phaselens bench w8s8-4kv --repeats 3 -o bench/small.json
    """
    import os

    from interp.memory import parse_bytes

    budget = parse_bytes(memory)
    if device != "cpu":
        from hooks.running import require_device

        require_device(device)
    earlier = None
    if compare is not None:
        from interp.bench.compare import load_bench

        earlier = load_bench(compare)
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = threads or here or 1
    options: dict[str, Any] = {"threads": cores, "repeats": repeats, "seed": seed, "device": device}
    if what == "lengths":
        found = _lengths(length, options)
    elif what == "report":
        found = _profile(n, options)
    elif what == "family":
        found = _family(n, options)
    elif what == "sweep":
        found = _sweep(n, options)
    else:
        found = _knockout(
            what, n=n, calibration=calibration, length=length, unit=unit, method=method, loop_units=loop_units,
            memory=budget, **options,
        )  # fmt: skip
    _finish(found, out, earlier, as_json=json)


def _say(line: str) -> None:
    """Tell whoever watches."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def _knockout(
    model: str, *, n: int | None, calibration: int | None, repeats: int, method: list | None, **settings: Any
) -> dict[str, Any]:
    from interp.bench.cases import Case
    from interp.bench.knockouts import LOOPS, bench_knockout

    block = 1 if model.startswith("random-") else 24
    count = n or 8 * block
    case = Case(model=model, n=count, n_calibration=calibration or max(block, count // 8), **settings)
    return bench_knockout(case, repeats=repeats, methods=method or LOOPS, say=_say)


def _lengths(length: int, options: dict[str, Any]) -> dict[str, Any]:
    from interp.bench.lengths import bench_lengths

    kept = {key: options[key] for key in ("threads", "seed", "device")}
    return bench_lengths(longest=length, **kept, say=_say)


def _profile(n: int | None, options: dict[str, Any]) -> dict[str, Any]:
    from interp.bench.profile import profile_report

    return profile_report(n_per_residue=n or 64, threads=options["threads"], seed=options["seed"])


def _family(n: int | None, options: dict[str, Any]) -> dict[str, Any]:
    from interp.bench.family import bench_family

    return bench_family(n=n or 96, **options)


def _sweep(n: int | None, options: dict[str, Any]) -> dict[str, Any]:
    from interp.bench.sweeps import bench_sweep

    return bench_sweep(n_per_residue=n or 64, **options)


def _finish(
    found: dict[str, Any], out: Path | None, earlier: dict[str, Any] | None, *, as_json: bool
) -> None:
    """Write, print, and end with code 1 where something is wrong."""
    from interp.bench.compare import regressions
    from interp.bench.page import section

    if out is not None:
        from hooks.files import write_json
        from interp.outputs import to_plain

        write_json(out, to_plain(found))
    if as_json:
        from interp.cli_run import print_json

        print_json(found)
    else:
        print(section(found))
    wrong = []
    if found.get("summary", {}).get("agree") is False:
        wrong.append("answers differ by more than 1e-5")
    if earlier is not None:
        wrong += [f"slower than before: {line}" for line in regressions(found, earlier)]
    for line in wrong:
        print(f"phaselens: {line}", file=sys.stderr)
    if wrong:
        raise SystemExit(1)
