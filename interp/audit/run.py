"""The audit itself: open a model, score or export its prompts, and write one page."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import xarray as xr

from hooks.errors import StatisticsError
from interp import engine, results
from interp.audit.answers import export_prompts, read_answers
from interp.audit.assemble import assemble
from interp.audit.measure import score
from interp.audit.page import page
from interp.audit.plan import Plan, Position, make_plans, require_used
from interp.audit.published import from_published, load_table, stored_name
from interp.audit.state import State, StateError, is_unfinished
from interp.audit.subject import Subject, open_subject
from interp.outputs import MANIFEST, check_writable, output_folder, to_plain, write_json

__all__ = ["STATE", "audit", "audit_published", "export"]

STATE = "state.jsonl"
"""Per-prompt results in the output folder; what --resume reads."""
FORMATS = ("pdf", "svg", "html", "png")


def audit(
    model: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    tests: Sequence[str] | None = None,
    stride: int | None = None,
    position: Position = "key_last",
    chat: bool = False,
    context: int | None = None,
    records: int | None = None,
    n_per_residue: int = 32,
    query_phases: Sequence[int] | None = None,
    crossed: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    resume: bool = False,
    answers: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    device: str = "cpu",
    revision: str | None = None,
    memory: int = engine.MEMORY,
    formats: Sequence[str] = FORMATS,
    progress: bool | None = None,
) -> dict[str, xr.Dataset]:
    """Measure whether a language model retrieves worse at some phases, and at how large a gap one would know.

    Parameters
    ----------
    model : str, path, HookedModel or PreTrainedModel
        A folder, hub id, zoo name or model in memory.
    out : path, optional
        Folder for ``index.html``, ``report.json``, results (netCDF, CSV) and figures; the state of the run
        grows in it from the first prompt on. None writes nothing.
    tests : sequence of str, optional
        Of ``needle completion recall``; needle and completion where there is a tokenizer, else recall.
    stride : int, optional
        Phases are counted by it; by default what the config states, or 8, a placebo, where it states none.
    position : str
        Which token of the target record counts: "key_first", "key_last" or "value_first".
    chat : bool
        Put prompts into the tokenizer's chat template; positions are measured after it.
    context, records : int, optional
        Tokens and records of a needle prompt: 4096, or what the model reads if that is less, and as many
        records a token as in 16,000 on 128K.
    n_per_residue : int
        Base prompts; each is shown at every residue.
    query_phases : sequence of int, optional
        Query phases besides the prompts' own; by default up to four in all.
    crossed : int, optional
        Base prompts shown at every query phase; half of `n_per_residue`, at least 8, by default.
    seed : int
        Of the prompts; 10000 or more for confirmatory numbers.
    limit : int, optional
        At most so many prompts a test.
    resume : bool
        Go on with the state in `out`.
    answers : path, optional
        Score a server's answers instead of running the model; see :mod:`interp.audit.answers`.
    tokenizer : tokenizer or path, optional
        Instead of the one in the model's folder.
    device, revision : str
        Where the weights go; of a hub repository.
    memory : int
        Budget for activations, in bytes.
    formats : sequence of str
        Of the figures.
    progress : bool, optional
        Show a bar; None: only on a terminal.

    Returns
    -------
    dict of str to Dataset
        By test as :func:`interp.audit.assemble.assemble` describes, and ``{test}_query``.

    Raises
    ------
    PhaselensError
        With one line on what does not fit.
    """
    if answers is not None and resume:
        raise StateError(
            "resume goes on with a run of the model, and answers are scored without one; give one"
        )
    given = {
        "position": position,
        "context": context,
        "records": records,
        "chat": chat,
        "tokenizer": tokenizer,
    }
    require_used(tests, given)  # before anything is fetched
    subject = open_subject(
        model, tokenizer=tokenizer, device=device, revision=revision, weights=answers is None
    )
    plans = _plans(
        subject, tests=tests, stride=stride, position=position, chat=chat, context=context, records=records,
        n_per_residue=n_per_residue, crossed=crossed, query_phases=query_phases, seed=seed, limit=limit,
    )  # fmt: skip
    folder = None if out is None else Path(out)
    if folder is not None:
        check_writable(folder)
    state = None
    if answers is not None:
        scores = read_answers(Path(answers), plans, subject.tokenizer)
        attrs: dict[str, Any] = {"model": subject.name, "model_hash": "", "answers": str(answers)}
    else:
        state = _opened(subject, plans, folder, resume=resume)
        with state:
            score(subject.model, plans, state, memory=memory, progress=progress)
        scores, attrs = state.scores, _provenance(subject)
    found: dict[str, xr.Dataset] = {}
    for plan in plans:
        rows = {q: [scores[plan.row_id(q, i)] for i in range(plan.rows(q))] for q in plan.queries}
        left = [s for s in subject.strides if plan.stride % s]
        known = attrs | ({"strides_left_out": left} if left else {})
        found |= assemble(plan, rows, attrs=known, n_tests=len(plans))
    if folder is not None:
        write(found, folder, title=f"Phase audit of {subject.name}", formats=formats)
    if state is not None:
        state.finish()
    return found


def export(
    model: Any,
    path: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    revision: str | None = None,
    progress: bool | None = None,
    tell: Callable[[str], None] = lambda test: None,
    **options: Any,
) -> int:
    """Write the prompts of an audit for a server, without loading weights; returns how many.

    Parameters
    ----------
    model, tokenizer, revision
        As in :func:`audit`.
    path : path
        ``prompts.jsonl``, see :mod:`interp.audit.answers`.
    progress : bool, optional
        Show a bar.
    tell : function
        Told each test that is left out because it cannot be made, with the reason.
    **options
        ``tests`` to ``limit`` of :func:`audit`: the answers are scored with the same ones.
    """
    require_used(options.get("tests"), {**options, "tokenizer": tokenizer})
    subject = open_subject(model, tokenizer=tokenizer, revision=revision, weights=False)
    plans = _plans(subject, **options)
    count = export_prompts(plans, subject.tokenizer, Path(path), progress=progress)
    for test in plans[0].left_out:
        tell(test)
    return count


def audit_published(
    name: str,
    *,
    out: str | os.PathLike[str] | None = None,
    seed: int = 0,
    formats: Sequence[str] = FORMATS,
) -> dict[str, xr.Dataset]:
    """Draw the page of a published table, every number recomputed from its counts.

    Parameters
    ----------
    name : str
        ``needle_128k``, ``completion_fp8`` (``.json`` may be left on), or a file of the same form.
    out, seed, formats
        As in :func:`audit`.
    """
    found = from_published(load_table(name), seed=seed)
    if out is not None:
        kind = next(iter(found.values())).attrs["test"]
        write(found, Path(out), title=f"Published results of the {kind} test", formats=formats)
    return found


def _plans(
    subject: Subject,
    *,
    tests: Sequence[str] | None = None,
    stride: int | None = None,
    position: Position = "key_last",
    chat: bool = False,
    context: int | None = None,
    records: int | None = None,
    n_per_residue: int = 32,
    crossed: int | None = None,
    query_phases: Sequence[int] | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> list[Plan]:
    if limit is not None and limit < 1:
        raise StatisticsError(f"limit={limit} prompts; valid: 1 or more")
    plans = make_plans(
        subject, tests=tests, stride=stride, position=position, chat=chat, context=context, records=records,
        n_per_residue=n_per_residue, crossed=crossed, query_phases=query_phases, seed=seed,
    )  # fmt: skip
    return [plan.limited(limit) for plan in plans]


def _opened(subject: Subject, plans: Sequence[Plan], folder: Path | None, *, resume: bool) -> State:
    """Return the state of a run, with what an earlier one scored of the same prompts."""
    path = None if folder is None else folder / STATE
    if path is not None and not resume and is_unfinished(path):
        raise StateError(
            f"{path} is the state of an unfinished audit: go on with --resume, delete it, or choose another "
            "folder with -o"
        )
    state = State(path, owner={"model_hash": subject.model.content_hash()}, resume=resume)
    state.require_same_prompts(plans)
    return state


def _provenance(subject: Subject) -> dict[str, Any]:
    attrs = results.provenance(subject.model, None, 0)
    return {name: value for name, value in attrs.items() if name not in ("task", "seed")}


# --------------------------------------------------------------------------- files


def write(
    found: Mapping[str, xr.Dataset], folder: Path, *, title: str, formats: Sequence[str] = FORMATS
) -> None:
    """Write page, JSON, results and figures; all appear together."""
    from interp.report import save_results

    stored = {stored_name(name): dataset for name, dataset in found.items()}
    with output_folder(folder) as staging:
        files = save_results(stored, staging)
        drawn = _draw(stored, staging / "figures", formats)
        files += sorted(file.relative_to(staging).as_posix() for file in drawn.files)
        files += ["index.html", MANIFEST]
        text = page(found, title=title, beside=_beside(found), files=files, notice=drawn.notice)
        (staging / "index.html").write_text(text, encoding="utf-8")
        summary = {
            "title": title,
            "files": files,
            "notice": drawn.notice,
            "results": {name: to_plain(dataset) for name, dataset in stored.items()},
        }
        write_json(summary, staging / MANIFEST)


def _draw(found: Mapping[str, xr.Dataset], folder: Path, formats: Sequence[str]) -> Any:
    from interp.figures import accuracy_by_residue
    from interp.report import draw

    tests = {name: dataset for name, dataset in found.items() if "accuracy_residue" in dataset}
    return draw({name: accuracy_by_residue(d) for name, d in tests.items()}, folder, formats=formats)


def _beside(found: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Return published needle results, for pages that show something measured here."""
    if any("published" in dataset.attrs for dataset in found.values()):
        return {}
    return _published_needle()


@lru_cache(maxsize=1)
def _published_needle() -> dict[str, xr.Dataset]:
    return from_published(load_table("needle_128k"), brief=True)
