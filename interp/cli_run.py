"""What the verbs of the command line do: load, run, save, show."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hooks.errors import CheckpointError, PhaselensError, did_you_mean
from interp.outputs import MANIFEST, as_word, check_writable, output_folder, to_plain

__all__ = [
    "busy",
    "explore",
    "gates",
    "prepare",
    "print_json",
    "report",
    "run",
    "show",
    "show_cache",
    "show_files",
    "show_results",
    "show_zoo",
    "train",
    "with_controls",
]


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Show on stderr that something is going on, where a person watches."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def prepare(
    model: str, *, device: str, padding: Literal["in_sequence", "prefix"] = "in_sequence"
) -> tuple[Any, Any]:
    """Load a model and make its recall task.

    Returns
    -------
    tuple
        The hooked model and a :class:`~interp.tasks.RecallTask`.

    Raises
    ------
    PhaselensError
        If either cannot be made.
    """
    with busy(f"loading {model}"):
        from hooks import load
        from interp.tasks import RecallTask

        hooked = load(model, device=device)
        if hooked.task is not None:
            # A stored task that lacks a setting would be another task.
            RecallTask.from_dict(hooked.task, complete=True)
        return hooked, RecallTask.for_model(hooked, padding=padding)


def run(work: Callable[[], Mapping[str, Any]], out: Path | None, *, as_json: bool) -> None:
    """Run a measurement; save its Datasets as netCDF and CSV if a folder is given, and show them."""
    if out is None:
        show(work(), as_json=as_json)
        return
    with output_folder(out) as staging:
        found = work()
        from interp.report import save_results

        files = save_results(found, staging)
    show(found, as_json=as_json, files=[out / name for name in files])


def with_controls(
    found: Mapping[str, Any], model: Any, measure: Callable[[Any], Any], *, seed: int, wanted: bool
) -> dict[str, Any]:
    """Add the controls of the first result, if they are wanted."""
    if not wanted:
        return dict(found)
    from interp.controls import controls

    return {**found, "controls": controls(model, next(iter(found.values())), measure, seed=seed)}


def gates(
    model: Any,
    task: Any,
    *,
    cycle: Sequence[int] | None,
    parts: bool,
    n: int | None,
    seed: int,
    controls: bool,
) -> dict[str, Any]:
    """Profile gates; cycle them and force them to their parts, and hold each against its own controls, if wanted."""
    from interp import gate_controls
    from interp.gate_interventions import FORCED, check_shifts, cycling, gate_parts
    from interp.gates import gate_profile
    from interp.phases import measured_stride

    if cycle:  # refused before anything runs
        check_shifts(model, cycle, measured_stride(model, task), "--cycle ")
    blocks = 64 if n is None else -(-n // task.modulus)
    found = {"gates": gate_profile(model, task, n=n, seed=seed)}
    if controls:
        found["controls"] = gate_controls.profile_controls(model, found["gates"], task, n=n, seed=seed)
    if cycle:
        found["cycling"] = cycling(model, task, shifts=cycle, n_per_residue=blocks, seed=seed)
        if controls:
            found["controls_cycling"] = gate_controls.cycling_controls(found["cycling"], seed=seed)
    if parts:
        to = (*FORCED, "moved") if controls else FORCED
        found["gate_parts"] = gate_parts(model, task, to=to, n=n, seed=seed)
        if controls:
            found["controls_parts"] = gate_controls.parts_controls(found["gate_parts"], seed=seed)
    return found


def show(found: Mapping[str, Any], *, as_json: bool, files: list[Path] | None = None) -> None:
    """Print results: one JSON object, or tables and the files written."""
    if as_json:
        print_json({**{name: to_plain(dataset) for name, dataset in found.items()}, "files": files or []})
        return
    from interp.figures import table

    for name, dataset in found.items():
        table.show(name, dataset)
    if files:
        show_files(files, as_json=False)


def report(
    model: str,
    *,
    out: Path,
    n_per_residue: int,
    seed: int,
    unit: Literal["kv_head", "head", "layer"],
    padding: Literal["in_sequence", "prefix"],
    memory: int,
    device: str,
    as_json: bool,
) -> None:
    """Run the main job and print its table and where its files are."""
    check_writable(out)  # before the model is loaded
    hooked, task = prepare(model, device=device, padding=padding)
    from interp import report as reporting

    found = reporting.report(
        hooked, task=task, out=out, n_per_residue=n_per_residue, seed=seed, unit=unit, memory=memory
    )
    if as_json:
        print((out / MANIFEST).read_text(encoding="utf-8"), end="")
        return
    from rich.console import Console

    from interp.figures.table import report_table

    Console().print(report_table(**found))
    notice = json.loads((out / MANIFEST).read_text(encoding="utf-8"))["notice"]
    if notice:
        print(notice)
    print(f"Report: {out / 'index.html'}")


def show_files(files: list[Path], *, as_json: bool) -> None:
    """Print the files that were written."""
    if as_json:
        print_json({"files": files})
        return
    for file in files:
        print(file)


def print_json(value: Any) -> None:
    """Print one JSON object on stdout, undefined numbers as null."""
    print(json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False))


# --------------------------------------------------------------------------- explore


def explore(folder: Path, port: int | None) -> None:
    """Run the Streamlit app on a folder, on the loopback address only, until it is ended.

    Raises
    ------
    PhaselensError
        If there is no such folder, or the port is taken.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"no folder {str(folder)!r}; make one with: phaselens report w8s8-2kv -o {as_word(folder)}"
        )
    # interp does not import apps: the app is another process, found by its name.
    found = importlib.util.find_spec("apps")
    script = (
        Path(next(iter(found.submodule_search_locations or []), "")) / "explorer" / "app.py"
        if found
        else None
    )
    if script is None or not script.is_file():
        raise PhaselensError("the explorer is not installed: package 'apps' has no explorer/app.py")
    port = _free_port(port)
    command = [
        sys.executable, "-m", "apps.explorer.serve", "run", str(script),
        "--server.address", "127.0.0.1", "--server.port", str(port), "--server.headless", "true",
        # A page elsewhere whose name resolves to this machine is sent away by the name it asks for.
        "--server.allowedHosts", "127.0.0.1", "--server.allowedHosts", "localhost",
        "--browser.gatherUsageStats", "false", "--client.showErrorDetails", "none",
        "--server.fileWatcherType", "none", "--logger.hideWelcomeMessage", "true",
        "--", str(folder.resolve()),
    ]  # fmt: skip
    print(f"Explorer: http://127.0.0.1:{port} (Ctrl-C ends it)", flush=True)
    with subprocess.Popen(command, env=_with_package_on_path(script)) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    if code > 0:
        raise PhaselensError(f"the explorer ended with code {code}; its own message is above")


