"""The verb ``bench`` of the command line; nothing heavy is imported until it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, validators

from hooks.errors import PhaselensError
from interp.cli_options import POSITIVE

__all__ = ["bench"]


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
    repeats: Annotated[
        int | None,
        Parameter(
            validator=POSITIVE,
            help="Runs of everything; 3 if left out, and one of a report and of lengths that take 10 s or more.",
        ),
    ] = None,
    n: Annotated[
        int | None,
        Parameter(
            validator=POSITIVE,
            help="Prompts measured, rounded up to whole blocks of residues; of report and sweep, per residue.",
        ),
    ] = None,
    calibration: Annotated[
        int | None,
        Parameter(
            validator=POSITIVE,
            help="Prompts whose mean replaces a unit, rounded up likewise; n / 8 if left out.",
        ),
    ] = None,
    length: Annotated[
        int | None,
        Parameter(
            validator=validators.Number(gte=16),
            help="T of a random model's prompts, 512 if left out; of lengths the longest, 32768 if left out.",
        ),
    ] = None,
    unit: Annotated[
        Literal["kv_head", "head", "layer"] | None,
        Parameter(help="What is knocked out; kv_head if left out."),
    ] = None,
    method: Annotated[
        list[Literal["transformer_lens", "nnsight", "hugging_face", "float64"]] | None,
        Parameter(
            help="Ways to run beside ours and the bare run; repeatable; all loops if left out. float64: ours in "
            "twice the precision, to tell rounding from mistakes."
        ),
    ] = None,
    loop_units: Annotated[
        int | None,
        Parameter(
            validator=POSITIVE, help="Loops run so many units and their time is scaled up; all if left out."
        ),
    ] = None,
    memory: Annotated[
        str | None, Parameter(help="Budget for activations, e.g. 512MiB; 1GiB if left out.")
    ] = None,
    threads: Annotated[
        int | None, Parameter(validator=POSITIVE, help="Of every process; all cores if left out.")
    ] = None,
    device: Annotated[str | None, Parameter(help="cpu, cuda or cuda:N; cpu if left out.")] = None,
    seed: Annotated[
        int, Parameter(validator=validators.Number(gte=0), help="Of prompts and random weights.")
    ] = 0,
    compare: Annotated[
        Path | None,
        Parameter(help="An earlier JSON file of the same; what got slower beyond the noise is an error."),
    ] = None,
    json: Annotated[bool, Parameter(help="Print the JSON instead of a table.")] = False,
) -> None:
    """Time our engine against loops of full forward passes, and against what the machine allows.

    Ours, a bare run without hooks, a TransformerLens loop, an nnsight loop and,
    for models of that class, Hugging Face eager compute one knockout map, each in
    a process of its own. On a CPU a process may use the memory that is free at the
    start and fails alone beyond. Exit code 1 if answers differ or --compare finds
    something slower.

    Example: phaselens bench w8s8-4kv --repeats 3 -o bench/small.json
    """
    given = {
        "n": n, "calibration": calibration, "length": length, "unit": unit, "method": method,
        "loop_units": loop_units, "memory": memory, "repeats": repeats, "threads": threads, "device": device,
    }  # fmt: skip
    _refuse_idle(what, {name for name, value in given.items() if value is not None})
    _require_file_name(out)
    earlier = None
    if compare is not None:
        if out is not None and out.resolve() == compare.resolve():
            raise PhaselensError(
                f"--out and --compare are both {str(out)!r}, which would be lost; valid: two files"
            )
        from interp.bench.files import load_bench

        earlier = load_bench(compare)
    if device not in (None, "cpu"):
        from hooks.running import require_device

        require_device(device)
    plan, run = _planned(what, seed=seed, comparing=earlier is not None, **given)
    if earlier is not None:
        from interp.bench.compare import FEWEST_REPEATS, require_comparable

        if repeats is not None and repeats < FEWEST_REPEATS:
            raise PhaselensError(f"--repeats {repeats} with --compare; valid: {FEWEST_REPEATS} or more")
        require_comparable(plan, earlier)
    _finish(run(), out, earlier, as_json=json)


_EVERYWHERE = ("repeats", "threads")
_APPLY = {
    "lengths": ("length", *_EVERYWHERE, "device"),
    "report": ("n", *_EVERYWHERE),
    "family": ("n", *_EVERYWHERE, "device"),
    "sweep": ("n", *_EVERYWHERE, "device"),
}
_MAP = ("n", "calibration", "unit", "method", "loop_units", "memory", *_EVERYWHERE, "device")
"""Options that change something, besides --seed and those of the output; of knockout maps."""


def _refuse_idle(what: str, given: set[str]) -> None:
    """Raise for an option that would change nothing."""
    random = (*_MAP, "length") if what.startswith("random-") else _MAP
    apply = _APPLY.get(what, random)
    idle = sorted(given - set(apply))
    if idle:
        flag, *valid = (f"--{name.replace('_', '-')}" for name in (idle[0], *apply))
        raise PhaselensError(f"{flag} does not apply to bench {what}; valid: {', '.join(valid)}, --seed")


def _require_file_name(out: Path | None) -> None:
    """Raise before anything is measured if the result could not be written."""
    if out is None:
        return
    from hooks.files import require_writable

    if out.is_dir():
        raise PhaselensError(
            f"--out {str(out)!r} is a folder; valid: the name of a JSON file, e.g. {str(out / 'bench.json')!r}"
        )
    require_writable(out.parent)


def _say(line: str) -> None:
    """Tell whoever watches."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def _planned(
    what: str,
    *,
    seed: int,
    comparing: bool,
    n: int | None,
    length: int | None,
    repeats: int | None,
    threads: int | None,
    device: str | None,
    **of_map: Any,
) -> tuple[dict[str, Any], Callable[[], dict[str, Any]]]:
    """Settings and machine of a benchmark, as its JSON will have them, and what runs it."""
    from interp.bench.knockouts import machine

    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    common: dict[str, Any] = {"threads": threads or here or 1, "seed": seed}
    place: dict[str, Any] = {"device": device or "cpu"}
    plan: dict[str, Any] = {"machine": machine(common["threads"], place["device"]), "seed": seed}
    if what == "lengths":
        from interp.bench.lengths import D_MODEL, LAYERS, LONGEST, SHORTEST, bench_lengths, doubling

        longest = length or LONGEST
        doubling(SHORTEST, longest)
        plan |= {"kind": "lengths", "layers": LAYERS, "d_model": D_MODEL}
        return plan, lambda: bench_lengths(longest=longest, repeats=repeats, **common, **place, say=_say)
    if what == "report":
        from interp.bench import profile

        runs = repeats or (3 if comparing else 1)
        plan |= {"kind": "profile", "model": profile.MODEL, "n_per_residue": n or 64}
        return plan, lambda: profile.profile_report(n_per_residue=n or 64, repeats=runs, **common)
    if what == "family":
        from interp.bench.family import FAMILY, bench_family

        count = _whole(n or 96, _residues(FAMILY[0]))
        plan |= {"kind": "family", "names": list(FAMILY), "n": count}
        return plan, lambda: {**bench_family(n=count, repeats=repeats or 3, **common, **place), "seed": seed}
    if what == "sweep":
        from interp.bench import sweeps

        plan |= {"kind": "sweep", "model": sweeps.MODEL, "n_per_residue": n or 64}
        return plan, lambda: sweeps.bench_sweep(
            n_per_residue=n or 64, repeats=repeats or 3, **common, **place
        )
    return _map_planned(what, plan, n=n, length=length, repeats=repeats or 3, **common, **place, **of_map)


