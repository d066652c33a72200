"""The Denoise Loop: a sampler's loop, opened up so that its body is a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.engine.lanes import Pair
from app.engine.loop import LoopDriver
from app.graph import socket
from app.graph.errors import InputError
from app.graph.node import Array, InputPort, OutputPort, Ports
from nodes.guidance import guide
from nodes.loops.loop_type import LoopBase, loop_type, names_in
from nodes.noise import NoiseSource
from nodes.schedulers.sampler import DenoiseCall, Sampler, Sampling, SamplingJob

MAX_STEPS = 10_000

_STEPS_HELP = "how many steps the whole schedule has"
_START_HELP = "first step to run; more than 0 starts from the latent noised to that step (image to image)"
_TIMESTEPS_HELP = "explicit timesteps, one for each step, instead of the scheduler's own"
_STEP_NOISE_HELP = "noise for each step of an ancestral sampler, [steps, *latent shape], instead of seeded noise"
_ADD_NOISE_HELP = "off: the latent is already noised to start_step and is used as it is"
_ZERO_HELP = "allow a loop of zero steps (start_step = steps), which gives the latent back unchanged"


def ports_of(literals: Mapping[str, Any]) -> Ports:
    """Return the ports of a Denoise Loop: four for each extra loop-carried tensor besides the first.

    Raises InputError when `extra_samples` is not a list of names.
    """
    extras = names_in(literals, "extra_samples")
    inputs = [
        InputPort(
            "scheduler",
            socket.SAMPLER,
            "sampler that leads the loop; without one the prediction is the next sample",
            required=False,
            pair="refuse",
        ),
        InputPort("latent", socket.TENSOR, "start: an empty latent, an encoded picture, masked tokens", pair="refuse"),
        InputPort(
            "prediction",
            socket.TENSOR,
            "what the denoiser makes of this step's sample",
            role="feedback",
            pair="accept",
            cfg="cfg",
        ),
        InputPort("steps", socket.INT, _STEPS_HELP, False, 20, 0, MAX_STEPS, 1),
        InputPort(
            "cfg",
            socket.FLOAT,
            "guidance scale; 1 runs the positive lane alone",
            False,
            1.0,
            0,
            100,
            0.1,
            role="steerable",
        ),
        InputPort("start_step", socket.INT, _START_HELP, False, 0, 0, MAX_STEPS, 1),
        InputPort("seed", socket.INT, "seed of all noise in this loop", False, 0, 0, 2**64 - 1, 1, widget="seed"),
        InputPort(
            "noise_kind",
            socket.STRING,
            "generator behind the seed; torch gives the numbers of PyTorch's CPU generator",
            False,
            "philox",
            choices=("philox", "torch"),
        ),
        InputPort("noise", socket.TENSOR, "noise to start from, instead of seeded noise", False, pair="refuse"),
        InputPort("step_noise", socket.TENSOR, _STEP_NOISE_HELP, False, pair="refuse"),
        InputPort("timesteps", socket.LIST, _TIMESTEPS_HELP, False),
        InputPort("add_noise", socket.BOOLEAN, _ADD_NOISE_HELP, False, True),
        InputPort("allow_zero_steps", socket.BOOLEAN, _ZERO_HELP, False, False),
        InputPort(
            "extra_samples",
            socket.STRING,
            "names of further loop-carried tensors, separated by commas",
            False,
            "",
            literal_only=True,
        ),
    ]
    per_step = [
        OutputPort("sample", socket.TENSOR, "what the denoiser sees, scaled for its noise level", True),
        OutputPort("timestep", socket.FLOAT, "timestep of this call", True),
        OutputPort("step", socket.INT, "number of this step, from 0", True),
        OutputPort("sigma", socket.FLOAT, "noise level: standard deviation of noise over signal", True),
    ]
    results = [
        OutputPort("latent", socket.TENSOR, "final latent"),
        OutputPort("last_prediction", socket.TENSOR, "guided prediction of the last step"),
    ]
    for name in extras:
        inputs += [
            InputPort(f"latent_{name}", socket.TENSOR, f"start of {name}", pair="refuse"),
            InputPort(
                f"prediction_{name}",
                socket.TENSOR,
                f"what the denoiser makes of {name}",
                role="feedback",
                pair="accept",
                cfg="cfg",
            ),
            InputPort(f"noise_{name}", socket.TENSOR, f"noise to start {name} from", False, pair="refuse"),
        ]
        per_step.append(OutputPort(f"sample_{name}", socket.TENSOR, f"what the denoiser sees of {name}", True))
        results += [
            OutputPort(f"latent_{name}", socket.TENSOR, f"final {name}"),
            OutputPort(f"last_prediction_{name}", socket.TENSOR, f"guided prediction of {name} in the last step"),
        ]
    return Ports(tuple(inputs), (*per_step, *results))


def check(literals: Mapping[str, Any]) -> None:
    """Refuse step counts that cannot be run, as far as they are literal. Raises InputError."""
    steps, start = literals.get("steps"), literals.get("start_step")
    timesteps, zero = literals.get("timesteps"), bool(literals.get("allow_zero_steps", False))
    if isinstance(timesteps, list) and not all(_is_number(timestep) for timestep in timesteps):
        fix = "write e.g. [999, 666, 333]"
        raise InputError("timesteps", found=repr(timesteps)[:60], accepted="a list of finite numbers", fix=fix)
    if isinstance(timesteps, list) and isinstance(steps, int) and len(timesteps) != steps:
        raise InputError(
            "steps",
            found=f"{steps} with {len(timesteps)} explicit timesteps",
            accepted=str(len(timesteps)),
            fix="change the timesteps, or unset them to let the scheduler choose",
            code="steps_fixed",
        )
    if isinstance(steps, int) and steps == 0 and not zero:
        fix = "raise it, or turn allow_zero_steps on to get the latent back unchanged"
        raise InputError("steps", found=0, accepted=f"1 to {MAX_STEPS}", fix=fix, code="out_of_range")
    if isinstance(steps, int) and isinstance(start, int) and (start > steps or (start == steps and not zero)):
        fix = "lower it, or raise steps"
        accepted = f"0 to {steps if zero else steps - 1} (below steps)"
        raise InputError("start_step", found=start, accepted=accepted, fix=fix, code="out_of_range")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class DenoiseLoop(LoopBase):
    """Run a denoiser step by step under a sampler's lead.

    Wire `sample` and `timestep` into the denoiser and its output back into `prediction`: everything on that path is
    the body and runs on every step. What hangs off the body without feeding back (a preview) runs on every step too.
    When the prediction is a guidance pair, it is folded here: uncond + cfg * (cond - uncond).
    """

    def run_loop(self, loop: LoopDriver, inputs: dict[str, Any]) -> Sequence[Any]:
        """See LoopInstance. Raises InputError when the prediction is unusable, naming the step."""
        check(inputs)
        steps = int(inputs["steps"])
        names = ("", *(f"_{name}" for name in names_in(inputs, "extra_samples")))
        noise = NoiseSource(inputs["noise_kind"], int(inputs["seed"]))
        scheduler: Sampler | None = inputs.get("scheduler")
        samplings = [_start(scheduler, _job(inputs, name, noise)) for name in names]
        finals: list[Any] = [None] * len(names)
        predictions: list[Any] = [None] * len(names)
        calls = [_advance(sampling, None, finals, index) for index, sampling in enumerate(samplings)]
        while (call := calls[0]) is not None:
            samples = [_sample(each, loop) for each in calls if each is not None]
            loop.run_body([samples[0], call.timestep, call.step, call.sigma, *samples[1:]], call.step)
            cfg = loop.steer("cfg")
            for index, name in enumerate(names):
                raw = guide(loop.feedback(f"prediction{name}"), cfg, f"prediction{name}")
                predictions[index] = _usable(raw, f"prediction{name}", call.step, steps)
                calls[index] = _advance(samplings[index], predictions[index], finals, index)
            following = calls[0]
            if following is None or following.step != call.step:
                loop.step_done(call.step + 1, steps)
        results: list[Any] = []
        for final, prediction in zip(finals, predictions, strict=True):
            results += [final, np.zeros_like(final) if prediction is None else prediction]
        return results


def _job(inputs: Mapping[str, Any], name: str, noise: NoiseSource) -> SamplingJob:
    timesteps = inputs.get("timesteps")
    return SamplingJob(
        latent=np.asarray(inputs[f"latent{name}"]),
        steps=int(inputs["steps"]),
        start_step=int(inputs["start_step"]),
        timesteps=None if timesteps is None else tuple(map(float, timesteps)),
        add_noise=bool(inputs["add_noise"]),
        noise=noise,
        initial_noise=inputs.get(f"noise{name}"),
        step_noise=inputs.get("step_noise"),
        guided=True,
    )


def _start(scheduler: Sampler | None, job: SamplingJob) -> Sampling:
    return _feed_back(job) if scheduler is None else scheduler.start(job)


def _feed_back(job: SamplingJob) -> Sampling:
    """Without a scheduler there is no noise level: each prediction is the next sample."""
    x = job.latent
    for step in range(job.start_step, job.steps):
        timestep = job.timesteps[step] if job.timesteps else float(step)
        x = yield DenoiseCall(x, timestep, step, 0.0)
    return x


def _advance(sampling: Sampling, prediction: Array | None, finals: list[Any], index: int) -> DenoiseCall | None:
    """Return the sampler's next call, or None after putting its final latent into `finals`."""
    try:
        return next(sampling) if prediction is None else sampling.send(prediction)
    except StopIteration as stop:
        finals[index] = stop.value
        return None


