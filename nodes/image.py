"""Picture nodes: sizes, crops, batches, and the step from and to tensors."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, NamedTuple

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Image, Out, Range, node
from nodes.pixels import checked_image
from nodes.resampling import resize_pixels
from nodes.tensor_axes import checked_size

MAX_SIDE = 16384
"""Longest side of a picture that a node makes, in pixels."""

Side = Annotated[int, Range(1, MAX_SIDE, 1, help="Pixels")]
Method = Annotated[
    Literal["lanczos", "bicubic", "bilinear", "nearest", "area"],
    Help("lanczos is sharpest; area averages what a new pixel covers; nearest keeps colours as they are"),
]
ImageOut = Annotated[Image, Out("image", "float32 [B, H, W, 3] in 0..1")]
Color = Annotated[str, Help("Colour as #rrggbb", widget="color")]

_HEX_COLOR = re.compile(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})")


@node(category="image/size", search_aliases=("scale", "upscale", "downscale", "fit"))
def resize_image(
    image: Annotated[Image, Help("Picture or batch of pictures")],
    width: Annotated[int, Range(1, MAX_SIDE, 1, help="New width in pixels")] = 512,
    height: Annotated[int, Range(1, MAX_SIDE, 1, help="New height in pixels")] = 512,
    method: Method = "lanczos",
    mode: Annotated[
        Literal["stretch", "crop", "pad", "fit"],
        Help("Other proportions: stretch the picture, crop its edges, pad with black, or fit inside and stay smaller"),
    ] = "stretch",
) -> ImageOut:
    """Resize pictures to width x height; with `fit` one side may come out smaller.

    Raises InputError for a result too large for memory.
    """
    image = checked_image(image)
    checked_size((image.shape[0], height, width, 3), "width")
    if mode == "stretch":
        return resized(image, height, width, method)
    old_height, old_width = image.shape[1:3]
    if mode == "crop":
        scale = max(height / old_height, width / old_width)
        rows = min(old_height, max(1, round(height / scale)))
        columns = min(old_width, max(1, round(width / scale)))
        top, left = (old_height - rows) // 2, (old_width - columns) // 2
        return resized(image[:, top : top + rows, left : left + columns], height, width, method)
    scale = min(height / old_height, width / old_width)
    rows, columns = (max(1, min(new, round(old * scale))) for new, old in ((height, old_height), (width, old_width)))
    whole = resized(image, rows, columns, method)
    if mode == "fit":
        return whole
    top, left = (height - rows) // 2, (width - columns) // 2
    canvas = np.zeros((image.shape[0], height, width, 3), np.float32)
    canvas[:, top : top + rows, left : left + columns] = whole
    return canvas


def resized(image: Array, height: int, width: int, method: str) -> Array:
    """Return float32 [B, H, W, C] as [B, height, width, C] in 0..1: sharp kernels overshoot at edges."""
    result: Array = resize_pixels(image, height, width, method).clip(0, 1)
    return result


@node(category="image/size", search_aliases=("cut", "trim", "region"))
def crop_image(
    image: Annotated[Image, Help("Picture or batch of pictures")],
    x: Annotated[int, Range(0, MAX_SIDE, 1, help="Left edge of what is kept, in pixels")] = 0,
    y: Annotated[int, Range(0, MAX_SIDE, 1, help="Upper edge of what is kept, in pixels")] = 0,
    width: Annotated[int, Range(1, MAX_SIDE, 1, help="Width of what is kept, in pixels")] = 512,
    height: Annotated[int, Range(1, MAX_SIDE, 1, help="Height of what is kept, in pixels")] = 512,
) -> ImageOut:
    """Cut a rectangle out of pictures. Raises InputError for one that is not wholly inside."""
    image = checked_image(image)
    for input, start, size, axis in (("x", x, width, 2), ("y", y, height, 1)):
        have = image.shape[axis]
        if start < 0 or size < 1 or start + size > have:
            found = f"{start} to {start + size} of {have} pixels"
            raise InputError(input, found=found, accepted=f"a part of 0 to {have}", fix="move or shrink the rectangle")
    return np.ascontiguousarray(image[:, y : y + height, x : x + width])


@node(category="image/size", search_aliases=("border", "extend", "outpaint", "frame"))
def pad_image(
    image: Annotated[Image, Help("Picture or batch of pictures")],
    left: Annotated[int, Range(0, MAX_SIDE, 1, help="Pixels added at the left")] = 0,
    top: Annotated[int, Range(0, MAX_SIDE, 1, help="Pixels added above")] = 0,
    right: Annotated[int, Range(0, MAX_SIDE, 1, help="Pixels added at the right")] = 0,
    bottom: Annotated[int, Range(0, MAX_SIDE, 1, help="Pixels added below")] = 0,
    fill: Annotated[
        Literal["color", "edge", "reflect"], Help("A colour, the edge's pixels drawn out, or a mirror image")
    ] = "color",
    color: Color = "#000000",
) -> ImageOut:
    """Add a border. Raises InputError for a result too large for memory."""
    image = checked_image(image)
    batch, height, width, _ = image.shape
    checked_size((batch, height + top + bottom, width + left + right, 3), "left")
    border = ((0, 0), (top, bottom), (left, right), (0, 0))
    if fill != "color":
        return np.pad(image, border, mode="edge" if fill == "edge" else "symmetric")
    padded = np.empty((batch, height + top + bottom, width + left + right, 3), np.float32)
    padded[:] = color_of(color)
    padded[:, top : top + height, left : left + width] = image
    return padded


@node(category="image", search_aliases=("mix", "fade", "overlay", "crossfade"))
def blend_images(
    a: Annotated[Image, Help("First picture or batch")],
    b: Annotated[Image, Help("Second picture or batch, of the same size")],
    amount: Annotated[float, Range(0, 1, 0.01, help="0 gives a, 1 gives b", widget="slider", role="steerable")] = 0.5,
) -> ImageOut:
    """Mix two pictures: `a + amount * (b - a)`. Raises InputError for different sizes."""
    a, b = checked_image(a, "a"), checked_image(b, "b")
    _check_same_size(a, b)
    if a.shape[0] != b.shape[0] and 1 not in (a.shape[0], b.shape[0]):
        found = f"batches of {a.shape[0]} and {b.shape[0]}"
        fix = "take one picture with an Image From Batch node"
        raise InputError("b", found=found, accepted="equal batches or a single picture", fix=fix)
    return a + np.float32(amount) * (b - a)


class Size(NamedTuple):
    """Size of pictures."""

    width: Annotated[int, Help("Pixels from left to right")]
    height: Annotated[int, Help("Pixels from top to bottom")]
    batch: Annotated[int, Help("How many pictures")]


@node(category="image/size", search_aliases=("resolution", "dimensions", "width", "height"))
def image_size(image: Annotated[Image, Help("Picture or batch of pictures")]) -> Size:
    """Tell the size of pictures."""
    batch, height, width, _ = checked_image(image).shape
    return Size(width, height, batch)


@node(category="image/batch", search_aliases=("join", "concat", "combine"))
def image_batch(
    a: Annotated[Image, Help("First picture or batch")],
    b: Annotated[Image, Help("What follows it, of the same size")],
) -> Annotated[Image, Out("image", "All pictures of a, then all of b")]:
    """Join pictures into a batch. Raises InputError for different sizes."""
    a, b = checked_image(a, "a"), checked_image(b, "b")
    _check_same_size(a, b)
    return np.concatenate((a, b))


def _check_same_size(a: Array, b: Array) -> None:
    if a.shape[1:3] != b.shape[1:3]:
        found = f"{b.shape[2]} x {b.shape[1]} pixels"
        accepted = f"{a.shape[2]} x {a.shape[1]}, as a has"
        raise InputError("b", found=found, accepted=accepted, fix="put a Resize Image node before it")


@node(category="image/batch", search_aliases=("select", "pick", "frame"))
def image_from_batch(
    image: Annotated[Image, Help("Batch of pictures")],
    index: Annotated[int, Range(-4096, 4095, 1, help="Which one, from 0; negative counts from the last")] = 0,
) -> Annotated[Image, Out("image", "float32 [1, H, W, 3]")]:
    """Take one picture out of a batch. Raises InputError when there is none of that number."""
    image = checked_image(image)
    count = image.shape[0]
    if not -count <= index < count:
        accepted = f"{-count} to {count - 1}"
        raise InputError("index", found=index, accepted=accepted, fix=f"the batch holds {count}; choose one of them")
    position = index % count
    return image[position : position + 1]


@node(category="image/batch", search_aliases=("contact sheet", "collage", "montage", "tile"))
def grid_image(
    image: Annotated[Image, Help("Batch of pictures")],
    columns: Annotated[int, Range(0, 4096, 1, help="Pictures in a row; 0 makes the grid about square")] = 0,
    gap: Annotated[int, Range(0, 1024, 1, help="Pixels of black between pictures")] = 0,
) -> Annotated[Image, Out("image", "float32 [1, H, W, 3]: rows of pictures, unfilled places black")]:
    """Lay the pictures of a batch out as one, row by row. Raises InputError for a result too large for memory."""
    image = checked_image(image)
    count, height, width, _ = image.shape
    columns = min(columns or math.ceil(math.sqrt(count)), count)
    rows = math.ceil(count / columns)
    shape = checked_size((1, rows * (height + gap) - gap, columns * (width + gap) - gap, 3), "columns")
    grid = np.zeros(shape, np.float32)
    for index, picture in enumerate(image):
        row, column = divmod(index, columns)
        top, left = row * (height + gap), column * (width + gap)
        grid[0, top : top + height, left : left + width] = picture
    return grid


@node(category="image", search_aliases=("solid", "color", "blank", "background"))
def empty_image(
    width: Annotated[int, Range(1, MAX_SIDE, 1, help="Width in pixels")] = 512,
    height: Annotated[int, Range(1, MAX_SIDE, 1, help="Height in pixels")] = 512,
    color: Color = "#000000",
    batch_size: Annotated[int, Range(1, 4096, 1, help="How many pictures")] = 1,
) -> ImageOut:
    """Make pictures of one colour. Raises InputError for a result too large for memory."""
    image = np.empty(checked_size((batch_size, height, width, 3), "width"), np.float32)
    image[:] = color_of(color)
    return image


def color_of(color: str, input: str = "color") -> Array:
    """Return float32 [3] in 0..1 for `#rrggbb` or `#rgb`. Raises InputError for anything else."""
    match = _HEX_COLOR.fullmatch(color.strip()) if isinstance(color, str) else None
    if match is None:
        raise InputError(input, found=repr(color), accepted="a colour such as #ff8800", fix="write two digits each")
    digits = match[1] if len(match[1]) == 6 else "".join(digit * 2 for digit in match[1])
    return np.array(list(bytes.fromhex(digits)), np.float32) / np.float32(255)
