"""Which answers are right: as text, as token ids however they are cut, behind a chat template, from a model."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from hooks.errors import PhaselensError
from interp.audit import audit, export
from interp.audit.answers import read_answers
from interp.audit.plan import make_plans
from interp.audit.subject import open_subject
from interp.tasks import CompletionTask, HuggingFaceTokenizer, NeedleTask
from interp.tasks.tokenizers import reply_tokens
from tests.interp.audit_models import WORDS, Finder, find, tokenizer

ONE = {
    "tokenizer": tokenizer(), "tests": ["needle"], "context": 200, "records": 8, "n_per_residue": 2,
    "query_phases": [0], "formats": (), "progress": False,
}  # fmt: skip


def never(t, q):
    return False


def with_plain_words() -> HuggingFaceTokenizer:
    """The small tokenizer, in which every word is also one token without its space, made letter by letter."""
    stored = json.loads(tokenizer().tokenizer.backend_tokenizer.to_str())
    vocab, merges = stored["model"]["vocab"], stored["model"]["merges"]
    for word in WORDS:
        piece = word[0]
        for letter in word[1:]:
            if [piece, letter] not in merges:
                merges.append([piece, letter])
            piece += letter
            vocab.setdefault(piece, len(vocab))
    old = tokenizer().tokenizer
    new = type(old)(tokenizer_object=Tokenizer.from_str(json.dumps(stored)), bos_token="<s>")
    new.chat_template = old.chat_template
    return HuggingFaceTokenizer(new)


def served_model(own):
    model = Finder(never)
    model.cfg.d_vocab = own.d_vocab
    return model


def served(path, **options):
    kept = {k: v for k, v in (ONE | options).items() if k not in ("formats", "progress")}
    export(served_model(kept["tokenizer"]), path / "prompts.jsonl", **kept)
    return [json.loads(line) for line in (path / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]


def written(rows, path, answer, *, mark=""):
    lines = [json.dumps({"id": row["id"], **answer(row)}) for row in rows]
    (path / "answers.jsonl").write_text(mark + "\n".join(lines) + "\n", encoding="utf-8")
    return path / "answers.jsonl"


def correct(rows, path, answer, *, mark="", **options):
    """Which rows are right, by prompt."""
    own = (ONE | options)["tokenizer"]
    settings = {
        "stride": None, "position": "key_last", "chat": False, "crossed": None, "seed": 0,
        **{k: v for k, v in (ONE | options).items() if k not in ("tokenizer", "formats", "progress")},
    }  # fmt: skip
    plans = make_plans(open_subject(served_model(own), tokenizer=own), **settings)
    scores = read_answers(written(rows, path, answer, mark=mark), plans, own)
    return np.array([scores[row["id"]].correct for row in rows]).reshape(-1, 24)


@pytest.mark.parametrize("pieces", ["letters", "words"])
def test_a_reply_to_a_chat_template_needs_no_space(pieces, tmp_path):
    own = tokenizer() if pieces == "letters" else with_plain_words()
    options = {"tokenizer": own, "chat": True}
    rows = served(tmp_path, **options)
    assert all(row["answer"] in WORDS for row in rows)
    assert all(row["answer_token_ids"] == own.encode(row["answer"]) for row in rows)
    assert {len(row["answer_token_ids"]) for row in rows} == ({3} if pieces == "letters" else {1})
    for right in (
        lambda row: {"text": row["answer"]},
        lambda row: {"text": f" {row['answer']}."},
        lambda row: {"token_ids": row["answer_token_ids"]},
        lambda row: {"token_ids": [*own.encode(f" {row['answer']}"), *own.encode("\n")]},
    ):
        assert correct(rows, tmp_path, right, **options).all()
    for wrong in (
        lambda row: {"token_ids": own.encode(row["answer"] + "s")},
        lambda row: {"token_ids": []},
        lambda row: {"token_ids": [10**6, *own.encode(row["answer"])]},
    ):
        assert not correct(rows, tmp_path, wrong, **options).any()


@pytest.mark.parametrize("ending", ["", " ", "\n", ".", ". Next", ", and", ",\nand", ")", "):", "**", '"', "…so", "--so", "; 9",
                                    "(x)", ".)", "\u00a0x", "' or", ">(x)", "!", "—so"])  # fmt: skip
def test_an_answer_ends_at_a_boundary(ending, tmp_path):
    rows = served(tmp_path)
    assert correct(rows, tmp_path, lambda row: {"text": row["answer"] + ending}).all()


@pytest.mark.parametrize("more", [".5", ",5", "-32", "-keeping", "_x", "_", "'s", "’s", "s", "0", "²", "/7", ":30", "‑bit", "e\u0301",
                                  "\u0301", "+1", "@x", "·2", "Ω"])  # fmt: skip
def test_an_answer_that_goes_on_is_another(more, tmp_path):
    rows = served(tmp_path)
    assert not correct(rows, tmp_path, lambda row: {"text": row["answer"] + more}).any()


@pytest.mark.parametrize("logprob", ["1" + "0" * 399, "-1" + "0" * 399, "-1e999", "NaN", "true", '"-1"'])
def test_a_log_probability_that_no_float_holds_is_told(logprob, tmp_path):
    rows = served(tmp_path)
    path = written(rows, tmp_path, lambda row: {"text": row["answer"], "logprob": -0.5})
    path.write_text(path.read_text().replace("-0.5", logprob, 1))
    with pytest.raises(PhaselensError, match=r"line 1: logprob=.{1,60} is not a natural") as error:
        audit(served_model(ONE["tokenizer"]), answers=path, **ONE)
    assert len(str(error.value)) < 400


def test_brackets_without_end_are_no_json(tmp_path):
    rows = served(tmp_path)
    path = written(rows, tmp_path, lambda row: {"text": row["answer"]})
    path.write_text("[" * 200_000 + "\n" + path.read_text())
    with pytest.raises(PhaselensError, match="line 1 is not JSON"):
        audit(served_model(ONE["tokenizer"]), answers=path, **ONE)


@pytest.mark.parametrize("pieces", ["letters", "words"])
@pytest.mark.parametrize("space", [True, False])
def test_a_model_may_reply_with_or_without_the_space(pieces, space):
    own = tokenizer() if pieces == "letters" else with_plain_words()
    tail = len(own.frame(True)[1])

    class Chatty(Finder):
        def __call__(self, tokens, *, last_only=False):
            logits = torch.zeros(len(tokens), 1, len(own.tokenizer))
            for i, row in enumerate(tokens[:, :-tail].tolist()):
                value = find(row)[1]
                logits[i, 0, value if space else own.encode(own.decode([value]).strip())[0]] = 5.0
            return logits

    model = Chatty(never)
    model.cfg.d_vocab = len(own.tokenizer)
    found = audit(model, **ONE | {"tokenizer": own, "chat": True})["needle"]
    assert found["correct"].all()
    # One of two right tokens has logit 5, all others 0: p = (e⁵ + 1) / (e⁵ + V − 1).
    p = (math.exp(5) + 1) / (math.exp(5) + len(own.tokenizer) - 1)
    assert np.allclose(found["logprob"], math.log(p), atol=1e-5)
    assert np.allclose(found["margin"], 5)


def test_values_of_a_chat_are_told_apart_by_the_first_token_of_a_reply():
    letters = NeedleTask.from_tokenizer(tokenizer(), length=200, n_records=8, chat=True)
    # No word is one token without its space: one value for each first letter that is left.
    assert sorted(tokenizer().decode(list(letters.reply_ids))) == sorted({w[0] for w in WORDS})
    words = with_plain_words()
    task = NeedleTask.from_tokenizer(words, length=200, n_records=8, chat=True)
    assert [words.decode([i]) for i in task.reply_ids] == [words.decode([i])[1:] for i in task.value_ids]
    plain = NeedleTask.from_tokenizer(words, length=200, n_records=8)
    assert (plain.reply_ids, len(plain.value_ids)) == ((), len(task.value_ids))
    assert plain.sample(24, seed=0).alternative is None


class Joins:
    """Ids are characters, but `joined` is token 256."""

    name, d_vocab = "joins", 300

    def __init__(self, joined):
        self.joined = joined

    def encode(self, text):
        return [256 if c == "\0" else ord(c) for c in text.replace(self.joined, "\0")]

    def decode(self, ids):
        return "".join(self.joined if i == 256 else chr(i) for i in ids)

    def frame(self, chat):
        return ([1], [ord(">")]) if chat else ([], [])


def test_a_reply_s_tokens_are_those_behind_the_tail():
    own = tokenizer()
    assert reply_tokens(own, own.encode("bot:"), "kan") == tuple(own.encode("kan"))
    assert reply_tokens(Joins("ka"), [ord(">")], "kan") == (256, ord("n"))
    assert reply_tokens(Joins(">k"), [ord(">")], "kan") == tuple(map(ord, "kan"))  # it would merge


def test_a_candidate_of_two_tokens_must_be_whole(tmp_path):
    own = tokenizer()
    options = {"tests": ["completion"], "context": None, "records": None}
    rows = served(tmp_path, **options)
    assert {row["answer"]: row["answer_token_ids"] for row in rows} == {c: own.encode(c) for c in ("8", "32")}
    assert len(own.encode("32")) == 2

    def beginning(row):
        return {"token_ids": own.encode({"32": "34", "8": "8"}[row["answer"]])}

    right = correct(rows, tmp_path, beginning, **options)
    assert right[:, 0].tolist() == [row["answer"] == "8" for row in rows[::24]] == [True, False]
    assert correct(rows, tmp_path, lambda r: {"token_ids": own.encode(r["answer"])}, **options).all()


def test_completion_behind_a_chat_template_takes_the_reply_s_token():
    # After the line "FP" the candidate "8" is itself; a reply begins with " 8" were it one token: it is not.
    task = CompletionTask(Joins("32"), families=("digits",), modulus=2, chat=True)
    assert task.candidate_ids == (ord("8"), 256)
    assert task.answer_tokens() == [(ord("8"),), (256,)]
    prompts = task.sample(4, seed=0)
    assert prompts.accepted().tolist() == [[ord("8")] * 2] * 2 + [[256] * 2] * 2


def test_without_a_log_probability_of_others_there_is_no_margin(tmp_path):
    rows = served(tmp_path)
    answers = written(rows, tmp_path, lambda row: {"text": row["answer"], "logprob": -0.5})
    found = audit(Finder(never), answers=answers, **ONE)["needle"]
    assert "margin" not in found
    assert set(np.unique(found["logprob"])) == {-0.5}
    assert found.attrs["period_on"] == "logprob"


def test_what_servers_and_editors_write_is_read(tmp_path):
    rows = served(tmp_path)
    answers = written(
        rows, tmp_path, lambda row: {"text": row["answer"], "token_ids": None, "logprob": None}, mark="\ufeff"
    )
    found = audit(Finder(never), answers=answers, **ONE)["needle"]
    assert found["correct"].all()
    assert not {"logprob", "margin"} & set(found.data_vars)


def test_answers_and_resume_together_are_refused(tmp_path):
    with pytest.raises(PhaselensError, match="resume goes on with a run of the model"):
        audit(Finder(never), answers=tmp_path / "a.jsonl", resume=True, **ONE)


def test_the_first_tokens_are_exported(tmp_path):
    own = with_plain_words()
    for chat in (False, True):
        rows = served(tmp_path, tokenizer=own, chat=chat)
        for row in rows[::7]:
            word = row["answer"].strip()
            forms = [own.encode(f" {word}")[0], *(own.encode(word) if chat else [])]
            assert row["first_token_ids"] == forms
