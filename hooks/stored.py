"""How rows of a cache are stored: the block formats of :mod:`hooks.quantize`, and DeepSeek-V4's mixed row."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hooks.errors import ConfigError, did_you_mean
from hooks.quantize import FORMATS, BlockFormat, fake_quantize

__all__ = ["PRECISIONS", "check_width", "store"]

PRECISIONS = (*FORMATS, "fp8+bf16")
"""Every name a ``*_precision`` field takes, None aside."""

# 448 plain channels in 8 bytes of scales, one spare: 64 channels a scale. The layout is not sourced.
_MIXED = BlockFormat("fp8+bf16", "e4m3", "e8m0", 64, "up")
_ROTARY = 64


def check_width(precision: str, width: int, rotary: int | None, *, where: str, what: str) -> None:
    """Check that rows of `width` channels, the last `rotary` of them rotating, can be stored so.

    Parameters
    ----------
    precision : str
        One of :data:`PRECISIONS`.
    width, rotary : int
        Channels, and how many rotate; `rotary` None for rows to which ``"fp8+bf16"`` does not apply.
    where, what : str
        Which field says so, and which sets the width; for the message.

    Raises
    ------
    ConfigError
        For a name that does not exist, or a width that its blocks do not divide.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"{where}: unknown precision {precision!r}; {did_you_mean(precision, PRECISIONS)}")
    if precision == "fp8+bf16":
        if rotary != _ROTARY or width <= _ROTARY or (width - _ROTARY) % _MIXED.block:
            raise ConfigError(
                f"{where}: {what}={width} with {rotary or 0} rotary channels cannot be stored as fp8+bf16, which "
                f"takes {_ROTARY} rotary channels and a multiple of {_MIXED.block} others"
            )
    elif width % FORMATS[precision].block:
        raise ConfigError(
            f"{where}: {what}={width} is not a multiple of {FORMATS[precision].block}, the channels per scale in "
            f"{precision}"
        )


def store(x: Float[Tensor, "*batch width"], precision: str | None) -> Float[Tensor, "*batch width"]:
    """Round to what a cache of this precision holds, straight-through; None changes nothing.

    ``"fp8+bf16"`` keeps the last 64 channels, which rotate, as bf16 and the others as FP8.
    """
    if precision is None:
        return x
    if precision != "fp8+bf16":
        return fake_quantize(x, precision)
    plain, rotary = x[..., :-_ROTARY], x[..., -_ROTARY:]
    rounded = rotary + (rotary.to(torch.bfloat16).to(x.dtype) - rotary).detach()
    return torch.cat((fake_quantize(plain, _MIXED), rounded), dim=-1)
