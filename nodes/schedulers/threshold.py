"""Dynamic thresholding of the clean latent or picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from app.graph.node import Array, Help, Range


@dataclass(frozen=True, slots=True)
class Threshold:
    """Dynamic thresholding (Saharia et al. 2022, arXiv:2205.11487, section 2.3): made for pictures, not for latents."""

    thresholding: Annotated[bool, Help("Keep the clean picture in range by dynamic thresholding; not for latents")] = (
        False
    )
    dynamic_thresholding_ratio: Annotated[float, Range(0, 1, 0.001, help="Quantile taken for the threshold")] = 0.995
    sample_max_value: Annotated[float, Range(1, 1000, 0.1, help="Greatest threshold")] = 1.0

    def __call__(self, denoised: Array) -> Array:
        """Return each picture of [B, ...] cut at its threshold s and divided by s; unchanged without thresholding."""
        if not self.thresholding:
            return denoised
        axes = tuple(range(1, denoised.ndim))
        bound = np.quantile(np.abs(denoised), self.dynamic_thresholding_ratio, axes, keepdims=True)
        bound = bound.clip(1, self.sample_max_value).astype(np.float32)
        result: Array = denoised.clip(-bound, bound) / bound
        return result
