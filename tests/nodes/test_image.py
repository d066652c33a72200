"""Picture nodes: closed forms, and Pillow as the peer for resizing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.graph.errors import InputError
from nodes.image import (
    blend_images,
    crop_image,
    empty_image,
    grid_image,
    image_batch,
    image_from_batch,
    image_size,
    pad_image,
    resize_image,
)
from nodes.image_tensor import image_to_tensor, tensor_to_image
from nodes.pixels import to_bytes, to_floats

BYTES = np.random.default_rng(2).integers(0, 256, (2, 6, 8, 3), np.uint8)
IMAGE = to_floats(BYTES)


@pytest.mark.parametrize("method", ["lanczos", "bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize("size", [(4, 3), (16, 12), (5, 7)])
def test_resizing_agrees_with_pillow(method: Any, size: tuple[int, int]) -> None:
    """Pillow rounds and cuts to bytes between its two passes: one level off, with no overshoot to cut."""
    middle = BYTES // 2 + 64
    ours = to_bytes(resize_image(to_floats(middle), *size, method))
    peer = Image.fromarray(middle[1]).resize(size, getattr(Image.Resampling, method.upper()))
    difference = np.abs(ours[1].astype(int) - np.asarray(peer).astype(int)).max()
    assert difference <= (0 if method == "nearest" else 1)


def test_crop_keeps_the_middle_and_pad_the_whole() -> None:
    """An 8 x 6 picture into 6 x 6: one column off each side; into 8 x 8: a black row above and below."""
    assert np.array_equal(resize_image(IMAGE, 6, 6, "nearest", "crop"), IMAGE[:, :, 1:7])
    padded = resize_image(IMAGE, 8, 8, "lanczos", "pad")
    assert np.array_equal(padded[:, 1:7], IMAGE)
    assert not padded[:, [0, 7]].any()


@pytest.mark.parametrize(
    ("size", "expected"), [((16, 100), (16, 12)), ((100, 3), (4, 3)), ((8, 6), (8, 6)), ((1, 1), (1, 1))]
)
def test_fit_keeps_the_proportions(size: tuple[int, int], expected: tuple[int, int]) -> None:
    """An 8 x 6 picture: 4 : 3 inside of 16 x 100 is 16 x 12, inside of 100 x 3 it is 4 x 3."""
    fitted = resize_image(IMAGE, *size, "bilinear", "fit")
    assert image_size(fitted)[:2] == expected
    assert np.array_equal(fitted, resize_image(IMAGE, *expected, "bilinear"))


@pytest.mark.parametrize("mode", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("size", [(1, 1), (1, 100), (100, 1), (7, 5)])
def test_every_mode_gives_the_size_asked_for(mode: Any, size: tuple[int, int]) -> None:
    resized = resize_image(IMAGE, *size, "area", mode)
    assert resized.shape == (2, size[1], size[0], 3)
    assert resized.dtype == np.float32
    assert resized.min() >= 0
    assert resized.max() <= 1


def test_crop_and_pad_are_inverse() -> None:
    padded = pad_image(IMAGE, 1, 2, 3, 4, "color", "#ff0080")
    assert padded.shape == (2, 12, 12, 3)
    np.testing.assert_allclose(padded[0, 0, 0], [1, 0, 128 / 255], atol=1e-7)
    assert np.array_equal(crop_image(padded, 1, 2, 8, 6), IMAGE)
    assert np.array_equal(pad_image(IMAGE, left=2, fill="edge")[:, :, 0], IMAGE[:, :, 0])
    assert np.array_equal(pad_image(IMAGE, left=2, fill="reflect")[:, :, :2], IMAGE[:, :, 1::-1])


def test_blend_mixes() -> None:
    black, white = np.zeros((1, 2, 2, 3), np.float32), np.ones((3, 2, 2, 3), np.float32)
    assert np.array_equal(blend_images(black, white, 0.25), np.full((3, 2, 2, 3), 0.25))
    assert np.array_equal(blend_images(IMAGE, IMAGE[::-1], 0.0), IMAGE)


def test_batches() -> None:
    joined = image_batch(IMAGE, IMAGE[:1])
    assert image_size(joined) == (8, 6, 3)
    assert np.array_equal(image_from_batch(joined, 1), IMAGE[1:])
    assert np.array_equal(image_from_batch(joined, -1), IMAGE[:1])
    assert image_size(IMAGE[0]) == (8, 6, 1)


def test_a_grid_is_laid_out_by_rows() -> None:
    """Three pictures in two columns with a gap of 1: the fourth place and the gaps stay black."""
    pictures = np.ones((3, 2, 2, 3), np.float32) * np.array([0.25, 0.5, 0.75], np.float32)[:, None, None, None]
    grid = grid_image(pictures, 0, 1)
    assert grid[0, :, :, 0].tolist() == [
        [0.25, 0.25, 0, 0.5, 0.5],
        [0.25, 0.25, 0, 0.5, 0.5],
        [0, 0, 0, 0, 0],
        [0.75, 0.75, 0, 0, 0],
        [0.75, 0.75, 0, 0, 0],
    ]
    assert grid_image(pictures, 9).shape == (1, 2, 6, 3)


def test_an_empty_image_has_its_colour() -> None:
    image = empty_image(3, 2, "#0f8", 2)
    assert image.shape == (2, 2, 3, 3)
    np.testing.assert_allclose(image[1, 1, 2], [0, 1, 136 / 255], atol=1e-7)


@pytest.mark.parametrize(
    ("range", "half", "white"), [("-1..1", 0.0, 1.0), ("0..1", 0.5, 1.0), ("0..255", 127.5, 255.0)]
)
def test_ranges(range: Any, half: float, white: float) -> None:
    image = np.array([0.5, 1, 1], np.float32).reshape(1, 1, 1, 3)
    assert image_to_tensor(image, range).ravel().tolist() == [half, white, white]


@pytest.mark.parametrize("range", ["-1..1", "0..1", "0..255"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_pictures_survive_the_way_there_and_back(range: Any, layout: Any, order: Any) -> None:
    tensor = image_to_tensor(IMAGE, range, layout, order)
    assert tensor.shape == ((2, 3, 6, 8) if layout == "NCHW" else (2, 6, 8, 3))
    assert tensor.dtype == np.float32
    assert np.array_equal(to_bytes(tensor_to_image(tensor, range, layout, order)), BYTES)
    red = tensor[:, 0] if layout == "NCHW" else tensor[..., 0]
    np.testing.assert_allclose(red, image_to_tensor(IMAGE, range)[:, 0 if order == "RGB" else 2], atol=1e-7)


def test_mean_and_deviation() -> None:
    """(0.5 - 0.1) / 0.2 = 2, (0.5 - 0.2) / 0.2 = 1.5, (0.5 - 0.3) / 0.2 = 1."""
    image = np.full((1, 1, 1, 3), 0.5, np.float32)
    tensor = image_to_tensor(image, "0..1", mean="0.1, 0.2, 0.3", std="0.2")
    np.testing.assert_allclose(tensor.ravel(), [2, 1.5, 1], rtol=1e-6)


def test_tensors_become_pictures() -> None:
    """Gray becomes RGB, one picture a batch of one; out of range is cut, NaN is black."""
    gray = np.array([[[[-1, 0, 1, 3, np.nan, -9]]]], np.float32)
    assert tensor_to_image(gray)[0, 0, :, 2].tolist() == [0, 0.5, 1, 1, 0, 0]
    assert tensor_to_image(np.zeros((3, 2, 5), np.float16)).shape == (1, 2, 5, 3)
    assert tensor_to_image(BYTES, "0..255", "NHWC").dtype == np.float32
    assert np.array_equal(tensor_to_image(BYTES, "0..255", "NHWC"), IMAGE)


@pytest.mark.parametrize(
    ("call", "input"),
    [
        (lambda: image_size(np.zeros((1, 3, 4, 4), np.float32)), "image"),
        (lambda: crop_image(IMAGE, 1, 0, 8, 6), "x"),
        (lambda: crop_image(IMAGE, 0, 6, 1, 1), "y"),
        (lambda: image_batch(IMAGE, IMAGE[:, 1:]), "b"),
        (lambda: blend_images(IMAGE, IMAGE[:, 1:]), "b"),
        (lambda: blend_images(IMAGE, np.concatenate((IMAGE, IMAGE[:1]))), "b"),
        (lambda: image_from_batch(IMAGE, 2), "index"),
        (lambda: empty_image(1, 1, "red"), "color"),
        (lambda: empty_image(16384, 16384, batch_size=4096), "width"),
        (lambda: resize_image(IMAGE, 16384, 16384), "width"),
        (lambda: tensor_to_image(np.zeros((1, 4, 8, 8))), "tensor"),
        (lambda: tensor_to_image(np.zeros((1, 8, 8, 3))), "tensor"),
        (lambda: image_to_tensor(IMAGE, mean="1, 2"), "mean"),
        (lambda: image_to_tensor(IMAGE, mean="x"), "mean"),
        (lambda: image_to_tensor(IMAGE, std="1, 0, 1"), "std"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, input: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.input == input
