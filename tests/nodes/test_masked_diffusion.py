"""Masked diffusion: which places are written when, with what, and how chance enters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.graph.errors import InputError
from app.graph.node import Array
from tests.nodes.sampling import job, run, sampler

MASK = 1


def logits_for(tokens: list[int], confidences: list[float], vocabulary: int = 6) -> Array:
    """Return float32 [1, S, V] with one raised logit at each place."""
    logits = np.zeros((1, len(tokens), vocabulary), np.float32)
    logits[0, np.arange(len(tokens)), tokens] = confidences
    return logits


FIXTURE = logits_for([2, 3, 4, 5], [10, 8, 6, 4])
"""The tiny masked diffusion model of the seed specification, section 7: constant logits."""


def rows_of(logits: Array, tokens: Any, steps: int, **options: Any) -> list[list[int]]:
    """Return the flat tokens before each step and at the end."""
    job_options = {key: options.pop(key) for key in ("seed", "guided", "start_step") if key in options}
    made = sampler("masked_diffusion", mask_token_id=MASK, **options)
    final, calls = run(made, job(np.array(tokens, np.int64), steps, **job_options), lambda call: logits)
    assert final.dtype == np.int64
    return [call.sample.reshape(-1).tolist() for call in calls] + [final.reshape(-1).tolist()]


def test_two_places_a_step() -> None:
    """A.1 of the specification: two steps write two places each, the surest first."""
    assert rows_of(FIXTURE, [[1, 1, 1, 1]], 2) == [[1, 1, 1, 1], [2, 3, 1, 1], [2, 3, 4, 5]]


def test_one_place_a_step() -> None:
    expected = [[1, 1, 1, 1], [2, 1, 1, 1], [2, 3, 1, 1], [2, 3, 4, 1], [2, 3, 4, 5]]
    assert rows_of(FIXTURE, [[1, 1, 1, 1]], 4) == expected


def test_more_steps_than_places_are_done_early() -> None:
    """A.1: ceil(count / remaining) writes one place in each of the first four of eight steps."""
    rows = rows_of(FIXTURE, [[1, 1, 1, 1]], 8)
    assert rows[3:6] == [[2, 3, 4, 1], [2, 3, 4, 5], [2, 3, 4, 5]]
    assert rows[-1] == [2, 3, 4, 5]


def test_the_surest_come_first_wherever_they_are() -> None:
    rows = rows_of(logits_for([2, 3, 4, 5], [4, 10, 6, 8]), [[1, 1, 1, 1]], 4)
    assert rows[1:] == [[1, 3, 1, 1], [1, 3, 1, 5], [1, 3, 4, 5], [2, 3, 4, 5]]


def test_equal_confidence_goes_from_the_left() -> None:
    assert rows_of(logits_for([2, 3, 4, 5], [5, 5, 5, 5]), [[1, 1, 1, 1]], 4)[2] == [2, 3, 1, 1]


def test_blocks_are_written_one_after_the_other() -> None:
    """Two blocks of two: the surest place, the third, waits for its block."""
    rows = rows_of(logits_for([2, 3, 4, 5], [4, 6, 10, 8]), [[1, 1, 1, 1]], 4, block_length=2)
    assert rows[1:] == [[1, 3, 1, 1], [2, 3, 1, 1], [2, 3, 4, 1], [2, 3, 4, 5]]


def test_a_prompt_stays_and_rows_start_where_their_masks_do() -> None:
    """Row 0 writes three places, row 1 one, row 2 none; each in its own plan of three steps."""
    tokens = [[7, 1, 1, 1], [7, 8, 9, 1], [7, 8, 9, 3]]
    rows = rows_of(np.repeat(logits_for([2, 3, 4, 5], [10, 8, 6, 4]), 3, axis=0), tokens, 3)
    assert rows[1] == [7, 3, 1, 1, 7, 8, 9, 5, 7, 8, 9, 3]
    assert rows[-1] == [7, 3, 4, 5, 7, 8, 9, 5, 7, 8, 9, 3]


def test_a_single_row_needs_no_batch_axis() -> None:
    assert rows_of(FIXTURE[0], [1, 1, 1, 1], 2)[-1] == [2, 3, 4, 5]


def test_the_negative_lane_sees_the_prompt_masked() -> None:
    made = sampler("masked_diffusion", mask_token_id=MASK)
    tokens = np.array([[7, 8, 1, 1]], np.int64)
    _, guided = run(made, job(tokens, 2, guided=True), lambda call: FIXTURE)
    _, plain = run(made, job(tokens, 2), lambda call: FIXTURE)
    assert [call.uncond_sample.tolist() for call in guided if call.uncond_sample is not None] == [
        [[1, 1, 1, 1]],
        [[1, 1, 4, 1]],
    ]
    assert [call.uncond_sample for call in plain] == [None, None]


@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_mask_is_never_written(remasking: str, temperature: float) -> None:
    """Though the model holds the mask for the likeliest token everywhere."""
    logits = np.zeros((1, 32, 6), np.float32)
    logits[..., MASK] = 9
    assert MASK not in rows_of(logits, [[1] * 32], 4, remasking=remasking, temperature=temperature)[-1]


def test_random_places_are_written_evenly() -> None:
    """Each of 4000 places with probability 1/4 in the first of four steps: within five standard errors."""
    rows = rows_of(logits_for([2] * 4000, [5] * 4000), [[1] * 4000], 4, remasking="random")
    written = sum(token != MASK for token in rows[1])
    assert abs(written - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5
    assert rows[-1] == [2] * 4000


def test_temperature_draws_from_the_softmax() -> None:
    """Gumbel's trick at temperature 1: logits 0, 1 give the second token e / (1 + e) of the time."""
    logits = np.full((1, 8000, 3), -30, np.float32)
    logits[..., 0], logits[..., 2] = 0, 1
    share = sum(token == 2 for token in rows_of(logits, [[1] * 8000], 1, temperature=1.0)[-1]) / 8000
    expected = np.e / (1 + np.e)
    assert abs(share - expected) < 5 * (expected * (1 - expected) / 8000) ** 0.5


