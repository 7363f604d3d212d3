"""The audit end to end: planted models, Hugging Face models, resuming, a server's answers, the page."""

from __future__ import annotations

import html.parser
import io
import json
import re

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

import interp
from hooks import ChunkGeometry
from hooks.errors import CheckpointError, PhaselensError, StatisticsError, TaskError
from interp.audit import audit, export, measure
from interp.audit.page import page
from interp.audit.plan import audit_modulus, audit_stride, make_plans, require_used
from interp.audit.state import Score, State, StateError
from interp.audit.subject import Subject, open_subject
from interp.audit.summary import show
from interp.results import equal, load
from interp.tasks import NeedleTask
from tests.interp.audit_models import Finder, Sizes, find, save, tokenizer

QUICK = {
    "tokenizer": tokenizer(), "tests": ["needle"], "context": 200, "records": 8, "n_per_residue": 10,
    "crossed": 8, "formats": ("html",), "progress": False,
}  # fmt: skip


def never(t, q):
    return False


# ------------------------------------------------------------------------------------------- planted models


@pytest.fixture(scope="module")
def blind():
    """Audit of a model that never finds targets at phase 3 of 4."""
    return audit(Finder(lambda t, q: t % 4 == 3), **QUICK)


def test_a_model_blind_at_one_phase_is_told(blind):
    needle = blind["needle"]
    a = needle.attrs
    assert needle["accuracy"].values.tolist() == [1, 1, 1, 0]
    assert (a["gap_pp"], a["gap_residue_pp"], a["worst_phase"], a["period"]) == (100, 100, 3, 4)
    assert a["mean_accuracy"] == 0.75
    assert (a["stride"], a["modulus"], a["placebo"], a["found"]) == (4, 24, 0, 1)
    assert needle["placebo_stride"].values.tolist() == [3]
    assert (needle["placebo_gap_pp"].item(), needle["placebo_p"].item()) == (0, 1)
    assert (a["position"], a["confirmatory"]) == ("key_last", 0)
    assert needle["correct"].shape == (10, 24)


def test_the_target_explains_it_and_the_query_does_not(blind):
    crossed = blind["needle_query"]
    a = crossed.attrs
    assert crossed["query_phase"].values.tolist() == [0, 1, 2, 3]
    assert np.array_equal(crossed["accuracy"], np.tile([1, 1, 1, 0], (4, 1)))
    assert (a["target_gap_pp"], a["query_gap_pp"]) == (100, 0)
    assert (a["share_target"], a["share_query"], a["share_interaction"]) == pytest.approx((1, 0, 0))
    assert a["query_p"] == 1


def test_a_serving_fault_on_the_query_phase_is_not_blamed_on_the_target():
    # A prompt of T tokens asks at q = T−1, so (q+1) mod 4 is T mod 4.
    found = audit(Finder(lambda t, q: (q + 1) % 4 == 3), **QUICK)
    a = found["needle_query"].attrs
    assert (a["target_gap_pp"], a["query_gap_pp"]) == (0, 100)
    assert (a["share_target"], a["share_query"]) == pytest.approx((0, 1))
    assert found["needle"].attrs["found"] == 0  # its prompts all have 200 tokens, query phase 0
    assert found["needle"].attrs["query_phase"] == 0


@pytest.mark.parametrize(("position", "worst"), [("key_first", 2), ("key_last", 3), ("value_first", 1)])
def test_where_the_position_is_counted_moves_the_worst_phase(position, worst):
    # Records are key, key, colon, value: the key's last token one after its first, the value two after that.
    found = audit(Finder(lambda t, q: t % 4 == 3), **QUICK | {"position": position, "query_phases": [0]})
    assert found["needle"].attrs["worst_phase"] == worst
    assert set(found) == {"needle"}


