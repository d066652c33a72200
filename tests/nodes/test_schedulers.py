"""Schedulers of continuous diffusion: their levels, their steps, and how to add one.

Numbers marked A.2 and A.3 are the seed specification's test vectors, float32 and checked against diffusers 0.39.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

from app.graph.errors import InputError, WorkflowError
from app.graph.node import Array, Range
from nodes.schedulers.levels import Levels
from nodes.schedulers.prediction import Prediction, raw_for
from nodes.schedulers.sampler import DenoiseCall, Sampling, SamplingJob, scheduler, scheduler_by_kind, start_latent
from nodes.schedulers.schedule import Training
from tests.nodes.sampling import job, run, sampler

KINDS = ("ddim", "euler", "euler_ancestral", "dpmpp_2m")
ONE = np.ones((1, 1), np.float32)


@dataclass(frozen=True)
class Even:
    """Levels of a scheduler of one's own."""

    top: Annotated[float, Range(0, None, help="First timestep")] = 10.0

    def levels(self, steps: int, timesteps: Any = None) -> Levels:
        """Return even timesteps from the top to 1."""
        return Levels(tuple(np.linspace(self.top, 1, steps).tolist()), (1.0,) * (steps + 1), (1.0,) * (steps + 1))


@scheduler(kind="sum_up")
def sum_up(
    job: SamplingJob, schedule: Even, gain: Annotated[float, Range(0, 9, help="Weight of the output")] = 1.0
) -> Sampling:
    """Add up what the denoiser says."""
    levels = schedule.levels(job.steps)
    x = start_latent(job, levels)
    for step in range(job.start_step, job.steps):
        x = x + gain * (yield DenoiseCall(x, levels.timesteps[step], step, 1.0))
    return x


def constant(value: float) -> Any:
    return lambda call: np.full_like(call.sample, value)


def samples_on_the_way(kind: str, start: float, outputs: list[float], **inputs: Any) -> list[float]:
    """Return the raw sample after each step: Euler's calls show it scaled for the denoiser."""
    given = job(ONE * np.float32(start), len(outputs), step_noise=np.full((len(outputs), 1, 1), 0.25, np.float32))
    final, calls = run(sampler(kind, **inputs), given, lambda call: ONE * np.float32(outputs[call.step]))
    scales = [math.hypot(1, call.sigma) if kind.startswith("euler") else 1 for call in calls]
    shown = [float(call.sample[0, 0]) * scale for call, scale in zip(calls, scales, strict=True)]
    return [*shown[1:], float(final[0, 0])]


