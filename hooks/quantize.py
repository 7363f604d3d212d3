"""Stored precision: block formats FP8, FP4 and MXFP4 as exact, differentiable fake quantization.

A block of channels shares one scale; every element is the nearest code point times that scale, ties to the
even code, magnitudes beyond the largest code point saturate. Code points and scale formats are those of the
OCP Microscaling specification 1.0; which cache is stored how is shared by DeepSeek-V4.1's checkpoint headers.

How the official model chooses a scale is not sourced. The default here, documented at :class:`BlockFormat`,
is a switch (`rule`).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from hooks.errors import ConfigError, did_you_mean

__all__ = ["FORMATS", "BlockFormat", "Quantized", "block_format", "dequantize", "fake_quantize", "quantize"]

Element = Literal["e4m3", "e2m1"]
Scale = Literal["e8m0", "e4m3"]
Rule = Literal["up", "nearest", "floor"]

_BITS = {"e4m3": 8, "e2m1": 4}
_LARGEST = {"e4m3": 448.0, "e2m1": 6.0}
_RULES: dict[str, tuple[Rule, ...]] = {"e8m0": ("up", "floor"), "e4m3": ("nearest", "up")}
_E8M0_BIAS, _E8M0_NAN, _E4M3_NAN = 127, 255, 127


@dataclass(frozen=True)
class BlockFormat:
    """How a block of channels is stored.

    Parameters
    ----------
    name : str
        A key of :data:`FORMATS`.
    element : "e4m3" or "e2m1"
        FP8 (largest 448) or FP4 (largest 6).
    scale : "e8m0" or "e4m3"
        A power of two 2^−127 … 2^127, or an FP8 number (largest 448), one byte either way.
    block : int
        Channels that share a scale.
    rule : str
        How the scale follows from amax, the largest magnitude in the block, and M, the largest code point.
        ``"up"``: the smallest scale ≥ amax/M, so nothing saturates. ``"floor"`` (e8m0 only):
        2^(⌊log2 amax⌋ − ⌊log2 M⌋), as the OCP specification suggests; elements above M·scale saturate.
        ``"nearest"`` (e4m3 only): amax/M rounded to the nearest scale, ties to even; where that
        rounds down, the largest elements saturate.

    Notes
    -----
    The scale of a block that is not all zero is never 0: it is at least the smallest positive one. A block
    with a NaN or an infinity is NaN throughout.

    Raises
    ------
    ConfigError
        For a rule that the scale format does not have.
    """

    name: str
    element: Element
    scale: Scale
    block: int
    rule: Rule

    def __post_init__(self) -> None:
        if self.rule not in _RULES[self.scale]:
            raise ConfigError(
                f"scale rule {self.rule!r} for {self.name}; {did_you_mean(self.rule, _RULES[self.scale])}"
            )

    def blocks(self, width: int) -> int:
        """Return how many scales `width` channels need.

        Raises
        ------
        ConfigError
            If the width is not a multiple of the block.
        """
        if width < 1 or width % self.block:
            raise ConfigError(
                f"width {width} is not a multiple of {self.block}, the channels per scale in {self.name}"
            )
        return width // self.block

    def bytes(self, width: int) -> float:
        """Return the stored size of `width` channels, scales included."""
        return width * _BITS[self.element] / 8 + self.blocks(width)


FORMATS: dict[str, BlockFormat] = {
    "fp8": BlockFormat("fp8", "e4m3", "e8m0", 32, "up"),
    "fp4": BlockFormat("fp4", "e2m1", "e4m3", 16, "nearest"),
    "mxfp4": BlockFormat("mxfp4", "e2m1", "e8m0", 32, "up"),
}
"""DeepSeek-V4.1's window KV, compressed KV, and index keys and queries, in this order."""


def block_format(name: str, *, rule: str | None = None) -> BlockFormat:
    """Return a format by name, with another scale rule if given.

    Raises
    ------
    ConfigError
        For a name or a rule that does not exist.
    """
    if name not in FORMATS:
        raise ConfigError(f"unknown stored precision {name!r}; {did_you_mean(name, FORMATS)}")
    found = FORMATS[name]
    return found if rule is None else dataclasses.replace(found, rule=rule)


@dataclass(frozen=True)
class Quantized:
    """Codes as they would lie in memory, one byte each (FP4 codes unpacked).

    Attributes
    ----------
    codes : UInt8[Tensor, "... width"]
        Sign bit, then the index into the code points.
    scales : UInt8[Tensor, "... blocks"]
        E8M0 exponents with bias 127 (255 is NaN) or E4M3 codes (127 is NaN).
    format : BlockFormat
        What they mean.
    """

    codes: UInt8[Tensor, "... width"]
    scales: UInt8[Tensor, "... blocks"]
    format: BlockFormat