def test_the_chat_template_is_part_of_the_positions(monkeypatch):
    head, tail = tokenizer().frame(chat=True)
    assert head
    assert tail
    seen = []

    class Chatty(Finder):
        def __call__(self, tokens, *, last_only=False):
            seen.extend(row[: len(head)] for row in tokens.tolist())
            assert all(row[-len(tail) :] == tail for row in tokens.tolist())
            return super().__call__(tokens[:, : -len(tail)], last_only=last_only)

    found = audit(Chatty(lambda t, q: t % 4 == 3), **QUICK | {"chat": True, "query_phases": [0]})
    assert seen
    assert all(row == head for row in seen)
    assert found["needle"]["accuracy"].values.tolist() == [1, 1, 1, 0]


def test_a_flat_model_is_told_what_would_have_been_seen():
    found = audit(Finder(never), **QUICK)
    text = " ".join(_printed(found).split())
    assert re.search(
        r"No phase sensitivity found, at this n a gap over \d+\.\d pp would have been seen", text
    )
    assert "too easy" in text  # 100% everywhere
    assert found["needle"].attrs["period"] == 0


def test_a_larger_stride_is_named_when_left_out():
    class Two(Finder):
        cfg = property(lambda self: Sizes(len(tokenizer().tokenizer), n_layers=2), lambda self, value: None)

        def geometry(self, layer):
            return ChunkGeometry(*((4, 4), (128, 128))[layer])

    found = audit(Two(never), **QUICK | {"n_per_residue": 2, "query_phases": [0]})
    assert found["needle"].attrs["stride"] == 4
    assert found["needle"].attrs["strides_left_out"] == [128]
    assert "also has stride 128" in " ".join(_printed(found).split())


def _printed(found):
    out = io.StringIO()
    show(found, Console(file=out, width=80))
    return out.getvalue()


def test_the_summary_fits_80_columns(blind):
    text = _printed(blind)
    assert max(map(len, text.splitlines())) <= 80
    assert "gap 100.0 pp" in text
    assert "target's phase explains 100%" in " ".join(text.split())


# ------------------------------------------------------------------------------------------- which prompts


@pytest.mark.parametrize(
    ("stride", "modulus"),
    # By hand: a multiple of the stride with a coprime divisor left, 24 where possible, up to 48.
    [(2, 24), (4, 24), (8, 24), (3, 24), (16, 48), (5, 30), (6, 30), (7, 28), (12, 24), (32, 32), (128, 128)],
)
def test_residues_hold_whole_cycles_and_a_placebo_where_one_fits(stride, modulus):
    assert audit_modulus(stride) == modulus


@pytest.mark.parametrize(
    ("strides", "expected"),
    [((), (8, True)), ((4,), (4, False)), ((4, 16), (16, False)), ((2,), (2, False)), ((4, 128), (4, False))],
)
def test_the_stride_comes_from_the_model(strides, expected):
    subject = Subject("m", "x", strides, tokenizer(), None, None, lambda: Finder(never))
    assert audit_stride(subject, None) == expected
    assert audit_stride(subject, 128) == (128, False)


def _plans(**changes):
    options = {
        "tests": ["needle"], "stride": None, "position": "key_last", "chat": False, "context": 200,
        "records": 8, "n_per_residue": 10, "crossed": 8, "query_phases": None, "seed": 0,
    }  # fmt: skip
    subject = Subject("m", "x", (4,), tokenizer(), 300, None, lambda: Finder(never))
    return make_plans(subject, **options | changes)


def test_a_limit_keeps_whole_base_prompts_and_the_proportion():
    (plan,) = _plans()
    assert plan.total == 24 * (10 + 3 * 8)
    half = plan.limited(17 * 24)
    assert half.total <= 17 * 24
    assert (half.n, half.crossed) == (5, 4)
    assert plan.limited(24).total == 24
    with pytest.raises(StatisticsError, match="valid: 24 or more"):
        plan.limited(23)


