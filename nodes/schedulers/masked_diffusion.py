"""Masked diffusion of text: the sample is token ids, and each step turns some masks into tokens."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Range
from nodes.noise import NoiseSource
from nodes.schedulers.sampler import DenoiseCall, Sampling, SamplingJob, scheduler


@scheduler(kind="masked_diffusion", search_aliases=("sampler", "llada", "language", "text", "unmask"))
def masked_diffusion(
    job: SamplingJob,
    mask_token_id: Annotated[int, Range(0, None, 1, help="Token id that marks a place still to be written")],
    temperature: Annotated[float, Range(0, 10, 0.05, help="Randomness of the tokens; 0 always takes the likeliest")] = (
        0.0
    ),
    block_length: Annotated[
        int, Range(0, None, 1, help="Places written at once, block after block; 0: all there are")
    ] = 0,
    remasking: Annotated[
        Literal["low_confidence", "random"], Help("Which places are written first: the surest, or any")
    ] = "low_confidence",
) -> Sampling:
    """Write masked tokens over several steps, the surest first or at random (Nie et al. 2025, arXiv:2502.09992).

    The latent is int64 [S] or [B, S]; from its first mask on a row is written. The prediction is logits [B, S, V]. The
    number of blocks must divide the number of steps. The negative lane sees the prompt masked as well.
    """
    _check_options(mask_token_id, temperature, block_length, remasking)
    tokens = _token_rows(job.latent)
    shape = job.latent.shape
    starts = [_first(row == mask_token_id) for row in tokens]
    plans = [_plan(tokens.shape[1] - start, block_length, job.steps) for start in starts]
    for step in range(job.start_step, job.steps):
        uncond = _without_prompt(tokens, starts, mask_token_id).reshape(shape) if job.guided else None
        raw = yield DenoiseCall(tokens.reshape(shape), float(step), step, 0.0, uncond)
        logits = _logits(raw, tokens, mask_token_id)
        tokens = tokens.copy()  # what was yielded may still be looked at
        for row, (start, (block, steps_per_block)) in enumerate(zip(starts, plans, strict=True)):
            if block:
                first = start + min(step // steps_per_block, (tokens.shape[1] - start) // block - 1) * block
                places = first + np.flatnonzero(tokens[row, first : first + block] == mask_token_id)
                remaining = steps_per_block - step % steps_per_block
                _write(tokens[row], logits[row], places, remaining, temperature, remasking, job.noise)
    return tokens.reshape(shape)


def _write(
    row: Array, logits: Array, places: Array, remaining: int, temperature: float, remasking: str, noise: NoiseSource
) -> None:
    """Write some of the masked places of a row, in place: as many as leave none after `remaining` steps.

    low_confidence: the ceil(count / remaining) places whose token has the highest probability, ties from the left.
    random: each place with probability 1 / remaining.
    """
    if not places.size:
        return
    scores = logits[places]
    if remasking == "random":
        chosen = noise.uniform(places.shape) < 1 / remaining if remaining > 1 else np.ones(places.shape, bool)
        row[places[chosen]] = _drawn(scores, temperature, noise)[chosen]
        return
    found = _drawn(scores, temperature, noise)
    top = scores.max(-1, keepdims=True)
    likely = np.take_along_axis(scores, found[:, None], -1) - top
    confidence = (likely - np.log(np.exp(scores - top).sum(-1, keepdims=True)))[:, 0]
    order = np.argsort(-confidence, kind="stable")[: -(-places.size // remaining)]
    row[places[order]] = found[order]


def _drawn(scores: Array, temperature: float, noise: NoiseSource) -> Array:
    """Return a token id for each row of scores: the argmax of `score - temperature * ln(-ln u)` (Gumbel's trick)."""
    if temperature > 0:
        uniform = noise.uniform(scores.shape).astype(np.float64)
        uniform = uniform.clip(np.finfo(np.float32).tiny, 1 - 2**-25)  # at 0 and 1 the logarithms are infinite
        scores = scores - temperature * np.log(-np.log(uniform))
    found: Array = scores.argmax(-1)
    return found


def _plan(length: int, block_length: int, steps: int) -> tuple[int, int]:
    """Return the block's length and the steps for each block, for so many places; 0 for none. Raises InputError."""
    if not length:
        return 0, 1
    block = min(block_length or length, length)
    if length % block:
        accepted = f"a divisor of the {length} places to write"
        raise InputError("block_length", found=block, accepted=accepted, fix="change it, or the number of masks")
    blocks = length // block
    if steps % blocks:
        accepted = f"a multiple of the {blocks} blocks"
        raise InputError("steps", found=steps, accepted=accepted, fix="change steps or block_length")
    return block, steps // blocks


def _logits(raw: Array, tokens: Array, mask_token_id: int) -> Array:
    """Return float64 logits [B, S, V], the mask's own made impossible. Raises InputError for another shape or dtype."""
    raw = np.asarray(raw)
    count = tokens.size
    if (
        raw.dtype.kind != "f"
        or raw.size % count
        or (raw.ndim > 1 and raw.shape[:-1] not in ((*tokens.shape,), tokens.shape[-1:]))
    ):
        found = f"{raw.dtype} {list(raw.shape)}"
        accepted = f"floating-point logits {[*tokens.shape, 'vocabulary']}"
        raise InputError("prediction", found=found, accepted=accepted, fix="wire the language model's logits")
    logits = raw.reshape(*tokens.shape, -1).astype(np.float64)
    if mask_token_id < logits.shape[-1]:
        logits[..., mask_token_id] = -np.inf
    return logits


def _token_rows(latent: Array) -> Array:
    """Return int64 [B, S]. Raises InputError for anything but token ids."""
    if latent.dtype.kind not in "iu" or latent.ndim not in (1, 2) or not latent.size:
        found = f"{latent.dtype} {list(latent.shape)}"
        fix = "wire token ids, with the mask's id where text is to be written"
        raise InputError("latent", found=found, accepted="whole numbers [S] or [B, S]", fix=fix)
    return latent.astype(np.int64).reshape(-1, latent.shape[-1])


def _without_prompt(tokens: Array, starts: list[int], mask_token_id: int) -> Array:
    """Return the tokens with all places before the written part masked."""
    is_prompt = np.arange(tokens.shape[1]) < np.array(starts)[:, None]
    return np.where(is_prompt, mask_token_id, tokens)


def _first(flags: Array) -> int:
    """Return the index of the first true flag, or how many there are if none is."""
    return int(flags.argmax()) if flags.any() else flags.size


def _check_options(mask_token_id: int, temperature: float, block_length: int, remasking: str) -> None:
    for name, value in (("mask_token_id", mask_token_id), ("temperature", temperature), ("block_length", block_length)):
        if value < 0:
            raise InputError(name, found=value, accepted="0 or more", fix="raise it")
    if remasking not in ("low_confidence", "random"):
        raise InputError("remasking", found=repr(remasking), accepted="low_confidence or random", fix="use one of them")
