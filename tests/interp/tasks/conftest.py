from pathlib import Path

import mistral_common
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

from interp.tasks.tokenizers import HuggingFaceTokenizer, TekkenTokenizer

WORDS = [f"{a}{b}{c}" for a in "bdfklm" for b in "aeiou" for c in "nrst"]


@pytest.fixture(scope="session")
def tekken() -> TekkenTokenizer:
    """The real 131K BPE file."""
    return TekkenTokenizer(Path(mistral_common.__file__).parent / "data" / "tekken_240718.json")


@pytest.fixture(scope="session")
def small() -> HuggingFaceTokenizer:
    """A byte-level BPE with 120 whole words (merged letter by letter) and a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    merges = []
    for word in WORDS:
        piece = "Ġ"
        for letter in word:
            merges.append((piece, letter))
            piece += letter
    for merge in [("=", "="), ("Ġ", "="), *merges]:
        vocab.setdefault("".join(merge), len(vocab))
    unique = list(dict.fromkeys([("=", "="), ("Ġ", "="), *merges]))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=unique))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")
    wrapped.chat_template = (
        "<s>{% for m in messages %}user: {{ m['content'] }}!{% endfor %}"
        "{% if add_generation_prompt %}bot:{% endif %}"
    )
    return HuggingFaceTokenizer(wrapped)