def test_the_prompts_do_not_depend_on_how_many_are_asked_for():
    few, many = _plans(n_per_residue=8)[0], _plans()[0]
    assert few.fingerprint == many.fingerprint
    assert few.fingerprint != _plans(seed=1)[0].fingerprint
    assert few.fingerprint != _plans(position="key_first")[0].fingerprint


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"context": 400}, "reads; valid: up to 300"),
        ({"tests": ["needles"]}, "needle, completion, recall|valid: needle"),
        ({"query_phases": [4]}, "valid: 0 to 3"),
        ({"position": "value_last"}, "key_first, key_last, value_first"),
        ({"n_per_residue": 0}, "1 or more"),
        ({"stride": 1}, "2 or more"),
    ],
)
def test_options_that_do_not_fit_are_one_line(changes, told):
    with pytest.raises(PhaselensError, match=told) as error:
        _plans(**changes)
    assert "\n" not in str(error.value)


IDLE = {
    "position": {"position": "value_first"}, "context": {"context": 200}, "records": {"records": 8},
    "chat": {"chat": True},
}  # fmt: skip
USES = {"needle": {"position", "context", "records", "chat"}, "completion": {"chat"}, "recall": set()}


@pytest.mark.parametrize("option", IDLE)
@pytest.mark.parametrize(
    "tests", [["completion"], ["recall"], ["recall", "completion"], ["needle", "completion"]]
)
def test_options_that_would_do_nothing_are_refused(tests, option):
    alone = {
        "position": "key_last",
        "context": None,
        "records": None,
        "chat": False,
        "tests": tests,
        **IDLE[option],
    }
    told = f"--test {' and '.join(tests)} makes no use of {option}, so --{option} would do nothing"
    if any(option in USES[test] for test in tests):
        require_used(tests, IDLE[option])
    else:
        with pytest.raises(TaskError, match=told):
            _plans(**alone)


def test_query_phases_without_crossed_prompts_would_do_nothing():
    with pytest.raises(TaskError, match=r"--crossed 0 .* --query-phase 1 would do nothing"):
        _plans(query_phases=[1], crossed=0)


def test_an_option_of_one_test_keeps_it_from_being_left_out(monkeypatch):
    def fails(*args, **kwargs):
        raise TaskError("no needles here")

    monkeypatch.setattr(NeedleTask, "from_tokenizer", fails)
    subject = Subject("m", "x", (4,), tokenizer(), None, None, lambda: Finder(never))
    settings = {
        "tests": None, "stride": None, "position": "key_last", "chat": False, "context": None, "records": None,
        "n_per_residue": 4, "crossed": None, "query_phases": None, "seed": 0,
    }  # fmt: skip
    (completion,) = make_plans(subject, **settings)
    assert completion.left_out == ("needle: no needles here",)
    for option in ({"position": "value_first"}, {"records": 8}, {"context": 400}):
        with pytest.raises(TaskError, match="no needles here"):
            make_plans(subject, **settings | option)


def test_a_model_without_tokenizer_or_recall_settings_says_what_to_do():
    subject = Subject("m", "qwen3", (), None, None, None, lambda: Finder(never))
    with pytest.raises(TaskError, match="--tokenizer"):
        make_plans(
            subject, tests=None, stride=None, position="key_last", chat=False, context=None, records=None,
            n_per_residue=4, crossed=None, query_phases=None, seed=0,
        )  # fmt: skip


# ------------------------------------------------------------------------------------------- resuming


class Killed(Exception):
    pass


class Mortal(Finder):
    """Dies after a number of prompts."""

    def __init__(self, lives, **options):
        super().__init__(lambda t, q: t % 4 == 3, **options)
        self.lives = lives

    def __call__(self, tokens, *, last_only=False):
        if self.calls + len(tokens) > self.lives:
            raise Killed
        return super().__call__(tokens, last_only=last_only)


