"""Resizing planes of floats: nearest, area, and Pillow's bilinear, bicubic and lanczos."""

from __future__ import annotations

import numpy as np

from app.graph.node import Array


def resize_planes(planes: Array, height: int, width: int, method: str) -> Array:
    """Return float32 [..., H, W] resized to [..., height, width].

    Pixel centres lie half a pixel in. nearest: the value under the new pixel's centre. area: the mean of what the new
    pixel covers, parts of pixels included. bilinear (support 1), bicubic (support 2, a = -0.5: Keys 1981) and lanczos
    (support 3) are Pillow's: they stretch their kernel when they shrink, so that nothing is skipped.
    """
    planes = np.asarray(planes, np.float32)
    if planes.shape[-2:] == (height, width):
        return planes
    if method == "nearest":
        rows, columns = (_nearest(old, new) for old, new in zip(planes.shape[-2:], (height, width), strict=True))
        picked: Array = planes[..., rows[:, None], columns]
        return picked
    resized = np.empty((*planes.shape[:-2], height, width), np.float32)
    for index in np.ndindex(planes.shape[:-2]):
        resized[index] = _resized(planes[index], height, width, method)
    return resized


def resize_pixels(pixels: Array, height: int, width: int, method: str) -> Array:
    """Return float32 [B, H, W, C] resized to [B, height, width, C], as `resize_planes`."""
    planes = resize_planes(np.moveaxis(pixels, -1, -3), height, width, method)
    return np.ascontiguousarray(np.moveaxis(planes, -3, -1))


def _nearest(old: int, new: int) -> Array:
    return np.minimum(((np.arange(new) + 0.5) * old / new).astype(np.intp), old - 1)


def _resized(plane: Array, height: int, width: int, method: str) -> Array:
    if method == "area":
        return _averaged(_averaged(plane, height).T, width).T
    from PIL import Image

    return np.asarray(Image.fromarray(plane).resize((width, height), Image.Resampling[method.upper()]))


def _averaged(plane: Array, height: int) -> Array:
    """Return [H, W] as float64 [height, W], each row the mean of a span of H / height old rows.

    Differences of running sums: the cost does not depend on how much a span covers.
    """
    old = plane.shape[0]
    sums = np.zeros((old + 1, plane.shape[1]))
    np.cumsum(plane, axis=0, dtype=np.float64, out=sums[1:])
    edges = np.arange(height + 1) * old / height
    whole = np.minimum(edges.astype(np.intp), old - 1)
    until = sums[whole] + (edges - whole)[:, None] * plane[whole]
    means: Array = np.diff(until, axis=0) * (height / old)
    return means
