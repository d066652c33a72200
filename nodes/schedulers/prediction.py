"""Prediction types: what a denoiser's output means, converted in this one place.

With `x = alpha * clean + s * noise` and alpha^2 + s^2 = 1: epsilon is the noise, v is `alpha * noise - s * clean`
(Salimans and Ho 2022, arXiv:2202.00512, appendix D), sample is the clean latent. With alpha + s = 1 instead, flow is
`noise - clean` (Liu et al. 2022, arXiv:2209.03003).
"""

from __future__ import annotations

import math
from typing import Literal

from app.graph.errors import InputError
from app.graph.node import Array

PredictionType = Literal["epsilon", "v_prediction", "sample"]
"""What a denoiser of variance-preserving levels predicts; `flow` goes with levels of its own (see dpmpp.py)."""


Weights = tuple[float, float]
"""(of x, of the output): what is wanted is `weights[0] * x + weights[1] * raw`."""


def denoised_weights(prediction_type: str, alpha: float, s: float) -> Weights:
    """Return the weights that give the clean latent, for shares of signal and noise in x.

    Raises InputError for an unknown prediction type ("x0" means "sample").
    """
    if prediction_type == "epsilon":
        return 1 / alpha, -s / alpha
    if prediction_type == "v_prediction":
        return alpha, -s
    if prediction_type == "flow":
        return 1.0, -s
    _check(prediction_type)
    return 0.0, 1.0


def epsilon_weights(prediction_type: str, alpha: float, s: float) -> Weights:
    """Return the weights that give the noise, as `denoised_weights` does for the clean latent."""
    if prediction_type == "epsilon":
        return 0.0, 1.0
    if prediction_type == "v_prediction":
        return s, alpha
    if prediction_type == "flow":
        return 1.0, alpha
    _check(prediction_type)
    return 1 / s, -alpha / s


class Prediction:
    """What a denoiser's output says about one sample; both views are computed only when asked for.

    prediction_type: "epsilon", "v_prediction", "sample" or "flow".
    x: the sample as the denoiser saw it, float32; raw: the output, same shape. alpha, s: shares of signal and noise.
    """

    __slots__ = ("alpha", "prediction_type", "raw", "s", "x")

    def __init__(self, prediction_type: str, x: Array, raw: Array, alpha: float, s: float) -> None:
        self.prediction_type, self.x, self.raw, self.alpha, self.s = prediction_type, x, raw, alpha, s

    @property
    def epsilon(self) -> Array:
        """The noise in x, float32. Raises InputError for an unknown prediction type."""
        return self._weighed(epsilon_weights(self.prediction_type, self.alpha, self.s))

    @property
    def denoised(self) -> Array:
        """The clean latent in x, float32. Raises InputError for an unknown prediction type."""
        return self._weighed(denoised_weights(self.prediction_type, self.alpha, self.s))

    def _weighed(self, weights: Weights) -> Array:
        if weights == (0.0, 1.0):
            return self.raw
        weighed: Array = weights[0] * self.x + weights[1] * self.raw
        return weighed


def raw_for(prediction_type: str, x: Array, clean: Array, sigma: float) -> Array:
    """Return the output that means "the clean latent is `clean`", float32.

    x: the sample as the denoiser saw it; sigma: noise over signal, above 0, may be infinite.
    Raises InputError for an unknown prediction type.
    """
    if prediction_type == "flow":
        flow: Array = (x - clean) / (sigma / (1 + sigma) if math.isfinite(sigma) else 1.0)
        return flow
    alpha = 1 / math.hypot(1, sigma)
    s = sigma * alpha if math.isfinite(sigma) else 1.0
    if prediction_type not in ("epsilon", "v_prediction"):
        _check(prediction_type)
        return clean
    epsilon: Array = (x - alpha * clean) / s
    return epsilon if prediction_type == "epsilon" else alpha * epsilon - s * clean


def fitting(raw: Array, x: Array) -> Array:
    """Return a denoiser's output. Raises InputError unless it has the sample's shape: numpy would stretch it to fit."""
    if raw.shape != x.shape:
        fix = "wire the denoiser's own output; one that also predicts a variance needs a Slice node"
        found, accepted = f"shape {list(raw.shape)}", f"the sample's {list(x.shape)}"
        raise InputError("prediction", found=found, accepted=accepted, fix=fix)
    return raw


def _check(prediction_type: str) -> None:
    if prediction_type not in ("sample", "x0"):
        accepted, fix = "epsilon, v_prediction, sample or flow", "see prediction_type in the scheduler's config"
        raise InputError("prediction_type", found=repr(prediction_type), accepted=accepted, fix=fix)