@pytest.mark.parametrize(
    ("schedule", "alphas", "sigmas"),
    [
        ("linear", (0.99915, 0.9982895, 0.5687881, 0.1607715, 0.0225192, 0.0015790), (0.0291675, 25.14612)),
        ("scaled_linear", (0.99915, 0.998296, 0.6737925, 0.2763326, 0.0561698, 0.0046601), (0.0291675, 14.614656)),
    ],
)
def test_training_schedules(schedule: Any, alphas: tuple[float, ...], sigmas: tuple[float, float]) -> None:
    """A.2, seven digits."""
    training = Training(beta_schedule=schedule)
    np.testing.assert_allclose(training.alphas_cumprod[[0, 1, 250, 500, 750, 999]], alphas, rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(training.training_sigmas[[0, 999]], sigmas, rtol=2e-5)


@pytest.mark.parametrize(
    ("kind", "inputs", "timesteps", "sigmas"),
    [
        ("euler", {}, (999, 666, 333, 0), (14.614656, 2.918309, 0.9323581, 0.0291675, 0)),
        ("euler", {}, (0,), (0.0291675, 0)),
        (
            "euler",
            {},
            tuple(range(999, -1, -111)),
            (
                14.6146555,
                7.8398895,
                4.6091776,
                2.9183085,
                1.950162,
                1.3449281,
                0.9323581,
                0.6249771,
                0.3686582,
                0.0291675,
                0,
            ),
        ),
        (
            "euler",
            {"sigma_spacing": "karras"},
            (999, 687.1535, 145.93912, 0),
            (14.61466, 3.168614, 0.4469209, 0.0291675, 0),
        ),
        (
            "euler_ancestral",
            {"sigma_spacing": "exponential"},
            (999, 538.0671, 52.38262, 0),
            (14.614657, 1.8400332, 0.2316662, 0.0291675, 0),
        ),
        ("dpmpp_2m", {}, (999, 749, 500, 250), (14.6146555, 4.0817323, 1.6182793, 0.6957991, 0)),
        ("dpmpp_2m", {}, (999, 899, 799, 699, 599, 500, 400, 300, 200, 100), None),
        ("dpmpp_2m", {"sigma_spacing": "karras"}, (999, 687, 146, 0), (14.61466, 3.168614, 0.4469209, 0.0291675, 0)),
        ("ddim", {}, (750, 500, 250, 0), None),
    ],
)
def test_timesteps_and_sigmas(
    kind: str, inputs: dict[str, Any], timesteps: tuple[float, ...], sigmas: tuple[float, ...] | None
) -> None:
    """A.2, in float32, so to 2e-5; timesteps of karras are rounded for dpmpp_2m (section 4.5)."""
    made = sampler(kind, **inputs)
    np.testing.assert_allclose(made.timesteps(len(timesteps)), timesteps, rtol=1e-5, atol=2e-3)
    if sigmas is not None:
        np.testing.assert_allclose(made.sigmas(len(timesteps)), sigmas, rtol=2e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "inputs", "start", "outputs", "expected"),
    [
        ("ddim", {"beta_schedule": "linear"}, 1, [0.5] * 4, [1.8091493, 2.8696506, 3.3827860, 3.3696408]),
        ("ddim", {}, 1, [0.5] * 4, [1.5659478, 2.0666475, 2.1834519, 2.1697968]),
        ("euler", {}, 14.614656, [0.5] * 4, [8.7664814, 7.7735062, 7.3219109, 7.3073273]),
        ("euler_ancestral", {}, 14.614656, [0.5] * 4, [8.3135805, 7.2242370, 6.7658024, 6.7512188]),
        ("dpmpp_2m", {}, 1, [0.5] * 4, [2.2325974, 4.2845745, 6.3118324, 7.3414989]),
        ("dpmpp_2m", {}, 1, [0.5, 0.3, -0.2, 0.1], [2.2325974, 4.6374969, 7.6038284, 9.1937943]),
        ("dpmpp_2m", {"sigma_spacing": "karras"}, 1, [0.5] * 4, [2.6863387, 6.9065862, 7.3529563, 7.3415003]),
    ],
)
def test_steps(kind: str, inputs: dict[str, Any], start: float, outputs: list[float], expected: list[float]) -> None:
    """A.3, to 1e-5; Euler ancestral with noise of 0.25."""
    assert samples_on_the_way(kind, start, outputs, **inputs) == pytest.approx(expected, rel=1e-5)


def test_dpmpp_of_twenty_steps() -> None:
    """A.3."""
    final, _ = run(
        sampler("dpmpp_2m"),
        job(np.array([[1, -0.5, 0.25]], np.float32), 20),
        lambda call: np.array([[0.3, -0.2, 0.1]], np.float32),
    )
    np.testing.assert_allclose(final, [[10.264431, -4.401483, 2.2007415]], rtol=1e-5)


@pytest.mark.parametrize(("epsilon", "expected"), [(0.0, 2**0.5), (1.0, 2**0.5 - 1)])
def test_ddim_with_two_betas_of_a_half(epsilon: float, expected: float) -> None:
    """A.3, closed form: x0 = (1 - sqrt(.5) epsilon) / sqrt(.5)."""
    made = sampler("ddim", num_train_timesteps=2, beta_start=0.5, beta_end=0.5, beta_schedule="linear")
    final, _ = run(made, job(ONE, 1), constant(epsilon))
    assert final[0, 0] == pytest.approx(expected, rel=1e-6)


