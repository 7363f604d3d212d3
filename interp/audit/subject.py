"""What is audited: its strides, its tokenizer and, only when prompts are scored, its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hooks.errors import CheckpointError, TaskError, did_you_mean
from hooks.sites import HookedModel
from interp.phases import model_strides
from interp.tasks.tokenizers import HuggingFaceTokenizer, TekkenTokenizer, TextTokenizer

__all__ = ["Subject", "find_tokenizer", "open_subject"]


@dataclass(frozen=True)
class Subject:
    """A model to audit.

    Attributes
    ----------
    name : str
        For display.
    kind : str
        ``"phaselens"``, or the ``model_type`` of its config.
    strides : tuple of int
        Distinct strides above 1 that it states, ascending; empty without compression.
    tokenizer : TextTokenizer or None
        None for models that only know token ids.
    max_positions : int or None
        Longest prompt it says it reads.
    recall : dict or None
        Recall settings stored with a trained model.
    source : callable
        Loads the weights.
    d_vocab : int or None
        Token ids it says it knows.
    """

    name: str
    kind: str
    strides: tuple[int, ...]
    tokenizer: TextTokenizer | None
    max_positions: int | None
    recall: dict[str, Any] | None
    source: Callable[[], HookedModel]
    d_vocab: int | None = None

    @cached_property
    def model(self) -> HookedModel:
        """The loaded model."""
        return self.source()


def open_subject(
    model: Any,
    *,
    tokenizer: Any = None,
    device: str = "cpu",
    revision: str | None = None,
    weights: bool = True,
) -> Subject:
    """Find out what a model is without loading its weights yet.

    Parameters
    ----------
    model : str, path, HookedModel or PreTrainedModel
        A zoo name, a folder (of phaselens or Hugging Face), a hub id, or a model in memory.
    tokenizer : TextTokenizer, transformers tokenizer, path or None
        None: the one in the model's folder.
    device : str
        Where weights go.
    revision : str or None
        Of a hub repository.
    weights : bool
        Whether a hub repository's weights are to be fetched too.

    Raises
    ------
    CheckpointError
        If there is no such model.
    """
    if not isinstance(model, str | Path):
        return _in_memory(model, tokenizer)
    from hooks.causal_lm import fetch
    from hooks.checkpoint import zoo, zoo_path
    from hooks.hf_config import config_strides, read_config, setting, text_settings

    if "/" not in str(model) and not Path(model).exists() and str(model) not in zoo():
        raise CheckpointError(
            f"no model {str(model)!r}: neither a folder nor in the zoo, and hub ids are owner/name; "
            f"{did_you_mean(str(model), zoo(), 40)}"
        )
    is_zoo = str(model) in zoo() and not Path(model).is_dir()
    if is_zoo and revision is not None:
        raise CheckpointError(
            f"{str(model)!r} is a zoo model, so revision {revision!r} would do nothing; leave --revision out"
        )
    folder = zoo_path(str(model)) if is_zoo else fetch(model, revision=revision, weights=weights)
    config = read_config(folder)
    name = str(model) if is_zoo or not Path(model).is_dir() else folder.resolve().name
    if "phaselens" in config:
        if tokenizer is not None:
            raise TaskError(f"{name!r} is a phaselens model and reads token ids, no text; give no tokenizer")
        return _own(folder, config, device)
    # Before the tokenizer, whose library reads the config too and says less.
    stated: dict[str, Any] = {
        "kind": setting(config, "model_type") or "unknown",
        "strides": config_strides(config),
        "max_positions": setting(text_settings(config), "max_position_embeddings"),
        "recall": setting(config, "phaselens_task"),
        "d_vocab": setting(text_settings(config), "vocab_size"),
    }
    return Subject(
        name=name,
        tokenizer=find_tokenizer(folder) if tokenizer is None else _as_tokenizer(tokenizer),
        source=lambda: _load(folder, config, device, name),
        **stated,
    )


def _in_memory(model: Any, tokenizer: Any) -> Subject:
    from hooks.causal_lm import CausalLM
    from hooks.hf_config import config_strides, setting, text_settings

    if not isinstance(model, HookedModel):
        if not hasattr(model, "config") or not hasattr(model, "forward"):
            raise CheckpointError(
                f"{type(model).__name__} is no model; valid: a zoo name, a folder, a hub id, a hooked model, "
                "a Hugging Face causal language model"
            )
        model = _adapt(model)
    config = getattr(getattr(model, "hf", None), "config", None)  # of Hugging Face's classes
    described = {} if config is None else config.to_dict()
    return Subject(
        name=model.name,
        kind=str(described.get("model_type", "unknown")) if isinstance(model, CausalLM) else "phaselens",
        strides=config_strides(described) or tuple(model_strides(model)),
        tokenizer=None if tokenizer is None else _as_tokenizer(tokenizer),
        max_positions=setting(text_settings(described), "max_position_embeddings"),
        recall=model.task,
        source=lambda: model,
        d_vocab=model.cfg.d_vocab,
    )


def _adapt(hf_model: Any) -> HookedModel:
    if type(hf_model).__name__ == "DeepseekV4ForCausalLM":
        from hooks import hook_deepseek_v4

        hooked: Any = hook_deepseek_v4(hf_model)
        return hooked
    from hooks.causal_lm import CausalLM

    return CausalLM(hf_model)


def _own(folder: Path, config: dict[str, Any], device: str) -> Subject:
    from hooks.checkpoint import load
    from hooks.config import ModelConfig

    cfg = ModelConfig.from_dict(config.get("config") or {})
    return Subject(
        name=str(config.get("name") or folder.name),
        kind="phaselens",
        strides=tuple(stride for stride in cfg.strides if stride > 1),
        tokenizer=None,
        max_positions=None,
        recall=config.get("task"),
        source=lambda: load(folder, device),
        d_vocab=cfg.d_vocab,
    )


def _load(folder: Path, config: dict[str, Any], device: str, name: str) -> HookedModel:
    if config.get("model_type") == "deepseek_v4":
        from hooks.checkpoint import load

        model = load(folder, device)
        model.name = name
        return model
    from hooks.causal_lm import load_causal_lm

    return load_causal_lm(folder, device, name=name)


# --------------------------------------------------------------------------- tokenizers


def find_tokenizer(folder: str | Path) -> TextTokenizer | None:
    """Load the tokenizer in a model folder: Hugging Face's files or a tekken file; None without either.

    Raises
    ------
    TaskError
        If the files are there and cannot be read.
    """
    folder = Path(folder)
    tekken = sorted(folder.glob("tekken*.json"))
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
    if not any((folder / name).exists() for name in names):
        return TekkenTokenizer(tekken[0]) if tekken else None
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        try:
            found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except (ValueError, KeyError):  # of a class or a model type that this transformers does not know
            found = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # many types, by library and file
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise TaskError(f"the tokenizer in {str(folder)!r} cannot be read: {reason}") from error
    return HuggingFaceTokenizer(found)


def _as_tokenizer(given: Any) -> TextTokenizer:
    if isinstance(given, TextTokenizer):
        return given
    if not isinstance(given, str | Path):
        return HuggingFaceTokenizer(given)
    path = Path(given)
    if path.is_file() and path.name != "tokenizer.json":
        return TekkenTokenizer(path)
    found = find_tokenizer(path.parent if path.is_file() else path)
    if found is None:
        raise TaskError(f"no tokenizer in {str(given)!r}; give a folder with tokenizer.json or a tekken file")
    return found
