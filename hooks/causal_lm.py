"""Hugging Face causal language models that have no hooks: their files, and a thin adapter that gives logits.

Only safetensors and JSON are read, and no code that comes with a model is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hooks.errors import CheckpointError, ConfigError, ModelCheckError, PhaselensError, SiteError
from hooks.geometry import ChunkGeometry
from hooks.hf_config import config_strides, read_config, require_attention, setting
from hooks.identity import hash_model
from hooks.running import as_tokens, in_mode, require_plain_positions

__all__ = ["CausalLM", "CausalLMSizes", "config_strides", "fetch", "load_causal_lm", "read_config"]

_TEXT_FILES = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
_ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


# --------------------------------------------------------------------------- files


def fetch(dir_or_id: str | Path, *, revision: str | None = None, weights: bool = True) -> Path:
    """Return a folder as it is, or download a hub repository: JSON, tokenizer and safetensors only.

    Parameters
    ----------
    dir_or_id : str or path
        A folder or a Hugging Face hub id such as ``"owner/model"``.
    revision : str or None
        Branch, tag or commit of the repository.
    weights : bool
        Whether weights are wanted, or config and tokenizer alone.

    Raises
    ------
    CheckpointError
        If there is no such folder and the hub cannot give the repository, with the hub's reason.
    """
    folder = Path(dir_or_id)
    if folder.exists() and revision is not None:
        raise CheckpointError(
            f"{str(dir_or_id)!r} is on this machine, so revision {revision!r} would do nothing; valid: a hub id with it, "
            "or leave --revision out"
        )
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CheckpointError(f"{str(dir_or_id)!r} is a file; give the folder that holds config.json")
    if str(dir_or_id).count("/") > 1 or str(dir_or_id).startswith((".", "/", "~")):
        raise CheckpointError(f"no folder {str(dir_or_id)!r}; give a model folder or a hub id owner/name")
    from huggingface_hub import snapshot_download

    patterns: list[str] = [*_TEXT_FILES, *(["*.safetensors"] if weights else [])]
    try:
        return Path(snapshot_download(str(dir_or_id), revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub client's error types are many and change with its versions
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise CheckpointError(
            f"{str(dir_or_id)!r} is not a folder, and the hub does not give it: {reason}"
        ) from error


# --------------------------------------------------------------------------- the adapter


@dataclass(frozen=True)
class CausalLMSizes:
    """Sizes of a plain causal language model, under the names our own models use."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_mlp: int
    d_vocab: int
    max_positions: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