def test_euler_with_two_betas_of_a_half() -> None:
    """A.3: sigmas 1 and 0, the model sees 1 / sqrt(2), and its s + t with t = 0 takes that away."""
    made = sampler("euler", num_train_timesteps=2, beta_start=0.5, beta_end=0.5, beta_schedule="linear")
    final, (call,) = run(made, job(ONE, 1), lambda call: call.sample + np.float32(call.timestep))
    assert made.sigmas(1) == pytest.approx((1, 0))
    assert (call.sample[0, 0], final[0, 0]) == pytest.approx((0.5**0.5, 1 - 0.5**0.5), rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "epsilon", "denoised"),
    [
        ("epsilon", 0.3, 0.6899495),
        ("v_prediction", 0.7071068, 0.2828427),
        ("sample", 0.6899495, 0.3),
        ("x0", 0.6899495, 0.3),
    ],
)
def test_prediction_types(kind: str, epsilon: float, denoised: float) -> None:
    """A.3: half the variance is signal, x = .7 and the output .3; and back again by `raw_for`."""
    share = 0.5**0.5
    prediction = Prediction(kind, ONE * np.float32(0.7), ONE * np.float32(0.3), share, share)
    assert prediction.epsilon[0, 0] == pytest.approx(epsilon, rel=1e-6)
    assert prediction.denoised[0, 0] == pytest.approx(denoised, rel=1e-6)
    assert raw_for(kind, prediction.x, prediction.denoised, 1.0)[0, 0] == pytest.approx(0.3, rel=1e-6)


