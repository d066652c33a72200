"""Noise: seeded normal numbers, and the nodes that make noise and add it to a latent."""

from __future__ import annotations

from typing import Literal

import numpy as np

from app.graph.node import Array
from nodes.schedulers.torch_random import TorchRandom

NoiseKind = Literal["philox", "torch"]


class NoiseSource:
    """A seeded sequence of random numbers; every call goes on where the last one stopped.

    kind: `philox` is numpy's counter-based generator; `torch` gives the numbers of PyTorch's CPU generator.
    seed: 0 to 2^64 - 1.
    """

    def __init__(self, kind: NoiseKind, seed: int) -> None:
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