def test_a_killed_run_goes_on_and_ends_the_same(blind, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "_TOKENS", 5000)  # 25 prompts a batch
    out = tmp_path / "a"
    with pytest.raises(Killed):
        audit(Mortal(330), out=out, **QUICK)
    assert [p.name for p in out.iterdir()] == ["state.jsonl"]  # no half of a page
    with (out / "state.jsonl").open("a") as stream:
        stream.write('{"id": "needle.q0.99')  # the line the kill cut off
    with pytest.raises(StateError, match="--resume"):
        audit(Mortal(10**9), out=out, **QUICK)
    second = Mortal(10**9)
    found = audit(second, out=out, resume=True, **QUICK)
    assert second.calls == 24 * (10 + 3 * 8) - 315  # 240, then 75 of the second query phase, were scored
    assert equal(found["needle"], blind["needle"])
    assert equal(found["needle_query"], blind["needle_query"])
    assert equal(load(out / "needle.nc"), found["needle"])


def test_more_prompts_can_follow_a_limited_run(blind, tmp_path):
    out = tmp_path / "a"
    few = audit(Finder(lambda t, q: t % 4 == 3), out=out, limit=240, **QUICK)
    assert few["needle"].attrs["n_per_residue"] == 2
    model = Finder(lambda t, q: t % 4 == 3)
    assert equal(audit(model, out=out, resume=True, **QUICK)["needle"], blind["needle"])
    assert model.calls < 24 * 34


def test_the_state_of_another_model_is_refused(tmp_path):
    path = tmp_path / "state.jsonl"
    with State(path, owner={"model": "finder", "model_hash": "1"}, resume=False) as state:
        state.add({"needle.q0.0.0123456789": Score(5, True, -0.1, 2.0)})
    with State(path, owner={"model": "finder", "model_hash": "1"}, resume=True) as state:
        assert state.scores == {"needle.q0.0.0123456789": Score(5, True, -0.1, 2.0)}
    with pytest.raises(StateError, match="another audit: its model_hash is '1', now '2'"):
        State(path, owner={"model": "finder", "model_hash": "2"}, resume=True)
    path.write_text("{}\n")
    with pytest.raises(StateError, match="not the state of an audit"):
        State(path, owner={}, resume=True)


@pytest.mark.parametrize(
    "line",
    ['{"id": 1}', "nonsense", '{"id": "x", "t": 1, "correct": true, "logprob": 0, "margin": 0}',
     '{"id": "needle.q0.0.0123456789", "t": 1, "correct": 1, "logprob": 0, "margin": 0}',
     '{"id": "needle.q0.0.0123456789", "t": 1, "correct": true, "logprob": NaN, "margin": 0}'],
)  # fmt: skip
def test_a_damaged_state_names_the_line(line, tmp_path):
    path = tmp_path / "state.jsonl"
    with State(path, owner={}, resume=False) as state:
        state.add({f"needle.q0.{row}.0123456789": Score(5, True, -0.1, 2.0) for row in (0, 1)})
    with path.open("a") as stream:
        stream.write(f"{line}\n")
    with pytest.raises(StateError, match="line 4 is damaged"):
        State(path, owner={}, resume=True)


