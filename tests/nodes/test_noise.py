"""Seeded noise, and the nodes around it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.graph.errors import InputError
from nodes.noise import NoiseSource, add_noise, random_noise
from tests.nodes.sampling import sampler

DATA = Path(__file__).parents[1] / "parity" / "data" / "randn"
CASES: list[dict[str, Any]] = json.loads((DATA / "index.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["key"])
def test_torch_noise_is_pytorchs_to_the_bit(case: dict[str, Any]) -> None:
    """Two draws in a row from one generator, recorded with PyTorch 2.13 (see the index)."""
    with np.load(DATA / "torch_cpu_randn.npz") as recorded:
        expected = [recorded[case["key"]], recorded[case["key"] + "_next"]]
    source = NoiseSource("torch", case["seed"])
    draws = [source.normal(tuple(case["shape"])) for _ in expected]
    assert hashlib.sha256(draws[0].tobytes()).hexdigest() == case["sha256"]
    for draw, numbers in zip(draws, expected, strict=True):
        flat = draw.reshape(-1)
        shown = flat if case["whole"] else np.concatenate([flat[:64], flat[-64:]])
        np.testing.assert_array_equal(shown, numbers.reshape(-1))


@pytest.mark.parametrize("kind", ["philox", "torch"])
def test_noise_is_standard_normal_and_goes_on(kind: Any) -> None:
    """Mean 0, variance 1 and kurtosis 3, each within five standard errors of 100 000 numbers; no draw comes twice."""
    source = NoiseSource(kind, 3)
    first, second = source.normal((100_000,)), source.normal((100_000,))
    assert first.dtype == np.float32
    assert abs(first.mean()) < 5 / 100_000**0.5
    assert abs(first.var() - 1) < 5 * (2 / 100_000) ** 0.5
    assert abs((first**4).mean() - 3) < 5 * (96 / 100_000) ** 0.5
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / 100_000**0.5


@pytest.mark.parametrize("kind", ["philox", "torch"])
def test_uniform_numbers_fill_the_unit_interval(kind: Any) -> None:
    """Mean 1/2 and variance 1/12 within five standard errors."""
    numbers = NoiseSource(kind, 2**64 - 1).uniform((10, 1000))
    assert numbers.dtype == np.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 5 * (1 / 12 / 10_000) ** 0.5


@pytest.mark.parametrize("kind", ["philox", "torch"])
@pytest.mark.parametrize("seed", [-1, -(2**63)])
def test_a_negative_seed_is_its_unsigned_twin(kind: Any, seed: int) -> None:
    """PyTorch's `manual_seed` casts int64 to uint64 (torch/csrc/Generator.cpp)."""
    given, twin = (NoiseSource(kind, number).normal((32,)) for number in (seed, seed + 2**64))
    np.testing.assert_array_equal(given, twin)


@pytest.mark.parametrize("kind", ["philox", "torch"])
@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), ()])
def test_odd_shapes_are_fine(kind: Any, shape: tuple[int, ...]) -> None:
    assert NoiseSource(kind, 0).normal(shape).shape == shape


def test_random_noise_takes_its_shape_from_a_latent_or_from_sizes() -> None:
    like = random_noise(latent=np.zeros((2, 4, 5, 6), np.float32), seed=1, kind="torch")
    sized = random_noise(width=6, height=5, batch_size=2, channels=4, seed=1, kind="torch")
    np.testing.assert_array_equal(like, sized)
    assert like.shape == (2, 4, 5, 6)


def test_random_noise_refuses_what_no_memory_holds() -> None:
    with pytest.raises(InputError, match="noise of shape"):
        random_noise(width=16384, height=16384, batch_size=4096, channels=1024)


def test_adding_noise_follows_the_scheduler() -> None:
    """pipeline-spec A.3: DDIM with two betas of 0.5 gives 2 sqrt(.5) + 3 sqrt(.5) at step 0, the latent at the end."""
    two_steps = sampler("ddim", num_train_timesteps=2, beta_start=0.5, beta_end=0.5, beta_schedule="linear")
    latent, noise = np.full((1, 1), 2, np.float32), np.full((1, 1), 3, np.float32)
    assert add_noise(latent, two_steps, 0, 1, noise)[0, 0] == pytest.approx(5 * 0.5**0.5, rel=1e-6)
    assert add_noise(latent, two_steps, 1, 1, noise)[0, 0] == 2


def test_added_noise_is_the_seeds() -> None:
    """Euler adds sigma times the noise (pipeline-spec 4.10), whatever the latent."""
    latent = np.zeros((1, 4, 4, 4), np.float32)
    noised = add_noise(latent, sampler("euler"), 1, 4, seed=5, kind="torch")
    np.testing.assert_allclose(noised, 2.918309 * NoiseSource("torch", 5).normal(latent.shape), rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "step", "noise", "sentence"),
    [
        ("masked_diffusion", 0, None, "found masked_diffusion, accepted a scheduler with noise levels"),
        ("euler", 5, None, "found 5, accepted 0 to 4"),
        ("euler", 0, np.zeros(3, np.float32), r"found shape \[3\], accepted \[1, 4\]"),
    ],
)
def test_noise_that_cannot_be_added_is_explained(kind: str, step: int, noise: Any, sentence: str) -> None:
    chosen = sampler(kind, mask_token_id=0) if kind == "masked_diffusion" else sampler(kind)
    with pytest.raises(InputError, match=sentence):
        add_noise(np.zeros((1, 4), np.float32), chosen, step, 4, noise)
