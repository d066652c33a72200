"""Noise: seeded normal numbers, and the nodes that make noise and add it to a latent."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np

from app.graph import socket
from app.graph.errors import InputError
from app.graph.node import Array, Help, Out, Range, node
from nodes.schedulers.torch_random import TorchRandom

NoiseKind = Literal["philox", "torch"]


class NoiseSource:
    """A seeded sequence of random numbers; every call goes on where the last one stopped.

    kind: `philox` is numpy's counter-based generator; `torch` gives the numbers of PyTorch's CPU generator.
    seed: any 64-bit number; a negative one counts as its unsigned twin, as in PyTorch.
    """

    def __init__(self, kind: NoiseKind, seed: int) -> None:
        seed %= 2**64
        self.kind, self.seed = kind, seed
        self._torch = TorchRandom(seed) if kind == "torch" else None
        self._philox = np.random.Generator(np.random.Philox(seed))

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return float32 of mean 0 and variance 1."""
        if self._torch is not None:
            return self._torch.normal(shape)
        return self._philox.standard_normal(shape, np.float32)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Return float32 in [0, 1)."""
        if self._torch is not None:
            return self._torch.uniform(shape)
        return self._philox.random(shape, np.float32)


MAX_ELEMENTS = 2**31
"""Most elements of noise that a node makes at once: 8 GiB."""

SeedIn = Annotated[int, Range(0, 2**64 - 1, 1, help="Seed of the noise", widget="seed")]
KindIn = Annotated[
    Literal["philox", "torch"], Help("Generator behind the seed; torch gives the numbers of PyTorch's CPU generator")
]
NoiseOut = Annotated[Array, Out("noise", "float32 of mean 0 and variance 1")]


@node(category="noise", search_aliases=("gaussian", "randn", "seed", "normal"))
def random_noise(
    latent: Annotated[Array | None, Help("Gives the noise its shape; without it the sizes below do")] = None,
    width: Annotated[int, Range(1, 16384, 1, help="Width in latent elements, an eighth of the picture's mostly")] = 64,
    height: Annotated[int, Range(1, 16384, 1, help="Height in latent elements")] = 64,
    batch_size: Annotated[int, Range(1, 4096, 1, help="How many latents")] = 1,
    channels: Annotated[int, Range(1, 1024, 1, help="Channels of the latents: 4 or 16 mostly")] = 4,
    seed: SeedIn = 0,
    kind: KindIn = "philox",
) -> NoiseOut:
    """Make seeded Gaussian noise, shaped like a latent or of a size. Raises InputError for one too large for memory."""
    shape = (batch_size, channels, height, width) if latent is None else np.shape(latent)
    if math.prod(shape) > MAX_ELEMENTS:
        accepted, fix = f"at most {MAX_ELEMENTS} elements", "lower a size"
        raise InputError("width", found=f"noise of shape {list(shape)}", accepted=accepted, fix=fix)
    return NoiseSource(kind, seed).normal(shape)


@node(category="noise", search_aliases=("noising", "image to image", "img2img", "strength"))
def add_noise(
    latent: Annotated[Array, Help("Latent without noise, at the denoiser's scale")],
    scheduler: Annotated[Any, socket.SAMPLER, Help("Scheduler whose noise levels count")],
    step: Annotated[int, Range(0, 10_000, 1, help="Step that is to start from the result; steps: no noise")] = 0,
    steps: Annotated[int, Range(1, 10_000, 1, help="How many steps the whole schedule has")] = 20,
    noise: Annotated[Array | None, Help("Noise of the latent's shape, instead of seeded noise")] = None,
    seed: SeedIn = 0,
    kind: KindIn = "philox",
) -> Annotated[Array, Out("latent", "float32, same shape: for a Denoise Loop with start_step, add_noise off")]:
    """Noise a clean latent to the level where a step of a schedule starts.

    Raises InputError for masked diffusion, a step beyond the schedule and noise of another shape.
    """
    latent = np.asarray(latent, np.float32)
    given = NoiseSource(kind, seed).normal(latent.shape) if noise is None else np.asarray(noise, np.float32)
    noised: Array = scheduler.add_noise(latent, given, step, steps)
    return noised
