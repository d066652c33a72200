"""Mask Blend against the closed forms of epsilon and v."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.graph.errors import InputError
from app.graph.node import Array
from nodes.mask_blend import mask_blend

RNG = np.random.default_rng(8)
ORIGINAL, PREDICTION, NOISE = RNG.standard_normal((3, 1, 4, 4, 6)).astype(np.float32)
SIGMA = 2.0
ALPHA, S = 1 / np.sqrt(1 + SIGMA**2), SIGMA / np.sqrt(1 + SIGMA**2)
SAMPLE = (ALPHA * ORIGINAL + S * NOISE).astype(np.float32)
HALF = np.concatenate((np.zeros((1, 32, 24)), np.ones((1, 32, 24))), axis=2).astype(np.float32)


def clean(prediction_type: str, prediction: Array) -> Array:
    """Return the clean latent that a prediction stands for: eps, v and sample as in arXiv:2202.00512, appendix D."""
    clean_by_type: dict[str, Array] = {
        "epsilon": (SAMPLE - S * prediction) / ALPHA,
        "v_prediction": ALPHA * SAMPLE - S * prediction,
        "sample": prediction,
    }
    return clean_by_type[prediction_type]


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction", "sample"])
def test_what_is_kept_lands_on_the_original(prediction_type: Any) -> None:
    """The left half of the mask is 0; the right half keeps the denoiser's prediction to the bit up to rounding."""
    blended = mask_blend(PREDICTION, SAMPLE, SIGMA, ORIGINAL, HALF, prediction_type)
    assert blended.dtype == np.float32
    np.testing.assert_allclose(clean(prediction_type, blended)[..., :3], ORIGINAL[..., :3], atol=1e-5)
    np.testing.assert_allclose(blended[..., 3:], PREDICTION[..., 3:], atol=1e-6)


def test_epsilon_of_the_original_is_the_noise_that_was_added() -> None:
    blended = mask_blend(PREDICTION, SAMPLE, SIGMA, ORIGINAL, np.zeros((1, 4, 6), np.float32))
    np.testing.assert_allclose(blended, NOISE, atol=1e-5)


def test_halfway_is_the_mean() -> None:
    blended = mask_blend(PREDICTION, SAMPLE, SIGMA, ORIGINAL, np.full((1, 1, 1), 0.5, np.float32), "sample")
    np.testing.assert_allclose(blended, (PREDICTION + ORIGINAL) / 2, atol=1e-6)


def test_the_edge_is_soft_or_hard() -> None:
    """A mask of 8 columns for a latent of 2, its edge in the middle of the second half: a share of 1/2, or the pixel
    under the new one's centre, column 6, where the mask is 1."""
    mask = np.repeat(np.array([[[0, 0, 0, 0, 0, 0, 1, 1]]], np.float32), 8, axis=1)
    zeros, ones = (np.full((1, 4, 2, 2), value, np.float32) for value in (0, 1))
    soft, hard = (mask_blend(ones, ones, SIGMA, zeros, mask, "sample", method) for method in ("area", "nearest"))
    np.testing.assert_allclose(soft[0, 0], [[0, 0.5], [0, 0.5]], atol=1e-6)
    np.testing.assert_allclose(hard[0, 0], [[0, 1], [0, 1]], atol=1e-6)


def test_one_original_and_mask_serve_a_batch() -> None:
    pair = np.concatenate((PREDICTION, NOISE))
    blended = mask_blend(pair, np.concatenate((SAMPLE, SAMPLE)), SIGMA, ORIGINAL, HALF, "sample")
    np.testing.assert_allclose(blended[1, ..., :3], ORIGINAL[0, ..., :3], atol=1e-6)
    np.testing.assert_allclose(blended[1, ..., 3:], NOISE[0, ..., 3:], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "input"),
    [
        ({"sample": SAMPLE[..., 1:]}, "sample"),
        ({"latent": ORIGINAL[..., 1:]}, "latent"),
        ({"mask": np.zeros((2, 4, 6), np.float32)}, "mask"),
        ({"sigma": 0.0}, "sigma"),
        ({"prediction": PREDICTION[0]}, "prediction"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], input: str) -> None:
    inputs: dict[str, Any] = {
        "prediction": PREDICTION, "sample": SAMPLE, "sigma": SIGMA, "latent": ORIGINAL, "mask": HALF,
    }  # fmt: skip
    with pytest.raises(InputError) as caught:
        mask_blend(**(inputs | change))
    assert caught.value.input == input


def test_a_flow_prediction_lands_on_the_original() -> None:
    """On the path x = (1 - t) * x0 + t * noise, with sigma = t / (1 - t), the flow is noise - x0 everywhere."""
    rng = np.random.default_rng(3)
    clean, noise = (rng.normal(size=(1, 4, 4, 4)).astype(np.float32) for _ in range(2))
    t = 0.3
    sample = ((1 - t) * clean + t * noise).astype(np.float32)
    keep = np.zeros((1, 4, 4), np.float32)
    blended = mask_blend(np.zeros_like(clean), sample, t / (1 - t), clean, keep, "flow")
    np.testing.assert_allclose(blended, noise - clean, rtol=0, atol=2e-6)