def _sample(call: DenoiseCall, loop: LoopDriver) -> Any:
    """Return the sample, paired when the sampler has an unconditional one of its own (masked diffusion)."""
    return call.sample if call.uncond_sample is None else Pair(call.sample, call.uncond_sample)


def _usable(value: Any, input: str, step: int, steps: int) -> Array:
    """Return the prediction as the sampler takes it. Raises InputError when it is no tensor or not finite."""
    if not isinstance(value, np.ndarray):
        found = type(value).__name__
        raise InputError(input, found=found, accepted="a tensor", fix="wire the denoiser's output here")
    prediction: Array = value
    if prediction.dtype.kind not in "iub":
        if prediction.dtype != np.float32:
            prediction = prediction.astype(np.float32)
        # The sum of squares tells in the usual case, in one pass and without a warning of numpy's. It may overflow
        # where no value does, so only the full look decides.
        if not math.isfinite(np.vdot(prediction, prediction)) and not np.isfinite(prediction).all():
            bad = prediction.size - int(np.isfinite(prediction).sum())
            raise InputError(
                input,
                found=f"{bad} of {prediction.size} values NaN or infinite at step {step + 1} of {steps}",
                accepted="finite values",
                fix="use a lower cfg, or a float32 export of the model if it is float16",
                code="not_finite",
            )
    return prediction


DENOISE_LOOP = loop_type(
    name="DenoiseLoop",
    display_name="Denoise Loop",
    instance=DenoiseLoop,
    ports_of=ports_of,
    check=check,
    search_aliases=("KSampler", "sampler", "diffusion"),
)
