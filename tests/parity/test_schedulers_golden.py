"""Every recorded run of diffusers' schedulers comes out the same.

Expected values: the float64 runs of diffusers 0.42.1 (`data/schedulers/index.json` says how they were made). Tolerance:
1e-5 of the largest value, whatever diffusers itself loses by float32 in that case (up to all of it). Samples on the way
were recorded in float32 alone, so there it is ten times the greater of 1e-5 and ten times that loss.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.parity.scheduler_goldens import KIND_BY_NAME, Case, core_cases, grid_cases, sampler_of, trajectory_of

CORE = [case for name in KIND_BY_NAME for case in core_cases(name)]


def problems_of(case: Case) -> list[str]:
    """Return what differs from the recording, one sentence each."""
    sampler = sampler_of(case)
    assert sampler.schedule is not None
    levels = sampler.schedule.levels(case.steps, case.explicit_timesteps)
    found = []
    # Where float32 moved diffusers to a neighbouring whole timestep, its float64 run (compared below) did not follow.
    slack = 1e-4 * np.abs(case.timesteps).max() + 1e-3 if case.same_timesteps else 1.0
    if np.abs(np.array(levels.timesteps[case.start_step :]) - case.timesteps).max() > slack:
        found.append(f"{case}: timesteps {levels.timesteps}, recorded {case.timesteps}")
    # float32 loses 2^-24 of 1 - alpha, which is 4e-5 at the first timestep of the cosine schedule, 8.5e-4 else.
    loss = 5e-4 if case.options["beta_schedule"] == "squaredcos_cap_v2" else 3e-5
    recorded = None if case.sigmas is None else case.sigmas[: case.steps + 1]
    # diffusers writes a flow's sigma as the share of noise, not as noise over signal.
    sigmas = levels.noise if case.options.get("prediction_type") == "flow" else levels.sigmas
    if recorded is not None and not np.allclose(sigmas, recorded, rtol=loss, atol=0):
        found.append(f"{case}: sigmas {sigmas}, recorded {case.sigmas}")
    if case.initial is not None and levels.initial != pytest.approx(case.initial, rel=loss):
        found.append(f"{case}: initial {levels.initial}, recorded {case.initial}")
    samples = trajectory_of(case, sampler)
    final = samples[-1].reshape(-1)
    error = np.abs(final[case.final_elements] - case.final).max()
    if error > 1e-5 * np.abs(case.final).max():
        found.append(f"{case}: final sample off by {error:.2e}")
    steps_error = max(
        np.abs(ours.reshape(-1)[case.picked] - theirs).max() / np.abs(theirs).max()
        for ours, theirs in zip(samples, case.trajectory, strict=True)
    )
    if case.same_timesteps and steps_error > 10 * max(1e-5, 10 * case.rounding):
        found.append(f"{case}: a sample on the way off by {steps_error:.2e} of its largest element")
    return found


@pytest.mark.parametrize("case", CORE, ids=str)
def test_recorded_run_comes_out_the_same(case: Case) -> None:
    """Whole final latents: defaults, every variant, and image to image."""
    assert problems_of(case) == []


@pytest.mark.parametrize("name", KIND_BY_NAME)
def test_every_legal_combination_comes_out_the_same(name: str) -> None:
    """Beta schedule x prediction x spacing x sigmas x steps; four elements of the latent each."""
    assert [problem for case in grid_cases(name) for problem in problems_of(case)] == []
