"""Several small models of one shape side by side: one batched pass instead of one pass per seed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hooks.errors import ConfigError

__all__ = ["family_logits"]


@torch.no_grad()
def family_logits(models: Sequence[Any], tokens: Int[Tensor, "n pos"]) -> Float[Tensor, "model n d_vocab"]:
    """Final-position logits of models that differ in weights only, through ``torch.func``.

    Parameters
    ----------
    models : sequence of CompressedTransformer
        Of equal configuration but for its seed, without an indexer.
    tokens : integer tensor [n, pos]
        One batch of prompts, the same for all.

    Raises
    ------
    ConfigError
        If there is no model, sizes differ, or a layer has an indexer.
    """
    if not models:
        raise ConfigError("no models were given; a family has one or more of the same configuration")
    shape = {**models[0].cfg.to_dict(), "seed": 0}
    for model in models:
        if {**model.cfg.to_dict(), "seed": 0} != shape:
            raise ConfigError(
                f"{model.name!r} differs from {models[0].name!r} in more than its seed; stack models of one configuration"
            )
    if any(models[0].cfg.layer(i).index_heads is not None for i in range(models[0].cfg.n_layers)):
        raise ConfigError(
            f"{models[0].name!r} has an indexer, whose picks cannot be stacked; run its seeds one by one"
        )
    weights, buffers = torch.func.stack_module_state(list(models))
    # Training mode only leaves out the checks that look at values, which a batched pass cannot branch on.
    base = copy.deepcopy(models[0]).to("meta").train()

    def one(parameters: dict[str, Tensor], state: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(base, (parameters, state), (tokens,), {"last_only": True})

    # The fused kernels of a GPU refuse the masks that a batched pass hands them.
    fused = contextlib.nullcontext() if tokens.device.type == "cpu" else sdpa_kernel(SDPBackend.MATH)
    with fused:
        return torch.vmap(one)(weights, buffers)[:, :, 0]
