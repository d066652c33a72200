"""Tensor nodes that change a shape and keep the elements."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Out, Range, node
from nodes.tensor_axes import Axis, checked_axes, checked_axis, checked_size, whole_numbers
from nodes.tensor_dtypes import number_for


@node(category="tensor/shape", search_aliases=("view", "flatten"))
def reshape(
    tensor: Annotated[Array, Help("Tensor to reshape")],
    shape: Annotated[
        Any, Help("New sizes, a list or text such as 1, -1, 4; 0 keeps the size of that axis, one -1 takes the rest")
    ] = "-1",
) -> Annotated[Array, Out("tensor", "The same elements in the new shape")]:
    """Give a tensor another shape, elements in the same order. Raises InputError when the sizes do not multiply out."""
    tensor = np.asarray(tensor)
    wanted = whole_numbers(shape, "shape")
    have = tensor.shape
    if 0 in wanted:
        wanted = tuple(have[axis] if not size and axis < len(have) else size for axis, size in enumerate(wanted))
    try:
        return tensor.reshape(wanted)
    except ValueError:
        accepted = f"sizes that make {tensor.size} elements, at most one of them -1"
        found = f"shape {list(wanted)} for a tensor of shape {list(have)}"
        raise InputError("shape", found=found, accepted=accepted, fix="write -1 where the size follows") from None


@node(category="tensor/shape", search_aliases=("permute", "swap axes"))
def transpose(
    tensor: Annotated[Array, Help("Tensor whose axes are reordered")],
    order: Annotated[Any, Help("Axes in their new order, a list or text such as 0, 2, 1; empty reverses them")] = "",
) -> Annotated[Array, Out("tensor", "The tensor with its axes reordered")]:
    """Reorder the axes of a tensor. Raises InputError when the order does not name every axis once."""
    tensor = np.asarray(tensor)
    axes = checked_axes(tensor, order, "order")
    if axes and len(axes) != tensor.ndim:
        accepted = f"each of the {tensor.ndim} axes of shape {list(tensor.shape)} once"
        raise InputError("order", found=list(axes), accepted=accepted, fix="name every axis")
    return tensor.transpose(axes or None)


@node(category="tensor/shape", search_aliases=("remove axis",))
def squeeze(
    tensor: Annotated[Array, Help("Tensor with axes of size 1")],
    axes: Annotated[Any, Help("Axes to drop: a number, a list or text such as 0, 1; empty drops all of size 1")] = "",
) -> Annotated[Array, Out("tensor", "The tensor without these axes")]:
    """Drop axes of size 1. Raises InputError when one of the axes has another size."""
    tensor = np.asarray(tensor)
    dropped = checked_axes(tensor, axes)
    for axis in dropped:
        if tensor.shape[axis] != 1:
            found = f"axis {axis} of shape {list(tensor.shape)}"
            raise InputError("axes", found=found, accepted="axes of size 1", fix="slice or reduce that axis first")
    return tensor.squeeze(dropped or None)


@node(category="tensor/shape", search_aliases=("add axis", "expand dims"))
def unsqueeze(
    tensor: Annotated[Array, Help("Tensor that gets more axes")],
    axes: Annotated[Any, Help("Where the new axes are in the result: a number, a list or text such as 0, 1")] = "0",
) -> Annotated[Array, Out("tensor", "The tensor with new axes of size 1")]:
    """Insert axes of size 1. Raises InputError for a place outside of the resulting shape."""
    tensor = np.asarray(tensor)
    return np.expand_dims(tensor, checked_axes(tensor, axes, extra=len(whole_numbers(axes, "axes"))))


@node(category="tensor/shape", search_aliases=("repeat", "expand", "broadcast"))
def tile(
    tensor: Annotated[Array, Help("Tensor to repeat")],
    axis: Axis = 0,
    count: Annotated[int, Range(0, None, 1, help="How many copies lie one after the other")] = 2,
) -> Annotated[Array, Out("tensor", "The copies, joined along the axis")]:
    """Repeat a tensor along one of its axes. Raises InputError for a missing axis or a result too large to make."""
    tensor = np.asarray(tensor)
    copies = [1] * tensor.ndim
    copies[checked_axis(tensor, axis)] = count
    checked_size([size * times for size, times in zip(tensor.shape, copies, strict=True)], "count")
    return np.tile(tensor, copies)


@node(category="tensor/shape", search_aliases=("extend", "fill up"))
def pad_tensor(
    tensor: Annotated[Array, Help("Tensor to make longer")],
    axis: Axis = -1,
    before: Annotated[int, Range(0, None, 1, help="How many elements to put before the first")] = 0,
    after: Annotated[int, Range(0, None, 1, help="How many elements to put after the last")] = 0,
    value: Annotated[float, Range(None, None, help="What the new elements are")] = 0.0,
) -> Annotated[Array, Out("tensor", "The longer tensor, same dtype")]:
    """Make one axis longer with a constant. Raises InputError for a missing axis or a value the dtype cannot hold."""
    tensor = np.asarray(tensor)
    axis = checked_axis(tensor, axis)
    shape, place = list(tensor.shape), [slice(None)] * tensor.ndim
    place[axis] = slice(before, before + shape[axis])
    shape[axis] += before + after
    padded = np.full(checked_size(shape, "after"), number_for(tensor.dtype, value, "value"), tensor.dtype)
    padded[tuple(place)] = tensor
    return padded


class Sizes(NamedTuple):
    """Sizes of a tensor."""

    shape: Annotated[list[int], Help("All sizes, e.g. 1, 16, 64")]
    size: Annotated[int, Help("Size of the chosen axis; 1 for a number, which has no axes")]
    elements: Annotated[int, Help("How many elements the tensor has")]


@node(category="tensor/shape", search_aliases=("size", "length", "dimensions"))
def tensor_shape(tensor: Annotated[Array, Help("Tensor to measure")], axis: Axis = -1) -> Sizes:
    """Tell the sizes of a tensor. Raises InputError for an axis that is not there."""
    shape = list(np.shape(tensor))
    size = shape[checked_axis(tensor, axis)] if shape else 1
    return Sizes(shape, size, math.prod(shape))


@node(category="tensor/shape", search_aliases=("sizes", "dimensions", "list of numbers"))
def make_shape(
    a: Annotated[int, Range(None, None, 1, help="First size")],
    b: Annotated[int, Range(None, None, 1, help="Second size; leave empty for none")] | None = None,
    c: Annotated[int, Range(None, None, 1, help="Third size; leave empty for none")] | None = None,
    d: Annotated[int, Range(None, None, 1, help="Fourth size; leave empty for none")] | None = None,
) -> Annotated[list[int], Out("shape", "The numbers given, in order")]:
    """Put up to four sizes, wired or typed, into a list for Reshape or Tensor Fill."""
    return [size for size in (a, b, c, d) if size is not None]