@pytest.mark.parametrize("options", [{"temperature": 1.0}, {"remasking": "random"}])
def test_the_seed_alone_decides(options: dict[str, Any]) -> None:
    logits = np.random.default_rng(0).normal(size=(1, 16, 9)).astype(np.float32)
    first, again, other = (rows_of(logits, [[1] * 16], 4, seed=seed, **options) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_timesteps_are_the_numbers_of_the_steps_and_sigmas_zero() -> None:
    made = sampler("masked_diffusion", mask_token_id=MASK)
    _, calls = run(made, job(np.ones((1, 4), np.int64), 4, start_step=2), lambda call: FIXTURE)
    assert [(call.timestep, call.step, call.sigma) for call in calls] == [(2.0, 2, 0.0), (3.0, 3, 0.0)]
    assert (made.timesteps(2), made.sigmas(2)) == ((0.0, 1.0), (0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("tokens", "steps", "options", "logits", "input", "sentence"),
    [
        ([[1, 1, 1, 1]], 4, {"block_length": 3}, FIXTURE, "block_length", "accepted a divisor of the 4 places"),
        ([[1, 1, 1, 1]], 3, {"block_length": 2}, FIXTURE, "steps", "accepted a multiple of the 2 blocks"),
        ([[1, 1, 1, 1]], 2, {"temperature": -1.0}, FIXTURE, "temperature", "found -1.0, accepted 0 or more"),
        (
            [[1, 1, 1, 1]],
            2,
            {"remasking": "low"},
            FIXTURE,
            "remasking",
            "found 'low', accepted one of low_confidence, random",
        ),
        ([[1, 1, 1, 1]], 2, {}, FIXTURE[:, :3], "prediction", r"found float32 \[1, 3, 6\]"),
        ([[1, 1, 1, 1]], 2, {}, np.zeros((1, 4, 6), np.int64), "prediction", "found int64"),
        ([[[1]]], 2, {}, FIXTURE, "latent", r"found int64 \[1, 1, 1\]"),
    ],
)
def test_what_cannot_run_is_explained(
    tokens: Any, steps: int, options: dict[str, Any], logits: Array, input: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        rows_of(logits, tokens, steps, **options)
    assert caught.value.input == input
