"""The command line: one function per verb, and one line per mistake.

Nothing heavy is imported here; every verb imports what it runs, so that help and parse errors are instant.
A new verb is a function with ``@app.command`` in this module, or one of a module of its own that is listed below.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from hooks.errors import PhaselensError
from interp.cli_audit import audit
from interp.cli_bench import bench
from interp.cli_figures import figures
from interp.cli_grid import grid, replicate
from interp.cli_models import explore, results, train, zoo
from interp.cli_options import (
    AnyUnit,
    Controls,
    Count,
    Device,
    GateControls,
    Json,
    Memory,
    Model,
    Only,
    Out,
    Padding,
    PerResidue,
    Seed,
    Unit,
)
from interp.cli_usage import refuse_idle, usage_line
from interp.cli_v41 import compare, owners, periods
from interp.memory import parse_bytes

__all__ = ["app", "main"]

app = App(
    name="phaselens",
    help="Hooked compressed-attention models, measured phase by phase.\n\n"
    "Start with: phaselens report w8s8-2kv -o reports/first",
    help_format="plaintext",
    version=lambda: _version(),
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)

_TOO_MUCH = "not enough memory for so much at once; ask for fewer prompts, or a smaller --memory or --batch where there is one"
_LONGEST_WORD = 255  # as a file's name
_MASKED = ("exact_branch", "entry_branch", "target_entry", "picks", "gate_offset")
"""Units that are taken out of what is attended to, so that nothing stands in their place."""


# --------------------------------------------------------------------------- measuring


@app.command
def report(
    model: Model,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="Folder of the report; made if need be.")],
    n_per_residue: PerResidue = 64,
    seed: Seed = 0,
    unit: Unit = "kv_head",
    padding: Padding = "in_sequence",
    memory: Memory = "1GiB",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Run the main job: sweep, knockout, gates and specialization of one model.

    Prints a table; writes results (netCDF, CSV), figures (PDF, SVG, HTML, PNG) and an index.html to DIR.

    Example: phaselens report w8s8-2kv -o reports/w8s8-2kv
    """
    from interp import cli_run

    cli_run.report(
        model,
        out=out,
        n_per_residue=n_per_residue,
        seed=seed,
        unit=unit,
        padding=padding,
        memory=parse_bytes(memory),
        device=device,
        as_json=json,
    )


