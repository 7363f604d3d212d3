"""DeepSeek-V4 folders as ``save_pretrained`` writes them: safetensors and JSON only."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from transformers.models.deepseek_v4 import DeepseekV4Config, DeepseekV4ForCausalLM

from hooks.deepseek.checks import require_eager
from hooks.deepseek.model import HookedDeepseekV4
from hooks.errors import CheckpointError, ConfigError
from hooks.files import require_writable
from hooks.hf_config import read_config

__all__ = ["load_deepseek_v4", "save_deepseek_v4"]


def load_deepseek_v4(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> HookedDeepseekV4:
    """Load and hook a folder written by ``save_pretrained``.

    Parameters
    ----------
    folder : path
        With ``config.json`` and safetensors. Its ``phaselens_task``, if any, becomes the model's ``task``.
    device : str or torch.device
        Where to put it. Half-precision weights are widened to float32, quantized ones stay as they are.

    Raises
    ------
    CheckpointError
        If files are missing, truncated, or lack weights of the model they describe.
    ConfigError
        For quantized weights on a CPU, or a config that asks for other attention than eager.
    """
    folder = Path(folder)
    require_eager(read_config(folder))
    try:
        config = DeepseekV4Config.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # strict configs raise types of their own
        raise CheckpointError(
            f"{str(folder / 'config.json')!r} is no DeepSeek-V4 config: {_reason(error)}"
        ) from error
    quantized = getattr(config, "quantization_config", None) is not None
    if quantized and torch.device(device).type == "cpu":
        raise ConfigError(
            f"{str(folder)!r} holds quantized weights, which do not run on a CPU; load it on a GPU"
        )
    try:
        loaded: tuple = DeepseekV4ForCausalLM.from_pretrained(  # type: ignore[assignment]
            folder, config=config, attn_implementation="eager", dtype="auto" if quantized else torch.float32,
            use_safetensors=True, local_files_only=True, output_loading_info=True,
        )  # fmt: skip
    except Exception as error:  # safetensors, OS and shape errors alike
        raise CheckpointError(f"cannot read the weights in {str(folder)!r}: {_reason(error)}") from error
    model, report = loaded
    for what in ("missing_keys", "mismatched_keys"):
        if report[what]:
            first = sorted(map(str, report[what]))[0]
            raise CheckpointError(
                f"{str(folder)!r} has {len(report[what])} {what.replace('_', ' ')}: {first} …"
            )
    return HookedDeepseekV4(model.to(device), name=folder.name)


def save_deepseek_v4(
    model: HookedDeepseekV4, folder: str | os.PathLike[str], *, dtype: torch.dtype | None = None
) -> Path:
    """Write the Hugging Face model and the task it was trained on.

    Parameters
    ----------
    model : HookedDeepseekV4
        What to save.
    folder : path
        Created if need be; each file is replaced in one step.
    dtype : torch.dtype or None
        Of the stored weights; None keeps the model's.

    Raises
    ------
    CheckpointError
        If the folder cannot be written.
    """
    target = require_writable(folder)
    state = model.plain.state_dict()
    if dtype is not None:
        state = {name: t.to(dtype) if t.is_floating_point() else t for name, t in state.items()}
    model.plain.config.phaselens_task = model.task
    with tempfile.TemporaryDirectory(dir=target) as temporary:
        model.plain.save_pretrained(temporary, state_dict=state)
        for path in sorted(Path(temporary).iterdir(), reverse=True):
            os.replace(path, target / path.name)
    return target


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
