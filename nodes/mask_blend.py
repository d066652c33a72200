"""Inpainting as a node in the denoise loop: what the mask leaves out is steered back to the original latent."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Latent, Mask, Out, Range, node
from nodes.latent import checked_latent
from nodes.mask import fitted_mask
from nodes.schedulers.sampler import raw_for


@node(category="mask", search_aliases=("inpaint", "repaint", "keep", "masked"))
def mask_blend(
    prediction: Annotated[Latent, Help("The denoiser's prediction")],
    sample: Annotated[Latent, Help("The loop's sample, as the denoiser got it")],
    sigma: Annotated[float, Range(0, None, help="The loop's sigma: noise for each part of signal")],
    latent: Annotated[Latent, Help("The original without noise, at the denoiser's scale")],
    mask: Annotated[Mask, Help("1 where the picture is painted anew, 0 where it stays; of any size")],
    prediction_type: Annotated[
        Literal["epsilon", "v_prediction", "sample", "flow"], Help("What the denoiser predicts, as its config says")
    ] = "epsilon",
    method: Annotated[
        Literal["area", "nearest"],
        Help("How the mask is brought to the latent's size: area gives soft edges, nearest hard ones"),
    ] = "area",
) -> Annotated[Latent, Out("prediction", "float32, same shape: for the loop in place of the denoiser's")]:
    """Keep a part of the original while the rest is painted anew.

    Where the mask is 0 the prediction becomes the one that lands on the original: with `alpha = 1 / sqrt(1 + sigma^2)`
    and `s = sigma * alpha`, epsilon is `(sample - alpha * latent) / s` and v is `alpha * epsilon - s * latent`
    (Salimans and Ho 2022, arXiv:2202.00512, appendix D); flow is `(sample - latent) * (1 + sigma) / sigma` (Liu et al.
    2022, arXiv:2209.03003). Between 0 and 1 the two are mixed. Raises InputError for
    shapes that differ and without noise.
    """
    prediction, sample = checked_latent(prediction, "prediction"), checked_latent(sample, "sample")
    latent = checked_latent(latent)
    _check_shapes(prediction, sample, latent)
    if not sigma > 0:
        fix = "wire the loop's sigma; without a scheduler there is none"
        raise InputError("sigma", found=sigma, accepted="a noise level above 0", fix=fix)
    wanted = raw_for(prediction_type, sample, latent, float(sigma))
    share = fitted_mask(mask, prediction, method)
    blended: Array = wanted + share * (prediction - wanted)
    return blended.astype(np.float32, copy=False)


def _check_shapes(prediction: Array, sample: Array, latent: Array) -> None:
    """Raise InputError unless all have the prediction's shape; the original may be a single one for a batch."""
    shape = prediction.shape
    if sample.shape != shape:
        found, fix = f"shape {list(sample.shape)}", "wire the loop's sample that the denoiser got"
        raise InputError("sample", found=found, accepted=f"{list(shape)}, as the prediction has", fix=fix)
    if latent.shape[1:] != shape[1:] or latent.shape[0] not in (1, shape[0]):
        found, fix = f"shape {list(latent.shape)}", "encode a picture of the size that is painted"
        raise InputError("latent", found=found, accepted=f"{list(shape)}, as the prediction has", fix=fix)