def fake_quantize(
    x: Float[Tensor, "*batch width"], format: BlockFormat | str
) -> Float[Tensor, "*batch width"]:
    """Round to what the format can store, in the dtype of `x`; the gradient passes straight through.

    Parameters
    ----------
    x : Tensor
        Blocks are consecutive channels of the last axis.
    format : BlockFormat or str
        A format or its name.

    Returns
    -------
    Tensor
        ``dequantize(quantize(x))``; its gradient with respect to `x` is 1 everywhere, saturated elements
        included.

    Raises
    ------
    ConfigError
        If the width is not a multiple of the block.
    """
    return _StraightThrough.apply(x, block_format(format) if isinstance(format, str) else format)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, format: BlockFormat) -> Tensor:
        return dequantize(quantize(x, format), dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0], None


def quantize(x: Float[Tensor, "*batch width"], format: BlockFormat | str) -> Quantized:
    """Return the codes of the nearest storable values.

    Raises
    ------
    ConfigError
        If the width is not a multiple of the block.
    """
    format = block_format(format) if isinstance(format, str) else format
    # Double precision makes every product and power-of-two quotient below exact, whatever x is.
    blocks = x.detach().double().unflatten(-1, (format.blocks(x.shape[-1]), format.block))
    amax = blocks.abs().amax(-1)
    scales = _scale_codes(amax, format)
    scale = _scale_values(scales, format)
    midpoints = _midpoints(format.element).to(x.device)
    if format.scale == "e8m0":
        magnitude = _nearest(blocks.abs() / scale.unsqueeze(-1), midpoints)
    else:
        magnitude = _nearest(blocks.abs(), scale.unsqueeze(-1) * midpoints)
    sign = torch.signbit(blocks).to(torch.uint8) << (_BITS[format.element] - 1)
    return Quantized((magnitude.to(torch.uint8) | sign).flatten(-2), scales, format)


def dequantize(stored: Quantized, *, dtype: torch.dtype = torch.float32) -> Shaped[Tensor, "*batch width"]:
    """Return the values that codes stand for."""
    format = stored.format
    sign_bit = 1 << (_BITS[format.element] - 1)
    codes = stored.codes.unflatten(-1, (-1, format.block))
    points = _points(format.element).to(codes.device)
    magnitude = points[(codes & (sign_bit - 1)).long()]
    values = magnitude * _scale_values(stored.scales, format).unsqueeze(-1)
    return torch.where(codes >= sign_bit, -values, values).flatten(-2).to(dtype)


# --------------------------------------------------------------------------- code points


@cache
def _points(kind: str) -> Tensor:
    """Non-negative finite code points by code, ascending; fp64."""
    mantissa_bits, bias, count = {"e4m3": (3, 7, 127), "e2m1": (1, 1, 8)}[kind]
    values = []
    for code in range(count):
        exponent, fraction = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        leading = (1 << mantissa_bits) if exponent else 0
        values.append((leading + fraction) * 2.0 ** (max(exponent, 1) - bias - mantissa_bits))
    return torch.tensor(values, dtype=torch.float64)


@cache
def _midpoints(kind: str) -> Tensor:
    points = _points(kind)
    return (points[1:] + points[:-1]) / 2


def _nearest(values: Tensor, midpoints: Tensor) -> Tensor:
    """Index of the nearest code point, ties to the even index, given the midpoints between them."""
    below = torch.searchsorted(midpoints, values, right=False)  # midpoints < value
    not_above = torch.searchsorted(midpoints, values, right=True)  # midpoints <= value
    return torch.where(below % 2 == 0, below, not_above)


# --------------------------------------------------------------------------- scales


def _scale_codes(amax: Tensor, format: BlockFormat) -> Tensor:
    largest = _LARGEST[format.element]
    finite = torch.isfinite(amax)
    safe = torch.where(finite, amax, torch.zeros_like(amax))
    if format.scale == "e8m0":
        fraction, exponent = torch.frexp(safe)
        mantissa, shift = math.frexp(largest)
        exponent = exponent - shift
        if format.rule == "up":
            exponent = exponent + (fraction > mantissa).to(exponent.dtype)
        codes = (exponent + _E8M0_BIAS).clamp(0, _E8M0_NAN - 1)
        codes = torch.where(safe == 0, torch.zeros_like(codes), codes)
        return torch.where(finite, codes, torch.full_like(codes, _E8M0_NAN)).to(torch.uint8)
    points, midpoints = _points("e4m3").to(amax.device), _midpoints("e4m3").to(amax.device)
    if format.rule == "nearest":
        codes = _nearest(safe, largest * midpoints)
    else:
        codes = torch.searchsorted(largest * points, safe, right=False)
    codes = torch.where(safe > 0, codes.clamp(1, len(points) - 1), torch.zeros_like(codes))
    return torch.where(finite, codes, torch.full_like(codes, _E4M3_NAN)).to(torch.uint8)


def _scale_values(codes: Tensor, format: BlockFormat) -> Tensor:
    """Scales as fp64; the NaN code is NaN."""
    if format.scale == "e8m0":
        values = torch.ldexp(torch.ones_like(codes, dtype=torch.float64), codes.int() - _E8M0_BIAS)
        return torch.where(codes == _E8M0_NAN, torch.full_like(values, torch.nan), values)
    points = torch.cat([_points("e4m3"), torch.tensor([torch.nan], dtype=torch.float64)]).to(codes.device)
    return points[codes.long()]
