"""Weights of one step of a DPM-Solver of several steps."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from nodes.schedulers.levels import Levels


class MultistepWeights(NamedTuple):
    """The next sample is `sample * x + sum(outputs[i] * output i) + fresh * normal`; output 0 is the newest."""

    sample: float
    outputs: tuple[float, ...]
    fresh: float = 0.0


class _Terms(NamedTuple):
    """Weights of x, of the newest output and of its first and second differences."""

    sample: float
    value: float
    slope: float
    bend: float
    fresh: float = 0.0


def step_weights(levels: Levels, step: int, order: int, algorithm: str, solver_type: str) -> MultistepWeights:
    """Return the weights of step `step`, of order 1 to 3, for variance-preserving levels.

    With lambda = log(signal / noise) and h = lambda_next - lambda; differences of outputs are divided by
    r = h_before / h (Lu et al. 2022, arXiv:2211.01095, section 4; equal levels have no difference to divide by).
    """
    lambdas = [_lambda(levels, index) for index in range(step + 1 - order, step + 2)]
    *earlier, h = (after - before for before, after in pairwise(lambdas))
    before = earlier[::-1]
    if h == 0 or 0 in before:
        before = []
    terms = _terms(levels, step, h, algorithm, solver_type if len(before) < 2 else "heun", bool(before))
    if not before:
        return MultistepWeights(terms.sample, (terms.value,), terms.fresh)
    r0 = before[0] / h
    if len(before) == 1:
        share = terms.slope / r0
        return MultistepWeights(terms.sample, (terms.value + share, -share), terms.fresh)
    r1 = before[1] / h
    bend = (terms.slope * r0 + terms.bend) / (r0 + r1)
    newer, older = (terms.slope + bend) / r0, bend / r1
    return MultistepWeights(terms.sample, (terms.value + newer, -newer - older, older), terms.fresh)


def _lambda(levels: Levels, index: int) -> float:
    noise = levels.noise[index]
    return math.log(levels.signal[index] / noise) if noise else math.inf


def _terms(levels: Levels, step: int, h: float, algorithm: str, solver_type: str, differs: bool) -> _Terms:
    """Return the terms of the exponential integrator over a step of length h in lambda."""
    (alpha, alpha_next), (s, s_next) = levels.signal[step : step + 2], levels.noise[step : step + 2]
    is_sde = algorithm.startswith("sde-")
    if algorithm.endswith("++"):
        # The stochastic equation pulls towards the clean latent twice as hard: exp(-2 h) for exp(-h).
        length, sign, scale = (2 * h if is_sde else h), -1.0, alpha_next
        sample = s_next / s * (math.exp(-h) if is_sde else 1.0)
        fresh = s_next * math.sqrt(-math.expm1(-length)) if is_sde else 0.0
    else:
        length, sign, scale = h, 1.0, s_next * (2 if is_sde else 1)
        sample = alpha_next / alpha
        fresh = s_next * math.sqrt(math.expm1(2 * h)) if is_sde else 0.0
    growth = math.expm1(sign * length)
    value = -scale * growth
    if not differs:
        return _Terms(sample, value, 0.0, 0.0, fresh)
    if solver_type == "midpoint":
        return _Terms(sample, value, value / 2, 0.0, fresh)
    slope = -sign * scale * (growth / length - sign)
    bend = -scale * ((growth - sign * length) / length**2 - 0.5)
    return _Terms(sample, value, slope, bend, fresh)
