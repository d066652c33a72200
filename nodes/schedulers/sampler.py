"""What every sampler is: a generator that asks for predictions and returns the final latent.

Write one as `tests/nodes/test_schedulers.py` does: a generator function under `@scheduler(kind=...)`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from app.graph import socket
from app.graph.errors import InputError, WorkflowError
from app.graph.node import (
    Array,
    FunctionInstance,
    InputPort,
    NodeInstance,
    NodeType,
    OutputPort,
    Ports,
    input_port,
    is_dataclass_type,
    ports_of_dataclass,
    title_of,
)
from app.graph.registry import unknown_name
from nodes.noise import NoiseSource
from nodes.schedulers.levels import Levels, Schedule
from nodes.schedulers.prediction import raw_for as raw_for


@dataclass(frozen=True, slots=True)
class DenoiseCall:
    """One call of the denoiser.

    sample: what the denoiser sees, scaled for its noise level; float32 [B, ...], int64 for masked diffusion.
    timestep: what the denoiser was trained to hear at this noise level.
    step: number of the step in the whole schedule, from 0.
    sigma: noise over signal, 0 to infinity; 0.0 for masked diffusion.
    uncond_sample: what the negative lane sees, where that differs.
    """

    sample: Array
    timestep: float
    step: int
    sigma: float
    uncond_sample: Array | None = None


@dataclass
class SamplingJob:
    """What one run of a sampler is given.

    latent: start, float32 [B, ...] (int64 [S] or [B, S] for masked diffusion).
    steps, start_step: length of the schedule, and the first step to run.
    timesteps: explicit timesteps, one for each step; None for the scheduler's own.
    add_noise: False when the latent is already noised to start_step.
    noise: where noise comes from that is not given.
    initial_noise: noise to start from, shaped like the latent.
    step_noise: [steps or steps - 1, *latent.shape], indexed by the number of the step.
    guided: whether there is a negative lane.
    """

    latent: Array
    steps: int
    start_step: int
    timesteps: tuple[float, ...] | None
    add_noise: bool
    noise: NoiseSource
    initial_noise: Array | None
    step_noise: Array | None
    guided: bool

    def noise_of_step(self, step: int) -> Array:
        """Return float32 noise of a step, given or drawn. The last step of steps - 1 given ones has none: zeros."""
        if self.step_noise is None:
            return self.noise.normal(self.latent.shape)
        if step < len(self.step_noise):
            given: Array = np.asarray(self.step_noise[step], np.float32)
            return given
        return np.zeros(self.latent.shape, np.float32)


Sampling: TypeAlias = Generator[DenoiseCall, Array, Array]
"""Yields calls, receives the denoiser's raw guided output for each, returns the final latent."""