@app.command
def sweep(
    model: Model,
    *,
    out: Out = None,
    n_per_residue: PerResidue = 64,
    seed: Seed = 0,
    axis: Annotated[Literal["target", "query"], Parameter(help="Whose phase is swept.")] = "target",
    padding: Padding = "in_sequence",
    memory: Memory = "1GiB",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Measure accuracy, log-probability and margin by phase, with intervals, gap and period.

    Example: phaselens sweep w8s8-2kv --n-per-residue 128 -o runs/sweep
    """
    from interp import cli_run

    budget = parse_bytes(memory)

    def work() -> dict[str, Any]:
        from interp.sweep import phase_sweep

        hooked, task = cli_run.prepare(model, device=device, padding=padding)
        return {
            "sweep": phase_sweep(
                hooked, task, n_per_residue=n_per_residue, seed=seed, axis=axis, memory=budget
            )
        }

    cli_run.run(work, out, as_json=json)


@app.command
def knockout(
    model: Model,
    *,
    out: Out = None,
    unit: AnyUnit = "kv_head",
    replace: Annotated[
        Literal["mean", "zero", "phase_mean", "resample"], Parameter(help="What a unit's output becomes.")
    ] = "mean",
    at: Annotated[
        Literal["final", "all"], Parameter(help="At the final position only, or at all.")
    ] = "final",
    only: Only = None,
    n: Count = None,
    controls: Controls = False,
    seed: Seed = 0,
    padding: Padding = "in_sequence",
    memory: Memory = "1GiB",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Remove each head or layer: what it is worth by phase, and who serves which phase.

    Example: phaselens knockout w8s8-2kv --unit head --replace zero -o runs/knockout
    """
    if unit in _MASKED:
        refuse_idle(
            knockout,
            locals(),
            ["replace"],
            why=f"--unit {unit} is masked, not replaced",
            instead="leave it out",
        )
    from interp import cli_run

    budget = parse_bytes(memory)

    def work() -> dict[str, Any]:
        from interp.knockout import knockout as knock
        from interp.specialization import specialization

        hooked, task = cli_run.prepare(model, device=device, padding=padding)

        def measure(other: Any) -> Any:
            return knock(
                other, task, unit=unit, replace=replace, at=at, only=only, n=n, seed=seed, memory=budget
            )

        effects = measure(hooked)
        stride = int(effects.attrs["stride"])
        found = {"knockout": effects, "specialization": specialization(effects, stride=stride, seed=seed)}
        return cli_run.with_controls(found, hooked, measure, seed=seed, wanted=controls)

    cli_run.run(work, out, as_json=json)


@app.command
def patch(
    model: Model,
    *,
    out: Out = None,
    pairs: Annotated[
        Literal["shift", "value"],
        Parameter(help="What the two prompts of a pair differ in: the target's phase, or its value."),
    ] = "shift",
    shift: Annotated[int, Parameter(help="How far the target moves, in residues.")] = 1,
    direction: Annotated[
        Literal["noising", "denoising"], Parameter(help="Into the clean prompt, or into the other one.")
    ] = "noising",
    unit: Annotated[
        Literal["head", "kv_head", "layer", "mlp", "position", "entry", "offset"],
        Parameter(help="What is patched, one at a time; positions and entries relative to the target's."),
    ] = "head",
    site: Annotated[
        str | None, Parameter(help="Another site of every layer, e.g. attn.indexer.hook_picks.")
    ] = None,
    only: Only = None,
    n: Count = None,
    controls: Controls = False,
    seed: Seed = 0,
    padding: Padding = "in_sequence",
    memory: Memory = "1GiB",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Patch heads, positions, entries or any site from a prompt into one that differs in one thing.

    Example: phaselens patch w8s8-2kv --shift 3 -o runs/patch
    """
    if pairs == "value":
        refuse_idle(
            patch,
            locals(),
            ["shift"],
            why="--pairs value moves no target",
            instead="leave one of the two out",
        )
    from interp import cli_run

    budget = parse_bytes(memory)

    def work() -> dict[str, Any]:
        from interp.patching import patch as patching

        hooked, task = cli_run.prepare(model, device=device, padding=padding)

        def measure(other: Any) -> Any:
            return patching(
                other,
                task,
                pairs=pairs,
                shift=shift,
                direction=direction,
                unit=unit,
                site=site,
                only=only,
                n=n,
                seed=seed,
                memory=budget,
            )

        return cli_run.with_controls({"patch": measure(hooked)}, hooked, measure, seed=seed, wanted=controls)

    cli_run.run(work, out, as_json=json)


@app.command
def gates(
    model: Model,
    *,
    out: Out = None,
    cycle: Annotated[
        list[int] | None,
        Parameter(
            help="Move gates by so many offsets too, up to S − 1, and compare with what that predicts; repeatable."
        ),
    ] = None,
    parts: Annotated[
        bool,
        Parameter(help="Knock heads out with gates forced to their mean, their deviation, or uniform, too."),
    ] = False,
    n: Count = None,
    controls: GateControls = False,
    seed: Seed = 0,
    padding: Padding = "in_sequence",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Measure gate profiles by phase, static and per-window effective numbers of offsets.

    Example: phaselens gates w8s8-2kv --cycle 1 --cycle -1 -o runs/gates
    """
    from interp import cli_run

    def work() -> dict[str, Any]:
        hooked, task = cli_run.prepare(model, device=device, padding=padding)
        return cli_run.gates(hooked, task, cycle=cycle, parts=parts, n=n, seed=seed, controls=controls)

    cli_run.run(work, out, as_json=json)


# Verbs with modules of their own. These import nothing heavy either, and are registered as functions, so that
# the list of verbs has the first line of each docstring.
for _verb in (
    audit, bench, compare, explore, figures, grid, owners, periods, replicate, results, train, zoo,
):  # fmt: skip
    app.command(_verb)


# --------------------------------------------------------------------------- running


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; those of the process if left out.

    Returns
    -------
    int
        0; 2 after one line on stderr for a mistake; 130 when interrupted.
    """
    _quieten()
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        app(tokens, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(usage_line(error, app))
    except PhaselensError as error:
        return _fail(str(error))
    except MemoryError:
        return _fail(_TOO_MUCH)
    except RuntimeError as error:  # torch's CPU allocator has no class of its own
        if not any(words in str(error) for words in ("allocate memory", "out of memory")):
            raise
        return _fail(_TOO_MUCH)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep the interpreter from flushing into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _fail(line: str) -> int:
    # A word as long as a page, a number of 400 digits say, hides what is wrong with it.
    words = [word if len(word) <= _LONGEST_WORD else f"{word[:40]}…{word[-20:]}" for word in line.split()]
    print(f"phaselens: {' '.join(words)}", file=sys.stderr)
    return 2


def _quieten() -> None:
    """No telemetry, no look at the network, no other library's chatter; SIGTERM cleans up like an error; any name prints."""
    for name, value in {
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        import warnings

        warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):  # names of files need not be text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def _version() -> str:
    from importlib.metadata import version

    return version("phaselens")


if __name__ == "__main__":
    sys.exit(main())
