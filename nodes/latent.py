"""Latent nodes: empty latents, the scale of an autoencoder's latents, sizes, and a rough look at them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Image, Latent, Out, Range, node
from nodes.resampling import resize_planes
from nodes.tensor_axes import checked_size

LATENT_TO_RGB = np.array(
    [[0.298, 0.207, 0.208], [0.187, 0.286, 0.173], [-0.158, 0.189, 0.264], [-0.184, -0.271, -0.473]], np.float32
)
"""Red, green and blue in each of the four channels of a Stable Diffusion 1.4 latent: an empirical linear fit, published
by keturn at https://discuss.huggingface.co/t/decoding-latents-to-rgb-without-upscaling/23204."""

MAX_SIDE = 16384
"""Longest side of a picture that a node makes, in pixels."""


@node(category="latent", search_aliases=("zeros", "size", "resolution", "width", "height"))
def empty_latent(
    width: Annotated[int, Range(1, MAX_SIDE, 8, help="Width of the picture in pixels")] = 512,
    height: Annotated[int, Range(1, MAX_SIDE, 8, help="Height of the picture in pixels")] = 512,
    batch_size: Annotated[int, Range(1, 4096, 1, help="How many pictures at once")] = 1,
    channels: Annotated[int, Range(1, 1024, 1, help="Channels of the autoencoder's latents: 4 or 16 mostly")] = 4,
    downscale: Annotated[int, Range(1, 64, 1, help="Pixels for each latent element along a side: 8 mostly")] = 8,
) -> Annotated[Latent, Out("latent", "float32 [batch, channels, height / downscale, width / downscale] of zeros")]:
    """Make a latent of zeros for a picture of a size in pixels.

    Raises InputError when the downscale factor does not divide a side, and for a latent too large for memory.
    """
    rows, columns = (_divided(side, downscale, name) for side, name in ((height, "height"), (width, "width")))
    return np.zeros(checked_size((batch_size, channels, rows, columns), "width"), np.float32)


def _divided(side: int, downscale: int, input: str) -> int:
    if side % downscale == 0:
        return side // downscale
    below = side // downscale * downscale
    near = f"{below + downscale}" if not below else f"{below} or {below + downscale}"
    raise InputError(input, found=side, accepted=f"multiples of the downscale factor {downscale}", fix=f"use {near}")


@node(category="latent", search_aliases=("vae", "scaling factor", "shift factor"))
def scale_latent(
    latent: Annotated[Latent, Help("Latent from the autoencoder's encoder, or on its way to the decoder")],
    direction: Annotated[
        Literal["encode", "decode"], Help("encode: from the encoder to the denoiser; decode: back to the decoder")
    ] = "decode",
    scaling_factor: Annotated[float, Range(None, None, help="The autoencoder's scale; it may not be 0")] = 0.18215,
    shift_factor: Annotated[float, Range(None, None, help="The autoencoder's mean; 0 for most")] = 0.0,
) -> Annotated[Latent, Out("latent", "float32, same shape")]:
    """Bring latents to the denoiser's scale and back: `(x - shift) * scale`, or `x / scale + shift`.

    The factors are `scaling_factor` and `shift_factor` of an autoencoder's config; 0.18215 is the one of Stable
    Diffusion 1 (Rombach et al. 2022, arXiv:2112.10752, section G). Raises InputError for a scale of 0.
    """
    if scaling_factor == 0:
        raise InputError("scaling_factor", found=0, accepted="any other number", fix="see the autoencoder's config")
    latent = np.asarray(latent, np.float32)
    scale, shift = np.float32(scaling_factor), np.float32(shift_factor)
    scaled: Array = (latent - shift) * scale if direction == "encode" else latent / scale + shift
    return scaled


@node(category="latent", search_aliases=("upscale", "hires", "interpolate"))
def resize_latent(
    latent: Annotated[Latent, Help("Latent to resize")],
    width: Annotated[int, Range(1, MAX_SIDE, 1, help="New width in latent elements")] = 64,
    height: Annotated[int, Range(1, MAX_SIDE, 1, help="New height in latent elements")] = 64,
    method: Annotated[
        Literal["nearest", "bilinear", "area"], Help("area averages when it shrinks; nearest keeps the values")
    ] = "bilinear",
) -> Annotated[Latent, Out("latent", "float32 [B, C, height, width]")]:
    """Resize a latent. Pixel centres are half a pixel in, as `align_corners=False` elsewhere.

    Raises InputError unless it has four axes, and for a result too large for memory.
    """
    latent = checked_latent(latent)
    checked_size((*latent.shape[:2], height, width), "width")
    return resize_planes(latent, height, width, method)


@node(category="latent", search_aliases=("duplicate", "copies", "tile"))
def repeat_latent_batch(
    latent: Annotated[Latent, Help("Latent to repeat")],
    amount: Annotated[int, Range(1, 4096, 1, help="How many times")] = 2,
) -> Annotated[Latent, Out("latent", "float32 [B * amount, C, H, W]: the whole batch again and again")]:
    """Repeat a batch of latents. Raises InputError for a result too large for memory."""
    latent = checked_latent(latent)
    checked_size((latent.shape[0] * amount, *latent.shape[1:]), "amount")
    return np.tile(latent, (amount, 1, 1, 1))


@node(category="latent", search_aliases=("latent2rgb", "look", "watch"))
def latent_preview(
    latent: Annotated[Latent, Help("Latent at the denoiser's scale; 3 channels are taken for RGB in -1..1")],
    upscale: Annotated[int, Range(1, 64, 1, help="Pixels for each latent element along a side")] = 8,
) -> Annotated[Image, Out("image", "float32 [B, H * upscale, W * upscale, 3]")]:
    """Give a rough colour picture of a latent without its decoder, cheap enough for every step of a loop.

    Four channels become `latent . matrix + 0.5` by a linear fit for Stable Diffusion 1: shapes can be told, but the
    colours are wrong for an autoencoder trained otherwise. 3 are taken for RGB; of other latents the first channel
    is shown in gray, from its least to its greatest value.
    """
    latent = checked_latent(latent)
    channels = latent.shape[1]
    planes = np.moveaxis(latent, 1, -1)
    if channels == 4:
        rgb = planes @ LATENT_TO_RGB + np.float32(0.5)
    elif channels == 3:
        rgb = planes / np.float32(2) + np.float32(0.5)
    else:
        rgb = np.repeat(_stretched(planes[..., :1]), 3, axis=-1)
    checked_size((rgb.shape[0], rgb.shape[1] * upscale, rgb.shape[2] * upscale, 3), "upscale")
    pixels = np.nan_to_num(rgb, nan=0.0).clip(0, 1).astype(np.float32)
    enlarged: Array = pixels.repeat(upscale, axis=1).repeat(upscale, axis=2)
    return enlarged


def _stretched(plane: Array) -> Array:
    """Return each picture of [B, H, W, 1] stretched to 0..1; a flat one becomes 0.5."""
    low, high = plane.min((1, 2, 3), keepdims=True), plane.max((1, 2, 3), keepdims=True)
    spread = high - low
    result: Array = np.where(spread > 0, (plane - low) / np.where(spread > 0, spread, 1), 0.5)
    return result


def checked_latent(latent: Any, input: str = "latent") -> Array:
    """Return a latent as float32 [B, C, H, W]. Raises InputError unless it has four axes and elements."""
    array = np.asarray(latent)
    if array.ndim != 4 or not array.size:
        found = f"shape {list(array.shape)}"
        raise InputError(input, found=found, accepted="[batch, channels, height, width]", fix="reshape it before")
    return array.astype(np.float32, copy=False)