@dataclass(frozen=True, eq=False)
class Sampler:
    """What flows on a SAMPLER wire: a scheduler with its options, good for any number of runs.

    kind: registered name, e.g. "ddim". prediction_type: what the denoiser predicts; "" for masked diffusion.
    function: the sampler's generator function. arguments: its arguments besides the job.
    schedule: the one of its arguments that tells noise levels; None for masked diffusion.
    """

    kind: str
    prediction_type: str
    function: Callable[..., Sampling]
    arguments: Mapping[str, Any]
    schedule: Schedule | None

    def start(self, job: SamplingJob) -> Sampling:
        """Return a fresh run. Raises InputError when the job's parts do not fit each other."""
        _check_job(job)
        if job.start_step == job.steps:
            return _unchanged(job.latent)
        return self.function(job, **self.arguments)

    def add_noise(
        self, latent: Array, noise: Array, step: int, steps: int, timesteps: Sequence[float] | None = None
    ) -> Array:
        """Return a clean latent noised to the level where step `step` of `steps` starts; float32.

        latent, noise: float32 [B, ...] of equal shapes. step: 0 to steps; at `steps` the latent comes back unchanged.
        Raises InputError for masked diffusion, a step outside and shapes that differ.
        """
        if self.schedule is None:
            fix = "give masked tokens to the loop instead"
            raise InputError("scheduler", found=self.kind, accepted="a scheduler with noise levels", fix=fix)
        if not 0 <= step <= steps:
            raise InputError("step", found=step, accepted=f"0 to {steps}", fix="lower it, or raise steps")
        if noise.shape != latent.shape:
            _refuse_shape("noise", noise.shape, latent.shape)
        latent, noise = np.asarray(latent, np.float32), np.asarray(noise, np.float32)
        return self.schedule.levels(steps, timesteps).noised(latent, noise, step)

    def timesteps(self, steps: int) -> tuple[float, ...]:
        """Return the timesteps of a run; the numbers of the steps for masked diffusion."""
        return tuple(map(float, range(steps))) if self.schedule is None else self.schedule.levels(steps).timesteps

    def sigmas(self, steps: int) -> tuple[float, ...]:
        """Return noise over signal at the start of each step and at the end; zeros for masked diffusion."""
        return (0.0,) * (steps + 1) if self.schedule is None else self.schedule.levels(steps).sigmas


def _unchanged(latent: Array) -> Sampling:
    """A run without steps."""
    yield from ()
    return latent


def _check_job(job: SamplingJob) -> None:
    if job.steps < 0:
        raise InputError("steps", found=job.steps, accepted="0 or more", fix="raise it")
    if not 0 <= job.start_step <= job.steps:
        raise InputError("start_step", found=job.start_step, accepted=f"0 to {job.steps}", fix="lower it")
    if job.timesteps is not None and len(job.timesteps) != job.steps:
        found, fix = f"{len(job.timesteps)} for {job.steps} steps", "give one timestep for each step"
        raise InputError("timesteps", found=found, accepted=job.steps, fix=fix)
    shape = job.latent.shape
    if job.initial_noise is not None and job.initial_noise.shape != shape:
        _refuse_shape("noise", job.initial_noise.shape, shape)
    given = job.step_noise
    if given is not None and (given.shape[1:] != shape or given.shape[0] not in (job.steps, job.steps - 1)):
        _refuse_shape("step_noise", given.shape, (job.steps, *shape))


def _refuse_shape(input: str, found: tuple[int, ...], accepted: tuple[int, ...]) -> None:
    fix = "give noise of the latent's shape, or leave it out to have it drawn from the seed"
    raise InputError(input, found=f"shape {list(found)}", accepted=str(list(accepted)), fix=fix)


def start_latent(job: SamplingJob, levels: Levels) -> Array:
    """Return the sample that a run starts from, float32.

    Noise alone at step 0, the latent noised to a later first step, or the latent as it is without `add_noise`.
    """
    latent = np.asarray(job.latent, np.float32)
    if not job.add_noise:
        return latent
    normal = job.noise.normal(latent.shape) if job.initial_noise is None else job.initial_noise
    normal = np.asarray(normal, np.float32)
    return normal * levels.initial if job.start_step == 0 else levels.noised(latent, normal, job.start_step)


@dataclass(frozen=True, slots=True)
class SchedulerKind:
    """A registered scheduler: its kind, its generator function and the node type made of it."""

    kind: str
    function: Callable[..., Sampling]
    node_type: NodeType


_kinds: dict[str, SchedulerKind] = {}

F = TypeVar("F", bound=Callable[..., Sampling])


def _output(gives_pair: bool) -> OutputPort:
    return OutputPort("sampler", socket.SAMPLER, "the sampler, for a Denoise Loop", gives_pair=gives_pair)


