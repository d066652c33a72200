"""Noise levels of a run: what every schedule gives and every sampler goes by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.graph.node import Array


@dataclass(frozen=True, slots=True)
class Levels:
    """Noise levels of a run: at level k a sample is `signal[k] * clean + noise[k] * normal`.

    timesteps: one for each step. signal, noise: one more than steps; the last pair is where the last step lands.
    initial: standard deviation of the sample that a run starts from when it starts from noise alone.
    """

    timesteps: tuple[float, ...]
    signal: tuple[float, ...]
    noise: tuple[float, ...]
    initial: float = 1.0

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise over signal at each level."""
        return tuple(n / s if s else math.inf for s, n in zip(self.signal, self.noise, strict=True))

    def noised(self, latent: Array, normal: Array, step: int) -> Array:
        """Return a clean latent noised to level `step`; float32."""
        if step == len(self.timesteps):
            return latent
        result: Array = self.signal[step] * latent + self.noise[step] * normal
        return result


class Schedule(Protocol):
    """Options that tell the noise levels of a run: a frozen dataclass, spread into a scheduler node's inputs."""

    def levels(self, steps: int, timesteps: Sequence[float] | None = None) -> Levels:
        """Return the levels of a run of `steps` steps, at explicit timesteps if given. Raises InputError."""
