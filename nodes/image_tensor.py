"""Pictures as the tensors that models take and give: range, layout, order of colours, mean and deviation."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Image, Out, node
from nodes.pixels import checked_image
from nodes.tensor_dtypes import as_full_float, choice

RangeName = Literal["-1..1", "0..1", "0..255"]
LayoutName = Literal["NCHW", "NHWC"]
OrderName = Literal["RGB", "BGR"]

_SCALE_AND_OFFSET = {"-1..1": (2.0, -1.0), "0..1": (1.0, 0.0), "0..255": (255.0, 0.0)}
"""By range: `tensor = image * scale + offset`."""


@node(category="image/convert", search_aliases=("normalize", "preprocess", "pixel_values", "vae encode"))
def image_to_tensor(
    image: Annotated[Image, Help("Picture or batch of pictures")],
    range: Annotated[RangeName, Help("Range of the numbers, before mean and std")] = "-1..1",
    layout: Annotated[LayoutName, Help("Where the colours stand: before or after height and width")] = "NCHW",
    channel_order: Annotated[OrderName, Help("Order of the colours")] = "RGB",
    mean: Annotated[str, Help("Subtracted: one number or one for each channel, such as 0.48, 0.46, 0.41")] = "",
    std: Annotated[str, Help("Then divided by: one number or one for each channel")] = "",
) -> Annotated[Array, Out("tensor", "float32 [B, 3, H, W] or [B, H, W, 3]")]:
    """Turn pictures into a model's input: `(image * scale + offset - mean) / std`.

    mean and std are in units of the range and in channel order. Raises InputError for a mean or std that is not one
    or three numbers, and for a std of 0.
    """
    pixels = checked_image(image)
    scale, offset = choice(_SCALE_AND_OFFSET, range, "range")
    if channel_order == "BGR":
        pixels = pixels[..., ::-1]
    tensor = pixels * np.float32(scale) + np.float32(offset)
    tensor = (tensor - per_channel(mean, "mean", 0.0)) / per_channel(std, "std", 1.0)
    return np.ascontiguousarray(tensor if layout == "NHWC" else np.moveaxis(tensor, -1, 1))


@node(category="image/convert", search_aliases=("denormalize", "postprocess", "vae decode", "pixels"))
def tensor_to_image(
    tensor: Annotated[Array, Help("A model's output: 4 axes, or 3 for a single picture; 3 channels, or 1 for gray")],
    range: Annotated[RangeName, Help("Range of the numbers")] = "-1..1",
    layout: Annotated[LayoutName, Help("Where the colours stand: before or after height and width")] = "NCHW",
    channel_order: Annotated[OrderName, Help("Order of the colours")] = "RGB",
) -> Annotated[Image, Out("image", "float32 [B, H, W, 3], cut to 0..1")]:
    """Turn a model's output into pictures. Raises InputError unless it has 1 or 3 channels where the layout says."""
    array = np.asarray(tensor)
    array = array[None] if array.ndim == 3 else array
    axis = 1 if layout == "NCHW" else -1
    if array.ndim != 4 or array.shape[axis] not in (1, 3) or not array.size:
        wanted = "[batch, 3, height, width]" if layout == "NCHW" else "[batch, height, width, 3]"
        found = f"shape {list(array.shape)}"
        fix = "choose the other layout, decode a latent first, or reshape it"
        raise InputError("tensor", found=found, accepted=f"{wanted}, 1 channel for gray", fix=fix)
    scale, offset = choice(_SCALE_AND_OFFSET, range, "range")
    pixels = (as_full_float(np.moveaxis(array, axis, -1)).astype(np.float32) - np.float32(offset)) / np.float32(scale)
    if pixels.shape[-1] == 1:
        pixels = np.repeat(pixels, 3, axis=-1)
    if channel_order == "BGR":
        pixels = pixels[..., ::-1]
    return np.ascontiguousarray(np.nan_to_num(pixels, nan=0.0).clip(0, 1))


def per_channel(text: str, input: str, default: float) -> Array:
    """Return one or three numbers in a text, float32 [1] or [3]; `default` if it is empty. Raises InputError."""
    words = text.replace(",", " ").strip("[] ").split()
    try:
        numbers = np.array([float(word) for word in words] or [default], np.float32)
    except ValueError:
        numbers = np.array([np.nan])
    if len(numbers) not in (1, 3) or not np.isfinite(numbers).all():
        accepted = "one or three numbers such as 0.5, 0.5, 0.5"
        raise InputError(input, found=repr(text), accepted=accepted, fix="write them with commas between")
    if input == "std" and not numbers.all():
        raise InputError(input, found=repr(text), accepted="numbers other than 0", fix="leave it empty for 1")
    return numbers
