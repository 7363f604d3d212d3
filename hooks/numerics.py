"""Norms, rotations and softmaxes in the precision the project promises: max(float32, model dtype)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["RMSNorm", "masked_softmax", "rope_tables", "rotate", "working_dtype"]


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for a float64 model and float32 for anything smaller."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in :func:`working_dtype`.

    Parameters
    ----------
    width : int
        Size of the last axis.
    eps : float
        Added to the mean square.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Scale `x` to unit root mean square, then by the learned weight."""
        wide = x.to(working_dtype(x.dtype))
        weight = self.weight.to(wide.dtype)
        return nn.functional.rms_norm(wide, weight.shape, weight, self.eps).to(x.dtype)


def rope_tables(
    positions: Int[Tensor, " n"], dims: int, base: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "n half"], Float[Tensor, "n half"]]:
    """Return cosine and sine tables for rotary positions.

    Angles are formed in float64: at position 131072 a float32 product is off by up to 0.008 rad, and bf16
    cannot tell positions 256 and 257 apart.

    Parameters
    ----------
    positions : integer tensor [n]
        Absolute positions.
    dims : int
        Rotary channels (even).
    base : float
        RoPE base.
    dtype : torch.dtype
        Of the model; the tables have :func:`working_dtype` of it.
    """
    exponents = torch.arange(0, dims, 2, dtype=torch.float64, device=positions.device) / max(dims, 1)
    angles = positions.to(torch.float64)[:, None] * base**-exponents
    out = working_dtype(dtype)
    return angles.cos().to(out), angles.sin().to(out)


def rotate(
    x: Float[Tensor, "batch pos heads d"],
    tables: tuple[Float[Tensor, "pos half"], Float[Tensor, "pos half"]],
    inverse: bool = False,
) -> Float[Tensor, "batch pos heads d"]:
    """Rotate the trailing channels of every head, pairing channels (2i, 2i+1).

    Trailing and interleaved is DeepSeek-V4's convention, so its weights can be copied as they are.

    Parameters
    ----------
    x : float tensor [batch, pos, heads, d]
        Vectors to rotate; the first d − 2·half channels pass unchanged.
    tables : pair of float tensors [pos, half]
        From :func:`rope_tables`.
    inverse : bool
        Rotate back.
    """
    cos, sin = tables
    dims = 2 * cos.shape[-1]
    if dims == 0:
        return x
    kept, turned = x[..., : x.shape[-1] - dims], x[..., x.shape[-1] - dims :]
    pairs = turned.to(cos.dtype).unflatten(-1, (-1, 2))
    cos, sin = cos[:, None, :], (-sin if inverse else sin)[:, None, :]
    even, odd = pairs[..., 0], pairs[..., 1]
    out = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)
    return torch.cat((kept, out), dim=-1) if kept.shape[-1] else out


def masked_softmax(scores: Float[Tensor, "*batch key"], may_be_empty: bool) -> Float[Tensor, "*batch key"]:
    """Softmax over the last axis in which a row of −inf gives a row of 0, with finite gradients.

    Parameters
    ----------
    scores : float tensor [..., key]
        −inf where nothing may be read.
    may_be_empty : bool
        Whether rows without a finite score can occur; False saves the check.
    """
    if not may_be_empty:
        return scores.softmax(-1)
    if scores.shape[-1] == 0:
        return scores
    empty = torch.isneginf(scores).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
