r"""Prompts for a server, and a server's answers to them.

``prompts.jsonl`` holds one JSON object a line::

    {"id": "needle.q3.17.0a1b2c3d4e", "test": "needle", "query_phase": 3, "prompt_id": 0, "residue": 17,
     "target_position": 2049, "token_ids": [1, 88, …], "text": "<s>Each pair …", "content": "Each pair …",
     "text_is_exact": true, "answer": " house", "answer_token_ids": [911], "first_token_ids": [911]}

Send ``token_ids`` where the server takes them: then positions are exact. ``text`` is the whole prompt,
special tokens and chat template included; ``content`` is the part that a chat endpoint, or one that adds the
first token itself, is to be sent. ``text_is_exact`` says whether tokenizing ``text`` gives ``token_ids``.
``answer_token_ids`` are all tokens of the answer: let the server write at least as many. Any of
``first_token_ids`` begins the right answer: behind a chat template a reply may have no space before it. Models
that only know token ids have null texts.

``answers.jsonl`` holds one JSON object a line, with the id and what came back, as text or as token ids::

    {"id": "needle.q3.17.0a1b2c3d4e", "text": " house\n"}
    {"id": "needle.q3.18.0a1b2c3d4e", "token_ids": [911, 10], "logprob": -0.02}

``logprob`` (optional, in all lines or none) is the natural log-probability of the right answer's first token,
added up over ``first_token_ids``; with it the period is tested on log-probability, without it on right and
wrong. A key that is null counts as left out. A text is right if it begins with the whole answer, after white
space, quotes and asterisks, and the answer ends there: no letter or digit follows it, neither at once nor behind
one sign that joins the two to a longer word or number. So ``8``, ``8.``, ``8, not 32`` and ``8)`` are the answer
8, and ``80``, ``8.5``, ``8,000``, ``8-bit``, ``8_0`` and ``8's`` are not. Token ids are right if their text is,
however the answer is cut into tokens; for models without texts, if they begin with ``answer_token_ids``.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from hooks.checks import is_real
from hooks.errors import CheckpointError
from interp.audit.plan import Plan
from interp.audit.state import ROW_ID, Score, StateError
from interp.results import atomic_path
from interp.tasks import CompletionTask, NeedleTask, TextTokenizer
from interp.tasks.tokenizers import reply_tokens

__all__ = ["export_prompts", "read_answers"]

_KEYS = ("id", "text", "token_ids", "logprob")
_WRAPPING = " \t\r\n*\"'`"
_GOES_ON = re.compile(r"[.,:'’/\\+^@&#~×·\-‐‑–−]?\w")
"""What makes an answer the beginning of a longer word or number; other signs end it, and so do two in a row."""


def export_prompts(
    plans: Sequence[Plan],
    tokenizer: TextTokenizer | None,
    path: str | Path,
    *,
    progress: bool | None = None,
) -> int:
    """Write every prompt of an audit; the file appears whole or not at all.

    Returns
    -------
    int
        How many prompts were written.

    Raises
    ------
    CheckpointError
        If the file cannot be written.
    """
    total = sum(plan.total for plan in plans)
    bar = tqdm(total=total, desc="export", leave=False, disable=None if progress is None else not progress)
    path = Path(path)
    if not path.parent.is_dir():
        raise CheckpointError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream, bar:
        for plan in plans:
            for query in plan.queries:
                for row in _exported(plan, query, tokenizer):
                    stream.write(json.dumps(row, ensure_ascii=False) + "\n")
                    bar.update()
    return total


def _exported(plan: Plan, query: int, tokenizer: TextTokenizer | None) -> Iterator[dict[str, Any]]:
    number = 0
    for prompts in plan.batches(query, rows=16):
        for i in range(len(prompts)):
            ids = prompts.tokens[i].tolist()
            tokens, text = _answer(plan, int(prompts.answer[i]), tokenizer)
            yield {
                "id": plan.row_id(query, number),
                "test": plan.test,
                "query_phase": query,
                "prompt_id": number // plan.modulus,
                "residue": number % plan.modulus,
                "target_position": int(prompts.target_position[i]),
                "token_ids": ids,
                **_texts(plan, ids, None if plan.test == "recall" else tokenizer),
                "answer": text,
                "answer_token_ids": tokens,
                "first_token_ids": list(dict.fromkeys(prompts.accepted()[i].tolist())),
            }
            number += 1


def _texts(plan: Plan, ids: list[int], tokenizer: TextTokenizer | None) -> dict[str, Any]:
    if tokenizer is None:
        return {"text": None, "content": None, "text_is_exact": False}
    task = plan.task
    chat = bool(task.tail) if isinstance(task, NeedleTask) else task.chat
    before, after = tokenizer.frame(chat)
    text = tokenizer.decode(ids)
    content = tokenizer.decode(ids[len(before) : len(ids) - len(after)])
    return {"text": text, "content": content, "text_is_exact": tokenizer.encode(text) == ids}


def _answer(plan: Plan, answer: int, tokenizer: TextTokenizer | None) -> tuple[list[int], str | None]:
    """All tokens of an answer as a model is likely to write it, and its text where there is one."""
    task = plan.task
    if isinstance(task, CompletionTask):
        right = task.candidate_ids.index(answer)
        return list(task.answer_tokens()[right]), task.candidates[right]
    if tokenizer is None or plan.test == "recall":
        return [answer], None
    text = tokenizer.decode([answer])
    if isinstance(task, NeedleTask) and task.reply_ids:
        text = text.strip()
        return list(reply_tokens(tokenizer, task.tail, text)), text
    return [answer], text


# --------------------------------------------------------------------------- answers


def read_answers(
    path: str | Path, plans: Sequence[Plan], tokenizer: TextTokenizer | None
) -> dict[str, Score]:
    """Score what a server returned.

    Parameters
    ----------
    path : path
        ``answers.jsonl``, see the module's description.
    plans : sequence of Plan
        Made with the same options as the export.
    tokenizer : TextTokenizer or None
        For answers given as text.

    Returns
    -------
    dict of str to Score
        One for every prompt of the plans.

    Raises
    ------
    StateError
        Naming the first line that is not an answer to one of these prompts, or how many answers are missing.
    """
    path = Path(path)
    if not path.is_file():
        raise StateError(f"no file {str(path)!r}; make the prompts with --export, then collect the answers")
    by_test = {plan.test: plan for plan in plans}
    found: dict[str, Score] = {}
    with path.open(encoding="utf-8-sig", errors="replace") as stream:  # some tools write a mark first
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            given = _parse(line, where)
            plan, query, row = _prompt_of(given["id"], by_test, where)
            if given["id"] in found:
                raise StateError(f"{where}: a second answer to {given['id']!r}; keep one a prompt")
            found[given["id"]] = _scored(given, plan, query, row, tokenizer, where)
    _require_all(found, plans, path)
    return found


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{where} is not JSON: {line.strip()[:60]!r}") from error
    if not isinstance(given, dict) or not isinstance(given.get("id"), str):
        raise StateError(f'{where} has no id; valid: {{"id": …, "text": …}}')
    given = {key: value for key, value in given.items() if value is not None}
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        raise StateError(f"{where} has an unknown key {unknown[0]!r}; valid: {', '.join(_KEYS)}")
    if ("text" in given) == ("token_ids" in given):
        raise StateError(f"{where} needs text or token_ids, one of the two")
    if "text" in given and not isinstance(given["text"], str):
        raise StateError(f"{where}: text is not a string")
    ids = given.get("token_ids", [])
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise StateError(f"{where}: token_ids is not a list of whole numbers from 0 on")
    logprob = given.get("logprob", 0.0)
    if not is_real(logprob) or logprob > 1e-6:  # servers round
        told = repr(logprob)[:40]
        raise StateError(f"{where}: logprob={told} is not a natural log-probability; valid: 0 or less")
    return given


def _prompt_of(name: str, by_test: Mapping[str, Plan], where: str) -> tuple[Plan, int, int]:
    match = ROW_ID.fullmatch(name)
    if match is None:
        raise StateError(f"{where}: {name!r} is no id of a prompt; keep the ids of the exported file")
    plan = by_test.get(match[1])
    if plan is None or match[4] != plan.fingerprint:
        raise StateError(
            f"{where}: {name!r} was exported with other options (model, test, context, records, position, "
            "stride, chat or seed); give the same ones as to --export"
        )
    query, row = int(match[2]), int(match[3])
    if query not in plan.queries or row >= plan.rows(query):
        raise StateError(
            f"{where}: {name!r} is not among the {plan.total} prompts of this audit; give --n-per-residue, "
            "--query-phase and --limit as to --export"
        )
    return plan, query, row


def _scored(
    given: Mapping[str, Any], plan: Plan, query: int, row: int, tokenizer: TextTokenizer | None, where: str
) -> Score:
    target, answer = _expected(plan, query, row)
    logprob = float(given["logprob"]) if "logprob" in given else None
    tokens, wanted = _answer(plan, answer, tokenizer)
    if wanted is None or tokenizer is None:
        if "text" in given:
            raise StateError(f"{where}: the {plan.test} test has no texts; give token_ids")
        return Score(target, given["token_ids"][: len(tokens)] == tokens, logprob, None)
    text = given["text"] if "text" in given else _text_of(given["token_ids"], tokenizer)
    return Score(target, _begins_with(text, wanted), logprob, None)


def _text_of(ids: Sequence[int], tokenizer: TextTokenizer) -> str:
    """Text of token ids, up to one that only the model's padded vocabulary has."""
    return tokenizer.decode(list(takewhile(lambda i: i < tokenizer.d_vocab, ids)))


