"""The recorded runs of diffusers' schedulers, and the same run with ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from app.graph.node import Array
from nodes.noise import NoiseSource
from nodes.schedulers import ddim, dpmpp, euler  # noqa: F401 - they register themselves
from nodes.schedulers.sampler import DenoiseCall, Sampler, SamplingJob, scheduler_by_kind

DATA = Path(__file__).parent / "data" / "schedulers"
KIND_BY_NAME = {"ddim": "ddim", "euler": "euler", "euler_a": "euler_ancestral", "dpmpp_2m": "dpmpp_2m"}
SPACING_BY_FLAG = {
    "use_karras_sigmas": "karras",
    "use_exponential_sigmas": "exponential",
    "use_beta_sigmas": "beta",
    "use_lu_lambdas": "lu",
    "use_flow_sigmas": "flow",
}


@dataclass(frozen=True)
class Case:
    """One recorded run.

    options: inputs of our scheduler node. final: float64 reference, elements `final_elements` of the flat latent.
    trajectory: float32 start and sample after each step, elements `picked`. sigmas: those recorded, or None.
    initial: standard deviation of the start; None for image to image. rounding: what float32 loses in diffusers.
    same_timesteps: whether diffusers in float32 hears the timesteps that it hears in float64.
    """

    name: str
    label: str
    options: dict[str, Any]
    steps: int
    start_step: int
    timesteps: Array
    explicit_timesteps: tuple[float, ...] | None
    sigmas: Array | None
    trajectory: Array
    final: Array
    final_elements: Any
    picked: Any
    model: str
    initial: float | None
    rounding: float
    same_timesteps: bool

    def __str__(self) -> str:
        return f"{self.name}-{self.label}"


@cache
def index() -> dict[str, Any]:
    return json.loads((DATA / "index.json").read_text())


@cache
def arrays(file: str) -> dict[str, Array]:
    with np.load(DATA / file) as archive:
        return dict(archive)


def options_of(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return our inputs for diffusers' keyword arguments: its flags are one choice here."""
    flags = [SPACING_BY_FLAG[flag] for flag in SPACING_BY_FLAG if kwargs.get(flag)]
    options = {key: value for key, value in kwargs.items() if key not in SPACING_BY_FLAG}
    if options.get("prediction_type") == "flow_prediction":
        options["prediction_type"] = "flow"
    return options | ({"sigma_spacing": flags[0]} if flags else {})


def core_cases(name: str) -> Iterator[Case]:
    entry = index()["schedulers"][name]
    data = arrays(entry["core"]["file"])
    for case in entry["core"]["cases"]:
        explicit = case.get("set_kwargs", {})
        options = options_of(case["kwargs"]) | case.get("step_kwargs", {})
        if "sigmas" in explicit:
            options["sigmas"] = explicit["sigmas"]
        timesteps = _part(data["timesteps"], case["timesteps"])
        timesteps_given = explicit.get("timesteps")
        yield Case(
            name,
            case["label"],
            options,
            case["steps"],
            case["steps"] - len(timesteps),
            timesteps,
            None if timesteps_given is None else tuple(map(float, timesteps_given)),
            _part(data["sigmas"], case["sigmas"]) if case["sigmas"] else None,
            _part(data["traj_f32"], case["traj"]),
            data["final_f64"][case["final"]],
            slice(None),
            slice(0, 64),
            case["model"],
            case["init_noise_sigma"],
            case["rel_f32_vs_f64"],
            case["f64_same_timesteps"],
        )


def grid_cases(name: str) -> Iterator[Case]:
    entry = index()["schedulers"][name]
    grid, values = entry["grid"], index()["axis_values"]
    data = arrays(grid["file"])
    for row, numbers in enumerate(grid["cases"]):
        column = dict(zip(grid["columns"], numbers, strict=True))
        chosen = {axis: values[axis][column[axis]] for axis in grid["axes"]}
        options = entry["fixed_kwargs"] | index()["beta_range"]
        options |= {"beta_schedule": chosen["beta"], "prediction_type": chosen["pred"]}
        options |= {"timestep_spacing": chosen["spacing"]}
        if chosen.get("sigmas", "default") != "default":
            options["sigma_spacing"] = chosen["sigmas"]
        trajectory = data["traj_f32"][column["tr_off"] : column["tr_off"] + column["tr_len"]]
        yield Case(
            name,
            "-".join(map(str, chosen.values())),
            options,
            chosen["steps"],
            0,
            data["timesteps"][column["ts_off"] : column["ts_off"] + column["ts_len"]],
            None,
            data["sigmas"][column["sg_off"] : column["sg_off"] + column["sg_len"]] if column["sg_off"] >= 0 else None,
            trajectory,
            data["final_f64"][row],
            index()["probes"],
            index()["probes"],
            "analytic",
            column["init_noise_sigma"],
            column["rel_f32_vs_f64"],
            bool(column["f64_same_timesteps"]),
        )


def _part(data: Array, place: list[int]) -> Array:
    return data[place[0] : place[0] + place[1]]


def sampler_of(case: Case) -> Sampler:
    """Return the sampler that the case's scheduler node gives."""
    node_type = scheduler_by_kind(KIND_BY_NAME[case.name]).node_type
    unknown = set(case.options) - {port.name for port in node_type.ports.inputs}
    assert not unknown, unknown
    (sampler,) = node_type.prepare(None, {}).run(dict(case.options), 0)
    return sampler


def trajectory_of(case: Case, sampler: Sampler) -> list[Array]:
    """Return the start and the sample after each step, as diffusers' pipeline loop would give them."""
    latent, noise = arrays("common.npz")["latent"], arrays("common.npz")["noise"]
    is_image = case.initial is None
    drawn = 1 if is_image else 0
    step_noise = np.zeros((case.steps, *latent.shape), np.float32)
    step_noise[case.start_step :] = noise[drawn : drawn + case.steps - case.start_step]
    job = SamplingJob(
        latent=sampler.add_noise(latent, noise[0], case.start_step, case.steps) if is_image else latent,
        steps=case.steps,
        start_step=case.start_step,
        timesteps=case.explicit_timesteps,
        add_noise=not is_image,
        noise=NoiseSource("philox", 0),
        initial_noise=latent,
        step_noise=step_noise,
        guided=False,
    )
    sampling = sampler.start(job)
    call = next(sampling)
    samples = []
    while True:
        # Euler's samples are scaled for the denoiser; the recorded ones are not.
        scale = np.hypot(1, call.sigma) if case.name.startswith("euler") else 1.0
        samples.append(call.sample * np.float32(scale))
        try:
            call = sampling.send(_model(case, call))
        except StopIteration as stop:
            return [*samples, stop.value]


def _model(case: Case, call: DenoiseCall) -> Array:
    if case.model == "eps":
        return arrays("common.npz")["eps"]
    return np.float32(0.3) * call.sample + np.float32(0.05 * np.sin(call.timestep / 100))
