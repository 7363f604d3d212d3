"""Prefill of a causal encoder-decoder: the encoder over the whole prompt, the decoder over its end alone.

Everything the decoder reads from far away is computed from the encoder's output, so the decoder may be skipped
except for a bounded replay that fills its exact windows (DeepSeek-V4.1, arXiv 2609.19969). The replayed
tokens lack the exact tokens before them, layer after layer: an approximation, whose error
:func:`prefill_error` measures. It vanishes once the replay reaches (decoder layers − 1)·(window − 1) + 1 tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from hooks.cache import PAST, DecodeCache, LayerState
from hooks.checks import whole_number
from hooks.errors import PhaselensError

if TYPE_CHECKING:
    from hooks.transformer import CompressedTransformer

__all__ = ["PrefillError", "prefill_encoder", "prefill_error"]


class PrefillError(NamedTuple):
    """How far a prefill by encoder and replay is from the full forward pass, at the last token.

    Attributes
    ----------
    replay : int
        Tokens replayed through the decoder.
    max_logit : float
        Largest absolute difference between logits.
    kl : float
        KL(full ‖ replayed) of the next-token distributions, in nats, averaged over the batch.
    agreement : float
        Share of the batch whose most likely token is the same.
    """

    replay: int
    max_logit: float
    kl: float
    agreement: float


def prefill_encoder(
    model: CompressedTransformer, tokens: Tensor, cache: DecodeCache, replay: int | None = None
) -> Float[Tensor, "batch 1 d_vocab"]:
    """Fill an empty cache; see :meth:`hooks.transformer.CompressedTransformer.prefill_encoder`."""
    start = model.cfg.decoder_start
    if start is None:
        raise PhaselensError(f"{model.name!r} has no decoder of its own (decoder_start=None); run it whole")
    if cache.forked or cache.length or any(state.length for state in cache.layers):
        raise PhaselensError("prefill_encoder needs a fresh cache from start_cache(batch), not one in use")
    if replay is None:
        replay = _longest_window(model, start)
    replay = whole_number("replay", replay, 1)
    with cache.all_or_nothing():
        x = model(tokens, cache, stop_at_layer=start)
        length, shared, grams = x.shape[1], None, cache.grams
        replay = min(replay, length)
        for index in range(start, model.cfg.n_layers):
            state = LayerState() if index == start else LayerState(length - replay)
            here = None if grams is None else grams[:, -(x.shape[1] + PAST) :]
            x, cache.layers[index], shared = model.blocks[index](
                x, state, shared=shared, queries=replay, grams=here
            )
        cache.end_call(grams)
        logits = model.logits(x[:, -1:])
    cache.rewind = False
    return logits


def _longest_window(model: CompressedTransformer, start: int) -> int:
    layers = [model.cfg.layer(i) for i in range(start, model.cfg.n_layers)]
    return max(1, *(layer.stride if layer.tail == "open" else layer.exact_window for layer in layers))


@torch.no_grad()
def prefill_error(model: CompressedTransformer, tokens: Tensor, replay: int | None = None) -> PrefillError:
    """Measure the error of the bounded replay; see :class:`PrefillError`."""
    cache = model.start_cache(len(tokens), rewind=False)
    got = prefill_encoder(model, tokens, cache, replay)[:, 0].double()
    full = model(tokens, last_only=True)[:, 0].double()
    log_full, log_got = full.log_softmax(-1), got.log_softmax(-1)
    used = _longest_window(model, model.cfg.decoder_start or 0) if replay is None else replay
    return PrefillError(
        replay=min(used, tokens.shape[1]),
        max_logit=float((got - full).abs().max()),
        kl=float((log_full.exp() * (log_full - log_got)).sum(-1).mean()),
        agreement=float((full.argmax(-1) == got.argmax(-1)).double().mean()),
    )
