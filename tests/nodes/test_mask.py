"""Mask nodes against closed forms and Pillow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.graph.errors import InputError
from nodes.mask import (
    feather_mask,
    fitted_mask,
    image_to_mask,
    invert_mask,
    mask_to_image,
    mask_to_tensor,
    rectangle_mask,
    resize_mask,
    solid_mask,
    tensor_to_mask,
)

MASK = np.random.default_rng(4).random((2, 4, 6), np.float32)


def test_conversions_keep_the_values() -> None:
    assert np.array_equal(tensor_to_mask(mask_to_tensor(MASK)), MASK)
    assert np.array_equal(image_to_mask(mask_to_image(MASK), "green"), MASK)
    np.testing.assert_allclose(image_to_mask(mask_to_image(MASK)), MASK, atol=1e-6)
    assert tensor_to_mask(np.array([[True, False]])).tolist() == [[[1, 0]]]
    assert tensor_to_mask(np.array([[-1, 2, np.nan]])).tolist() == [[[0, 1, 0]]]


def test_brightness_is_pillows() -> None:
    """Pillow's mode L uses the same weights, rounded to bytes: within half a level and its rounding."""
    colours = np.random.default_rng(6).integers(0, 256, (5, 5, 3), np.uint8)
    ours = image_to_mask(colours[None] / np.float32(255))[0] * 255
    np.testing.assert_allclose(ours, np.asarray(Image.fromarray(colours).convert("L")), atol=0.51)


def test_inverting_and_filling() -> None:
    assert np.array_equal(invert_mask(solid_mask(3, 2, 0.25)), np.full((1, 2, 3), 0.75))


def test_a_rectangle_counts_parts_of_pixels() -> None:
    """4 x 4 pixels, from 1/4 to 5/8 across and over the lower half: the second column wholly, half of the third."""
    assert rectangle_mask(4, 4, 0.25, 0.5, 0.375, 0.5).tolist() == [
        [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0.5, 0], [0, 1, 0.5, 0]]
    ]
    assert rectangle_mask(3, 3, 0, 0, 1, 1).min() == 1
    assert rectangle_mask(3, 3, 0.9, 0.9, 1, 1).sum() == pytest.approx(0.09, rel=1e-4)


def test_feathering_is_a_gaussian() -> None:
    """One bright pixel becomes the kernel; the sum stays; a flat mask stays flat up to its border."""
    spot = np.zeros((1, 41, 41), np.float32)
    spot[0, 20, 20] = 1
    soft = feather_mask(spot, 2.0)
    assert soft.sum() == pytest.approx(1, rel=1e-5)
    assert soft[0, 20, 22] / soft[0, 20, 20] == pytest.approx(math.exp(-0.5), rel=1e-5)
    assert soft[0, 23, 24] / soft[0, 20, 20] == pytest.approx(math.exp(-25 / 8), rel=1e-4)
    np.testing.assert_allclose(feather_mask(np.full((1, 5, 9), 0.5, np.float32), 3), 0.5, rtol=1e-6)
    assert np.array_equal(feather_mask(MASK, 0), MASK)


def test_resizing_averages() -> None:
    """Halving a mask gives the mean of each 2 x 2 block."""
    blocks = MASK.reshape(2, 2, 2, 3, 2).mean((2, 4))
    np.testing.assert_allclose(resize_mask(MASK, 3, 2), blocks, rtol=1e-6)
    np.testing.assert_allclose(fitted_mask(MASK, np.zeros((2, 4, 2, 3)))[:, 0], blocks, rtol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: invert_mask(np.zeros((1, 2, 3, 4))),
        lambda: tensor_to_mask(np.zeros((1, 3, 4, 4))),
        lambda: image_to_mask(np.zeros((4, 4))),
        lambda: fitted_mask(MASK, np.zeros((3, 4, 2, 2))),
        lambda: resize_mask(np.zeros((4096, 1, 1)), 16384, 16384),
    ],
)
def test_what_does_not_fit_is_refused(call: Any) -> None:
    with pytest.raises(InputError):
        call()
