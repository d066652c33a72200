"""The random numbers of PyTorch's CPU generator, so that a seed gives the picture it gives elsewhere.

Facts from ATen: `CPUGeneratorImpl`, `DistributionTemplates.h` and `avx_mathfun.h` (float32 polynomials of Cephes).
"""

from __future__ import annotations

import math

import numpy as np

from app.graph.node import Array

_BLOCK = 16
_HALF = _BLOCK // 2


class TorchRandom:
    """PyTorch's CPU generator: mt19937, and for normal numbers two ways of the Box-Muller transform."""

    def __init__(self, seed: int) -> None:
        """seed: its low 32 bits count, as in PyTorch."""
        self._words = np.random.RandomState(seed & 0xFFFFFFFF)
        self._spare: float | None = None

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return the next `torch.randn(shape)`, float32."""
        count = math.prod(shape)
        flat = self._blocks(count) if count >= _BLOCK else self._singles(count)
        return flat.reshape(shape)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Return the next `torch.rand(shape)`, float32 in [0, 1) with 24 bits."""
        return self._floats(math.prod(shape)).reshape(shape)

    def _raw(self, count: int) -> Array:
        """Return the next words of the mersenne twister, uint32."""
        return self._words.randint(0, 2**32, count, np.uint32)

    def _floats(self, count: int) -> Array:
        words = self._raw(count) & np.uint32(0xFFFFFF)
        return words.astype(np.float32) * np.float32(2**-24)

    def _doubles(self, count: int) -> Array:
        """Return float64 in [0, 1) with 53 bits, two words each, the high one first."""
        words = self._raw(2 * count).astype(np.uint64)
        joined = (words[0::2] << np.uint64(32) | words[1::2]) & np.uint64(2**53 - 1)
        return joined.astype(np.float64) * 2.0**-53

    def _blocks(self, count: int) -> Array:
        """Return numbers made 16 at a time: 8 radii from the first half of the block, 8 angles from the second.

        When 16 does not divide the count, the last 16 elements are made anew from fresh words.
        """
        uniforms = self._floats(count)
        whole = count // _BLOCK * _BLOCK
        normal = np.empty(count, np.float32)
        normal[:whole] = _box_muller(uniforms[:whole])
        if whole < count:
            normal[-_BLOCK:] = _box_muller(self._floats(_BLOCK))
        return normal

    def _singles(self, count: int) -> Array:
        """Return numbers made one by one in float64; the sine's half of a pair waits for the next call."""
        found = [] if self._spare is None or not count else [self._spare]
        if found:
            self._spare = None
        pairs = (count - len(found) + 1) // 2
        uniforms = self._doubles(2 * pairs).tolist()
        for turn, size in zip(uniforms[0::2], uniforms[1::2], strict=True):
            radius, angle = math.sqrt(-2 * math.log1p(-size)), 2 * math.pi * turn
            found += [radius * math.cos(angle), radius * math.sin(angle)]
        if len(found) > count:
            self._spare = found.pop()
        return np.array(found, np.float32)


def _box_muller(uniforms: Array) -> Array:
    """Return float32 normal numbers for float32 uniform ones, blocks of 16 in a row."""
    blocks = uniforms.reshape(-1, 2, _HALF)
    radius = np.sqrt(np.float32(-2) * _log(np.float32(1) - blocks[:, 0]))
    sine, cosine = _sine_and_cosine(np.float32(2 * math.pi) * blocks[:, 1])
    return np.stack((radius * cosine, radius * sine), axis=1).reshape(-1)


def _fma(a: Array, b: Array | np.float32, c: Array | np.float32) -> Array:
    """Return a * b + c, rounded once to float32 (the product of two float32 is exact in float64)."""
    result: Array = (a.astype(np.float64) * np.float64(b) + np.float64(c)).astype(np.float32)
    return result


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Return the polynomial of x by Horner's rule, highest power first, each step rounded to float32."""
    y = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        y = _fma(y, x, np.float32(coefficient))
    return y


_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_LN2_LOW, _LN2_HIGH = np.float32(-2.12194440e-4), np.float32(0.693359375)
_SQRT_HALF = np.float32(0.707106781186547524)


def _log(x: Array) -> Array:
    """Return the natural logarithm of positive float32 (Cephes `logf`)."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < _SQRT_HALF
    power = (exponent - small).astype(np.float32)
    m = mantissa - np.float32(1) + np.where(small, mantissa, np.float32(0))
    square = m * m
    y = _polynomial(m, _LOG) * m
    y = _fma(y, square, power * _LN2_LOW)
    y = _fma(-square, np.float32(0.5), y)
    return _fma(power, _LN2_HIGH, m + y)


_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_QUARTERS = (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8)
"""Minus pi / 4 in three parts, for a reduction without loss."""


def _sine_and_cosine(x: Array) -> tuple[Array, Array]:
    """Return sine and cosine of float32 in [0, 2 pi] (Cephes `sinf`, `cosf`)."""
    octant = ((x * np.float32(4 / math.pi)).astype(np.int32) + 1) & ~1
    turns = octant.astype(np.float32)
    for part in _QUARTERS:
        x = _fma(turns, np.float32(part), x)
    square = x * x
    cosine = _polynomial(square, _COSINE) * square
    cosine = _fma(cosine, square, -(square * np.float32(0.5))) + np.float32(1)
    sine = _fma(_polynomial(square, _SINE) * square, x, x)
    swap = (octant & 2) != 0
    sine_sign = np.where(octant & 4, np.float32(-1), np.float32(1))
    cosine_sign = np.where((octant + 2) & 4, np.float32(-1), np.float32(1))
    return np.where(swap, cosine, sine) * sine_sign, np.where(swap, sine, cosine) * cosine_sign
