"""Noise schedules: the betas of a training, the timesteps of a run, and the sigmas that belong to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Range
from nodes.schedulers.beta_quantile import beta_quantile
from nodes.schedulers.prediction import PredictionType

TINY_ALPHA = 2.0**-24
"""What diffusers puts in place of a cumulative alpha of zero, so that sigma stays finite."""

BetaSchedule = Literal["linear", "scaled_linear", "squaredcos_cap_v2"]
TimestepSpacing = Literal["linspace", "leading", "trailing"]

SPACING_HELP = Help("How the timesteps of a run are spread over those of the training (arXiv:2305.08891, table 2)")
OFFSET_RANGE = Range(0, 1000, 1, help="Added to the timesteps of spacing leading; 1 for Stable Diffusion elsewhere")
FINAL_HELP = Help("Noise after the last step: none, or the least of the training")


@dataclass(frozen=True, slots=True)
class Betas:
    """The noise of a training. The defaults are those of Stable Diffusion 1 and 2."""

    num_train_timesteps: Annotated[int, Range(2, 100_000, 1, help="How many timesteps the training had")] = 1000
    beta_start: Annotated[float, Range(1e-7, 0.999, 0.0001, help="Beta of the first timestep")] = 0.00085
    beta_end: Annotated[float, Range(1e-7, 0.999, 0.0001, help="Beta of the last timestep")] = 0.012
    beta_schedule: Annotated[
        BetaSchedule, Help("How beta grows in between; Stable Diffusion was trained with scaled_linear")
    ] = "scaled_linear"
    rescale_betas_zero_snr: Annotated[bool, Help("Shift the schedule so that the last timestep is noise alone")] = False

    @property
    def alphas_cumprod(self) -> Array:
        """Share of the signal's variance at each timestep of the training: float64, falling, read-only."""
        return _alphas_cumprod(
            self.num_train_timesteps, self.beta_start, self.beta_end, self.beta_schedule, self.rescale_betas_zero_snr
        )

    @property
    def training_sigmas(self) -> Array:
        """Noise over signal at each timestep of the training: float64, rising, finite."""
        cumulative = np.maximum(self.alphas_cumprod, TINY_ALPHA if self.rescale_betas_zero_snr else 0)
        sigmas: Array = np.sqrt((1 - cumulative) / cumulative)
        return sigmas

    def sigmas_at(self, timesteps: Array | Sequence[float]) -> Array:
        """Return the sigmas at timesteps, interpolated between whole ones; float64."""
        known = self.training_sigmas
        sigmas: Array = np.interp(np.asarray(timesteps, float), np.arange(len(known)), known)
        return sigmas

    def timesteps_at(self, sigmas: Array) -> Array:
        """Return the real-valued timesteps of sigmas, interpolated between the training's log sigmas; float64."""
        known = np.log(np.maximum(self.training_sigmas, 1e-10))
        return np.interp(np.log(np.maximum(sigmas, 1e-10)), known, np.arange(self.num_train_timesteps))

    def given_timesteps(self, timesteps: Sequence[float]) -> Array:
        """Return explicit timesteps as float64. Raises InputError for one that the training did not have."""
        last = self.num_train_timesteps - 1
        outside = [timestep for timestep in timesteps if not 0 <= timestep <= last]
        if outside:
            accepted = f"0 to {last}, those of the training"
            raise InputError("timesteps", found=outside[0], accepted=accepted, fix="change it", code="out_of_range")
        return np.array(timesteps, float)

    def check_steps(self, steps: int) -> None:
        """Raise InputError for fewer than one step or more than the training has timesteps."""
        count = self.num_train_timesteps
        if not 1 <= steps <= count:
            accepted = f"1 to {count}, the timesteps of the training"
            raise InputError("steps", found=steps, accepted=accepted, fix="change steps", code="out_of_range")


@dataclass(frozen=True, slots=True)
class Training(Betas):
    """How a denoiser of variance-preserving levels was trained."""

    prediction_type: Annotated[PredictionType, Help("What the denoiser predicts: noise, v or the clean latent")] = (
        "epsilon"
    )


@lru_cache(maxsize=64)
def _alphas_cumprod(count: int, start: float, end: float, schedule: BetaSchedule, zero_snr: bool) -> Array:
    """See Betas. Zero signal at the end as in Lin et al. 2023 (arXiv:2305.08891), algorithm 1."""
    cumulative = np.cumprod(1 - _betas(count, start, end, schedule))
    if zero_snr:
        root = np.sqrt(cumulative)
        cumulative = ((root - root[-1]) * root[0] / (root[0] - root[-1])) ** 2
    cumulative.flags.writeable = False
    return cumulative


def _betas(count: int, start: float, end: float, schedule: BetaSchedule) -> Array:
    if schedule == "linear":
        return np.linspace(start, end, count)
    if schedule == "scaled_linear":
        betas: Array = np.linspace(math.sqrt(start), math.sqrt(end), count) ** 2
        return betas
    if schedule == "squaredcos_cap_v2":
        # Nichol and Dhariwal 2021 (arXiv:2102.09672), equation 17.
        shares = np.cos((np.arange(count + 1) / count + 0.008) / 1.008 * (math.pi / 2)) ** 2
        cosine: Array = np.minimum(1 - shares[1:] / shares[:-1], 0.999)
        return cosine
    accepted, fix = "linear, scaled_linear or squaredcos_cap_v2", "see the scheduler's config"
    raise InputError("beta_schedule", found=repr(schedule), accepted=accepted, fix=fix)


def spaced_timesteps(steps: int, count: int, spacing: TimestepSpacing, offset: int) -> Array:
    """Return `steps` of `count` timesteps, from high to low: whole ones, but real-valued for linspace; float64."""
    if spacing == "linspace":
        return np.linspace(0, count - 1, steps)[::-1]
    if spacing == "leading":
        timesteps = np.arange(steps - 1, -1, -1) * float(count // steps) + offset
    else:
        timesteps = np.round(np.arange(count, 0, -count / steps))[:steps] - 1
    limited: Array = np.minimum(timesteps, count - 1)
    return limited


def spaced_sigmas(spacing: str, low: float, high: float, steps: int) -> Array:
    """Return `steps` sigmas from `high` down to `low`; float64.

    karras: Karras et al. 2022 (arXiv:2206.00364), equation 5 with rho 7. exponential, and lu (Lu et al. 2022,
    arXiv:2211.01095, section 5): even in log sigma. beta: quantiles of Beta(0.6, 0.6), Lee et al. 2024
    (arXiv:2407.12173).
    """
    ramp = np.linspace(0, 1, steps)
    if spacing == "karras":
        sigmas: Array = (high ** (1 / 7) + ramp * (low ** (1 / 7) - high ** (1 / 7))) ** 7
        return sigmas
    if spacing in ("exponential", "lu"):
        return np.exp(math.log(high) + ramp * (math.log(low) - math.log(high)))
    return low + np.array([beta_quantile(1 - share, 0.6, 0.6) for share in ramp.tolist()]) * (high - low)
