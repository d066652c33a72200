"""Tensor nodes that take elements out of tensors and put tensors together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Out, Range, node
from nodes.tensor_axes import Axis, checked_axis, misfit
from nodes.tensor_dtypes import BOOL, FLOATS, INT64, IntTensor, meet

_LONG_ROW = 2048
"""Above this, finding the k-th largest first is faster than sorting the whole row."""


@node(category="tensor/select", name="Slice", search_aliases=("crop", "last", "narrow"))
def slice_tensor(
    tensor: Annotated[Array, Help("Tensor to cut")],
    axis: Axis = -1,
    start: Annotated[int, Range(None, None, 1, help="First index; negative counts from the end, -1 is the last")] = 0,
    end: Annotated[int, Range(None, None, 1, help="Index to stop before, negative from the end; empty: to the end")]
    | None = None,
    step: Annotated[int, Range(None, None, 1, help="Take every step-th; negative goes backwards")] = 1,
) -> Annotated[Array, Out("tensor", "The part, same number of axes")]:
    """Cut a range out of one axis, with Python's rules: what lies outside is left out.

    start -1 on the sequence axis of logits takes those of the last token.
    Raises InputError for a missing axis or a step of 0.
    """
    tensor = np.asarray(tensor)
    axis = checked_axis(tensor, axis)
    if not step:
        raise InputError("step", found=0, accepted="a step other than 0", fix="use 1, or -1 to reverse")
    part = tensor[(slice(None),) * axis + (slice(start, end, step),)]
    # A view would keep the whole tensor alive: logits of every position for the sake of the last.
    return part.copy()


@node(category="tensor/select", search_aliases=("index", "take", "pick", "frame"))
def select_row(
    tensor: Annotated[Array, Help("Tensor to take from")],
    index: Annotated[int, Range(None, None, 1, help="Which one, from 0; negative counts from the end")] = 0,
    axis: Axis = 1,
    keepdims: Annotated[bool, Help("Keep the axis with size 1")] = True,
    outside: Annotated[
        Literal["error", "zeros"], Help("What an index outside of the axis gives: an error, or a row of zeros")
    ] = "error",
) -> Annotated[Array, Out("tensor", "What lies at that index of the axis")]:
    """Take what lies at one index of an axis, for example the conditioning vector of the current frame.

    Raises InputError for a missing axis, or for an index outside of it where that is an error.
    """
    tensor = np.asarray(tensor)
    axis = checked_axis(tensor, axis)
    size = tensor.shape[axis]
    if -size <= index < size:
        row = np.asarray(np.take(tensor, index, axis))
    elif outside == "zeros":
        row = np.zeros(tensor.shape[:axis] + tensor.shape[axis + 1 :], tensor.dtype)
    else:
        accepted = f"{-size} to {size - 1}" if size else "nothing: the axis is empty"
        raise InputError("index", found=index, accepted=accepted, fix="change it or set outside to zeros")
    return np.expand_dims(row, axis) if keepdims else row


@node(category="tensor/select", search_aliases=("take", "lookup", "index", "embedding"))
def gather(
    tensor: Annotated[Array, Help("Tensor to take from, e.g. an embedding table [V, H]")],
    indices: Annotated[Array, Help("Whole numbers of any shape; negative count from the end")],
    axis: Axis = 0,
) -> Annotated[Array, Out("tensor", "The tensor with the axis replaced by the shape of the indices")]:
    """Take the elements at many indices of an axis. A single number as index drops the axis.

    Raises InputError for a missing axis, indices that are not whole numbers, or one outside of the axis.
    """
    tensor, indices = np.asarray(tensor), np.asarray(indices)
    axis = checked_axis(tensor, axis)
    if indices.dtype in FLOATS or indices.dtype == BOOL:
        raise InputError("indices", found=str(indices.dtype), accepted="whole numbers", fix="put a Cast node before it")
    try:
        return np.asarray(np.take(tensor, indices, axis))
    except IndexError:
        size = tensor.shape[axis]
        found = f"indices from {indices.min()} to {indices.max()}"
        accepted = f"{-size} to {size - 1}, the indices of axis {axis} of shape {list(tensor.shape)}"
        raise InputError("indices", found=found, accepted=accepted, fix="choose another axis or clip them") from None


@node(category="tensor/select", search_aliases=("greedy", "token", "index of largest"))
def argmax(
    tensor: Annotated[Array, Help("Tensor to search, e.g. logits [B, S, V]")],
    axis: Axis = -1,
    keepdims: Annotated[bool, Help("Keep the axis with size 1")] = False,
) -> Annotated[IntTensor, Out("indices", "int64, index of the largest element; the lowest of several equal ones")]:
    """Find where the largest element of an axis is. NaN counts as largest.

    Raises InputError for an axis that is not there or is empty.
    """
    tensor = np.asarray(tensor)
    axis = checked_axis(tensor, axis)
    if not tensor.shape[axis]:
        fix = "wire a tensor with elements on that axis"
        raise InputError("tensor", found=f"shape {list(tensor.shape)}", accepted="one element or more", fix=fix)
    return np.asarray(tensor.argmax(axis=axis, keepdims=keepdims)).astype(INT64, copy=False)


class Largest(NamedTuple):
    """The largest elements of an axis."""

    values: Annotated[Array, Help("The k largest, in falling order, along the last axis")]
    indices: Annotated[IntTensor, Help("int64, where they are; among equal ones the lowest index comes first")]


@node(category="tensor/select", search_aliases=("largest", "best", "candidates"))
def top_k(
    tensor: Annotated[Array, Help("Tensor to search along its last axis, e.g. logits [B, V]")],
    k: Annotated[int, Range(1, None, 1, help="How many to find")] = 5,
) -> Largest:
    """Find the k largest elements of the last axis. NaN counts as largest. Raises InputError when there are fewer."""
    tensor = np.asarray(tensor)
    size = tensor.shape[-1] if tensor.ndim else 0
    if not 1 <= k <= size:
        found = f"{k} for shape {list(tensor.shape)}"
        raise InputError("k", found=found, accepted=f"1 to the size of the last axis, {size}", fix="choose a smaller k")
    if size <= _LONG_ROW:
        order = _falling(tensor)[..., :k]
    else:
        rows = [_largest_of_row(row, k) for row in tensor.reshape(-1, size)]
        order = np.array(rows, INT64).reshape(*tensor.shape[:-1], k)
    return Largest(np.take_along_axis(tensor, order, -1), order)


def _falling(x: Array) -> Array:
    """Return the indices that sort the last axis from largest to smallest, equal ones by rising index."""
    rising = np.argsort(x[..., ::-1], axis=-1, kind="stable")
    return np.asarray(x.shape[-1] - 1 - rising[..., ::-1]).astype(INT64, copy=False)


def _largest_of_row(row: Array, k: int) -> Array:
    """Return what `_falling(row)[:k]` is, without sorting the elements below the k-th largest."""
    kth = np.partition(row, row.size - k)[row.size - k]
    candidates = np.flatnonzero(~(row < kth))  # so that NaN, which is not below anything, stays in
    return np.asarray(candidates[_falling(row[candidates])[:k]])


@node(category="tensor/select", search_aliases=("join", "append", "cat"))
def concatenate(
    a: Annotated[Array, Help("First tensor")],
    b: Annotated[Array, Help("Second tensor: same sizes as a, except along the axis")],
    c: Annotated[Array, Help("Third tensor, or nothing")] | None = None,
    d: Annotated[Array, Help("Fourth tensor, or nothing")] | None = None,
    axis: Axis = -1,
) -> Annotated[Array, Out("tensor", "The tensors one after the other along the axis, in their common dtype")]:
    """Join tensors along an axis they have. Raises InputError when another size differs or the axis is not there."""
    tensors = _given(a=a, b=b, c=c, d=d)
    axis = checked_axis(tensors["a"], axis)
    try:
        return np.concatenate(meet(*tensors.values()), axis)
    except ValueError:
        raise _first_misfit(tensors, axis) from None


@node(category="tensor/select", search_aliases=("batch", "join"))
def stack(
    a: Annotated[Array, Help("First tensor or number")],
    b: Annotated[Array, Help("Second, of the same shape")],
    c: Annotated[Array, Help("Third, or nothing")] | None = None,
    d: Annotated[Array, Help("Fourth, or nothing")] | None = None,
    axis: Axis = 0,
) -> Annotated[Array, Out("tensor", "The tensors along a new axis, in their common dtype")]:
    """Put tensors of one shape side by side along a new axis. Raises InputError when a shape differs."""
    tensors = _given(a=a, b=b, c=c, d=d)
    axis = checked_axis(tensors["a"], axis, extra=1)
    try:
        return np.stack(meet(*tensors.values()), axis)
    except ValueError:
        raise _first_misfit(tensors, None) from None


def _given(**tensors: Array | None) -> dict[str, Array]:
    return {name: np.asarray(tensor) for name, tensor in tensors.items() if tensor is not None}


def _first_misfit(tensors: Mapping[str, Array], axis: int | None) -> InputError:
    """Return the error for the first tensor that does not fit `a`, whatever its size along the axis is."""
    (_, first), *others = tensors.items()
    wanted = [size for index, size in enumerate(first.shape) if index != axis]
    name, tensor = next(
        (name, tensor)
        for name, tensor in others
        if tensor.ndim != first.ndim or [size for index, size in enumerate(tensor.shape) if index != axis] != wanted
    )
    return misfit(name, tensor, first, "the shape" if axis is None else f"away from axis {axis} the shape")


@node(category="tensor/select", search_aliases=("scatter", "placeholder", "image features", "insert"))
def masked_scatter(
    tensor: Annotated[Array, Help("Tensor that receives, e.g. embeddings [B, S, H]")],
    mask: Annotated[Array, Help("True where a row is replaced, e.g. [B, S]: the tensor's first axes")],
    rows: Annotated[Array, Help("Replacements in order, [..., H]: as many rows as the mask has true places")],
) -> Annotated[Array, Out("tensor", "A copy with the rows replaced, same shape and dtype")]:
    """Put rows into the places a mask marks, for example image features at the placeholder tokens of a prompt.

    Raises InputError when the mask is not the beginning of the tensor's shape or the number of rows differs.
    """
    tensor, rows = np.asarray(tensor), np.asarray(rows)
    places = np.asarray(mask).astype(BOOL, copy=False)
    if places.shape != tensor.shape[: places.ndim]:
        raise misfit("mask", places, tensor, "the first sizes of")
    needed = (int(places.sum()), *tensor.shape[places.ndim :])
    if rows.size != np.prod(needed) or rows.shape[rows.ndim - len(needed) + 1 :] != needed[1:]:
        raise misfit("rows", rows, np.empty(needed, BOOL), "rows of the shape")
    result = tensor.copy()
    result[places] = rows.reshape(needed).astype(tensor.dtype, copy=False)
    return result
