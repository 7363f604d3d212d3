"""What a DeepSeek-V4 must satisfy before it is hooked, in every call, and once it is hooked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hooks.errors import ConfigError, ModelCheckError
from hooks.hf_config import require_attention
from hooks.running import in_mode

if TYPE_CHECKING:
    from hooks.deepseek.model import HookedDeepseekV4

__all__ = ["check_model", "refuse_model", "require_dtypes", "require_eager", "require_finite"]


def refuse_model(hf_model: Any) -> None:
    """Raise for a model that cannot be hooked exactly.

    Raises
    ------
    ConfigError
        Naming the class, the attention implementation or the quantization, and what to do instead.
    """
    if type(hf_model).__name__ != "DeepseekV4ForCausalLM":
        raise ConfigError(
            f"{type(hf_model).__name__} is not a DeepseekV4ForCausalLM; only that class is hooked here"
        )
    require_eager(hf_model.config._attn_implementation)
    require_dtypes(hf_model.parameters())
    small = {str(p.dtype) for p in hf_model.parameters() if not p.is_floating_point() or p.element_size() < 2}
    stored = getattr(hf_model.config, "quantization_config", None)
    on_cpu = any(p.device.type == "cpu" for p in hf_model.parameters())
    if on_cpu and (small or stored is not None):
        what = ", ".join(sorted(small)) or "quantization_config"
        raise ConfigError(
            f"quantized weights ({what}) do not run on a CPU; dequantize to bfloat16 or load on a GPU"
        )


def require_dtypes(parameters: Iterable[Tensor]) -> None:
    """Raise for weights of a precision in which the class cannot compute.

    Raises
    ------
    ConfigError
        Naming the dtypes in which it can.
    """
    if any(parameter.dtype == torch.float64 for parameter in parameters):
        raise ConfigError(
            "weights are torch.float64, and DeepSeek-V4 computes parts of each layer in float32; valid: float32, "
            "bfloat16, float16"
        )


def require_eager(config: Mapping[str, Any] | str | None) -> None:
    """Raise if a ``config.json``, or a model in memory by its setting, asks for other attention than eager.

    Raises
    ------
    ConfigError
        Saying what to do instead.
    """
    require_attention(
        config, ("eager",),
        instead="DeepSeek-V4 is hooked in its eager attention only; load or store it with "
        "attn_implementation='eager'",
    )  # fmt: skip


def require_finite(logits: Tensor) -> None:
    """Raise if logits are NaN or infinite.

    Raises
    ------
    ModelCheckError
        Naming the first place.
    """
    if not bool(torch.isfinite(logits).all()):
        where = (~torch.isfinite(logits)).nonzero()[0].tolist()
        raise ModelCheckError(f"logits are NaN or infinite, first at [batch, pos, token] = {where}")


@torch.no_grad()
def check_model(model: HookedDeepseekV4, hf_model: Any) -> None:
    """Verify a hooked model against the plain one on a short prompt.

    Logits are bit-equal, every promised site fires, observing changes nothing, gates and attention maps sum
    to 1, gate times payload is the pooled entry, and per-head results sum to the attention output.

    Raises
    ------
    ModelCheckError
        Saying which of these fails, and by how much.
    """
    longest = max([model.cfg.exact_window, *model.cfg.strides])
    tokens = (torch.arange(2 * longest + 3, device=model.device) * 7919 % model.cfg.d_vocab)[None]
    with in_mode(hf_model, training=False):
        expected = hf_model(input_ids=tokens).logits
    logits = model(tokens)
    _require_equal("logits of the hooked and the plain model", logits, expected)
    seen: dict[str, Tensor] = {}

    def keep(tensor: Tensor, hook: Any) -> None:
        seen[str(hook.name)] = tensor.detach().clone()

    for point in model.hook_points():
        point.add_hook(keep, level=-1)
    try:
        observed = model(tokens)
    finally:
        model.remove_all_hook_fns(level=-1)
    silent = [name for name in model.site_names() if name not in seen]
    if silent:
        raise ModelCheckError(
            f"{len(silent)} promised sites do not fire with this transformers: {', '.join(silent[:6])}"
        )
    _require_equal("logits with and without observers", observed, expected)
    half = next(model.plain.parameters()).dtype not in (torch.float32, torch.float64)
    for layer in range(model.cfg.n_layers):
        _check_layer(f"blocks.{layer}.", seen, 3e-2 if half else 1e-4)


def _check_layer(prefix: str, seen: dict[str, Tensor], tolerance: float) -> None:
    for branch in (f"{prefix}attn.compressor.key.", f"{prefix}attn.indexer.compressor."):
        if f"{branch}hook_gate" in seen:
            gate, payload = seen[f"{branch}hook_gate"], seen[f"{branch}hook_payload"]
            _require_close(f"{branch}hook_gate summed over slots", gate.sum(2), torch.ones(()), tolerance)
            pooled = seen[f"{branch}hook_pooled"]
            _require_close(f"{branch}hook_gate ⊙ hook_payload", (gate * payload).sum(2), pooled, tolerance)
    pattern = seen[f"{prefix}attn.hook_pattern"].sum(-1)
    _require_close(f"{prefix}attn.hook_pattern summed over keys and sink", pattern, torch.ones(()), tolerance)
    heads, out = seen[f"{prefix}attn.hook_result"].sum(2), seen[f"{prefix}hook_attn_out"]
    _require_close(f"{prefix}attn.hook_result summed over heads", heads, out, tolerance)


def _require_equal(what: str, got: Tensor, expected: Tensor) -> None:
    if not torch.equal(got, expected):
        worst = float((got.float() - expected.float()).abs().max())
        raise ModelCheckError(f"{what} differ by up to {worst:.3g} where they must be bit-equal")


def _require_close(what: str, got: Tensor, expected: Tensor, tolerance: float) -> None:
    got, expected = got.float(), expected.float().to(got.device)
    scale = max(1.0, float(expected.abs().max()))
    worst = float((got - expected).abs().max())
    if not worst <= tolerance * scale:
        raise ModelCheckError(f"{what}: off by {worst:.3g}, more than {tolerance * scale:.3g}")
