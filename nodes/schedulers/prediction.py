"""Prediction types: what a denoiser's output means, converted in this one place.

With `x = alpha * clean + s * noise` and alpha^2 + s^2 = 1: epsilon is the noise, v is `alpha * noise - s * clean`
(Salimans and Ho 2022, arXiv:2202.00512, appendix D), sample is the clean latent.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array

PredictionType = Literal["epsilon", "v_prediction", "sample"]


class Prediction:
    """What a denoiser's output says about one sample; both views are computed only when asked for.

    prediction_type: "epsilon", "v_prediction" or "sample" ("x0" means the same).
    x: the variance-preserving sample, float32; raw: the output, same shape.
    alpha, s: shares of signal and noise in x.
    """

    __slots__ = ("alpha", "prediction_type", "raw", "s", "x")

    def __init__(self, prediction_type: str, x: Array, raw: Array, alpha: float, s: float) -> None:
        self.prediction_type, self.x, self.alpha, self.s = prediction_type, x, alpha, s
        self.raw = np.asarray(raw, np.float32)

    @property
    def epsilon(self) -> Array:
        """The noise in x, float32. Raises InputError for an unknown prediction type."""
        if self.prediction_type == "epsilon":
            return self.raw
        if self.prediction_type == "v_prediction":
            epsilon: Array = self.alpha * self.raw + self.s * self.x
            return epsilon
        _check(self.prediction_type)
        epsilon = (self.x - self.alpha * self.raw) / self.s
        return epsilon

    @property
    def denoised(self) -> Array:
        """The clean latent in x, float32. Raises InputError for an unknown prediction type."""
        if self.prediction_type == "epsilon":
            denoised: Array = (self.x - self.s * self.raw) / self.alpha
            return denoised
        if self.prediction_type == "v_prediction":
            denoised = self.alpha * self.x - self.s * self.raw
            return denoised
        _check(self.prediction_type)
        return self.raw


def raw_for(prediction_type: str, x: Array, clean: Array, sigma: float) -> Array:
    """Return the output that means "the clean latent is `clean`", float32.

    x: the variance-preserving sample; sigma: noise over signal, above 0, may be infinite.
    Raises InputError for an unknown prediction type.
    """
    alpha = 1 / math.hypot(1, sigma)
    s = sigma * alpha if math.isfinite(sigma) else 1.0
    if prediction_type not in ("epsilon", "v_prediction"):
        _check(prediction_type)
        return clean
    epsilon: Array = (x - alpha * clean) / s
    return epsilon if prediction_type == "epsilon" else alpha * epsilon - s * clean


def _check(prediction_type: str) -> None:
    if prediction_type not in ("sample", "x0"):
        accepted, fix = "epsilon, v_prediction or sample", "see prediction_type in the scheduler's config"
        raise InputError("prediction_type", found=repr(prediction_type), accepted=accepted, fix=fix)