def test_prediction_types_at_the_ends() -> None:
    """A.3: without noise, v of -.4 is its own epsilon and x is clean; with infinite sigma, v is minus the clean."""
    prediction = Prediction("v_prediction", ONE * np.float32(0.9), ONE * np.float32(-0.4), 1.0, 0.0)
    assert (prediction.epsilon[0, 0], prediction.denoised[0, 0]) == pytest.approx((-0.4, 0.9))
    assert raw_for("v_prediction", ONE * np.float32(3), ONE * np.float32(0.2), math.inf)[0, 0] == pytest.approx(-0.2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction", "sample"])
def test_a_denoiser_that_knows_the_answer_is_followed_to_it(kind: str, prediction_type: str) -> None:
    """Whatever the sampler and prediction type, a denoiser that always says `clean` ends at clean."""
    clean = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)

    def denoise(call: DenoiseCall) -> Array:
        return raw_for(prediction_type, call.sample, clean, call.sigma)

    given = job(np.zeros_like(clean), 6, add_noise=True)
    final, _ = run(sampler(kind, prediction_type=prediction_type), given, denoise)
    np.testing.assert_allclose(final, clean, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_starts_from_noise_or_from_the_noised_latent_or_from_the_latent(kind: str) -> None:
    """The rule of the start: noise times init_noise_sigma (1, or sigma 0 for Euler), spec 4.10, or as it is."""
    made, noise = sampler(kind), np.full((1, 4), 2, np.float32)
    latent = np.ones((1, 4), np.float32)

    def start(**others: Any) -> Array:
        call = next(made.start(job(latent, 4, initial_noise=noise, **others)))
        return call.sample * np.float32(math.hypot(1, call.sigma) if kind.startswith("euler") else 1)

    initial = 14.614656 if kind.startswith("euler") else 1
    np.testing.assert_allclose(start(add_noise=True), noise * initial, rtol=2e-6)
    noised = made.add_noise(latent, noise, 2, 4)
    np.testing.assert_allclose(start(add_noise=True, start_step=2), noised, rtol=1e-6)
    np.testing.assert_allclose(start(start_step=2), latent, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_left_gives_the_latent_back(kind: str) -> None:
    final, calls = run(sampler(kind), job(ONE * 7, 3, start_step=3, add_noise=True), constant(0))
    assert (final[0, 0], calls) == (7, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_partial_run_goes_on_where_the_whole_run_was(kind: str) -> None:
    """Steps 2 and 3 alone, from the sample after step 1, end where the whole run ends (first-order samplers)."""
    made = sampler(kind, **({"solver_order": 1} if kind == "dpmpp_2m" else {}))
    start = np.linspace(1, 2, 4, dtype=np.float32).reshape(1, 4)
    noise = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 1, 4)
    whole, calls = run(made, job(start, 4, step_noise=noise), lambda call: np.float32(0.3) * call.sample)
    between = calls[2].sample * np.float32(math.hypot(1, calls[2].sigma) if kind.startswith("euler") else 1)
    part, later = run(made, job(between, 4, start_step=2, step_noise=noise), lambda call: np.float32(0.3) * call.sample)
    np.testing.assert_allclose(part, whole, rtol=1e-5)
    assert [(call.step, call.timestep) for call in later] == [(call.step, call.timestep) for call in calls[2:]]


@pytest.mark.parametrize("kind", KINDS)
def test_explicit_timesteps_bring_their_noise_levels(kind: str) -> None:
    """At whole timesteps the training's sigmas; in between, between them."""
    given = job(ONE, 3, timesteps=(900.0, 450.5, 20.0))
    _, calls = run(sampler(kind), given, constant(0))
    sigmas = Training().training_sigmas
    assert [call.timestep for call in calls] == [900, 450.5, 20]
    assert (calls[0].sigma, calls[2].sigma) == pytest.approx((sigmas[900], sigmas[20]), rel=1e-6)
    assert sigmas[450] < calls[1].sigma < sigmas[451]


def test_ancestral_noise_is_given_drawn_in_order_or_left_out_of_the_last_step() -> None:
    """Given noise and the same numbers drawn are the same run; the last step needs none (sigma up is 0)."""
    made, latent = sampler("euler_ancestral"), np.ones((1, 5), np.float32)
    drawn, _ = run(made, job(latent, 4, seed=9), constant(0.1))
    source = job(latent, 4, seed=9).noise
    noise = np.stack([source.normal(latent.shape) for _ in range(4)])
    for given in (noise, noise[:3]):
        same, _ = run(made, job(latent, 4, step_noise=given), constant(0.1))
        np.testing.assert_array_equal(same, drawn)


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("ddim", {"eta": 1.0}),
        ("euler", {"s_churn": 1.0}),
        ("euler_ancestral", {}),
        ("dpmpp_2m", {"algorithm_type": "sde-dpmsolver++"}),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_given_noise_of_another_dtype_leaves_the_latent_float32(kind: str, inputs: dict[str, Any], dtype: Any) -> None:
    noise = np.ones((3, *ONE.shape), dtype)
    final, calls = run(sampler(kind, **inputs), job(ONE, 3, step_noise=noise), constant(0.1))
    assert {final.dtype, *(call.sample.dtype for call in calls)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("ddim", {"eta": 0.5, "set_alpha_to_one": False}),
        ("ddim", {"eta": 1.0, "set_alpha_to_one": False}),
        ("euler_ancestral", {"final_sigmas_type": "sigma_min"}),
        ("dpmpp_2m", {"algorithm_type": "sde-dpmsolver++", "final_sigmas_type": "sigma_min"}),
    ],
)
def test_fresh_noise_makes_up_for_what_a_step_takes_away(kind: str, inputs: dict[str, Any]) -> None:
    """Closed form: when all data is 0, a latent at any level is normal with that level's standard deviation.

    A run is linear in its start and in each step's noise, so their squared weights add up to the variance at the end.
    """
    steps = 5
    made = sampler(kind, prediction_type="sample", **inputs)
    assert made.schedule is not None
    levels = made.schedule.levels(steps)

    def weight_of(start: float, noisy_step: int | None) -> float:
        noise = np.zeros((steps, *ONE.shape), np.float32)
        if noisy_step is not None:
            noise[noisy_step] = 1
        final, _ = run(made, job(ONE * np.float32(start), steps, step_noise=noise), constant(0))
        return float(final[0, 0])

    weights = [weight_of(levels.noise[0], None), *(weight_of(0, step) for step in range(steps))]
    assert sum(weight**2 for weight in weights) == pytest.approx(levels.noise[-1] ** 2, rel=1e-5)


@pytest.mark.parametrize(("steps", "is_first_order"), [(14, True), (15, False)])
def test_the_last_step_is_of_first_order_below_15_steps(steps: int, is_first_order: bool) -> None:
    """Section 4.7. A last step of first order is s'/s x + (a' - a s'/s) x0 and knows no earlier x0."""
    made = sampler("dpmpp_2m", prediction_type="sample", final_sigmas_type="sigma_min")
    assert made.schedule is not None
    levels = made.schedule.levels(steps)
    final, calls = run(made, job(ONE, steps), lambda call: ONE * np.float32(call.step % 3))
    (alpha, alpha_end), (s, s_end) = levels.signal[-2:], levels.noise[-2:]
    first_order = s_end / s * calls[-1].sample[0, 0] + (alpha_end - alpha * s_end / s) * ((steps - 1) % 3)
    assert (final[0, 0] == pytest.approx(first_order, rel=1e-4)) == is_first_order


def test_flow_follows_a_line() -> None:
    """Shift 3 moves the share of noise u to 3u / (1 + 2u), u even from 1 - 1/N; each x is (1 - s) clean + s noise."""
    made = sampler("dpmpp_2m", prediction_type="flow", sigma_spacing="flow", flow_shift=3.0)
    even = np.linspace(0.999, 0, 5)
    assert made.schedule is not None
    levels = made.schedule.levels(4)
    np.testing.assert_allclose(levels.noise, 3 * even / (1 + 2 * even), rtol=1e-12)
    np.testing.assert_allclose(levels.signal, 1 - np.array(levels.noise), rtol=1e-12)
    clean, noise = np.array([[0.25, -2.0]], np.float32), np.array([[1.0, 3.0]], np.float32)
    for call in run(
        made,
        job(made.add_noise(clean, noise, 1, 4), 4, start_step=1),
        lambda call: raw_for("flow", call.sample, clean, call.sigma),
    )[1]:
        share = levels.noise[call.step]
        np.testing.assert_allclose(call.sample, (1 - share) * clean + share * noise, atol=2e-6)


def test_ddim_with_full_eta_draws_noise_and_without_does_not() -> None:
    latent = np.ones((1, 64), np.float32)
    plain, fresh = (
        [run(sampler("ddim", eta=eta), job(latent, 4, seed=seed), constant(0.1))[0] for seed in (1, 2)]
        for eta in (0, 1)
    )
    np.testing.assert_array_equal(plain[0], plain[1])
    assert np.abs(fresh[0] - fresh[1]).max() > 0.1


@pytest.mark.parametrize("steps", [1, 2, 999, 1000])
@pytest.mark.parametrize("spacing", ["linspace", "leading", "trailing"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_steps_runs(kind: str, spacing: str, steps: int) -> None:
    """Equal timesteps after rounding must not divide by zero."""
    final, calls = run(sampler(kind, timestep_spacing=spacing), job(ONE, steps, add_noise=True), constant(0.1))
    assert np.isfinite(final).all()
    assert len(calls) == steps
    assert all(0 <= call.timestep <= 999 for call in calls)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ["dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"])
@pytest.mark.parametrize("solver_type", ["midpoint", "heun"])
def test_every_dpm_solver_is_exact_when_its_polynomial_is(order: int, algorithm: str, solver_type: str) -> None:
    """A denoiser that is constant (in the clean latent, or in its noise) is integrated exactly, less the fresh noise.

    From (alpha, s) to (alpha', s') a constant x0 gives s'/s x + (alpha' - alpha s'/s) x0, a constant epsilon gives
    alpha'/alpha x + (s' - s alpha'/alpha) epsilon; the stochastic equations end at the same mean only for x0.
    """
    made = sampler(
        "dpmpp_2m", algorithm_type=algorithm, solver_order=order, solver_type=solver_type, final_sigmas_type="sigma_min"
    )
    by_noise = not algorithm.endswith("++")
    levels = made.schedule.levels(6) if made.schedule else Levels((), (), ())
    clean, start = 0.5, 2.0

    def denoise(call: DenoiseCall) -> Array:
        return (
            ONE * np.float32(0.3) if by_noise else raw_for("epsilon", call.sample, ONE * np.float32(clean), call.sigma)
        )

    quiet = np.zeros((6, 1, 1), np.float32)
    final, _ = run(made, job(ONE * np.float32(start), 6, step_noise=quiet), denoise)
    (alpha, *_, alpha_end), (s, *_, s_end) = levels.signal, levels.noise
    if by_noise:
        pull = 2 if algorithm.startswith("sde") else 1
        expected = alpha_end * (start / alpha - pull * (s / alpha - s_end / alpha_end) * 0.3)
    elif algorithm.startswith("sde"):
        kept = (s_end / s) ** 2 * alpha / alpha_end
        expected = kept * start + (alpha_end - alpha * kept) * clean
    else:
        expected = s_end / s * start + (alpha_end - alpha * s_end / s) * clean
    assert final[0, 0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "inputs", "others", "input", "sentence"),
    [
        ("ddim", {}, {"steps": 1001}, "steps", "found 1001, accepted 1 to 1000"),
        ("euler", {}, {"steps": 4, "start_step": 5}, "start_step", "found 5, accepted 0 to 4"),
        ("euler", {}, {"steps": 4, "timesteps": (1.0,)}, "timesteps", "found 1 for 4 steps"),
        ("euler", {"sigmas": [3.0, 1.0]}, {"steps": 4}, "sigmas", "found 2 sigmas, accepted 5 for 4 steps"),
        ("euler", {"beta_schedule": "cosine"}, {"steps": 4}, "beta_schedule", "found 'cosine', accepted one of linear"),
        ("ddim", {"prediction_type": "flow"}, {"steps": 4}, "prediction_type", "found 'flow', accepted one of epsilon"),
        ("dpmpp_2m", {"algorithm_type": "dpmsolver"}, {"steps": 4}, "final_sigmas_type", "accepted sigma_min"),
        (
            "euler_ancestral",
            {},
            {"steps": 4, "step_noise": np.zeros((2, 1, 1), np.float32)},
            "step_noise",
            r"found shape \[2, 1, 1\], accepted \[4, 1, 1\]",
        ),
        ("ddim", {}, {"steps": 4, "initial_noise": np.zeros(2, np.float32)}, "noise", r"found shape \[2\]"),
        ("ddim", {"timestep_spacing": "even"}, {"steps": 4}, "timestep_spacing", "found 'even', accepted one of linsp"),
        ("euler", {"sigma_spacing": "sgm"}, {"steps": 4}, "sigma_spacing", "found 'sgm', accepted one of default, kar"),
        ("dpmpp_2m", {"algorithm_type": "2s"}, {"steps": 4}, "algorithm_type", "found '2s', accepted one of dpmsolver"),
        ("euler", {}, {"steps": 2, "timesteps": (999.0, math.nan)}, "timesteps", "found nan, accepted 0 to 999"),
        ("ddim", {}, {"steps": 2, "timesteps": (1000.0, 0.0)}, "timesteps", "found 1000.0, accepted 0 to 999"),
        ("dpmpp_2m", {}, {"steps": 2, "timesteps": (5.0, -1.0)}, "timesteps", "found -1.0, accepted 0 to 999"),
        (
            "dpmpp_2m",
            {"algorithm_type": "sde-dpmsolver++"},
            {"steps": 2, "timesteps": (5.0, 900.0)},
            "timesteps",
            "rising ones with sde-dpmsolver",
        ),
        ("dpmpp_2m", {"prediction_type": "flow"}, {"steps": 4}, "prediction_type", "flow with sigma_spacing default"),
        ("dpmpp_2m", {"sigma_spacing": "flow"}, {"steps": 4}, "prediction_type", "epsilon with sigma_spacing flow"),
        ("dpmpp_2m", {"lambda_min_clipped": 9.0}, {"steps": 4}, "lambda_min_clipped", "leaves 0 timesteps"),
        (
            "euler",
            {"sigma_spacing": "karras", "sigma_min": 5.0, "sigma_max": 1.0},
            {"steps": 4},
            "sigma_min",
            "found 5.0, accepted at most sigma_max, 1",
        ),
        (
            "ddim",
            {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"},
            {"steps": 4},
            "prediction_type",
            "epsilon at a level without signal",
        ),
    ],
)
def test_what_cannot_run_is_explained(
    kind: str, inputs: dict[str, Any], others: dict[str, Any], input: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        run(sampler(kind, **inputs), job(ONE, **others), constant(0))
    assert caught.value.input == input


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1, 8), (1, 8, 8), (4, 8)])
def test_a_prediction_of_another_shape_is_refused(kind: str, shape: tuple[int, ...]) -> None:
    """Also one that numpy would stretch, and one with a learned variance in twice the channels."""
    with pytest.raises(InputError, match=r"accepted the sample's \[1, 4, 8\]") as caught:
        run(sampler(kind), job(np.ones((1, 4, 8), np.float32), 2), lambda call: np.zeros(shape, np.float32))
    assert caught.value.input == "prediction"


