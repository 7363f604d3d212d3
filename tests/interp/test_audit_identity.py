"""What makes two audits the same one, what protects an unfinished one, and what is found before it starts."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hooks.errors import TaskError
from interp.audit import audit, export
from interp.audit.plan import Plan, make_plans
from interp.audit.state import State, StateError
from interp.audit.subject import Subject, open_subject
from interp.audit.wording import notes
from interp.tasks import CompletionTask, HuggingFaceTokenizer
from tests.interp.audit_models import Finder, save, tokenizer

ONE = {
    "tests": ["needle"], "context": 200, "records": 8, "n_per_residue": 1, "query_phases": [0],
    "formats": (), "progress": False,
}  # fmt: skip


def never(t, q):
    return False


def plans(subject, **changes):
    options = {
        "tests": None, "stride": 4, "position": "key_last", "chat": False, "context": None, "records": None,
        "n_per_residue": 1, "crossed": None, "query_phases": [0], "seed": 0,
    }  # fmt: skip
    return make_plans(subject, **options | changes)


def subject_of(own):
    return Subject("m", "x", (4,), own, 600, None, lambda: Finder(never))


def fingerprints(own, *, chat=False):
    """Of the needle test and of a small completion test."""
    (needle,) = plans(subject_of(own), tests=["needle"], context=200, records=8, chat=chat)
    completion = CompletionTask(own, families=("digits",), modulus=4, chat=chat)
    return needle.fingerprint, Plan("completion", completion, 4, False, 0, 1, (0,), 1).fingerprint


def changed(change) -> HuggingFaceTokenizer:
    """The small tokenizer with something of its file changed."""
    stored = json.loads(tokenizer().tokenizer.backend_tokenizer.to_str())
    change(stored)
    old = tokenizer().tokenizer
    new = type(old)(tokenizer_object=Tokenizer.from_str(json.dumps(stored)), bos_token="<s>")
    new.chat_template = old.chat_template
    return HuggingFaceTokenizer(new)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save(tmp_path_factory.mktemp("identity") / "llama", "llama")


# ------------------------------------------------------------------------------------------- one audit


def test_the_same_folder_under_another_path_is_the_same_audit(llama, tmp_path, monkeypatch):
    monkeypatch.chdir(llama.parent)
    moved = shutil.copytree(llama, tmp_path / "elsewhere" / "renamed")
    folders = (llama, "llama", f"./{llama.name}/", moved)
    assert len({fingerprints(open_subject(folder).tokenizer) for folder in folders}) == 1
    audit(llama, out=tmp_path / "a", **ONE)
    before = (tmp_path / "a" / "state.jsonl").read_text()
    audit(moved, out=tmp_path / "a", resume=True, **ONE)
    assert (tmp_path / "a" / "state.jsonl").read_text() == before  # nothing was run again
    export(
        "llama", tmp_path / "p.jsonl", **{k: v for k, v in ONE.items() if k not in ("formats", "progress")}
    )
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps({"id": r["id"], "text": r["answer"]}) + "\n" for r in rows))
    assert audit(moved, answers=answers, **ONE)["needle"]["correct"].all()


def other_piece(stored):
    """One word's piece under another text, all ids as before."""
    vocab = stored["model"]["vocab"]
    vocab["Ġxyzzy"] = vocab.pop("Ġmut")
    stored["model"]["merges"] = [m for m in stored["model"]["merges"] if "".join(m) != "Ġmut"]


def test_another_tokenizer_of_the_same_name_is_another_audit():
    one, two, same = tokenizer(), changed(other_piece), changed(lambda stored: None)
    assert one.name == two.name == same.name
    assert fingerprints(one) == fingerprints(same)
    assert all(first != second for first, second in zip(fingerprints(one), fingerprints(two), strict=True))


def test_another_chat_template_is_another_audit():
    one, other = changed(lambda stored: None), changed(lambda stored: None)
    other.tokenizer.chat_template = other.tokenizer.chat_template.replace("user", "human")
    assert fingerprints(one) == fingerprints(other)  # without it
    pairs = zip(fingerprints(one, chat=True), fingerprints(other, chat=True), strict=True)
    assert all(first != second for first, second in pairs)


def test_resuming_with_other_options_says_that_nothing_fits(tmp_path):
    model, options = Finder(never), ONE | {"tokenizer": tokenizer()}
    audit(model, out=tmp_path, **options)
    with pytest.raises(StateError, match="has 24 rows of the needle test, all of other prompts"):
        audit(model, out=tmp_path, resume=True, **options | {"seed": 1})
    assert model.calls == 24
    # Another test, and more of the same prompts, go on.
    found = audit(model, out=tmp_path, resume=True, **options | {"n_per_residue": 2})
    assert (model.calls, found["needle"].attrs["n_per_residue"]) == (48, 2)


# ------------------------------------------------------------------------------------------- unfinished


def test_an_unfinished_audit_is_protected_beside_an_old_page(tmp_path):
    model, options = Finder(never), ONE | {"tokenizer": tokenizer()}
    audit(model, out=tmp_path, **options)
    audit(model, out=tmp_path, **options | {"seed": 1})  # a finished one is replaced, as its page is
    state = tmp_path / "state.jsonl"
    whole = state.read_text().splitlines(keepends=True)
    state.write_text("".join(whole[:10]))  # killed on the way
    with pytest.raises(StateError, match="unfinished audit: go on with --resume"):
        audit(model, out=tmp_path, **options | {"seed": 2})
    assert state.read_text() == "".join(whole[:10])
    audit(model, out=tmp_path, resume=True, **options | {"seed": 1})
    assert [json.loads(line) for line in state.read_text().splitlines()] == [json.loads(w) for w in whole]
    with state.open("a") as stream:
        stream.write(whole[1])  # more prompts after the page, then killed
    with pytest.raises(StateError, match="unfinished audit"):
        audit(model, out=tmp_path, **options)