def scheduler(
    *,
    kind: str,
    name: str = "",
    display_name: str = "",
    version: int = 1,
    search_aliases: Sequence[str] = (),
    gives_pair: bool = False,
) -> Callable[[F], F]:
    """Register a generator function as a scheduler, and make a node type of it, found on it as `node_type`.

    The first parameter is the SamplingJob. The others become inputs of the node, as `@node` makes them; a parameter
    that is a frozen dataclass spreads into its fields, and one with a `levels` method tells the noise levels.
    kind: name in configs, e.g. "ddim". name: the node type's; by default the kind in camel case, with "Scheduler".
    gives_pair: its samples are guidance pairs, with an unconditional lane of its own.
    Raises ValueError when another module has the kind, TypeError for annotations that are no socket types.
    """

    def decorate(function: F) -> F:
        known = _kinds.get(kind)
        if known is not None and known.node_type.source != function.__module__:
            raise ValueError(f"scheduler {kind!r} of {function.__module__} already comes from {known.node_type.source}")
        type_name = name or "".join(part.capitalize() for part in kind.split("_")) + "Scheduler"
        inputs, spread = _inputs_of(function)

        def build(**arguments: Any) -> Sampler:
            made = _sampler(kind, function, arguments, spread)
            _check_choices(inputs, made.arguments, spread)
            return made

        def prepare(context: Any, literals: Mapping[str, Any]) -> NodeInstance:
            return FunctionInstance(build, None, spread)

        function.node_type = node_type = NodeType(  # type: ignore[attr-defined]
            name=type_name,
            display_name=display_name or title_of(type_name),
            category="schedulers",
            help=inspect.getdoc(function) or "",
            version=version,
            ports=Ports(inputs, (_output(gives_pair),)),
            prepare=prepare,
            source=function.__module__,
            search_aliases=tuple(search_aliases),
        )
        _kinds[kind] = SchedulerKind(kind, function, node_type)
        return function

    return decorate


Spread: TypeAlias = dict[str, tuple[type, tuple[str, ...]]]


def _inputs_of(function: Callable[..., Sampling]) -> tuple[tuple[InputPort, ...], Spread]:
    """Return the inputs that the parameters after the job describe, and which of them make up a dataclass."""
    hints = typing.get_type_hints(function, include_extras=True)
    inputs: list[InputPort] = []
    spread: Spread = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        annotation = hints[parameter.name]
        if is_dataclass_type(annotation):
            ports = ports_of_dataclass(annotation)
            spread[parameter.name] = (annotation, tuple(port.name for port in ports))
            inputs.extend(ports)
        else:
            inputs.append(input_port(parameter.name, annotation, parameter.default))
    return tuple(inputs), spread


def _sampler(kind: str, function: Callable[..., Sampling], arguments: dict[str, Any], spread: Spread) -> Sampler:
    arguments = {parameter: cls() for parameter, (cls, _) in spread.items() if parameter not in arguments} | arguments
    schedule = next((value for value in arguments.values() if hasattr(value, "levels")), None)
    prediction_type = getattr(schedule, "prediction_type", "")
    return Sampler(kind, prediction_type, function, arguments, schedule)


def _check_choices(inputs: Sequence[InputPort], arguments: Mapping[str, Any], spread: Spread) -> None:
    """Raise InputError for a word that is none of its input's: one that came by wire has not been checked yet."""
    fields = {name: getattr(arguments[owner], name) for owner, (_, names) in spread.items() for name in names}
    values = {**arguments, **fields}
    for port in inputs:
        if port.choices and (value := values.get(port.name, port.default)) not in port.choices:
            accepted, fix = f"one of {', '.join(port.choices)}", "use one of them"
            raise InputError(port.name, found=repr(value), accepted=accepted, fix=fix, code="not_in_choices")


def scheduler_by_kind(kind: str) -> SchedulerKind:
    """Return a registered scheduler. Raises WorkflowError for an unknown kind, naming its nearest neighbours."""
    if kind not in _kinds:
        raise WorkflowError.of(unknown_name("scheduler", kind, _kinds), "unknown_scheduler")
    return _kinds[kind]