def _begins_with(text: str, wanted: str) -> bool:
    text, wanted = text.lstrip(_WRAPPING), wanted.strip()
    following = text[len(wanted) : len(wanted) + 2]
    if following and unicodedata.combining(following[0]):
        return False
    return text.startswith(wanted) and not _GOES_ON.match(following)


def _expected(plan: Plan, query: int, row: int) -> tuple[int, int]:
    """Target position and answer of a row."""
    targets, answers = _expectations(plan, query)
    return targets[row], answers[row]


@lru_cache(maxsize=64)
def _expectations(plan: Plan, query: int) -> tuple[list[int], list[int]]:
    """Target positions and answers of a query phase's rows; a block's rows share the answer.

    A long needle prompt takes about a second to make, so one a block is made, and the positions come from the
    balance they were drawn from.
    """
    if not isinstance(plan.task, NeedleTask):
        prompts = next(plan.batches(query, rows=plan.rows(query)))
        return prompts.target_position.tolist(), prompts.answer.tolist()
    blocks = plan.rows(query) // plan.modulus
    balance = plan.task.balance()
    targets = balance.targets(balance.windows(0, blocks, seed=plan.seed)).reshape(-1).tolist()
    answers = []
    for block in range(blocks):
        first = block * plan.modulus
        prompts = next(plan.task.batches(first + 1, seed=plan.seed, first=first))
        answers += [int(prompts.answer[0])] * plan.modulus
    return targets, answers


def _require_all(found: Mapping[str, Score], plans: Sequence[Plan], path: Path) -> None:
    missing = [
        name
        for plan in plans
        for query in plan.queries
        for row in range(plan.rows(query))
        if (name := plan.row_id(query, row)) not in found
    ]
    if missing:
        total = sum(plan.total for plan in plans)
        raise StateError(
            f"{path} lacks {len(missing)} of {total} answers, first {missing[0]!r}; send those prompts "
            "again, or give --n-per-residue, --query-phase and --limit as to --export"
        )
    with_logprob = sum(score.logprob is not None for score in found.values())
    if 0 < with_logprob < len(found):
        raise StateError(
            f"{path} has logprob in {with_logprob} of {len(found)} answers; give it in all or in none"
        )
