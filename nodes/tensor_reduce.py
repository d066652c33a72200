"""Tensor nodes that fold an axis into one number: sums, means, norms and what is built on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Out, Range, node
from nodes.tensor_axes import Axis, checked_axes, checked_axis, misfit
from nodes.tensor_dtypes import FLOATS, HALVES, as_float, as_full_float, as_number, choice, meet

TINY = 1e-12
"""Smallest length that a vector is divided by: a vector of zeros stays zeros."""


def _norm(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.sqrt((x * x).sum(axis=axis, keepdims=keepdims)))


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "std": np.std,
    "norm": _norm,
    "prod": np.prod,
}
_NEEDS_ELEMENTS = frozenset({"mean", "min", "max", "std"})


@node(category="tensor/reduce", search_aliases=("mean", "sum", "average", "norm", "std"))
def tensor_reduce(
    tensor: Annotated[Array, Help("Tensor to fold")],
    operation: Annotated[
        Literal["mean", "sum", "min", "max", "std", "norm", "prod"],
        Help("How elements become one; std is the population's, norm the Euclidean length"),
    ] = "mean",
    axes: Annotated[Any, Help("Axes to fold: a number, a list or text such as 1, 2; empty folds all")] = "",
    keepdims: Annotated[bool, Help("Keep the folded axes with size 1")] = False,
) -> Annotated[Array, Out("tensor", "The tensor without the folded axes")]:
    """Fold axes of a tensor into one number each.

    Floats keep their dtype; half floats are summed in float32. Whole numbers stay whole under sum, prod, min and max
    and give float32 else. Raises InputError for an axis that is not there and for the mean, min, max or std of nothing.
    """
    function = choice(_REDUCTIONS, operation, "operation")
    tensor = np.asarray(tensor)
    folded = checked_axes(tensor, axes) or tuple(range(tensor.ndim))
    if operation in _NEEDS_ELEMENTS and any(tensor.shape[axis] == 0 for axis in folded):
        fix = "use sum, or wire a tensor with elements"
        raise InputError("tensor", found=f"shape {list(tensor.shape)}", accepted="at least one element", fix=fix)
    x = as_float(tensor) if operation in ("mean", "std", "norm") else as_number(tensor)
    wide = as_full_float(x) if x.dtype in HALVES else x
    with np.errstate(all="ignore"):
        result = np.asarray(function(wide, axis=folded, keepdims=keepdims))
        return result.astype(x.dtype, copy=False) if x.dtype in FLOATS else result


@node(category="tensor/reduce", search_aliases=("probabilities",))
def softmax(
    tensor: Annotated[Array, Help("Logits")],
    axis: Axis = -1,
    temperature: Annotated[float, Range(0.001, 1000.0, 0.05, help="Logits are divided by it; below 1 sharpens")] = 1.0,
) -> Annotated[Array, Out("tensor", "Probabilities: same shape and dtype, sum 1 along the axis")]:
    """Turn logits into probabilities: exp(x / temperature), divided by its sum along an axis.

    -inf gives 0; a row of nothing but -inf has no probabilities and gives NaN. Half floats are computed in float32.
    Raises InputError for an axis that is not there or is empty.
    """
    x = as_float(np.asarray(tensor))
    axis = checked_axis(x, axis)
    if not x.shape[axis]:
        found = f"shape {list(x.shape)}"
        raise InputError("tensor", found=found, accepted="a logit or more", fix="choose another axis")
    wide = as_full_float(x)
    with np.errstate(all="ignore"):
        powers = np.exp((wide - wide.max(axis=axis, keepdims=True)) / wide.dtype.type(temperature))
        return np.asarray(powers / powers.sum(axis=axis, keepdims=True)).astype(x.dtype, copy=False)


@node(category="tensor/reduce", search_aliases=("cumsum", "running sum", "positions"))
def cumulative_sum(
    tensor: Annotated[Array, Help("Tensor to sum up")], axis: Axis = -1
) -> Annotated[Array, Out("tensor", "Running sums, same shape; booleans count as int64 0 and 1")]:
    """Sum up along an axis: element i becomes the sum of elements 0 to i.

    The cumulative sum of an attention mask, minus 1, is the position of each token that is not padding.
    Raises InputError for an axis that is not there.
    """
    x = as_number(np.asarray(tensor))
    wide = as_full_float(x) if x.dtype in HALVES else x
    return np.cumsum(wide, axis=checked_axis(x, axis), dtype=wide.dtype).astype(x.dtype, copy=False)


@node(category="tensor/reduce", search_aliases=("sentence embedding", "average"))
def mean_pool(
    tensor: Annotated[Array, Help("[B, S, H], a vector for each token")],
    mask: Annotated[Array, Help("[B, S], attention mask: 0 leaves a token out; unwired takes all")] | None = None,
) -> Annotated[Array, Out("tensor", "[B, H], the mean vector of each row; zeros where every token is left out")]:
    """Average the vectors of the tokens that an attention mask keeps.

    Half floats are summed in float32. Raises InputError when the tensor has not three axes or the mask does not fit.
    """
    x = as_float(np.asarray(tensor))
    if x.ndim != 3:
        fix = "wire the last hidden state of an encoder"
        raise InputError("tensor", found=f"shape {list(x.shape)}", accepted="three axes, [B, S, H]", fix=fix)
    wide = as_full_float(x)
    if mask is None:
        weights = np.ones((*x.shape[:2], 1), wide.dtype)
    else:
        mask = np.asarray(mask)
        if mask.shape != x.shape[:2]:
            raise misfit("mask", mask, x[..., 0], "the shape")
        weights = mask.astype(wide.dtype)[..., None]
    count = weights.sum(axis=1)
    mean = (wide * weights).sum(axis=1) / np.where(count == 0, wide.dtype.type(1), count)
    return np.asarray(mean).astype(x.dtype, copy=False)


@node(category="tensor/reduce", search_aliases=("unit vector", "normalise"))
def l2_normalize(
    tensor: Annotated[Array, Help("Vectors")], axis: Axis = -1
) -> Annotated[Array, Out("tensor", "The vectors with length 1, same shape; zeros stay zeros")]:
    """Divide vectors along an axis by their Euclidean length.

    Half floats are computed in float32. Raises InputError for an axis that is not there.
    """
    x = as_float(np.asarray(tensor))
    wide = as_full_float(x)
    length = _norm(wide, (checked_axis(x, axis),), keepdims=True)
    return np.asarray(wide / np.maximum(length, wide.dtype.type(TINY))).astype(x.dtype, copy=False)


@node(category="tensor/reduce", search_aliases=("similarity", "compare embeddings"))
def cosine_similarity(
    a: Annotated[Array, Help("First vectors, e.g. embeddings [B, H]")],
    b: Annotated[Array, Help("Second vectors; shapes broadcast")],
    axis: Axis = -1,
) -> Annotated[Array, Out("tensor", "Cosines of the angles, -1 to 1, without the vectors' axis; 0 for a zero vector")]:
    """Compare the directions of vectors: a . b / (|a| |b|) along an axis.

    Half floats are computed in float32. Raises InputError when the shapes do not broadcast or the axis is not there.
    """
    a, b = (as_float(tensor) for tensor in meet(a, b))
    dtype = a.dtype
    a, b = as_full_float(a), as_full_float(b)
    folded = (checked_axis(a if a.ndim >= b.ndim else b, axis) - max(a.ndim, b.ndim),)
    try:
        dots = (a * b).sum(axis=folded)
        return np.asarray(dots / np.maximum(_norm(a, folded, False) * _norm(b, folded, False), TINY)).astype(dtype)
    except ValueError:
        raise misfit("b", b, a) from None
