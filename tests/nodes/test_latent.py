"""Latents against closed forms and the projection of the pipeline specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.graph.errors import InputError
from app.graph.node import Array
from nodes.latent import empty_latent, latent_preview, repeat_latent_batch, resize_latent, scale_latent
from nodes.resampling import resize_planes

RNG = np.random.default_rng(3)
LATENT = RNG.standard_normal((2, 4, 6, 5)).astype(np.float32)


def test_an_empty_latent_has_the_size_of_the_picture() -> None:
    latent = empty_latent(64, 32, 3, 16, 8)
    assert latent.shape == (3, 16, 4, 8)
    assert latent.dtype == np.float32
    assert not latent.any()


@pytest.mark.parametrize(("width", "near"), [(500, "496 or 504"), (5, "use 8"), (513, "512 or 520")])
def test_a_size_that_does_not_divide_names_the_nearest(width: int, near: str) -> None:
    with pytest.raises(InputError, match=near) as caught:
        empty_latent(width, 512)
    assert caught.value.input == "width"


def test_scaling_there_and_back() -> None:
    """(3 - 1) * 0.5 = 1, and back 1 / 0.5 + 1 = 3."""
    three = np.full((1, 4, 2, 2), 3, np.float32)
    encoded = scale_latent(three, "encode", 0.5, 1.0)
    assert np.array_equal(encoded, np.ones_like(three))
    assert np.array_equal(scale_latent(encoded, "decode", 0.5, 1.0), three)
    np.testing.assert_allclose(scale_latent(scale_latent(LATENT, "encode"), "decode"), LATENT, rtol=1e-6)
    with pytest.raises(InputError, match="scaling_factor"):
        scale_latent(LATENT, "decode", 0.0)


def kernel_weights(old: int, new: int, method: str) -> Array:
    """Return [new, old]: the share of each old element in each new one, from the kernels as they are defined.

    bilinear is a triangle of half-width 1, bicubic the cubic convolution with a = -1/2 (Keys 1981, equation 15),
    lanczos sinc(x) sinc(x / 3); shrinking stretches a kernel by old / new, and shares add up to 1.
    """
    ratio = old / new
    x = np.abs((np.arange(old) + 0.5 - (np.arange(new)[:, None] + 0.5) * ratio) / max(ratio, 1))
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    kernel = {
        "bilinear": np.where(x < 1, 1 - x, 0),
        "bicubic": np.where(x < 1, near, np.where(x < 2, far, 0)),
        "lanczos": np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0),
    }[method]
    shares: Array = kernel / kernel.sum(1, keepdims=True)
    return shares


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(12, 10), (3, 2), (7, 3), (1, 1)])
def test_resizing_weighs_by_the_kernel(method: str, size: tuple[int, int]) -> None:
    """Two small matrix products; float32 pictures of order 1."""
    rows, columns = kernel_weights(6, size[0], method), kernel_weights(5, size[1], method)
    np.testing.assert_allclose(resize_planes(LATENT, *size, method), rows @ LATENT @ columns.T, atol=2e-6)


@pytest.mark.parametrize("size", [(3, 5), (2, 1), (6, 5), (4, 7), (13, 2)])
def test_area_averages_what_a_pixel_covers(size: tuple[int, int]) -> None:
    """Each old pixel drawn as new x new equal ones makes every span whole: then it is a plain mean."""
    height, width = size
    fine = LATENT.astype(np.float64).repeat(height, axis=2).repeat(width, axis=3)
    means = fine.reshape(2, 4, height, 6, width, 5).mean((3, 5))
    np.testing.assert_allclose(resize_planes(LATENT, height, width, "area"), means, atol=1e-6)


def test_area_keeps_ones_and_zeros_exactly() -> None:
    """A mask that is 1 or 0 over a whole new pixel stays so to the bit, even after many rows."""
    mask = np.zeros((999, 700), np.float32)
    mask[:, 350:] = 1
    assert np.array_equal(np.unique(resize_planes(mask, 64, 50, "area")), [0, 1])


def test_nearest_takes_the_value_under_the_centre() -> None:
    row = np.arange(4, dtype=np.float32)[None]
    assert resize_planes(row, 1, 8, "nearest").tolist() == [[0, 0, 1, 1, 2, 2, 3, 3]]
    assert resize_planes(row, 1, 2, "nearest").tolist() == [[1, 3]]
    assert resize_latent(LATENT, 10, 12, "nearest").shape == (2, 4, 12, 10)


@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "lanczos", "area"])
def test_a_flat_plane_stays_flat(method: str) -> None:
    flat = np.full((1, 7, 9), 0.25, np.float32)
    np.testing.assert_allclose(resize_planes(flat, 4, 20, method), np.full((1, 4, 20), 0.25), rtol=1e-6)


def test_repeating_keeps_the_order() -> None:
    assert np.array_equal(repeat_latent_batch(LATENT, 2), np.concatenate((LATENT, LATENT)))


def test_the_preview_projects_four_channels() -> None:
    """The matrix of pipeline-spec.md, section 5.4, written out for one element: 0.1 in each channel."""
    latent = np.full((1, 4, 1, 1), 0.1, np.float32)
    expected = [0.5 + 0.1 * sum(column) for column in (
        (0.298, 0.187, -0.158, -0.184), (0.207, 0.286, 0.189, -0.271), (0.208, 0.173, 0.264, -0.473),
    )]  # fmt: skip
    image = latent_preview(latent, 3)
    assert image.shape == (1, 3, 3, 3)
    np.testing.assert_allclose(image, np.broadcast_to(np.array(expected, np.float32), (1, 3, 3, 3)), atol=1e-6)


def test_the_preview_of_other_channels_is_in_range() -> None:
    for channels in (1, 3, 4, 16):
        latent = np.concatenate((LATENT,) * 4, axis=1)[:, :channels] * np.float32(10)
        image = latent_preview(latent, 1)
        assert image.shape == (2, 6, 5, 3)
        assert image.min() >= 0
        assert image.max() <= 1
    assert np.array_equal(latent_preview(np.full((1, 1, 2, 2), np.nan), 1), np.full((1, 2, 2, 3), 0.5))
    rgb = np.array([-1, 0, 1], np.float32).reshape(1, 3, 1, 1)
    assert latent_preview(rgb, 1).tolist() == [[[[0, 0.5, 1]]]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: resize_latent(np.zeros((4, 4)), 2, 2),
        lambda: empty_latent(16384, 16384, 4096),
        lambda: repeat_latent_batch(np.zeros((4096, 4, 64, 64), np.float32), 4096),
    ],
)
def test_what_does_not_fit_is_refused(call: Any) -> None:
    with pytest.raises(InputError):
        call()