# ------------------------------------------------------------------------------------------- a server


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The prompts of the same audit as a server gets them."""
    path = tmp_path_factory.mktemp("served") / "prompts.jsonl"
    options = {k: v for k, v in QUICK.items() if k not in ("formats", "progress", "tokenizer")}
    count = export(Finder(never), path, tokenizer=tokenizer(), **options)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert count == len(rows) == 24 * 34
    return path, rows


def _answers(rows, path, answer):
    path.write_text("".join(json.dumps({"id": row["id"], **answer(row)}) + "\n" for row in rows))
    return path


def test_exported_prompts_say_what_was_made(served):
    _, rows = served
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows[::37]:
        t, value = find(row["token_ids"])
        assert (row["target_position"], row["answer_token_ids"]) == (t, [value])
        assert row["residue"] == t % 24
        assert row["text_is_exact"]
        assert len(row["token_ids"]) % 4 == row["query_phase"]
        assert tokenizer().decode(row["token_ids"]) == row["text"] == "<s>" + row["content"]
        assert tokenizer().decode(row["answer_token_ids"]) == row["answer"]


def test_answers_of_a_blind_server_give_the_same_table(served, blind, tmp_path):
    _, rows = served

    def answer(row):
        right = row["target_position"] % 4 != 3
        return {"text": f"\n**{row['answer'].strip()}**." if right else row["answer"] + "s"}

    found = audit(Finder(never), answers=_answers(rows, tmp_path / "a.jsonl", answer), **QUICK)
    for name in ("correct", "target_position", "accuracy", "accuracy_residue"):
        assert np.array_equal(found["needle"][name], blind["needle"][name])
    assert equal(found["needle_query"], blind["needle_query"])
    assert found["needle"].attrs["period"] == 4
    assert found["needle"].attrs["period_on"] == "correct"
    assert "logprob" not in found["needle"]


def test_answers_as_token_ids_with_logprobs(served, blind, tmp_path):
    _, rows = served

    def answer(row):
        right = row["target_position"] % 4 != 3
        return {
            "token_ids": [*row["answer_token_ids"], 3] if right else [3],
            "logprob": -0.5 if right else -2,
        }

    found = audit(Finder(never), answers=_answers(rows, tmp_path / "a.jsonl", answer), **QUICK)
    assert np.array_equal(found["needle"]["correct"], blind["needle"]["correct"])
    assert set(np.unique(found["needle"]["logprob"])) == {-0.5, -2}
    assert found["needle"].attrs["period_on"] == "logprob"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: rows[:-1], "lacks 1 of 816 answers, first 'needle.q3.191."),
        (lambda rows: [*rows, rows[0]], "line 817: a second answer"),
        (lambda rows: ["{", *rows], "line 1 is not JSON"),
        (lambda rows: ['{"text": "x"}', *rows], "line 1 has no id"),
        (lambda rows: [rows[0].replace('"text"', '"answer"'), *rows[1:]], "unknown key 'answer'; valid"),
        (
            lambda rows: [rows[0].replace('"text": "x"', '"logprob": -1'), *rows[1:]],
            "needs text or token_ids",
        ),
        (lambda rows: [rows[0].replace('"x"', "3"), *rows[1:]], "text is not a string"),
        (lambda rows: [rows[0].replace('"text": "x"', '"token_ids": [1.5]'), *rows[1:]], "whole numbers"),
        (lambda rows: [rows[0].replace("}", ', "logprob": 3}'), *rows[1:]], "logprob=3"),
        (lambda rows: [rows[0].replace("}", ', "logprob": -3}'), *rows[1:]], "1 of 816"),
        (lambda rows: [re.sub(r"\.[0-9a-f]{10}", ".0000000000", rows[0]), *rows[1:]], "other options"),
        (lambda rows: [rows[0].replace(".q0.0.", ".q0.240."), *rows[1:]], "not among the 816"),
        (lambda rows: [rows[0].replace("needle", "noodle"), *rows[1:]], "no id of a prompt"),
    ],
)
def test_a_bad_answer_is_one_line(change, told, served, tmp_path):
    lines = [json.dumps({"id": row["id"], "text": "x"}) for row in served[1]]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(StateError, match=re.escape(told)) as error:
        audit(Finder(never), answers=path, **QUICK)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------------------- the page


class Reader(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.tags, self.rows, self.cell = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self.cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cell = None

    def handle_data(self, data):
        if self.cell:
            self.rows[-1][-1] += data


def test_the_page_stands_alone_and_lists_its_files(tmp_path):
    out = tmp_path / "a"
    model = Finder(lambda t, q: t % 4 == 3, name="a <b> & c")
    audit(model, out=out, **QUICK | {"limit": 300})
    text = (out / "index.html").read_text(encoding="utf-8")
    read = Reader(text)
    files = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    summary = json.loads((out / "report.json").read_text())
    assert sorted([*summary["files"], "state.jsonl"]) == files
    assert sorted(read.links) == sorted(summary["files"])
    assert not {"script", "img", "link", "iframe"} & set(read.tags)
    assert "a &lt;b&gt; &amp; c" in text
    assert "<b>" not in text
    assert "http" not in re.sub(r"<meta[^>]*>", "", text).replace("httpequiv", "")
    assert {"needle", "needle_query"} == set(summary["results"])
    assert summary["results"]["needle"]["attrs"]["gap_pp"] == 100


def test_the_page_says_what_the_results_say(blind):
    read = Reader(page(blind, title="t"))
    assert ["3", "0.0", "undefined", "worst"] in read.rows
    assert next(row[:2] for row in read.rows if row[0] == "4 (stride)") == ["4 (stride)", "100.0"]
    assert ["0", "100.0", "100.0", "100.0", "0.0", "75.0"] in read.rows  # query phase 0, four targets, mean
    assert any(row[0] == "target's phase" and row[4] == "100" for row in read.rows)


# ------------------------------------------------------------------------------------------- real classes


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return save(tmp_path_factory.mktemp("qwen") / "qwen", "qwen3")


def test_a_model_without_compression_gets_the_bound(qwen):
    options = {k: v for k, v in QUICK.items() if k not in ("tokenizer", "tests")}
    found = audit(qwen, **options | {"n_per_residue": 3, "crossed": 2, "query_phases": [1]})
    assert set(found) == {"needle", "needle_query", "completion", "completion_query"}
    text = " ".join(_printed(found).split())
    assert (
        len(re.findall(r"phase sensitivity found, at this n a gap over \d+\.\d pp would have been", text))
        == 2
    )
    assert "states no stride; phases are counted by 8, a placebo" in text
    assert found["needle"].attrs["model"] == "qwen"


def test_the_logits_are_the_class_s_own(qwen):
    import torch
    from transformers import AutoModelForCausalLM

    subject = open_subject(qwen)
    (plan,) = _plans(n_per_residue=1, query_phases=[0])
    prompts = next(plan.batches(0, rows=24))
    found = audit(qwen, **QUICK | {"tokenizer": None, "stride": 4, "n_per_residue": 1, "query_phases": [0]})[
        "needle"
    ]
    plain = AutoModelForCausalLM.from_pretrained(qwen)
    with torch.no_grad():
        logits = plain(input_ids=prompts.tokens).logits[:, -1]
    expected = logits.log_softmax(-1)[torch.arange(24), prompts.answer]
    assert np.allclose(found["logprob"].values[0], expected.numpy(), atol=1e-5)
    assert subject.strides == ()


def test_deepseek_is_measured_by_its_own_stride(tmp_path):
    folder = save(tmp_path / "v4", "deepseek_v4")
    subject = open_subject(folder)
    assert (subject.strides, subject.kind) == ((4,), "deepseek_v4")
    found = audit(folder, **QUICK | {"tokenizer": None, "n_per_residue": 1, "query_phases": [0]})
    assert found["needle"].attrs["stride"] == 4
    assert found["needle"].attrs["placebo"] == 0
    assert found["needle"].attrs["model"] == "v4"


def test_recall_agrees_with_the_sweep():
    from hooks import load as load_model

    model = load_model("tiny")
    sweep = interp.phase_sweep(model, n_per_residue=12, seed=3)
    found = interp.audit("tiny", n_per_residue=12, crossed=4, seed=3, formats=(), progress=False)["recall"]
    for name in ("correct", "logprob", "accuracy", "accuracy_low"):
        assert np.allclose(found[name], sweep[name], equal_nan=True)
    for name in ("gap_pp", "gap_pp_low", "null_gap_pp", "period", "worst_phase", "stride"):
        assert found.attrs[name] == pytest.approx(sweep.attrs[name], nan_ok=True)
    assert found.attrs["confirmatory"] == 0


def test_something_that_is_no_model_is_one_line():
    with pytest.raises(CheckpointError, match="int is no model"):
        audit(3)


def test_the_verb_is_an_attribute_of_the_package():
    assert interp.audit is audit
    assert isinstance(xr.Dataset(), xr.Dataset)
