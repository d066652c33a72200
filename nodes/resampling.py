"""Resizing planes of floats by separable weights: nearest, bilinear, bicubic, lanczos and area."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from app.graph.node import Array


def resize_planes(planes: Array, height: int, width: int, method: str) -> Array:
    """Return float32 [..., H, W] resized to [..., height, width].

    Pixel centres lie half a pixel in. nearest: the value under the new pixel's centre. area: the mean of what the new
    pixel covers. bilinear (support 1), bicubic (support 2, a = -0.5: Keys 1981) and lanczos (support 3) stretch their
    kernel when they shrink, so that nothing is skipped; weights are normalised, edges are not padded.
    """
    planes = np.asarray(planes, np.float32)
    if planes.shape[-2:] == (height, width):
        return planes
    if method == "nearest":
        rows, columns = (_nearest(old, new) for old, new in zip(planes.shape[-2:], (height, width), strict=True))
        picked: Array = planes[..., rows[:, None], columns]
        return picked
    by_row, by_column = weights(planes.shape[-2], height, method), weights(planes.shape[-1], width, method)
    resized: Array = np.matmul(np.matmul(by_row, planes), by_column.T)
    return resized


def resize_pixels(pixels: Array, height: int, width: int, method: str) -> Array:
    """Return float32 [B, H, W, C] resized to [B, height, width, C], as `resize_planes`."""
    planes = resize_planes(np.moveaxis(pixels, -1, -3), height, width, method)
    return np.ascontiguousarray(np.moveaxis(planes, -3, -1))


@lru_cache(maxsize=32)
def weights(old: int, new: int, method: str) -> Array:
    """Return float32 [new, old]: each row holds the shares of the old elements in one new element and sums to 1."""
    if method == "area":
        table = _coverage(old, new)
    else:
        kernel, support = _KERNELS[method]
        ratio = old / new
        stretch = max(ratio, 1.0)
        centres = (np.arange(new)[:, None] + 0.5) * ratio
        distance = (np.arange(old) + 0.5 - centres) / stretch
        table = np.where(np.abs(distance) < support, kernel(distance), 0.0)
    table /= table.sum(1, keepdims=True)
    result: Array = table.astype(np.float32)
    result.flags.writeable = False
    return result


def _nearest(old: int, new: int) -> Array:
    return np.minimum(((np.arange(new) + 0.5) * old / new).astype(np.intp), old - 1)


def _coverage(old: int, new: int) -> Array:
    """Return how much of each old element lies within each new one."""
    starts = np.arange(new)[:, None] * old / new
    ends = (np.arange(new)[:, None] + 1) * old / new
    elements = np.arange(old)
    covered: Array = np.clip(np.minimum(ends, elements + 1) - np.maximum(starts, elements), 0, None)
    return covered


def _triangle(x: Array) -> Array:
    result: Array = np.clip(1 - np.abs(x), 0, None)
    return result


def _cubic(x: Array, a: float = -0.5) -> Array:
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: Array) -> Array:
    result: Array = np.sinc(x) * np.sinc(x / 3)
    return result


_KERNELS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