def test_a_run_that_fails_at_once_leaves_nothing(tmp_path):
    class Broken(Finder):
        def __call__(self, tokens, *, last_only=False):
            raise TaskError("no")

    with pytest.raises(TaskError, match="no"):
        audit(Broken(never), out=tmp_path / "a", **ONE, tokenizer=tokenizer())
    assert not list(tmp_path.iterdir())
    with State(tmp_path / "state.jsonl", owner={}, resume=False):
        assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------- before it starts


def test_a_tokenizer_of_another_model_is_found_first(tmp_path):
    folder = save(tmp_path / "small", "llama", vocab_size=200)
    options = {"tests": ["needle"], "n_per_residue": 1, "query_phases": [0], "context": 200, "records": 8}
    told = r"ids up to \d+ of the tokenizer .*'small' has a vocabulary of 200 ids"
    with pytest.raises(TaskError, match=told):
        export(folder, tmp_path / "p.jsonl", **options)
    with pytest.raises(TaskError, match=told):
        audit(folder, out=tmp_path / "a", **options)
    with pytest.raises(TaskError, match=told):
        audit(folder, out=tmp_path / "a", **{k: v for k, v in options.items() if k != "tests"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small"]
    # What a completion test needs is measured with the longest fillers.
    own = changed(merging)
    task = CompletionTask(own, families=("equals", "digits"), modulus=4)
    used = {i for row in task.sample(32, seed=0).tokens.tolist() for i in row}
    assert task.d_vocab == 1 + max(used)


def test_a_folder_and_the_model_in_it_are_the_same_subject(tmp_path):
    from transformers import AutoModelForCausalLM

    folder = save(tmp_path / "m", "qwen3", compress_ratios=[4])
    stored = open_subject(folder)
    held = open_subject(AutoModelForCausalLM.from_pretrained(folder), tokenizer=tokenizer())
    for subject in (stored, held):
        assert (subject.strides, subject.kind, subject.max_positions) == ((4,), "qwen3", 512)
        assert subject.d_vocab == len(tokenizer().tokenizer)
    assert fingerprints(held.tokenizer) == fingerprints(stored.tokenizer)


def merging(stored):
    """Line ends merge in fours, ' =' with the next."""
    vocab, merges = stored["model"]["vocab"], stored["model"]["merges"]
    for pair in (["Ġ", "="], ["Ġ=", "Ġ="]):
        merges.append(pair)
        vocab["".join(pair)] = len(vocab)
    stored["pre_tokenizer"]["use_regex"] = False


def test_filler_families_left_out_are_named():
    def told(own):
        task = CompletionTask(own, modulus=4, families=("equals", "digits"))
        return notes(_sweep(Plan("completion", task, 4, False, 0, 1, (0,), 1)))[0]

    # " =" is two tokens, so every odd length from the shortest, 2, to the longest is missing; digits are one each.
    assert told(tokenizer()) == (
        "Filler families: digits; left out: equals, which cannot make 3, 5, 7, 9, 11 tokens in the docstring or "
        "3, 5, 7, 9, 11, 13 … (1 more) tokens in the comment."
    )
    assert told(changed(merging)) == "Filler families: equals, digits."  # one token each, or two together


def _sweep(plan):
    import xarray as xr

    return xr.Dataset(
        {"placebo_p": ("placebo_stride", [1.0])},
        coords={"placebo_stride": [3]},
        attrs={
            "mean_accuracy": 0.5, "placebo": 0, "found": 1, "period": 0, "seed": 0, "confirmatory": 0,
            "test": plan.test, "task": plan.settings, "tests_left_out": list(plan.left_out),
        },
    )  # fmt: skip


class Lossy(HuggingFaceTokenizer):
    """Gives words back, but not the line ends that only the completion test has in pairs."""

    def decode(self, ids):
        return super().decode(ids).replace("\n    ", "\n")


def test_by_default_the_tests_that_can_be_made_are_made():
    lossy = Lossy(tokenizer().tokenizer)
    (plan,) = plans(subject_of(lossy))
    assert plan.test == "needle"
    (reason,) = plan.left_out
    assert re.match("completion: tokenizer .* does not give the text back", reason)
    assert f"Left out: {reason}." in notes(_sweep(plan))
    with pytest.raises(TaskError, match="does not give the text back"):
        plans(subject_of(lossy), tests=["needle", "completion"])
    with pytest.raises(TaskError, match="longer than 'm' reads"):  # what was asked for is not left out
        plans(subject_of(tokenizer()), context=700)


def test_nothing_that_can_be_made_is_the_first_test_s_error():
    class Useless(Lossy):
        @property
        def d_vocab(self):
            return 100

    with pytest.raises(TaskError, match="only 0 whole-word tokens"):
        plans(subject_of(Useless(tokenizer().tokenizer)))


def test_paths_are_kept_as_provenance(llama):
    (needle,) = plans(open_subject(llama), tests=["needle"], context=200, records=8)
    assert Path(json.loads(needle.settings)["source"]).name == "llama"
