"""Final-position logits of many equal batches on a GPU: kernels recorded once and launched together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hooks.running import as_tokens, in_mode, watched

__all__ = ["PAYS_FROM", "Replay", "clean_forward"]

PAYS_FROM = 6
"""Batches from which on recording has paid for itself, as `phaselens bench sweep --device cuda` measures it."""


class Replay:
    """The forward pass of one shape of batch as a CUDA graph; other shapes run plainly.

    Parameters
    ----------
    model : CompressedTransformer
        Without indexer and hooks: what they do depends on values, and a graph repeats kernels.
    tokens : integer tensor [batch, pos]
        Of the shape to record.
    """

    def __init__(self, model: Any, tokens: Int[Tensor, "batch pos"]) -> None:
        self._model, self._tokens = model, tokens.clone()
        with in_mode(
            model, training=True
        ):  # it leaves out the checks that wait for the device; __call__ makes them
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # libraries and the allocator settle before anything is recorded
                for _ in range(3):
                    model(self._tokens, last_only=True)
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._logits = model(self._tokens, last_only=True)

    def __call__(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch 1 d_vocab"]:
        """Logits; raises what the model raises."""
        if tokens.shape != self._tokens.shape:
            return self._model(tokens, last_only=True)
        self._tokens.copy_(as_tokens(tokens, self._model.cfg.d_vocab, self._model.device))
        self._graph.replay()
        logits = self._logits.clone()
        self._model.require_finite(logits)
        return logits


def clean_forward(
    model: Any, tokens: Int[Tensor, "batch pos"], batches: int
) -> Callable[[Tensor], Float[Tensor, "batch 1 d_vocab"]]:
    """Return what runs `batches` batches of this shape without hooks, at the final position, fastest.

    Parameters
    ----------
    model : HookedModel
        Any; only our own is recorded.
    tokens : integer tensor [batch, pos]
        The first batch, where it will run.
    batches : int
        How many follow.
    """

    def plain(batch: Tensor) -> Tensor:
        return model(batch, last_only=True)

    return Replay(model, tokens) if tokens.is_cuda and batches >= PAYS_FROM and _repeats(model) else plain


def _repeats(model: Any) -> bool:
    """Whether a pass launches the same kernels whatever the tokens."""
    from hooks.transformer import CompressedTransformer

    return (
        isinstance(model, CompressedTransformer)
        and not any(model.cfg.layer(i).index_heads is not None for i in range(model.cfg.n_layers))
        and not watched(*model.hook_dict.values())
    )
