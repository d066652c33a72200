"""Guidance: joining two lanes into one wire and folding them into one prediction."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from app.engine.lanes import Pair
from app.graph import socket
from app.graph.errors import InputError
from app.graph.node import Array, Help, Out, Range, node

Tensor = Annotated[Array, socket.TENSOR]


@node(category="guidance", search_aliases=("negative prompt", "cfg", "unconditional"))
def guidance_pair(
    positive: Annotated[Tensor, Help("what to move towards, e.g. the encoded prompt", pair="refuse")],
    negative: Annotated[Tensor, Help("what to move away from, e.g. the encoded negative prompt", pair="refuse")],
) -> Annotated[Tensor, Out("pair", "both lanes on one wire", gives_pair=True)]:
    """Join a positive and a negative tensor into one wire.

    Whatever takes the pair runs for both lanes and gives a pair, until a loop's own cfg rule or a Guidance Combine
    node folds it. At cfg 1 the negative lane is not computed.
    """
    return Pair(positive, negative)  # type: ignore[return-value]


class Lanes(NamedTuple):
    """The two lanes of a guidance pair."""

    positive: Annotated[Tensor, Help("conditional value")]
    negative: Annotated[Tensor, Help("unconditional value")]


@node(category="guidance")
def guidance_split(pair: Annotated[Tensor, Help("a guidance pair", pair="accept")]) -> Lanes:
    """Take a guidance pair apart, to build a guidance rule of your own from tensor nodes."""
    if not isinstance(pair, Pair):
        raise _not_a_pair("pair", "split")
    return Lanes(pair.positive, pair.negative)


@node(category="guidance", search_aliases=("cfg rescale", "classifier-free guidance"))
def guidance_combine(
    prediction: Annotated[Tensor, Help("the denoiser's prediction for both lanes", pair="accept", cfg="cfg")],
    cfg: Annotated[float, Range(0, 100, 0.1, "guidance scale; 1 is the positive lane alone", role="steerable")] = 7.5,
    mode: Annotated[
        Literal["plain", "rescale"], Help("rescale gives the result the contrast of the positive lane")
    ] = "plain",
    rescale: Annotated[
        float, Range(0, 1, 0.05, "how much of the contrast to take over in mode rescale", role="steerable")
    ] = 0.7,
) -> Annotated[Tensor, Out("prediction", "one prediction, float32")]:
    """Fold a guidance pair: `uncond + cfg * (cond - uncond)` (Ho and Salimans 2022, arXiv:2207.12598).

    Mode `rescale` keeps high cfg from overexposing (Lin et al. 2023, arXiv:2305.08891, section 3.4).
    """
    guided = guide(prediction, cfg, "prediction")
    if mode == "rescale" and isinstance(prediction, Pair):
        return rescaled(prediction.positive, guided, rescale)
    return guided


def guide(prediction: Any, cfg: float, input: str) -> Array:
    """Return `uncond + cfg * (cond - uncond)` in float32, or the positive lane itself when cfg is 1.

    prediction: a Pair of arrays of one shape, or, when cfg is 1, a single array.
    Raises InputError naming `input` when cfg is not 1 and there is no pair, or when the lanes' shapes differ.
    """
    if not isinstance(prediction, Pair):
        if cfg != 1:
            raise _not_a_pair(input, f"guide with cfg {cfg:g}")
        result: Array = prediction
        return result
    if cfg == 1:
        positive: Array = prediction.positive
        return positive
    cond, uncond = (np.asarray(lane, np.float32) for lane in (prediction.positive, prediction.negative))
    if cond.shape != uncond.shape:
        found = f"lanes of shapes {list(cond.shape)} and {list(uncond.shape)}"
        raise InputError(input, found=found, accepted="two lanes of one shape", fix="pair inputs of one shape")
    guided: Array = uncond + np.float32(cfg) * (cond - uncond)
    return guided


def rescaled(cond: Array, guided: Array, phi: float) -> Array:
    """Return `guided` with a share `phi` of the per-sample standard deviation of `cond` (arXiv:2305.08891, eq. 15-16).

    cond, guided: float [B, ...] of one shape. A constant sample has no contrast to rescale and stays as it is.
    """
    axes = tuple(range(1, guided.ndim))
    cond = np.asarray(cond, np.float32)
    spread = guided.std(axes, keepdims=True)
    ratio = cond.std(axes, keepdims=True) / np.where(spread == 0, 1, spread)
    factor = np.where(spread == 0, 1, phi * ratio + (1 - phi)).astype(np.float32)
    result: Array = guided * factor
    return result


def _not_a_pair(input: str, purpose: str) -> InputError:
    return InputError(
        input,
        found=f"a single value to {purpose}",
        accepted="a guidance pair, or cfg 1",
        fix="put a Guidance Pair node before the denoiser's conditioning input, or set cfg to 1",
        code="guidance_without_pair",
    )