def _map_planned(
    model: str,
    plan: dict[str, Any],
    *,
    n: int | None,
    calibration: int | None,
    length: int | None,
    unit: str | None,
    method: list[str] | None,
    memory: str | None,
    repeats: int,
    **settings: Any,
) -> tuple[dict[str, Any], Callable[[], dict[str, Any]]]:
    from interp.bench.cases import Case
    from interp.bench.knockouts import LOOPS, bench_knockout
    from interp.memory import parse_bytes

    block = _residues(model)
    count = _whole(n or 8 * block, block)
    case = Case(
        model=model, n=count, n_calibration=_whole(calibration or max(block, count // 8), block), length=length or 512,
        unit=unit or "kv_head", memory=parse_bytes(memory or "1GiB"), **settings,
    )  # fmt: skip
    plan |= {"kind": "knockout", "case": case.to_dict()}
    return plan, lambda: bench_knockout(case, repeats=repeats, methods=method or LOOPS, say=_say)


def _residues(model: str) -> int:
    """R of the task that a model's prompts come from: they are drawn in blocks of it."""
    if model.startswith("random-"):
        return 1
    from hooks import load
    from interp.tasks.recall import RecallTask

    return RecallTask.for_model(load(model)).modulus


def _whole(n: int, block: int) -> int:
    """`n` rounded up to whole blocks."""
    return -(-n // block) * block


def _finish(
    found: dict[str, Any], out: Path | None, earlier: dict[str, Any] | None, *, as_json: bool
) -> None:
    """Write, print, and end with code 1 where something is wrong."""
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
        from interp.bench.compare import compare

        held = compare(found, earlier)
        wrong += [f"worse than before: {line}" for line in held.worse]
        for line in held.notes:
            print(f"note: {line}", file=sys.stderr)
    for line in wrong:
        print(f"phaselens: {line}", file=sys.stderr)
    if wrong:
        raise SystemExit(1)
