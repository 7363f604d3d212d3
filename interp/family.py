"""Several small models of one shape side by side: one batched pass instead of one pass per seed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hooks.errors import ConfigError, ModelCheckError
from hooks.running import as_tokens, watched

__all__ = ["Family", "family_logits"]


class Family(nn.Module):
    """Models that differ in weights only, stacked by ``torch.func`` and run in one pass.

    Parameters
    ----------
    models : sequence of CompressedTransformer
        Of equal configuration but for its seed, without an indexer and without hooks. Their weights are copied.

    Attributes
    ----------
    models : tuple of CompressedTransformer
        The models it was made of, untouched until :meth:`write_back`.
    stacked : CompressedTransformer
        The shape of one of them; every parameter is [model, ...].

    Raises
    ------
    ConfigError
        If there is no model, one is of another class or size, has hooks, or a layer has an indexer.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        super().__init__()
        _require_stackable(models)
        self.models = tuple(models)
        weights, _ = torch.func.stack_module_state(list(models))
        self.stacked = copy.deepcopy(models[0]).to("meta")
        for name, value in weights.items():
            owner, _, leaf = name.rpartition(".")
            setattr(
                self.stacked.get_submodule(owner), leaf, nn.Parameter(value.detach(), value.requires_grad)
            )
        self.train(models[0].training)

    def train(self, mode: bool = True) -> Family:
        """Set training mode, which leaves out the checks of ids and logits."""
        super().train(mode)
        # A batched pass cannot branch on values: what the models check outside training, `forward` checks.
        self.stacked.train()
        return self

    def forward(
        self, tokens: Int[Tensor, "model n pos"], last_only: bool = False
    ) -> Float[Tensor, "model n out d_vocab"]:
        """Run every model on its own prompts.

        Parameters
        ----------
        tokens : integer tensor [model, n, pos]
            Prompts of each model.
        last_only : bool
            Logits of the last position alone.

        Returns
        -------
        float tensor [model, n, pos or 1, d_vocab]
            Logits.

        Raises
        ------
        ConfigError
            If tokens are not [model, n, pos] of so many models.
        PhaselensError
            For ids that are no integers or, outside training mode, not in the vocabulary.
        ModelCheckError
            If logits are NaN or infinite, outside training mode.
        """
        if tokens.ndim != 3 or len(tokens) != len(self.models):
            raise ConfigError(
                f"tokens have shape {list(tokens.shape)}; valid: [{len(self.models)}, n, pos], own prompts for each model"
            )
        stacked, shape = self.stacked, tokens.shape
        tokens = as_tokens(
            tokens.flatten(0, 1), stacked.cfg.d_vocab, stacked.device, check_ids=not self.training
        )

        def one(parameters: dict[str, Tensor], own: Tensor) -> Tensor:
            return torch.func.functional_call(stacked, parameters, (own,), {"last_only": last_only})

        # The fused kernels of a GPU refuse the masks that a batched pass hands them.
        plain = sdpa_kernel(SDPBackend.MATH) if tokens.device.type != "cpu" else contextlib.nullcontext()
        with plain:
            logits = torch.vmap(one)(dict(stacked.named_parameters()), tokens.unflatten(0, shape[:2]))
        if not self.training:
            finite = torch.isfinite(logits).flatten(1).all(1).tolist()
            if not all(finite):
                raise ModelCheckError(
                    f"logits of model {finite.index(False)} of a family are NaN or infinite"
                )
        return logits

    @torch.no_grad()
    def clip_gradients(self, most: float) -> Float[Tensor, " model"]:
        """Scale each model's gradients so that their norm over all its parameters is at most `most`.

        As :func:`torch.nn.utils.clip_grad_norm_` does for one model.

        Returns
        -------
        float tensor [model]
            The norms before.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        each = [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in gradients]
        norms = torch.linalg.vector_norm(torch.stack(each), dim=0)
        scale = (most / (norms + 1e-6)).clamp(max=1.0)
        for g in gradients:
            g.mul_(scale.reshape(-1, *[1] * (g.ndim - 1)))
        return norms

    @torch.no_grad()
    def write_back(self) -> tuple[Any, ...]:
        """Copy each slice into the model it was made of, and put that model where the family is.

        Returns
        -------
        tuple of CompressedTransformer
            The models.
        """
        stacked = dict(self.stacked.named_parameters())
        for index, model in enumerate(self.models):
            model.to(self.stacked.device)
            for name, parameter in model.named_parameters():
                parameter.copy_(stacked[name][index])
        return self.models


@torch.no_grad()
def family_logits(models: Sequence[Any], tokens: Int[Tensor, "n pos"]) -> Float[Tensor, "model n d_vocab"]:
    """Final-position logits of a :class:`Family` of models.

    Parameters
    ----------
    models : sequence of CompressedTransformer
        As in :class:`Family`.
    tokens : integer tensor [n, pos]
        One batch of prompts, the same for all.

    Raises
    ------
    ConfigError, PhaselensError, ModelCheckError
        As :class:`Family` does.
    """
    family = Family(models).eval()
    return family(tokens.expand(len(models), *tokens.shape), last_only=True)[:, :, 0]


def _require_stackable(models: Sequence[Any]) -> None:
    from hooks.transformer import CompressedTransformer

    if not models:
        raise ConfigError("no models were given; a family has one or more of the same configuration")
    for model in models:
        if not isinstance(model, CompressedTransformer):
            raise ConfigError(
                f"{_name(model)!r} is a {type(model).__name__}, which cannot be stacked; run or train its seeds one by one"
            )
        if _shape(model) != _shape(models[0]):
            raise ConfigError(
                f"{model.name!r} differs from {models[0].name!r} in more than its seed; stack models of one "
                "configuration, precision, device and mode"
            )
        if watched(*model.hook_dict.values()):
            raise ConfigError(
                f"{model.name!r} has hooks, which cannot be stacked; take them off with reset_hooks()"
            )
    cfg = models[0].cfg
    if any(cfg.layer(i).index_heads is not None for i in range(cfg.n_layers)):
        raise ConfigError(
            f"{models[0].name!r} has an indexer, whose picks cannot be stacked; run or train its seeds one by one"
        )


def _name(model: Any) -> str:
    return getattr(model, "name", "model")


def _shape(model: Any) -> tuple[Any, ...]:
    return ({**model.cfg.to_dict(), "seed": 0}, model.W_E.dtype, model.device, model.training)
