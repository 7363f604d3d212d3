"""Saving and loading models: safetensors and JSON only; the zoo; Hugging Face folders and hub ids."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hooks.config import ModelConfig
from hooks.errors import CheckpointError, ConfigError, did_you_mean
from hooks.files import atomic_path, read_object, require_writable, write_json

if TYPE_CHECKING:
    import torch

    from hooks.transformer import CompressedTransformer

__all__ = ["from_pretrained", "load", "save", "zoo", "zoo_info", "zoo_path"]

ZOO = Path(__file__).parent / "zoo"
FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def zoo() -> list[str]:
    """Names of the trained models that ship with the package."""
    return sorted(p.parent.name for p in ZOO.glob(f"*/{CONFIG}"))


def zoo_path(name: str) -> Path:
    """Folder of a zoo model.

    Raises
    ------
    CheckpointError
        Listing the names that exist.
    """
    if name not in zoo():
        raise CheckpointError(f"no model named {name!r} in the zoo; {did_you_mean(name, zoo(), 40)}")
    return ZOO / name


def zoo_info(name: str) -> dict[str, Any]:
    """How a zoo model came to be: command, seeds trained and what each gave (its ``training.json``)."""
    path = zoo_path(name) / "training.json"
    return read_object(path) if path.exists() else {}


def save(model: Any, path: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> Path:
    """Write ``model.safetensors`` and ``config.json`` into a folder.

    Parameters
    ----------
    model : CompressedTransformer or HookedDeepseekV4
        What to save, with its ``task``; the latter as ``save_pretrained`` does.
    path : path
        Folder; created if need be. Files of an earlier save are replaced one by one, each in one step.
    dtype : torch.dtype or None
        Of the stored weights, e.g. ``torch.float16``; None keeps the model's.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    CheckpointError
        If the folder cannot be written.
    """
    from safetensors.torch import save_file

    folder = require_writable(path)
    if hasattr(model, "plain"):  # wraps a Hugging Face model, which has a format of its own
        from hooks.deepseek.files import save_deepseek_v4

        return save_deepseek_v4(model, folder, dtype=dtype)
    state = {k: v.detach().cpu().to(dtype or v.dtype).contiguous() for k, v in model.state_dict().items()}
    with atomic_path(folder / WEIGHTS) as temporary:
        save_file(state, temporary, metadata={"format": "pt", "phaselens": str(FORMAT)})
    description = {"phaselens": FORMAT, "name": model.name, "config": model.cfg.to_dict(), "task": model.task}
    write_json(folder / CONFIG, description)
    return folder


def load(name_or_path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Any:
    """Load a model by zoo name or folder.

    Parameters
    ----------
    name_or_path : str or path
        A name of :func:`zoo`; a folder written by :func:`save`; or a Hugging Face DeepSeek-V4 folder.
    device : str or torch.device
        Where to put it. Weights stored in half precision are widened to float32.

    Returns
    -------
    CompressedTransformer or HookedDeepseekV4
        Checked and in eval mode.

    Raises
    ------
    CheckpointError
        If there is no such model, or its files are truncated, foreign or do not fit each other.
    ConfigError
        For an unknown or missing configuration key, or a device that is not there.
    ModelCheckError
        If the loaded model fails its own checks, e.g. NaN in the weights.
    """
    folder = Path(name_or_path)
    if str(name_or_path) in zoo():
        folder = ZOO / str(name_or_path)
    elif not folder.is_dir():
        raise CheckpointError(
            f"no model {str(name_or_path)!r}: not a zoo name and not a folder; {did_you_mean(str(name_or_path), zoo(), 40)}"
        )
    if not (folder / CONFIG).exists():
        raise CheckpointError(f"{str(folder)!r} holds no {CONFIG}; a model folder has {CONFIG} and {WEIGHTS}")
    description = read_object(folder / CONFIG)
    from hooks.running import require_device

    require_device(device)
    if description.get("model_type") == "deepseek_v4":
        return _load_deepseek(folder, device)
    if "phaselens" not in description:
        kind = description.get("model_type", "unknown")
        raise CheckpointError(
            f"{str(folder / CONFIG)!r} describes a model of type {kind!r}; valid: phaselens folders and deepseek_v4"
        )
    return _load_own(folder, description, device)


def from_pretrained(
    repo_or_path: str, *, device: str | torch.device = "cpu", revision: str | None = None
) -> Any:
    """Load a folder, or fetch a Hugging Face hub repository (safetensors and JSON only) and load it.

    Raises
    ------
    CheckpointError
        If the hub cannot be reached or has no such repository.
    """
    if Path(repo_or_path).is_dir() or repo_or_path in zoo():
        return load(repo_or_path, device)
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            repo_or_path, revision=revision, allow_patterns=["*.json", "*.safetensors"]
        )
    except Exception as error:  # the hub client's error types are many and change with its versions
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"cannot fetch {repo_or_path!r} from the hub: {reason}") from error
    return load(folder, device)


def _load_own(folder: Path, description: dict[str, Any], device: Any) -> CompressedTransformer:
    import torch

    if description["phaselens"] != FORMAT:
        raise CheckpointError(
            f"{str(folder)!r} has format {description['phaselens']!r}; this version reads {FORMAT}"
        )
    missing = [key for key in ("name", "config", "task") if key not in description]
    if missing:
        raise ConfigError(
            f"{str(folder / CONFIG)!r} lacks the key {missing[0]!r}; required: name, config, task"
        )
    unknown = [key for key in description if key not in ("phaselens", "name", "config", "task")]
    if unknown:
        raise ConfigError(
            f"{str(folder / CONFIG)!r} has an unknown key {unknown[0]!r}; valid: name, config, task"
        )
    if not isinstance(description["config"], dict):
        raise ConfigError(f"'config' in {str(folder / CONFIG)!r} is not a table of fields")
    cfg = ModelConfig.from_dict(description["config"], complete=True)
    for key, kind in (("name", str), ("task", dict | None)):
        if not isinstance(description[key], kind):
            raise ConfigError(
                f"{key!r} in {str(folder / CONFIG)!r} is {description[key]!r}; valid: what save() wrote"
            )
    weights = _read_weights(folder / WEIGHTS)
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"weight {name!r} has type {tensor.dtype}; valid: floating point")
    from hooks.transformer import CompressedTransformer

    model = CompressedTransformer(
        cfg, weights={k: v.to(torch.promote_types(v.dtype, torch.float32)) for k, v in weights.items()}
    )
    model.name, model.task = description["name"], description["task"]
    return model.to(device).eval()


def _load_deepseek(folder: Path, device: Any) -> Any:
    from hooks.deepseek import load_deepseek_v4

    return load_deepseek_v4(folder, device=device)


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.exists():
        raise CheckpointError(
            f"{str(path.parent)!r} holds no {WEIGHTS}; a model folder has {CONFIG} and {WEIGHTS}"
        )
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r} is truncated or not a safetensors file: {error}") from error
