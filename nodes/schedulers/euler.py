"""Euler's method and its ancestral relative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Range
from nodes.schedulers.levels import Levels
from nodes.schedulers.prediction import denoised_weights, fitting
from nodes.schedulers.sampler import DenoiseCall, Sampling, SamplingJob, scheduler, start_latent
from nodes.schedulers.schedule import (
    FINAL_HELP,
    OFFSET_RANGE,
    SPACING_HELP,
    TimestepSpacing,
    Training,
    spaced_sigmas,
    spaced_timesteps,
)

MAX_CHURN = math.sqrt(2) - 1
"""Most that churn may raise a sigma by, as a part of it (Karras et al. 2022, algorithm 2)."""


@dataclass(frozen=True, slots=True)
class EulerSchedule(Training):
    """The noise levels of a run: at the timesteps, spread by a rule of their own, or given."""

    timestep_spacing: Annotated[TimestepSpacing, SPACING_HELP] = "linspace"
    steps_offset: Annotated[int, OFFSET_RANGE] = 0
    sigma_spacing: Annotated[
        Literal["default", "karras", "exponential", "beta"],
        Help("default takes the noise levels at the timesteps; the others spread the levels themselves"),
    ] = "default"
    sigma_min: Annotated[float, Range(0, 1e6, 0.001, help="Least noise of karras, exponential, beta; 0: as is")] = 0.0
    sigma_max: Annotated[float, Range(0, 1e6, 0.1, help="Most noise of karras, exponential, beta; 0: as is")] = 0.0
    final_sigmas_type: Annotated[Literal["zero", "sigma_min"], FINAL_HELP] = "zero"
    interpolation_type: Annotated[
        Literal["linear", "log_linear"],
        Help("linear: noise at the timesteps; log_linear: even in log sigma over the whole training"),
    ] = "linear"
    timestep_type: Annotated[
        Literal["discrete", "continuous"], Help("continuous: a v_prediction denoiser hears 0.25 log sigma")
    ] = "discrete"
    sigmas: Annotated[
        list[float] | None, Help("Explicit noise levels, one more than steps, falling; the last may be 0")
    ] = None

    def levels(self, steps: int, timesteps: Sequence[float] | None = None) -> Levels:
        """See Schedule."""
        sigmas, hears = self._sigmas(steps, timesteps)
        if self.timestep_type == "continuous" and self.prediction_type == "v_prediction":
            hears = 0.25 * np.log(sigmas[:-1])
        most = float(sigmas.max())
        # diffusers counts the clean latent's variance in, where the highest timestep is left out.
        initial = math.hypot(most, 1) if self.timestep_spacing == "leading" else most
        return Levels(tuple(hears.tolist()), (1.0,) * (steps + 1), tuple(sigmas.tolist()), initial)

    def _sigmas(self, steps: int, timesteps: Sequence[float] | None) -> tuple[Array, Array]:
        """Return steps + 1 sigmas and their timesteps."""
        if timesteps is not None:
            hears = self.given_timesteps(timesteps)
            return np.append(self.sigmas_at(hears), self._final_sigma), hears
        if self.sigmas is not None:
            given = self._given_sigmas(steps)
            return given, self.timesteps_at(given[:-1])
        self.check_steps(steps)
        hears = spaced_timesteps(steps, self.num_train_timesteps, self.timestep_spacing, self.steps_offset)
        if self.interpolation_type == "log_linear":
            least, most = (float(self.training_sigmas[index]) for index in (0, -1))
            sigmas = spaced_sigmas("exponential", least, most, steps + 1)
        else:
            sigmas = self.sigmas_at(hears)
        if self.sigma_spacing != "default":
            low, high = self.sigma_min or float(sigmas[-1]), self.sigma_max or float(sigmas[0])
            if low > high:
                fix = "lower it, or raise sigma_max"
                raise InputError("sigma_min", found=low, accepted=f"at most sigma_max, {high:g}", fix=fix)
            sigmas = spaced_sigmas(self.sigma_spacing, low, high, steps)
            hears = self.timesteps_at(sigmas)
        return np.append(sigmas, self._final_sigma)[: steps + 1], hears

    @property
    def _final_sigma(self) -> float:
        return 0.0 if self.final_sigmas_type == "zero" else float(self.training_sigmas[0])

    def _given_sigmas(self, steps: int) -> Array:
        given = np.array(self.sigmas, float)
        if len(given) != steps + 1:
            fix = "give one for the start of each step and one for the end"
            raise InputError("sigmas", found=f"{len(given)} sigmas", accepted=f"{steps + 1} for {steps} steps", fix=fix)
        if not (given[:-1] > 0).all() or given[-1] < 0:
            raise InputError("sigmas", found=given.tolist(), accepted="positive, the last 0 or more", fix="change them")
        return given


@scheduler(kind="euler", name="EulerScheduler", search_aliases=("sampler", "discrete", "karras"))
def euler(
    job: SamplingJob,
    schedule: EulerSchedule,
    s_churn: Annotated[float, Range(0, 1000, 0.1, help="How much noise is put back in all; 0: none")] = 0.0,
    s_tmin: Annotated[float, Range(0, 1e9, 0.01, help="Least sigma at which noise is put back")] = 0.0,
    s_tmax: Annotated[float, Range(0, 1e9, 0.1, help="Greatest sigma at which noise is put back")] = 1e9,
    s_noise: Annotated[float, Range(0, 10, 0.001, help="Standard deviation of the noise put back")] = 1.0,
) -> Sampling:
    """Euler's method on the probability flow (Karras et al. 2022, arXiv:2206.00364, algorithm 2 without correction).

    Churn puts its noise in after the denoiser has seen the sample, as diffusers does.
    """
    levels = schedule.levels(job.steps, job.timesteps)
    x = start_latent(job, levels)
    for step in range(job.start_step, job.steps):
        sigma, sigma_next = levels.noise[step], levels.noise[step + 1]
        raw = fitting((yield DenoiseCall(x * (1 / math.hypot(1, sigma)), levels.timesteps[step], step, sigma)), x)
        if s_churn and s_tmin <= sigma <= s_tmax:
            raised = sigma * (1 + min(s_churn / job.steps, MAX_CHURN))
            x = x + s_noise * math.sqrt(raised**2 - sigma**2) * job.noise_of_step(step)
            sigma = raised
        of_x, of_raw = _weights(schedule.prediction_type, sigma, sigma_next)
        x = of_x * x + of_raw * raw
    return x


def _weights(prediction_type: str, sigma: float, sigma_next: float) -> tuple[float, float]:
    """Return what an Euler step from sigma to sigma_next takes of x and of the denoiser's output.

    The step is `x + (sigma_next - sigma) / sigma * (x - denoised)`. Summed up before it meets float32, so that nothing
    is lost where a sigma of 20000 meets one of 2.
    """
    alpha = 1 / math.hypot(1, sigma)
    of_x, of_raw = denoised_weights(prediction_type, alpha, sigma * alpha)
    kept = sigma_next / sigma
    return kept + (1 - kept) * of_x * alpha, (1 - kept) * of_raw


@scheduler(kind="euler_ancestral", search_aliases=("sampler", "euler a", "karras"))
def euler_ancestral(job: SamplingJob, schedule: EulerSchedule) -> Sampling:
    """Euler's method with fresh noise: a step goes below its level and noise brings it back up.

    With s and s' the sigmas of both ends, noise up^2 = s'^2 (s^2 - s'^2) / s^2 and the step ends at
    down^2 = s'^2 - up^2, the posterior of Ho et al. 2020 (arXiv:2006.11239, equation 7) in terms of sigma.
    """
    levels = schedule.levels(job.steps, job.timesteps)
    x = start_latent(job, levels)
    for step in range(job.start_step, job.steps):
        sigma, sigma_next = levels.noise[step], levels.noise[step + 1]
        raw = fitting((yield DenoiseCall(x * (1 / math.hypot(1, sigma)), levels.timesteps[step], step, sigma)), x)
        up = sigma_next * math.sqrt(max(0.0, 1 - (sigma_next / sigma) ** 2))
        of_x, of_raw = _weights(schedule.prediction_type, sigma, math.sqrt(max(0.0, sigma_next**2 - up**2)))
        x = of_x * x + of_raw * raw + up * job.noise_of_step(step)
    return x
