"""Pictures as arrays: checks, and the step from floats to bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array


def to_bytes(pixels: Array) -> Array:
    """Return floats as uint8: `255 * x` cut to 0..255 and rounded half to even; NaN becomes 0. Any shape."""
    scaled = np.asarray(pixels, np.float32) * np.float32(255)
    if np.isnan(scaled).any():
        scaled = np.nan_to_num(scaled, nan=0.0)
    result: Array = np.rint(scaled.clip(0, 255)).astype(np.uint8)
    return result


def to_floats(pixels: Array) -> Array:
    """Return uint8 as float32 in 0..1, so that `to_bytes` gives the same bytes back. Any shape."""
    result: Array = pixels.astype(np.float32) / np.float32(255)
    return result


def checked_image(image: Any, input: str = "image") -> Array:
    """Return an image as float32 [B, H, W, 3]; [H, W, 3] becomes a batch of one. Raises InputError for other shapes."""
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[-1] == 3:
        array = array[None]
    if array.ndim != 4 or array.shape[-1] != 3 or not array.size:
        found = f"shape {list(array.shape)}"
        fix = "put a Tensor To Image node before it"
        raise InputError(input, found=found, accepted="an image [batch, height, width, 3]", fix=fix)
    return array.astype(np.float32, copy=False)


def checked_mask(mask: Any, input: str = "mask") -> Array:
    """Return a mask as float32 [B, H, W]; [H, W] becomes a batch of one. Raises InputError for other shapes."""
    array = np.asarray(mask)
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or not array.size:
        found = f"shape {list(array.shape)}"
        fix = "put a Tensor To Mask node before it"
        raise InputError(input, found=found, accepted="a mask [batch, height, width]", fix=fix)
    return array.astype(np.float32, copy=False)