def test_an_unknown_scheduler_names_its_neighbours() -> None:
    with pytest.raises(WorkflowError, match="did you mean dpmpp_2m"):
        scheduler_by_kind("dpmpp_2n")


@pytest.mark.parametrize("kind", [*KINDS, "masked_diffusion"])
def test_a_scheduler_is_a_node_with_help_for_every_input(kind: str) -> None:
    node_type = scheduler_by_kind(kind).node_type
    assert [port.name for port in node_type.ports.inputs if not port.help] == []
    assert node_type.help
    assert [(port.name, port.type.kind) for port in node_type.ports.outputs] == [("sampler", "SAMPLER")]


def test_a_scheduler_of_ones_own_becomes_a_node() -> None:
    """A.1: next = s + m with m = (s + c) / 2 from 0 gives 1.25 c after two steps."""
    node_type = scheduler_by_kind("sum_up").node_type
    assert (node_type.name, node_type.source) == ("SumUpScheduler", __name__)
    assert [(port.name, port.default) for port in node_type.ports.inputs] == [("top", 10.0), ("gain", 1.0)]
    c = np.float32(4)
    final, calls = run(sampler("sum_up", top=5.0), job(ONE * 0, 2), lambda call: (call.sample + c) / 2)
    assert final[0, 0] == 1.25 * c
    assert [call.timestep for call in calls] == [5.0, 1.0]


def test_a_kind_belongs_to_one_module() -> None:
    def ddim_again(job: SamplingJob) -> Sampling:
        """Never run."""
        yield from ()
        return job.latent

    with pytest.raises(ValueError, match=r"'ddim' .* already comes from nodes\.schedulers\.ddim"):
        scheduler(kind="ddim")(ddim_again)
