"""DDIM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Range
from nodes.schedulers.levels import Levels
from nodes.schedulers.prediction import Prediction, fitting
from nodes.schedulers.sampler import DenoiseCall, Sampling, SamplingJob, scheduler, start_latent
from nodes.schedulers.schedule import OFFSET_RANGE, SPACING_HELP, TimestepSpacing, Training, spaced_timesteps
from nodes.schedulers.threshold import Threshold


@dataclass(frozen=True, slots=True)
class DDIMSchedule(Training):
    """The timesteps of a run of DDIM; they are whole unless given."""

    timestep_spacing: Annotated[TimestepSpacing, SPACING_HELP] = "leading"
    steps_offset: Annotated[int, OFFSET_RANGE] = 0
    set_alpha_to_one: Annotated[
        bool, Help("The last step ends without noise; off: at the noise of the training's first timestep")
    ] = True

    def levels(self, steps: int, timesteps: Sequence[float] | None = None) -> Levels:
        """See Schedule."""
        starts = self._timesteps(steps, timesteps)
        alphas = np.append(self._alphas_at(starts), 1.0 if self.set_alpha_to_one else self.alphas_cumprod[0])
        signal, noise = _shares(alphas)
        return Levels(tuple(starts.tolist()), signal, noise)

    def landings(self, steps: int, timesteps: Sequence[float] | None = None) -> Levels:
        """Return the level where each step lands.

        As in diffusers that is num_train_timesteps // steps below its start, so with linspace a step does not land
        quite where the next one starts; explicit timesteps land on each other.
        """
        starts = self._timesteps(steps, timesteps)
        ends = np.append(starts[1:], -1.0) if timesteps is not None else starts - self.num_train_timesteps // steps
        final = 1.0 if self.set_alpha_to_one else self.alphas_cumprod[0]
        signal, noise = _shares(np.where(ends < 0, final, self._alphas_at(ends)))
        return Levels(tuple(ends.tolist()), signal, noise)

    def _timesteps(self, steps: int, timesteps: Sequence[float] | None) -> Array:
        if timesteps is not None:
            return self.given_timesteps(timesteps)
        self.check_steps(steps)
        return np.round(spaced_timesteps(steps, self.num_train_timesteps, self.timestep_spacing, self.steps_offset))

    def _alphas_at(self, timesteps: Array) -> Array:
        return np.interp(timesteps, np.arange(self.num_train_timesteps), self.alphas_cumprod)


def _shares(alphas: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the shares of signal and noise for its share of the variance."""
    return tuple(np.sqrt(alphas).tolist()), tuple(np.sqrt(1 - alphas).tolist())


@scheduler(kind="ddim", name="DDIMScheduler", display_name="DDIM Scheduler", search_aliases=("sampler",))
def ddim(
    job: SamplingJob,
    schedule: DDIMSchedule,
    threshold: Threshold,
    eta: Annotated[float, Range(0, 1, 0.05, help="Fresh noise in each step: 0 none, 1 as much as DDPM")] = 0.0,
    clip_sample: Annotated[bool, Help("Cut the clean latent at a range; for models of pictures")] = False,
    clip_sample_range: Annotated[float, Range(0, 1000, 0.1, help="The range of clip_sample, to both sides")] = 1.0,
    use_clipped_model_output: Annotated[
        bool, Help("Take the noise from the clean latent after it was cut, not from the prediction")
    ] = False,
) -> Sampling:
    """Denoising diffusion implicit models: each step keeps its noise and goes to the next level (Song et al. 2020).

    arXiv:2010.02502, equations 12 and 16.
    """
    levels, landings = (make(job.steps, job.timesteps) for make in (schedule.levels, schedule.landings))
    x = start_latent(job, levels)
    for step in range(job.start_step, job.steps):
        alpha, s = levels.signal[step], levels.noise[step]
        if alpha == 0 and schedule.prediction_type == "epsilon":
            fix = "use a model trained for v_prediction, or turn rescale_betas_zero_snr off"
            raise InputError("prediction_type", found="epsilon at a level without signal", accepted="others", fix=fix)
        raw = fitting((yield DenoiseCall(x, levels.timesteps[step], step, s / alpha if alpha else math.inf)), x)
        prediction = Prediction(schedule.prediction_type, x, raw, alpha, s)
        denoised, epsilon = threshold(prediction.denoised), prediction.epsilon
        if clip_sample and not threshold.thresholding:
            denoised = denoised.clip(-clip_sample_range, clip_sample_range)
        if use_clipped_model_output:
            epsilon = (x - alpha * denoised) / s
        alpha_next, s_next = landings.signal[step], landings.noise[step]
        fresh = eta and eta * math.sqrt(max(0.0, (s_next / s) ** 2 * (1 - (alpha / alpha_next) ** 2)))
        x = alpha_next * denoised + math.sqrt(max(0.0, s_next**2 - fresh**2)) * epsilon
        if eta:
            x = x + fresh * job.noise_of_step(step)
    return x
