"""Stored precision against brute force over all code points, and against torch's own FP8."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.errors import ConfigError
from hooks.quantize import FORMATS, BlockFormat, block_format, dequantize, fake_quantize, quantize

# The code points by hand: every magnitude of E2M1, and E4M3 from its definition (bias 7, no infinities).
E2M1 = [Fraction(x) for x in ("0", "1/2", "1", "3/2", "2", "3", "4", "6")]
E4M3 = [Fraction(m, 8) * Fraction(2) ** -6 for m in range(8)] + [
    (1 + Fraction(m, 8)) * Fraction(2) ** (e - 7) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)
]
POINTS = {"e2m1": E2M1, "e4m3": E4M3}
ALL = [
    *FORMATS.values(),
    block_format("fp8", rule="floor"), block_format("mxfp4", rule="floor"), block_format("fp4", rule="up"),
]  # fmt: skip


WHOLE = {len(points): [int(p * 512) for p in points] for points in POINTS.values()}
POWERS = [Fraction(2) ** e for e in range(-127, 128)]


def nearest(value: Fraction, points: list[Fraction]) -> int:
    """Index of the nearest point, ties to the even index: by trying all, in whole numbers."""
    top, bottom = (value * 512).as_integer_ratio()  # every point is a multiple of 1/512
    distances = [abs(top - bottom * p) for p in WHOLE[len(points)]]
    least = min(distances)
    tied = [i for i, d in enumerate(distances) if d == least]
    return next(i for i in tied if i % 2 == 0) if len(tied) == 2 else tied[0]


def brute_scale(amax: Fraction, format: BlockFormat) -> Fraction:
    """The scale by the documented rule, trying every scale there is."""
    largest = POINTS[format.element][-1]
    if format.scale == "e4m3":
        scales = E4M3[1:]
        if format.rule == "up":
            return next((s for s in scales if s * largest >= amax), scales[-1])
        return max(E4M3[nearest(amax / largest, E4M3)], scales[0])
    scales = POWERS
    if format.rule == "up":
        return next((s for s in scales if s * largest >= amax), scales[-1])
    # The largest power of two s for which s * 2^floor(log2 largest) is at most amax.
    power = max(Fraction(2) ** e for e in range(10) if Fraction(2) ** e <= largest)
    fitting = [s for s in scales if s * power <= amax]
    return fitting[-1] if fitting else scales[0]


def brute(block: list[float], format: BlockFormat) -> list[Fraction]:
    exact = [Fraction(x) for x in block]
    amax = max(abs(x) for x in exact)
    if amax == 0:
        return [Fraction(0)] * len(block)
    scale = brute_scale(amax, format)
    points = POINTS[format.element]
    return [(-1 if x < 0 else 1) * scale * points[nearest(abs(x) / scale, points)] for x in exact]


def test_code_points_are_the_published_numbers():
    assert len(E4M3) == 127
    assert (E4M3[1], E4M3[8], E4M3[-1]) == (Fraction(1, 512), Fraction(1, 64), 448)
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    assert [Fraction(float(v)) for v in codes] == E4M3


@pytest.mark.parametrize("format", ALL, ids=lambda f: f"{f.name}-{f.rule}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_code_point_midpoint_and_neighbour(format, dtype):
    points = POINTS[format.element]
    interesting = points + [(a + b) / 2 for a, b in itertools.pairwise(points)]
    interesting = [f * s for f in interesting for s in (1, -1)]
    exact = torch.tensor([float(f) for f in interesting], dtype=dtype)
    values = torch.cat([exact, exact.nextafter(torch.tensor(1e9, dtype=dtype)), exact.nextafter(-exact - 1)])
    for scale in (1.0, 0.8125):
        body = values * scale
        # The largest code point in each block fixes the scale; the other places take the values in turn.
        top = torch.full((-(-len(body) // (format.block - 1)), 1), float(points[-1]) * scale, dtype=dtype)
        body = torch.nn.functional.pad(body, (0, len(top) * (format.block - 1) - len(body))).view(
            len(top), -1
        )
        x = torch.cat([top, body], dim=1)
        got = fake_quantize(x, format)
        for row, result in zip(x.tolist(), got.tolist(), strict=True):
            assert [Fraction(v) for v in result] == brute(row, format)


@pytest.mark.parametrize("format", ALL, ids=lambda f: f"{f.name}-{f.rule}")
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_block_equals_brute_force(format, data):
    magnitude = data.draw(st.integers(-30, 30))
    numbers = st.floats(-1, 1, width=32)
    block = torch.tensor(data.draw(st.lists(numbers, min_size=format.block, max_size=format.block)))
    block = block.double() * 2.0**magnitude
    assert [Fraction(v) for v in fake_quantize(block, format).tolist()] == brute(block.tolist(), format)


@pytest.mark.parametrize("format", ALL, ids=lambda f: f"{f.name}-{f.rule}")
def test_scales_at_every_boundary(format):
    largest = POINTS[format.element][-1]
    scales = E4M3[1:] if format.scale == "e4m3" else [Fraction(2) ** e for e in range(-40, 41)]
    edges = [float(s * largest) for s in scales] + [
        float((a + b) / 2 * largest) for a, b in itertools.pairwise(scales)
    ]
    amax = torch.tensor(edges, dtype=torch.float64)
    amax = torch.cat(
        [amax, amax.nextafter(amax * 2), amax.nextafter(amax * 0), torch.tensor([1e-40]).double()]
    )
    x = torch.zeros(len(amax), format.block, dtype=torch.float64)
    x[:, 3] = amax
    stored = quantize(x, format)
    for value, code in zip(amax.tolist(), stored.scales[:, 0].tolist(), strict=True):
        scale = E4M3[code] if format.scale == "e4m3" else Fraction(2) ** (code - 127)
        assert scale == brute_scale(Fraction(value), format), value


def test_fp8_elements_equal_torchs_own_rounding():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 96, generator=generator) * 7
    stored = quantize(x, "fp8")
    scale = torch.exp2(stored.scales.double() - 127).repeat_interleave(32, dim=-1)
    reference = (x.double() / scale).float().to(torch.float8_e4m3fn)  # "up" never saturates
    assert torch.equal(stored.codes, reference.view(torch.uint8))
    assert torch.equal(dequantize(stored), (reference.double() * scale).float())


@pytest.mark.parametrize("rule", ["up", "floor"])
def test_saturation_goes_to_the_largest_code_point(rule):
    x = torch.zeros(32)
    x[0], x[1] = 7.9, -1.0
    got = fake_quantize(x, block_format("mxfp4", rule=rule))
    assert got[0].item() == {"up": 8.0, "floor": 6.0}[rule]  # scale 2: 7.9/2 → 4; scale 1: saturates at 6
    assert got[1].item() == -1.0
    huge = fake_quantize(torch.full((16,), -1e30), "fp4")  # beyond the largest E4M3 scale
    assert huge.tolist() == [-448.0 * 6] * 16


@pytest.mark.parametrize("name", FORMATS)
def test_the_gradient_passes_straight_through(name):
    x = torch.linspace(-3, 5, 64).requires_grad_()
    weights = torch.arange(64.0)
    (fake_quantize(x, name) * weights).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, weights)


@pytest.mark.parametrize("format", ALL, ids=lambda f: f"{f.name}-{f.rule}")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_values_are_exact_in_every_dtype_and_stay_put_when_stored_again(format, dtype):
    x = torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    once = fake_quantize(x, format)
    assert once.dtype == dtype
    assert torch.equal(once.double(), fake_quantize(x.double(), format))
    if format.rule == "up":
        assert torch.equal(fake_quantize(once, format), once)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_block_that_is_not_finite_is_nan_and_its_neighbours_are_not(name, bad):
    block = FORMATS[name].block
    x = torch.full((2 * block,), 1.5)
    x[1] = bad
    got = fake_quantize(x, name)
    assert got[:block].isnan().all()
    assert torch.equal(got[block:], torch.full((block,), 1.5))


@pytest.mark.parametrize("name", FORMATS)
def test_zero_blocks_and_signed_zeros(name):
    x = torch.zeros(32)
    x[::2] = -0.0
    got = fake_quantize(x, name)
    assert torch.equal(got, torch.zeros(32))
    assert torch.equal(torch.signbit(got), torch.signbit(x))


def test_widths_names_and_rules_that_do_not_fit():
    with pytest.raises(ConfigError, match="width 48 is not a multiple of 32"):
        fake_quantize(torch.ones(2, 48), "fp8")
    with pytest.raises(ConfigError, match=r"'fp6'.*fp8"):
        fake_quantize(torch.ones(32), "fp6")
    with pytest.raises(ConfigError, match=r"'floor'.*nearest, up"):
        block_format("fp4", rule="floor")


def test_bytes_include_the_scales():
    # 512 channels of FP4 with a byte per 16; 128 of MXFP4 with a byte per 32; 64 of FP8 with a byte per 32.
    assert FORMATS["fp4"].bytes(512) == 256 + 32
    assert FORMATS["mxfp4"].bytes(128) == 64 + 4
    assert FORMATS["fp8"].bytes(64) == 64 + 2
