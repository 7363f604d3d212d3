"""Real tokenizers behind one small protocol, and the whole words found in their vocabularies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hooks.errors import TaskError

__all__ = [
    "HuggingFaceTokenizer",
    "TekkenTokenizer",
    "TextTokenizer",
    "reply_tokens",
    "tokenizer_hash",
    "whole_words",
]

_WORD_TWICE = re.compile(r" ?([a-z]{3,12}) \1")  # sentencepiece drops the first space
_SENTINEL = "phaselens content goes here"
_PROBE = "Ask again: the 3rd House,\n\tnot 'houses' (été 1984) == 0.25;\n    return x[i] / scale  # ...\n"


@runtime_checkable
class TextTokenizer(Protocol):
    """Text to token ids and back, without special tokens added or hidden."""

    @property
    def name(self) -> str:
        """For provenance."""
        ...

    @property
    def d_vocab(self) -> int:
        """Number of token ids, special ones included."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; nothing is added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; nothing is left out."""
        ...

    def frame(self, chat: bool) -> tuple[list[int], list[int]]:
        """Token ids before and after a prompt: BOS alone, or a user turn of the chat template.

        Raises
        ------
        TaskError
            If a chat template is asked for and there is none.
        """
        ...


class HuggingFaceTokenizer:
    """Adapter of a ``transformers`` tokenizer.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        As ``AutoTokenizer.from_pretrained`` returns it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @property
    def name(self) -> str:
        """The directory or hub id it came from, else its class."""
        return str(getattr(self.tokenizer, "name_or_path", "") or type(self.tokenizer).__name__)

    @property
    def d_vocab(self) -> int:
        """Number of token ids, added ones included."""
        return len(self.tokenizer)

    @cached_property
    def vocabulary_hash(self) -> str:
        """SHA-256 over every piece and its id."""
        return _sha256(sorted(self.tokenizer.get_vocab().items()))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; nothing is added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; nothing is left out and no space is cleaned up."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def frame(self, chat: bool) -> tuple[list[int], list[int]]:
        """Token ids before and after a prompt, see :class:`TextTokenizer`."""
        if not chat:
            bos = self.tokenizer.bos_token_id
            return ([] if bos is None else [int(bos)]), []
        if not getattr(self.tokenizer, "chat_template", None):
            raise TaskError(f"tokenizer {self.name!r} has no chat template; leave the chat option off")
        messages = [{"role": "user", "content": _SENTINEL}]
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program: it may fail in any way
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise TaskError(
                f"the chat template of {self.name!r} fails: {reason}; mend it, or leave the chat option off"
            ) from error
        before, found, after = text.partition(_SENTINEL)
        if not found:
            raise TaskError(
                f"the chat template of {self.name!r} changes the message; leave the chat option off"
            )
        return self.encode(before), self.encode(after)


class TekkenTokenizer:
    """Adapter of a ``tekken_*.json`` file as the package ``mistral-common`` ships it (131,072 ids).

    Parameters
    ----------
    path : path
        The file.

    Raises
    ------
    TaskError
        If the file is not there or ``mistral-common`` is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
            from mistral_common.tokens.tokenizers.tekken import Tekkenizer, is_tekken
        except ImportError as error:
            raise TaskError(
                f"{path}: tekken files need the package mistral-common: pip install it"
            ) from error
        if not is_tekken(Path(path)):
            raise TaskError(f"{str(path)!r} is not a tekken file; valid: a file named tekken*.json")
        self.tokenizer = Tekkenizer.from_file(Path(path))
        self.name = Path(path).name
        self.vocabulary_hash = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        self._keep = SpecialTokenPolicy.KEEP

    @property
    def d_vocab(self) -> int:
        """Number of token ids, special ones included."""
        return self.tokenizer.n_words

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; nothing is added."""
        return self.tokenizer.encode(text, bos=False, eos=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; nothing is left out."""
        return self.tokenizer.decode(list(ids), special_token_policy=self._keep)

    def frame(self, chat: bool) -> tuple[list[int], list[int]]:
        """Token ids before and after a prompt, see :class:`TextTokenizer`."""
        if not chat:
            return [self.tokenizer.bos_id], []
        begin, end = (self.tokenizer.get_special_token(token) for token in ("[INST]", "[/INST]"))
        return [self.tokenizer.bos_id, begin], [end]


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=8)
def tokenizer_hash(tokenizer: TextTokenizer) -> str:
    """SHA-256 of what a tokenizer does, whatever its name and wherever its files are.

    It covers how a probe text is cut and, for the adapters of this module, every piece and its id.
    """
    vocabulary = getattr(tokenizer, "vocabulary_hash", "")
    return _sha256([vocabulary, tokenizer.d_vocab, tokenizer.encode(_PROBE)])


def reply_tokens(tokenizer: TextTokenizer, tail: Sequence[int], text: str) -> tuple[int, ...]:
    """Tokens of a reply's first words after the end of a prompt.

    Parameters
    ----------
    tokenizer : TextTokenizer
        Any tokenizer.
    tail : sequence of int
        The ids that the prompt ends in: of a chat template, what opens the reply.
    text : str
        What the reply begins with.

    Returns
    -------
    tuple of int
        As tokenized behind the tail; by itself where the two merge or the tail is no plain text.
    """
    before = tokenizer.decode(tail) if tail else ""
    joint = tokenizer.encode(before + text)
    kept = joint[: len(tail)] == list(tail) and len(joint) > len(tail)
    return tuple(joint[len(tail) :] if kept else tokenizer.encode(text))


@lru_cache(maxsize=8)
def whole_words(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return the token ids that are a space and one lower-case word, and stay so in running text.

    Parameters
    ----------
    tokenizer : TextTokenizer
        Any tokenizer.

    Returns
    -------
    tuple of int
        Ascending, which in a BPE vocabulary is from frequent to rare.
    """
    found = []
    for token in range(tokenizer.d_vocab):
        text = tokenizer.decode([token, token])
        if _WORD_TWICE.fullmatch(text) and tokenizer.encode(text) == [token, token]:
            found.append(token)
    return tuple(found)
