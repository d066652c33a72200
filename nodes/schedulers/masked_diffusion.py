"""Masked diffusion of text: the sample is token ids, and each step turns some masks into tokens."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Range
from nodes.noise import NoiseSource
from nodes.schedulers.sampler import DenoiseCall, Sampling, SamplingJob, scheduler


@scheduler(
    kind="masked_diffusion",
    search_aliases=("sampler", "llada", "language", "text", "unmask"),
    gives_pair=True,
)
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
    _check_options(mask_token_id, temperature, block_length)
    tokens = _token_rows(job.latent)
    shape = job.latent.shape
    starts = [_first(row == mask_token_id) for row in tokens]
    plans = [_plan(tokens.shape[1] - start, block_length, job.steps) for start in starts]
    for step in range(job.start_step, job.steps):
        uncond = _without_prompt(tokens, starts, mask_token_id).reshape(shape) if job.guided else None
        raw = yield DenoiseCall(tokens.reshape(shape), float(step), step, 0.0, uncond)
        logits = _checked_logits(raw, tokens)
        tokens = tokens.copy()  # what was yielded may still be looked at
        for row, (start, (block, steps_per_block)) in enumerate(zip(starts, plans, strict=True)):
            if block:
                first = start + min(step // steps_per_block, (tokens.shape[1] - start) // block - 1) * block
                places = first + np.flatnonzero(tokens[row, first : first + block] == mask_token_id)
                remaining = steps_per_block - step % steps_per_block
                scores = logits[row, places].astype(np.float64)
                found = _drawn(scores, mask_token_id, temperature, job.noise)
                if remasking == "random":
                    chosen = np.flatnonzero(job.noise.uniform(places.shape) < 1 / remaining)
                else:
                    chosen = _surest(scores, found, -(-places.size // remaining))
                tokens[row, places[chosen]] = found[chosen]
    return tokens.reshape(shape)


def _surest(scores: Array, found: Array, count: int) -> Array:
    """Return the indices of the `count` tokens of highest probability, ties from the left.

    scores: float64 [places, V]; found: the token at each place.
    """
    top = scores.max(-1, keepdims=True)
    chosen = np.take_along_axis(scores, found[:, None], -1) - top
    log_probability = (chosen - np.log(np.exp(scores - top).sum(-1, keepdims=True)))[:, 0]
    order: Array = np.argsort(-log_probability, kind="stable")[:count]
    return order


def _drawn(scores: Array, mask_token_id: int, temperature: float, noise: NoiseSource) -> Array:
    """Return a token for each place, never the mask: the argmax of `score - temperature * ln(-ln u)` (Gumbel)."""
    scores = scores.copy()
    if temperature > 0:
        uniform = noise.uniform(scores.shape).astype(np.float64)
        uniform = uniform.clip(np.finfo(np.float32).tiny, None)  # 0 has no logarithm
        scores -= temperature * np.log(-np.log(uniform))
    scores[:, mask_token_id : mask_token_id + 1] = -np.inf
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


def _checked_logits(raw: Array, tokens: Array) -> Array:
    """Return logits as [B, S, V]; a single row may come as [S, V]. Raises InputError for another shape or dtype."""
    raw = np.asarray(raw)
    is_row = len(tokens) == 1 and raw.shape[:-1] == tokens.shape[1:]
    if raw.dtype.kind != "f" or not (is_row or raw.shape[:-1] == tokens.shape):
        found = f"{raw.dtype} {list(raw.shape)}"
        accepted = f"logits, float32 [{', '.join(map(str, tokens.shape))}, vocabulary]"
        raise InputError("prediction", found=found, accepted=accepted, fix="wire the language model's logits")
    return raw.reshape(*tokens.shape, -1)


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


def _check_options(mask_token_id: int, temperature: float, block_length: int) -> None:
    for name, value in (("mask_token_id", mask_token_id), ("temperature", temperature), ("block_length", block_length)):
        if value < 0:
            raise InputError(name, found=value, accepted="0 or more", fix="raise it")
