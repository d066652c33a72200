"""Latents against closed forms, Pillow and the projection of the pipeline specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.graph.errors import InputError
from nodes.latent import empty_latent, latent_preview, repeat_latent_batch, resize_latent, scale_latent
from nodes.resampling import resize_planes, weights

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


@pytest.mark.parametrize(
    ("method", "size"),
    [
        *(
            (method, size)
            for method in ("bilinear", "bicubic", "lanczos")
            for size in ((12, 10), (3, 2), (7, 3), (1, 1))
        ),
        *(("area", size) for size in ((3, 5), (2, 1), (6, 5))),
    ],
)
def test_resizing_agrees_with_pillow(method: str, size: tuple[int, int]) -> None:
    """Pillow's filters on float pictures; its box is our area where the sizes divide, else it takes whole pixels."""
    height, width = size
    filter = getattr(Image.Resampling, "BOX" if method == "area" else method.upper())
    peer = np.asarray(Image.fromarray(LATENT[0, 0]).resize((width, height), filter))
    np.testing.assert_allclose(resize_planes(LATENT, height, width, method)[0, 0], peer, atol=2e-6)


def test_area_splits_pixels() -> None:
    """Three pixels onto two: each new one covers one and a half."""
    np.testing.assert_allclose(weights(3, 2, "area"), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]], atol=1e-7)


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