def _with_package_on_path(script: Path) -> dict[str, str]:
    root = str(script.parent.parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def _free_port(wanted: int | None) -> int:
    for port in (wanted,) if wanted else (8501, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise PhaselensError(f"port {wanted} is taken; leave --port out to get a free one")


# --------------------------------------------------------------------------- results and models


def show_results(path: Path, *, as_json: bool) -> None:
    """Print what one results file, or every one in a folder, holds.

    Raises
    ------
    PhaselensError
        If there is none, or one cannot be read.
    """
    from interp import results

    # Links that lead nowhere, pipes and folders are no results, whatever they are called.
    files = sorted(file for file in path.glob("*.nc") if file.is_file()) if path.is_dir() else [path]
    if not files:
        raise results.ResultsError(f"no .nc files in {path}; give a file or folder that phaselens wrote")
    loaded = {file: results.load(file) for file in files}
    if as_json:
        print_json({str(file): to_plain(dataset) for file, dataset in loaded.items()})
        return
    for file, dataset in loaded.items():
        print(f"{file}  {results.content_hash(dataset)[:16]}")
        print("  " + ", ".join(f"{dim} {size}" for dim, size in dataset.sizes.items()))
        for name, variable in dataset.data_vars.items():
            print(f"  {name}({', '.join(map(str, variable.dims))}) {variable.dtype}")
        for name, value in dataset.attrs.items():
            print(f"  {name}: {value}")


def show_zoo(name: str | None, *, as_json: bool) -> None:
    """Print the bundled models and how each came to be.

    Raises
    ------
    CheckpointError
        For a name that is not in the zoo.
    """
    from hooks.checkpoint import zoo, zoo_info

    infos = {each: zoo_info(each) for each in ([name] if name else zoo())}
    if as_json or name:
        print(
            json.dumps(
                to_plain(infos[name] if name else infos), ensure_ascii=False, indent=None if as_json else 2
            )
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "accuracy (%) by phase", "seeds trained", "chosen", title="zoo")
    for each, info in infos.items():
        table.add_row(
            each,
            " ".join(f"{value:.0f}" for value in info.get("accuracy_by_phase", [])),
            str(len(info.get("seeds", []))),
            str(info.get("chosen") or ""),
        )
    Console().print(table)


def show_cache(name: str | None, *, as_json: bool) -> None:
    """Print what a token costs in the cache of the published models and the bundled ones.

    Raises
    ------
    CheckpointError
        For a name that is neither.
    """
    from hooks import accounting
    from hooks.checkpoint import zoo, zoo_path
    from hooks.config import ModelConfig

    specs = dict(accounting.CACHE_SPECS)
    for each in zoo():
        stored = json.loads((zoo_path(each) / "config.json").read_text(encoding="utf-8"))
        if "config" in stored:  # others are Hugging Face's classes, whose cache is not ours to count
            specs[each] = accounting.from_config(ModelConfig.from_dict(stored["config"]), name=each)
    if name is not None and name not in specs:
        raise CheckpointError(f"no cache to count for {name!r}; {did_you_mean(name, specs, 40)}")
    found = [accounting.describe(spec) for each, spec in specs.items() if name in (None, each)]
    if as_json:
        print_json(found if name is None else found[0])
        return
    from rich.console import Console
    from rich.table import Table

    steps = [step["name"] for step in found[0]["savings"]]
    table = Table(title="Cache: bytes a token, and how many times smaller each saving makes it")
    table.add_column("model", no_wrap=True)
    for head in ("bytes", *steps):
        table.add_column(head, justify="right")
    for each in found:
        factors = (f"× {step['factor']:.4g}" for step in each["savings"])
        table.add_row(each["name"], f"{each['bytes_per_token']:,.2f}", *factors)
    console = Console()
    console.print(table)
    for each in found:
        if (prefill := each["prefill"]) is not None:
            console.print(
                f"Prefill of {prefill['tokens']:,} tokens, {each['name']}: {prefill['whole']:,} layer operations "
                f"whole, {prefill['split']:,} by encoder and replay "
                f"(× {prefill['whole'] / prefill['split']:.3g}).",
                soft_wrap=True, highlight=False,
            )  # fmt: skip
    console.print(
        'The press\'s "stored cache 1/8" of V4.1 is not sourced; docs/scope.md says what could give it.',
        soft_wrap=True,
    )


def train(
    name: str,
    *,
    out: Path | None,
    seeds: Sequence[int],
    start_from: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train by a recipe, one seed or several side by side, and print where the models are and what they gave.

    Raises
    ------
    PhaselensError
        For several seeds that should go on from a model.
    """
    if len(seeds) > 1 and start_from is not None:
        raise PhaselensError(
            f"--start-from {start_from} with {len(seeds)} seeds; valid: one --seed, train them one by one"
        )
    with busy("loading torch"):
        from interp.training import train as training
        from interp.training import train_family

    if len(seeds) > 1:
        folders = train_family(name, out=out or Path("runs"), seeds=seeds, **options)
    else:
        folder = out or Path("runs") / name
        folders = [training(name, out=folder, seed=seeds[0], start_from=start_from, **options)]
    if as_json:
        made = [
            {
                "name": name,
                "folder": folder,
                "training": json.loads((folder / "training.json").read_text(encoding="utf-8")),
            }
            for folder in folders
        ]
        print_json(made[0] if len(made) == 1 else {"name": name, "models": made})
    else:
        for folder in folders:
            report = Path("reports") / folder.name
            print(
                f"Model: {folder} (measure it with: phaselens report {as_word(folder)} -o {as_word(report)})"
            )
