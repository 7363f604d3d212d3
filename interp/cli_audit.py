"""The verb ``audit`` of the command line; nothing heavy is imported until it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, validators

from hooks.errors import PhaselensError
from interp.cli_options import NATURAL, POSITIVE
from interp.cli_usage import refuse_idle

__all__ = ["audit"]


_PROMPTS = frozenset(
    {
        "test", "stride", "position", "chat", "context", "records", "n_per_residue", "query_phase", "crossed",
        "limit", "tokenizer", "revision",
    }
)  # fmt: skip
_RUN = frozenset({"resume", "device"})
_IGNORED = {
    "published": ("draws counts that are there", _PROMPTS | _RUN | {"export", "answers"}),
    "export": ("writes prompts and ends", _RUN | {"answers", "out"}),
    "answers": ("scores what a server returned", _RUN),
}
"""What each way of an audit does, and the options that it makes no use of."""


def audit(
    model: Annotated[
        str | None,
        Parameter(help="A Hugging Face folder or hub id, a zoo name, or the folder of a saved model."),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        Parameter(name=["--out", "-o"], help="Folder of the page; reports/audit-NAME if left out."),
    ] = None,
    test: Annotated[
        list[Literal["needle", "completion", "recall"]] | None,
        Parameter(help="One or several; needle and completion, or recall where there is no tokenizer."),
    ] = None,
    stride: Annotated[
        int | None,
        Parameter(validator=validators.Number(gte=2), help="Count phases by it; the config's if left out."),
    ] = None,
    position: Annotated[
        Literal["key_first", "key_last", "value_first"],
        Parameter(help="Which token of the target record its position is counted at."),
    ] = "key_last",
    chat: Annotated[bool, Parameter(help="Use the chat template; positions are measured after it.")] = False,
    context: Annotated[
        int | None,
        Parameter(validator=POSITIVE, help="Tokens of a needle prompt; 4096, or what the model reads."),
    ] = None,
    records: Annotated[
        int | None,
        Parameter(validator=POSITIVE, help="Records in it; as dense as 16,000 in 128K if left out."),
    ] = None,
    n_per_residue: Annotated[int, Parameter(validator=POSITIVE, help="Prompts per residue.")] = 32,
    query_phase: Annotated[
        list[int] | None,
        Parameter(help="Query phases besides the prompts' own; up to four in all if left out."),
    ] = None,
    crossed: Annotated[
        int | None,
        Parameter(validator=NATURAL, help="Base prompts shown at every query phase; half if left out."),
    ] = None,
    seed: Annotated[
        int, Parameter(validator=NATURAL, help="Seed of the prompts; 10000 or more to confirm.")
    ] = 0,
    limit: Annotated[
        int | None, Parameter(validator=POSITIVE, help="At most so many prompts a test.")
    ] = None,
    resume: Annotated[bool, Parameter(help="Go on with the prompts that an earlier run scored.")] = False,
    export: Annotated[
        Path | None, Parameter(help="Write the prompts to this JSONL file for a server, and end.")
    ] = None,
    answers: Annotated[
        Path | None, Parameter(help="Score a server's answers, JSONL: id, and text or token_ids.")
    ] = None,
    published: Annotated[
        str | None, Parameter(help="Draw a published table instead: needle_128k or completion_fp8.")
    ] = None,
    tokenizer: Annotated[
        Path | None, Parameter(help="Folder or tekken file, where the model's folder has none.")
    ] = None,
    revision: Annotated[str | None, Parameter(help="Branch, tag or commit of a hub id.")] = None,
    device: Annotated[str, Parameter(help="cpu, cuda or cuda:N.")] = "cpu",
    json: Annotated[bool, Parameter(help="Print one JSON object instead of a summary.")] = False,
) -> None:
    """Find out whether a language model retrieves worse at some phases of the target's position.

    Runs needle and completion test by residue, tells target from query phase,
    tries placebo strides; or says how large a gap would have been seen. Reads
    safetensors only and runs no code that comes with a model.

    For a model that only a server can load: --export prompts.jsonl, send them,
    then --answers answers.jsonl with the same options. A run that was killed goes
    on with --resume.

    Example: phaselens audit ./my-model --context 4096 -o reports/my-model
    """
    _refuse_ignored(locals())
    _require_one(model, published)
    from interp import cli_run

    if published is not None:
        from interp.audit import audit_published

        out = out or Path("reports") / f"audit-{Path(published).stem}"
        with cli_run.busy(f"recomputing {published}"):
            found = audit_published(published, out=out, seed=seed)
        _show(found, out, as_json=json)
        return
    options = {
        "tests": test, "stride": stride, "position": position, "chat": chat, "context": context,
        "records": records, "n_per_residue": n_per_residue, "query_phases": query_phase, "crossed": crossed,
        "seed": seed, "limit": limit, "tokenizer": tokenizer, "revision": revision,
    }  # fmt: skip
    from hooks.running import require_device
    from interp.audit import audit as run_audit
    from interp.audit import export as run_export

    if export is not None:
        left_out: list[str] = []
        count = run_export(model, export, tell=left_out.append, **options)
        _tell_export(count, export, left_out, as_json=json)
        return
    require_device(device)
    out = out or Path("reports") / f"audit-{Path(str(model)).name}"
    found = run_audit(model, out=out, resume=resume, answers=answers, device=device, **options)
    _show(found, out, as_json=json)


def _refuse_ignored(given: dict[str, Any]) -> None:
    """Raise for options that the way this audit goes would ignore."""
    for way, (does, ignored) in _IGNORED.items():
        if given[way] is not None:
            refuse_idle(audit, given, ignored, why=f"--{way} {does}", instead="leave one of the two out")


def _require_one(model: str | None, published: str | None) -> None:
    if (model is None) == (published is None):
        raise PhaselensError(
            "give a MODEL (folder, hub id or zoo name) or --published TABLE"
            + ("" if model is None else ", not both")
        )


def _tell_export(count: int, path: Path, left_out: list[str], *, as_json: bool) -> None:
    from interp import cli_run

    if as_json:
        cli_run.print_json({"prompts": count, "file": path, "tests_left_out": left_out})
        return
    print(f"{count} prompts: {path}")
    for test in left_out:
        print(f"Left out: {test}.")
    print("Send token_ids (or text), collect answers, then run again with --answers instead of --export.")


def _show(found: dict, out: Path, *, as_json: bool) -> None:
    from interp.outputs import MANIFEST

    if as_json:
        print((out / MANIFEST).read_text(encoding="utf-8"), end="")
        return
    import json

    from interp.audit.summary import show

    show(found)
    notice = json.loads((out / MANIFEST).read_text(encoding="utf-8"))["notice"]
    if notice:
        print(notice)
    print(f"Page: {out / 'index.html'}")
