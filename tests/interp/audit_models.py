"""Models for the audit's tests: a tiny tokenizer, Hugging Face models from configs, and planted ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hooks import ChunkGeometry
from interp.tasks import HuggingFaceTokenizer, NeedleTask

WORDS = [f"{a}{b}{c}" for a in "bdfklm" for b in "aeiou" for c in "nrst"]


@functools.cache
def tokenizer() -> HuggingFaceTokenizer:
    """A byte-level BPE with 120 whole words and a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for word in WORDS:
        piece = "Ġ"
        for letter in word:
            merges.append((piece, letter))
            piece += letter
            vocab.setdefault(piece, len(vocab))
    raw = Tokenizer(models.BPE(vocab=vocab, merges=list(dict.fromkeys(merges))))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>")
    wrapped.chat_template = "<s>{% for m in messages %}user: {{ m['content'] }}!{% endfor %}bot:"
    return HuggingFaceTokenizer(wrapped)


def save(folder: Path, kind: str, **sizes: Any) -> Path:
    """Save a small random model with the tokenizer; `kind` is "qwen3", "llama" or "deepseek_v4"."""
    import transformers as hf

    n = len(tokenizer().tokenizer)
    torch.manual_seed(0)
    if kind == "deepseek_v4":
        from tests.hooks.deepseek_models import v4

        model = v4(layers=("sliding_attention", "compressed_sparse_attention"), vocab_size=n, **sizes)
    else:
        name = {"qwen3": "Qwen3", "llama": "Llama"}[kind]
        settings: dict[str, Any] = dict(
            vocab_size=n, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=512,
        )  # fmt: skip
        model = getattr(hf, f"{name}ForCausalLM")(getattr(hf, f"{name}Config")(**{**settings, **sizes}))
    model.save_pretrained(folder)
    tokenizer().tokenizer.save_pretrained(folder)
    return folder


@dataclass
class Sizes:
    """What a hooked model states."""

    d_vocab: int
    n_layers: int = 1
    d_model: int = 8
    n_heads: int = 1
    n_kv_heads: int = 1
    d_head: int = 8


class Finder:
    """Reads a needle prompt like a person: finds the asked key, and fails where `fails(t, q)` says so.

    t is the position of the key's last token in the context, q the last position of the prompt.
    """

    task = None

    def __init__(self, fails: Any, *, stride: int = 4, name: str = "finder") -> None:
        self.fails, self.stride, self.name = fails, stride, name
        self.cfg = Sizes(len(tokenizer().tokenizer))
        self.device = torch.device("cpu")
        self.calls = 0

    def geometry(self, layer: int) -> ChunkGeometry:
        return ChunkGeometry(self.stride, self.stride)

    def site_names(self) -> list[str]:
        return []

    def content_hash(self) -> str:
        return self.name

    def start_cache(self, batch: int, rewind: bool = True) -> None: ...
    def hooks(self, fwd_hooks: Any = ()) -> None: ...
    def run_with_hooks(self, tokens: Any, fwd_hooks: Any = (), **_: Any) -> None: ...
    def run_with_cache(self, tokens: Any, names_filter: Any = None, **_: Any) -> None: ...

    def __call__(self, tokens: torch.Tensor, *, last_only: bool = False) -> torch.Tensor:
        assert last_only
        self.calls += len(tokens)
        logits = torch.zeros(len(tokens), 1, self.cfg.d_vocab)
        for i, row in enumerate(tokens.tolist()):
            t, value = find(row)
            logits[i, 0, (value + 1) % self.cfg.d_vocab if self.fails(t, len(row) - 1) else value] = 5.0
        return logits


def find(row: list[int]) -> tuple[int, int]:
    """Position of the last token of the asked key, and the value after its separator.

    A prompt ends with a line end, two key tokens and a colon; the record is the same three tokens before.
    """
    asked = row[-3:]
    for start in range(len(row) - 3):
        if row[start : start + 3] == asked:
            return start + 1, row[start + 3]
    raise AssertionError("the asked key is not in the context")


def needle(**changes: Any) -> NeedleTask:
    """The needle task that an audit with CONTEXT and RECORDS makes."""
    return NeedleTask.from_tokenizer(tokenizer(), length=200, n_records=8, **changes)
