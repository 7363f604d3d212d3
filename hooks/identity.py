"""What makes two Hugging Face models the same: their class, what their config computes with, their tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["computing_config", "hash_model"]

_NO_PART = frozenset(
    # Where it came from, what saved it, which task it was trained on; cached decoding and outputs besides logits
    # change no logits. The tensors are hashed with the dtype they have.
    {
        "_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "architectures", "auto_map",
        "phaselens_task", "use_cache", "return_dict", "output_hidden_states", "output_attentions",
        "output_router_logits", "dtype", "torch_dtype", "id2label", "label2id", "problem_type",
    }
)  # fmt: skip


def computing_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is left of a config, parts of it included, without keys that change no logits."""
    return {
        key: computing_config(value) if isinstance(value, Mapping) else value
        for key, value in ((str(key), value) for key, value in config.items())
        if key not in _NO_PART
    }


def hash_model(hf_model: Any, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over a model's class, its computing config and its tensors.

    Parameters
    ----------
    hf_model : PreTrainedModel
        Its class's name and its config count.
    tensors : mapping of str to Tensor
        Weights and buffers, by name; dtype and shape count.
    """
    header = [type(hf_model).__name__, computing_config(hf_model.config.to_dict())]
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, default=str).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tensor.dtype}{list(tensor.shape)}".encode())
        flat: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(flat)
    return digest.hexdigest()
