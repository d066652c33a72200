"""DPM-Solver++ of several steps, with its relatives for noise and for the stochastic equation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Range
from nodes.schedulers.levels import Levels
from nodes.schedulers.multistep import MultistepWeights, step_weights
from nodes.schedulers.prediction import Prediction, fitting
from nodes.schedulers.sampler import DenoiseCall, Sampling, SamplingJob, scheduler, start_latent
from nodes.schedulers.schedule import FINAL_HELP, OFFSET_RANGE, SPACING_HELP, Betas, TimestepSpacing, spaced_sigmas
from nodes.schedulers.threshold import Threshold

FEW_STEPS = 15
"""Below this many steps the last ones are of lower order, as the authors' code does for stability."""


@dataclass(frozen=True, slots=True)
class DPMSchedule(Betas):
    """The noise levels of a run: at whole timesteps, or spread by a rule of their own."""

    prediction_type: Annotated[
        Literal["epsilon", "v_prediction", "sample", "flow"],
        Help("What the denoiser predicts: noise, v, the clean latent, or flow (noise less the clean latent)"),
    ] = "epsilon"
    timestep_spacing: Annotated[TimestepSpacing, SPACING_HELP] = "linspace"
    steps_offset: Annotated[int, OFFSET_RANGE] = 0
    sigma_spacing: Annotated[
        Literal["default", "karras", "exponential", "beta", "lu", "flow"],
        Help("default takes the noise levels at the timesteps; the others spread the levels themselves; flow: a line"),
    ] = "default"
    flow_shift: Annotated[float, Range(0.01, 100, 0.1, help="Above 1 flow spends more of its steps on much noise")] = (
        1.0
    )
    final_sigmas_type: Annotated[Literal["zero", "sigma_min"], FINAL_HELP] = "zero"
    lambda_min_clipped: Annotated[
        float | None, Help("Least log of signal over noise to start from, e.g. -5.1 for squaredcos_cap_v2")
    ] = None

    def levels(self, steps: int, timesteps: Sequence[float] | None = None) -> Levels:
        """See Schedule. Timesteps are whole, unless given."""
        if (self.sigma_spacing == "flow") != (self.prediction_type == "flow"):
            found = f"{self.prediction_type} with sigma_spacing {self.sigma_spacing}"
            fix = "set both to flow for a flow model, else neither"
            raise InputError("prediction_type", found=found, accepted="flow in both or in none", fix=fix)
        if self.sigma_spacing == "flow":
            return self._flow_levels(steps, timesteps)
        if timesteps is not None:
            hears = self.given_timesteps(timesteps)
            sigmas = self.sigmas_at(hears)
        elif self.sigma_spacing == "default":
            self.check_steps(steps)
            hears = self._spaced(steps)
            sigmas = self.sigmas_at(hears)
        else:
            self.check_steps(steps)
            low, high = (float(self.training_sigmas[index]) for index in (0, -1))
            sigmas = spaced_sigmas(self.sigma_spacing, low, high, steps)
            hears = self._whole(self.timesteps_at(sigmas))
        final = 0.0 if self.final_sigmas_type == "zero" else float(self.training_sigmas[0])
        sigmas = np.append(sigmas, final)
        signal = 1 / np.hypot(1, sigmas)
        return Levels(tuple(hears.tolist()), tuple(signal.tolist()), tuple((sigmas * signal).tolist()))

    def _flow_levels(self, steps: int, timesteps: Sequence[float] | None) -> Levels:
        """Return levels on the line from the clean latent to noise (Liu et al. 2022, arXiv:2209.03003).

        The share of noise is timestep / num_train_timesteps, shifted as in Esser et al. 2024 (arXiv:2403.03206,
        equation 23).
        """
        count = self.num_train_timesteps
        if timesteps is not None:
            hears = self.given_timesteps(timesteps)
            noise = np.maximum(hears, 1e-3) / count  # a step that starts without noise has no lambda
        else:
            self.check_steps(steps)
            even = np.linspace(1 - 1 / count, 0, steps + 1)[:-1]
            noise = self.flow_shift * even / (1 + (self.flow_shift - 1) * even)
            hears = np.floor(noise * count + 1e-6)
        noise = np.append(noise, 0.0 if self.final_sigmas_type == "zero" else noise[-1])
        return Levels(tuple(hears.tolist()), tuple((1 - noise).tolist()), tuple(noise.tolist()))

    def _whole(self, timesteps: Array) -> Array:
        """Return whole timesteps the way diffusers takes them, computed without its float32 error.

        It rounds those of karras and lu, but not for squaredcos_cap_v2, and cuts off what is not rounded.
        """
        if self.sigma_spacing in ("karras", "lu") and self.beta_schedule != "squaredcos_cap_v2":
            return np.round(timesteps)
        whole: Array = np.floor(timesteps + 1e-6)  # the error of interpolation must not turn 999 into 998
        return whole

    def _spaced(self, steps: int) -> Array:
        """Return whole timesteps from high to low; but for trailing, as if there were one step more, left out."""
        count = self.num_train_timesteps
        top = count
        if self.lambda_min_clipped is not None:
            top = int((-np.log(self.training_sigmas) >= self.lambda_min_clipped).sum())
            if top < steps:
                found, accepted = f"{self.lambda_min_clipped:g}, which leaves {top} timesteps", f"at least {steps} left"
                raise InputError("lambda_min_clipped", found=found, accepted=accepted, fix="lower it")
        if self.timestep_spacing == "linspace":
            return np.round(np.linspace(0, top - 1, steps + 1))[:0:-1]
        if self.timestep_spacing == "leading":
            whole = np.arange(steps, 0, -1) * float(max(1, top // (steps + 1))) + self.steps_offset
        else:
            whole = np.round(np.arange(top, 0, -top / steps))[:steps] - 1
        limited: Array = np.minimum(whole, count - 1)
        return limited


@scheduler(
    kind="dpmpp_2m",
    name="DPMPP2MScheduler",
    display_name="DPM++ 2M Scheduler",
    search_aliases=("sampler", "dpm solver", "multistep", "sde", "karras"),
)
def dpmpp_2m(
    job: SamplingJob,
    schedule: DPMSchedule,
    threshold: Threshold,
    solver_order: Annotated[int, Range(1, 3, 1, help="How many predictions a step draws on; 2 suits guidance")] = 2,
    algorithm_type: Annotated[
        Literal["dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"],
        Help("++ goes by the clean latent, else by its noise; sde adds fresh noise in each step"),
    ] = "dpmsolver++",
    solver_type: Annotated[Literal["midpoint", "heun"], Help("How the second order is taken")] = "midpoint",
    lower_order_final: Annotated[bool, Help("Lower the order of the last steps when there are less than 15")] = True,
    euler_at_final: Annotated[bool, Help("Take the last step at first order whatever the number of steps")] = False,
) -> Sampling:
    """DPM-Solver++ (2M) and its relatives: several predictions are carried on as a polynomial (Lu et al. 2022).

    arXiv:2211.01095, algorithm 2 and section 6; dpmsolver: arXiv:2206.00927.
    """
    by_noise = not algorithm_type.endswith("++")
    if by_noise and schedule.final_sigmas_type == "zero":
        fix = "use sigma_min, or an algorithm_type with ++"
        raise InputError("final_sigmas_type", found=f"zero with {algorithm_type}", accepted="sigma_min", fix=fix)
    levels = schedule.levels(job.steps, job.timesteps)
    if algorithm_type.startswith("sde-") and any(after > before for before, after in pairwise(levels.noise)):
        fix = "sort them, or use an algorithm_type without sde"
        raise InputError("timesteps", found=f"rising ones with {algorithm_type}", accepted="falling ones", fix=fix)
    x = start_latent(job, levels)
    outputs: list[Array] = []
    ends_at_first_order = euler_at_final or schedule.final_sigmas_type == "zero"
    lowers = lower_order_final and job.steps < FEW_STEPS
    for step in range(job.start_step, job.steps):
        alpha, s = levels.signal[step], levels.noise[step]
        raw = fitting((yield DenoiseCall(x, levels.timesteps[step], step, s / alpha)), x)
        prediction = Prediction(schedule.prediction_type, x, raw, alpha, s)
        outputs = [_output(prediction, threshold, by_noise), *outputs[: solver_order - 1]]
        order = len(outputs)
        if step == job.steps - 1 and (ends_at_first_order or lowers):
            order = 1
        elif step == job.steps - 2 and lowers:
            order = min(order, 2)
        weights = step_weights(levels, step, order, algorithm_type, solver_type)
        x = _stepped(weights, x, outputs)
        if weights.fresh:
            x = x + weights.fresh * job.noise_of_step(step)
    return x


def _output(prediction: Prediction, threshold: Threshold, by_noise: bool) -> Array:
    """Return the clean latent, or the noise, in a prediction, after thresholding."""
    if not by_noise:
        return threshold(prediction.denoised)
    if not threshold.thresholding:
        return prediction.epsilon
    epsilon: Array = (prediction.x - prediction.alpha * threshold(prediction.denoised)) / prediction.s
    return epsilon


def _stepped(weights: MultistepWeights, x: Array, outputs: list[Array]) -> Array:
    x = weights.sample * x
    for weight, output in zip(weights.outputs, outputs, strict=False):
        x = x + weight * output
    return x