class CausalLM:
    """A Hugging Face causal language model that can be measured, but not hooked.

    Parameters
    ----------
    hf_model : PreTrainedModel
        Any causal language model. It is evaluated, and left in the mode it is in.
    name : str or None
        For display; by default the path it was loaded from.

    Raises
    ------
    ConfigError
        If it holds quantized weights on a CPU.
    """

    def __init__(self, hf_model: Any, *, name: str | None = None) -> None:
        _refuse_quantized(hf_model)
        self.hf = hf_model
        config = hf_model.config.get_text_config()
        self.name = name or getattr(hf_model.config, "name_or_path", "") or type(hf_model).__name__
        self.task: dict[str, Any] | None = getattr(hf_model.config, "phaselens_task", None)
        heads = int(config.num_attention_heads)
        self.cfg = CausalLMSizes(
            n_layers=int(config.num_hidden_layers),
            d_model=int(config.hidden_size),
            n_heads=heads,
            n_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            d_head=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
            d_mlp=int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size),
            d_vocab=int(hf_model.get_input_embeddings().weight.shape[0]),
            max_positions=getattr(config, "max_position_embeddings", None),
        )
        self._hash = ""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.hf.parameters()).device

    def geometry(self, layer: int) -> ChunkGeometry | None:
        """No layer is known to have a compressor."""
        if not 0 <= layer < self.cfg.n_layers:
            raise ConfigError(f"layer {layer} does not exist; valid: 0 to {self.cfg.n_layers - 1}")
        return None

    def site_names(self) -> list[str]:
        """None: nothing inside is named."""
        return []

    def content_hash(self) -> str:
        """SHA-256 over configuration and weights; computed once."""
        if not self._hash:
            self._hash = hash_model(self.hf, self.hf.state_dict())
        return self._hash

    def start_cache(self, batch: int, rewind: bool = True) -> Any:
        """Interventions need sites, which this model lacks.

        Raises
        ------
        SiteError
            Always.
        """
        raise SiteError(self._no_sites())

    def hooks(self, fwd_hooks: Sequence[tuple[str, Callable[..., Any]]] = ()) -> AbstractContextManager[Any]:
        """Nothing can be hooked; an empty list is fine.

        Raises
        ------
        SiteError
            If a hook is given.
        """
        if fwd_hooks:
            raise SiteError(self._no_sites())
        return nullcontext(self)

    def run_with_hooks(
        self, tokens: Tensor, fwd_hooks: Sequence[tuple[str, Callable[..., Any]]] = (), **kwargs: Any
    ) -> Tensor:
        """One forward pass; see :meth:`hooks`."""
        with self.hooks(fwd_hooks):
            return self(tokens, **kwargs)

    def run_with_cache(self, tokens: Tensor, names_filter: Any = None, **kwargs: Any) -> tuple[Tensor, Any]:
        """Nothing can be read.

        Raises
        ------
        SiteError
            Always.
        """
        raise SiteError(self._no_sites())

    def _no_sites(self) -> str:
        return (
            f"{self.name!r} ({type(self.hf).__name__}) has no hook sites, only logits; "
            "valid: phaselens models and DeepSeek-V4"
        )

    @torch.no_grad()
    def __call__(
        self,
        tokens: Any,
        cache: Any = None,
        *,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        last_only: bool = False,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Float[Tensor, "batch out d_vocab"]:
        """Logits of whole prompts.

        Parameters
        ----------
        tokens : integer tensor [batch, pos]
            Rectangular.
        cache, start_at_layer, stop_at_layer : None
            Only for hooked models.
        last_only : bool
            Unembed the final position alone: [batch, 1, d_vocab].
        attention_mask, position_ids : Tensor or None
            Only what changes nothing: all ones; 0, 1, 2 ….

        Raises
        ------
        PhaselensError
            For ragged input, padding, other positions, prompts longer than the model's context.
        ModelCheckError
            If logits are NaN or infinite.
        """
        if cache is not None or start_at_layer is not None or stop_at_layer is not None:
            raise SiteError(self._no_sites())
        ids = as_tokens(tokens, self.cfg.d_vocab, self.device)
        require_plain_positions(attention_mask, position_ids, batch=ids.shape[0], new=ids.shape[1])
        if self.cfg.max_positions and ids.shape[1] > self.cfg.max_positions:
            raise PhaselensError(
                f"prompts of {ids.shape[1]} tokens; {self.name!r} reads at most {self.cfg.max_positions}"
            )
        with in_mode(self.hf, training=False):
            logits = self.hf(input_ids=ids, use_cache=False, logits_to_keep=1 if last_only else 0).logits
        if last_only:
            logits = logits[:, -1:]  # classes without logits_to_keep give all positions
        if not bool(torch.isfinite(logits).all()):
            raise ModelCheckError(f"{self.name!r} gives logits that are NaN or infinite")
        return logits.float()


def load_causal_lm(
    dir_or_id: str | Path,
    device: str | torch.device = "cpu",
    *,
    revision: str | None = None,
    name: str | None = None,
) -> CausalLM:
    """Load a causal language model from a folder or the hub.

    Parameters
    ----------
    dir_or_id : str or path
        As in :func:`fetch`.
    device : str or torch.device
        Where to put it. On a CPU half precision is widened to float32.
    revision : str or None
        Of a hub repository.
    name : str or None
        For display; by default the folder's name or the hub id.

    Raises
    ------
    CheckpointError
        If it has no safetensors, needs code of its own, or its weights do not fit its config.
    ConfigError
        For quantized weights on a CPU, or an attention implementation that cannot be used.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = fetch(dir_or_id, revision=revision)
    described = read_config(folder)
    on_cpu = torch.device(device).type == "cpu"
    if on_cpu and described.get("quantization_config") is not None:
        raise ConfigError(
            f"{str(dir_or_id)!r} holds quantized weights, which do not run on a CPU; use --device cuda, or "
            "--export the prompts and score a server's --answers"
        )
    require_attention(described, _ATTENTION)
    if not list(folder.glob("*.safetensors")):
        raise CheckpointError(
            f"{str(dir_or_id)!r} holds no .safetensors file; other formats are not read (pickle can run "
            "code): convert it with save_pretrained"
        )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        loaded: tuple[Any, dict[str, Any]] = AutoModelForCausalLM.from_pretrained(  # type: ignore[assignment]
            folder, config=config, dtype=torch.float32 if on_cpu else "auto", use_safetensors=True,
            trust_remote_code=False, local_files_only=True, output_loading_info=True,
        )  # fmt: skip
    except Exception as error:  # config, safetensors, OS and shape errors of many types
        raise CheckpointError(_load_reason(str(dir_or_id), described, error)) from error
    model, report = loaded
    for what in ("missing_keys", "mismatched_keys"):
        if report[what]:
            first = sorted(map(str, report[what]))[0]
            raise CheckpointError(
                f"{str(dir_or_id)!r} has {len(report[what])} {what.replace('_', ' ')}, first {first}: its "
                "weights do not fit its config.json"
            )
    if name is None:
        name = Path(dir_or_id).resolve().name if Path(dir_or_id).is_dir() else str(dir_or_id)
    return CausalLM(model.to(device), name=name)


def _load_reason(name: str, described: dict[str, Any], error: Exception) -> str:
    from transformers import CONFIG_MAPPING

    kind = setting(described, "model_type")
    if kind not in CONFIG_MAPPING:
        own = ", and code that comes with a model is not run" if "auto_map" in described else ""
        return (
            f"{name!r} is a model of type {kind!r}, which this transformers does not have{own}; --export the "
            "prompts and score a server's --answers"
        )
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"cannot load {name!r}: {line}"


def _refuse_quantized(hf_model: Any) -> None:
    small = {
        str(p.dtype).removeprefix("torch.")
        for p in hf_model.parameters()
        if p.device.type == "cpu" and (not p.is_floating_point() or p.element_size() < 2)
    }
    if small:
        raise ConfigError(
            f"weights of dtype {', '.join(sorted(small))} do not run on a CPU; put the model on a GPU, "
            "or load an unquantized one"
        )
