from pathlib import Path

import pytest

from hooks.errors import TaskError
from interp.tasks.tokenizers import HuggingFaceTokenizer, TekkenTokenizer, TextTokenizer, whole_words
from tests.interp.tasks.conftest import WORDS

TEXT = 'def f(x):\n    """Cast = = ==== 12345."""\n\n\n    return x  # ä → β\n'


def test_text_survives(tekken: TekkenTokenizer, small: HuggingFaceTokenizer) -> None:
    for tokenizer in (tekken, small):
        assert isinstance(tokenizer, TextTokenizer)
        ids = tokenizer.encode(TEXT)
        assert tokenizer.decode(ids) == TEXT
        assert all(0 <= i < tokenizer.d_vocab for i in ids)


def test_tekken_is_the_real_file(tekken: TekkenTokenizer) -> None:
    assert tekken.d_vocab == 131072
    assert tekken.frame(False) == ([1], [])
    before, after = tekken.frame(True)
    assert tekken.decode([*before, *after]) == "<s>[INST][/INST]"


def test_whole_words(small: HuggingFaceTokenizer) -> None:
    ids = whole_words(small)
    assert sorted(small.decode([i]).strip() for i in ids) == sorted(WORDS)


@pytest.mark.slow
def test_whole_words_of_the_real_file(tekken: TekkenTokenizer) -> None:
    ids = whole_words(tekken)
    assert len(ids) > 20000
    text = tekken.decode(ids)
    assert tekken.encode(text) == list(ids)


def test_chat_frame(small: HuggingFaceTokenizer) -> None:
    before, after = small.frame(True)
    assert small.decode(before) == "<s>user: "
    assert small.decode(after) == "!bot:"
    assert small.frame(False) == ([small.tokenizer.bos_token_id], [])
    plain = HuggingFaceTokenizer(type(small.tokenizer)(tokenizer_object=small.tokenizer.backend_tokenizer))
    assert plain.frame(False) == ([], [])
    with pytest.raises(TaskError, match="no chat template"):
        plain.frame(True)
    for broken, told in [("{{ messages", "unexpected end of template"), ("{{ raise_exception('no') }}", "fails: no;"),
                         ("{{ messages[3].content }}", "fails: .*no element 3"), ("hello", "changes the message")]:  # fmt: skip
        plain.tokenizer.chat_template = broken
        with pytest.raises(TaskError, match=f"chat template .*{told}"):
            plain.frame(True)


def test_missing_tekken_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"not a tekken file; valid: a file named tekken\*\.json"):
        TekkenTokenizer(tmp_path / "tokenizer.json")
