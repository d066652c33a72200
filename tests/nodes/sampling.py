"""Runs of a sampler without a graph around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.graph.node import Array
from nodes.noise import NoiseSource
from nodes.schedulers import ddim, dpmpp, euler, masked_diffusion  # noqa: F401 - they register themselves
from nodes.schedulers.sampler import DenoiseCall, Sampler, SamplingJob, scheduler_by_kind

Denoiser = Callable[[DenoiseCall], Array]


def sampler(kind: str, **inputs: Any) -> Sampler:
    """Return what the scheduler's node gives for these inputs."""
    (made,) = scheduler_by_kind(kind).node_type.prepare(None, {}).run(inputs, 0)
    return made


def job(latent: Array, steps: int, *, seed: int = 0, **others: Any) -> SamplingJob:
    """Return a job; the latent is taken as it is unless `add_noise` says otherwise."""
    defaults: dict[str, Any] = {
        "start_step": 0,
        "timesteps": None,
        "add_noise": False,
        "noise": NoiseSource("philox", seed),
        "initial_noise": None,
        "step_noise": None,
        "guided": False,
    }
    return SamplingJob(latent=latent, steps=steps, **(defaults | others))


def run(made: Sampler, given: SamplingJob, denoise: Denoiser) -> tuple[Array, list[DenoiseCall]]:
    """Return the final latent and all calls."""
    sampling = made.start(given)
    calls: list[DenoiseCall] = []
    try:
        calls.append(next(sampling))
        while True:
            calls.append(sampling.send(denoise(calls[-1])))
    except StopIteration as stop:
        return stop.value, calls
