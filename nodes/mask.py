"""Mask nodes: shapes, soft edges, sizes, and the step from and to pictures and tensors. 1 marks what is to change."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Image, Mask, Out, Range, node
from nodes.pixels import checked_image, checked_mask
from nodes.resampling import resize_planes
from nodes.tensor_axes import checked_size
from nodes.tensor_dtypes import as_full_float

MAX_SIDE = 16384
"""Longest side of a mask that a node makes, in pixels."""

MaskIn = Annotated[Mask, Help("Mask or batch of masks")]
MaskOut = Annotated[Mask, Out("mask", "float32 [B, H, W] in 0..1; 1 marks what is to change")]

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Shares of red, green and blue in brightness (ITU-R BT.601)."""


@node(category="mask/convert")
def mask_to_tensor(mask: MaskIn) -> Annotated[Array, Out("tensor", "float32 [B, 1, H, W]")]:
    """Turn masks into a tensor with one channel."""
    return checked_mask(mask)[:, None]


@node(category="mask/convert")
def tensor_to_mask(
    tensor: Annotated[Array, Help("[H, W], [B, H, W] or [B, 1, H, W]; booleans count as 0 and 1")],
) -> MaskOut:
    """Turn a tensor into masks, cut to 0..1. Raises InputError for other shapes."""
    array = np.asarray(tensor)
    if array.ndim == 4 and array.shape[1] == 1:
        array = array[:, 0]
    mask = checked_mask(as_full_float(array), "tensor")
    return np.nan_to_num(mask, nan=0.0).clip(0, 1)


@node(category="mask/convert")
def mask_to_image(mask: MaskIn) -> Annotated[Image, Out("image", "float32 [B, H, W, 3]: white where the mask is 1")]:
    """Turn masks into gray pictures."""
    return np.repeat(checked_mask(mask)[..., None], 3, axis=-1)


@node(category="mask/convert", search_aliases=("alpha", "luminance", "channel"))
def image_to_mask(
    image: Annotated[Image, Help("Picture or batch of pictures")],
    channel: Annotated[
        Literal["brightness", "red", "green", "blue"], Help("What becomes the mask; brightness as BT.601 weighs it")
    ] = "brightness",
) -> MaskOut:
    """Turn brightness or one colour of pictures into masks."""
    pixels = checked_image(image)
    if channel == "brightness":
        mask: Array = (pixels @ LUMA).clip(0, 1)
        return mask
    return np.ascontiguousarray(pixels[..., ("red", "green", "blue").index(channel)])


@node(category="mask", search_aliases=("negate", "swap", "not"))
def invert_mask(mask: MaskIn) -> MaskOut:
    """Swap what is to change and what stays: `1 - mask`."""
    return np.float32(1) - checked_mask(mask)


@node(category="mask", search_aliases=("fill", "full", "empty"))
def solid_mask(
    width: Annotated[int, Range(1, MAX_SIDE, 1, help="Width in pixels")] = 512,
    height: Annotated[int, Range(1, MAX_SIDE, 1, help="Height in pixels")] = 512,
    value: Annotated[float, Range(0, 1, 0.01, help="What every pixel is", widget="slider")] = 1.0,
) -> MaskOut:
    """Make a mask of one value. Raises InputError for a result too large for memory."""
    return np.full(checked_size((1, height, width), "width"), value, np.float32)


@node(category="mask", search_aliases=("box", "square", "region", "half"))
def rectangle_mask(
    width: Annotated[int, Range(1, MAX_SIDE, 1, help="Width of the mask in pixels")] = 512,
    height: Annotated[int, Range(1, MAX_SIDE, 1, help="Height of the mask in pixels")] = 512,
    x: Annotated[float, Range(0, 1, 0.01, "Left edge as a part of the width", widget="slider")] = 0.25,
    y: Annotated[float, Range(0, 1, 0.01, "Upper edge as a part of the height", widget="slider")] = 0.25,
    w: Annotated[float, Range(0, 1, 0.01, "Width as a part of the mask's", widget="slider")] = 0.5,
    h: Annotated[float, Range(0, 1, 0.01, "Height as a part of the mask's", widget="slider")] = 0.5,
) -> MaskOut:
    """Make a mask that is 1 inside of a rectangle; a pixel that is only partly inside gets that part.

    What reaches beyond the mask is cut off. Raises InputError for a result too large for memory.
    """
    checked_size((1, height, width), "width")
    return np.outer(_covered(height, y, h), _covered(width, x, w))[None]


def _covered(count: int, start: float, size: float) -> Array:
    """Return float32 [count]: how much of each pixel lies within a span given in parts of the whole."""
    pixels = np.arange(count)
    covered = np.minimum(pixels + 1, (start + size) * count) - np.maximum(pixels, start * count)
    result: Array = covered.clip(0, 1).astype(np.float32)
    return result


@node(category="mask", search_aliases=("blur", "soft", "smooth", "gaussian"))
def feather_mask(
    mask: MaskIn,
    radius: Annotated[float, Range(0, 256, 0.5, help="Softness in pixels: the standard deviation of the blur")] = 8.0,
) -> MaskOut:
    """Soften edges by a Gaussian blur; beyond the mask's border its edge goes on."""
    mask = checked_mask(mask)
    if radius <= 0:
        return mask
    reach = max(1, round(3 * radius))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / radius) ** 2)
    kernel = (kernel / kernel.sum()).astype(np.float32)
    for axis in (1, 2):
        mask = _smoothed(mask, kernel, axis)
    return mask.clip(0, 1)


def _smoothed(mask: Array, kernel: Array, axis: int) -> Array:
    """Return a convolution along one axis, the edge's elements going on outside."""
    reach, size = len(kernel) // 2, mask.shape[axis]
    border = [(0, 0)] * mask.ndim
    border[axis] = (reach, reach)
    padded = np.moveaxis(np.pad(mask, border, mode="edge"), axis, -1)
    total = np.zeros((*padded.shape[:-1], size), np.float32)
    for offset, share in enumerate(kernel):
        total += share * padded[..., offset : offset + size]
    return np.moveaxis(total, -1, axis)


@node(category="mask", search_aliases=("scale",))
def resize_mask(
    mask: MaskIn,
    width: Annotated[int, Range(1, MAX_SIDE, 1, help="New width in pixels")] = 512,
    height: Annotated[int, Range(1, MAX_SIDE, 1, help="New height in pixels")] = 512,
    method: Annotated[
        Literal["area", "bilinear", "nearest"], Help("area averages what a new pixel covers; nearest keeps edges hard")
    ] = "area",
) -> MaskOut:
    """Resize masks. Raises InputError for a result too large for memory."""
    mask = checked_mask(mask)
    checked_size((mask.shape[0], height, width), "width")
    return resize_planes(mask, height, width, method).clip(0, 1)


def fitted_mask(mask: Array, latent: Array, method: str = "area", input: str = "mask") -> Array:
    """Return a mask at the size of a latent [B, C, H, W]: float32 [1 or B, 1, H, W].

    method: "area" or "nearest". Raises InputError when there are several masks, but not one for each latent.
    """
    planes = checked_mask(mask, input)
    if planes.shape[0] not in (1, latent.shape[0]):
        found = f"{planes.shape[0]} masks for {latent.shape[0]} latents"
        raise InputError(input, found=found, accepted="one mask, or one for each", fix="make the batches equal")
    return resize_planes(planes, latent.shape[2], latent.shape[3], method).clip(0, 1)[:, None]
