"""One computation on many equal batches on a GPU: kernels recorded once and launched together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hooks.running import as_tokens, in_mode, watched

__all__ = ["PAYS_FROM", "Replay", "fastest"]

PAYS_FROM = 6
"""Batches from which on recording has paid for itself, as `phaselens bench sweep --device cuda` measures it."""

Pass = Callable[..., Tensor]
"""``run(tokens [batch, pos], *more tensors) -> logits``."""


class Replay:
    """A computation on one shape of batch as a CUDA graph; other shapes run plainly.

    Parameters
    ----------
    model : CompressedTransformer
        What `run` runs. Without indexer and hooks: what they do depends on values, and a graph repeats kernels.
    run : function
        ``run(tokens, *more) -> logits``, tensors on the device of the model, which launches the same kernels
        whatever the values are.
    inputs : Tensor
        Token ids [batch, pos] and what else `run` takes, of the shapes to record.
    """

    def __init__(self, model: Any, run: Pass, *inputs: Tensor) -> None:
        self._model, self._run = model, run
        self._inputs = [tensor.clone() for tensor in inputs]
        as_tokens(inputs[0], model.cfg.d_vocab, model.device)
        # Training mode leaves out the checks that wait for the device; __call__ makes them.
        with in_mode(model, training=True), torch.cuda.device(model.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # libraries and the allocator settle before anything is recorded
                run(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=side):
                self._logits = run(*self._inputs)

    def __call__(self, tokens: Tensor, *more: Tensor) -> Tensor:
        """Logits; raises what the model raises."""
        given = (tokens, *more)
        if any(tensor.shape != kept.shape for tensor, kept in zip(given, self._inputs, strict=True)):
            return self._run(*given)
        tokens = as_tokens(tokens, self._model.cfg.d_vocab, self._model.device)
        for tensor, kept in zip((tokens, *more), self._inputs, strict=True):
            kept.copy_(tensor)
        with torch.cuda.device(self._model.device):
            self._graph.replay()
        logits = self._logits.clone()
        self._model.require_finite(logits)
        return logits


def fastest(model: Any, run: Pass, *inputs: Tensor, batches: int) -> Pass:
    """Return what does as `run` does on `batches` batches of these shapes, fastest.

    Parameters
    ----------
    model : HookedModel
        Any; only our own is recorded.
    run : function
        As in :class:`Replay`.
    inputs : Tensor
        The first batch, where it will run.
    batches : int
        How many there are.
    """
    # Who watches every operation, as one who counts them does, is to see every one.
    pays = inputs[0].is_cuda and batches >= PAYS_FROM and _get_current_dispatch_mode() is None
    return Replay(model, run, *inputs) if pays and _repeats(model) else run


def _repeats(model: Any) -> bool:
    """Whether a pass launches the same kernels whatever the tokens."""
    from hooks.transformer import CompressedTransformer

    return (
        isinstance(model, CompressedTransformer)
        and not any(model.cfg.layer(i).index_heads is not None for i in range(model.cfg.n_layers))
        and not watched(*model.hook_dict.values())
        # Hooks of PyTorch itself would run while the kernels are recorded, and never again.
        and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    )
