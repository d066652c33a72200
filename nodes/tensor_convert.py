"""Tensor nodes between tensors, lists and numbers: casts, constants, ranges."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Out, Range, node
from nodes.tensor_axes import MAX_ELEMENTS, checked_size, whole_numbers
from nodes.tensor_dtypes import (
    BOOL,
    FLOAT32,
    FLOAT64,
    FLOATS,
    AutoDTypeName,
    DType,
    DTypeName,
    IntTensor,
    as_full_float,
    dtype_of,
    number_for,
)


@node(category="tensor/convert", search_aliases=("dtype", "convert", "float16", "int64"))
def cast(
    tensor: Annotated[Array, Help("Tensor or number to convert")],
    dtype: Annotated[DTypeName, Help("The dtype it is converted to")] = "float32",
) -> Annotated[Array, Out("tensor", "The tensor in that dtype, same shape")]:
    """Convert a tensor to another dtype.

    From float to whole numbers the fraction is cut off, toward zero; to bool, everything but 0 is true. A float too
    large for a smaller float becomes inf. Raises InputError for NaN or inf where whole numbers or booleans are asked
    for, and for numbers outside of the range of the new dtype.
    """
    tensor = np.asarray(tensor)
    target = dtype_of(dtype)
    if tensor.dtype == target:
        return tensor
    if target not in FLOATS:
        _check_castable(tensor, target)
    with np.errstate(all="ignore"):
        return tensor.astype(target)


def _check_castable(tensor: Array, target: DType) -> None:
    """Raise InputError when elements cannot become whole numbers or booleans of a dtype."""
    if tensor.dtype in FLOATS and not np.isfinite(tensor).all():
        found = "NaN" if np.isnan(tensor).any() else "inf"
        fix = f"keep a float dtype, or clip before the cast to {target}"
        raise InputError("tensor", found=found, accepted="finite numbers", fix=fix)
    if target == BOOL or not tensor.size or np.can_cast(tensor.dtype, target):
        return
    info = np.iinfo(target)
    ends = (tensor.min(), tensor.max())
    low, high = (math.trunc(float(end)) if tensor.dtype in FLOATS else int(end) for end in ends)
    if low < info.min or high > info.max:
        accepted = f"{info.min} to {info.max}, the range of {target}"
        fix = "put a Clip Tensor node before it or choose a larger dtype"
        raise InputError("tensor", found=f"numbers from {low} to {high}", accepted=accepted, fix=fix)


@node(category="tensor/convert", search_aliases=("zeros", "ones", "full", "constant"))
def tensor_fill(
    shape: Annotated[Any, Help("Sizes: a list or text such as 1, 16; a Make Shape node joins wired numbers")] = "1",
    value: Annotated[float, Range(None, None, help="What every element is")] = 0.0,
    dtype: Annotated[DTypeName, Help("Dtype of the tensor")] = "float32",
) -> Annotated[Array, Out("tensor", "A tensor of that shape with equal elements")]:
    """Make a tensor of equal elements. Raises InputError for a bad shape or a value that the dtype cannot hold."""
    target = dtype_of(dtype)
    sizes = checked_size(whole_numbers(shape, "shape"), "shape")
    return np.full(sizes, number_for(target, value, "value"), target)


@node(category="tensor/convert", name="Range", search_aliases=("arange", "positions", "position_ids", "count"))
def whole_range(
    start: Annotated[int, Range(None, None, 1, help="First number")] = 0,
    length: Annotated[int, Range(0, None, 1, help="How many numbers; or leave empty and give end")] | None = None,
    end: Annotated[int, Range(None, None, 1, help="Stop before this number; or leave empty and give length")]
    | None = None,
    step: Annotated[int, Range(None, None, 1, help="Difference from one number to the next")] = 1,
    batch: Annotated[int, Range(0, None, 1, help="0 gives [n], else this many equal rows, [batch, n]")] = 0,
) -> Annotated[IntTensor, Out("tensor", "int64 [n] or [batch, n]: start, start + step, ...")]:
    """Count in steps: position ids are a range from the number of tokens that came before.

    Raises InputError unless exactly one of length and end is given, for a step of 0, and when it would be too long.
    """
    if (length is None) == (end is None):
        found = "neither length nor end" if length is None else "both length and end"
        raise InputError("length", found=found, accepted="one of the two", fix="give one and leave the other empty")
    if not step:
        raise InputError("step", found=0, accepted="a step other than 0", fix="use 1, or -1 to count down")
    stop = start + length * step if length is not None else end
    numbers = range(start, stop if stop is not None else start, step)
    edges = (numbers[0], numbers[-1]) if numbers else (0, 0)
    if len(numbers) * max(batch, 1) > MAX_ELEMENTS or not all(-(2**63) <= edge < 2**63 for edge in edges):
        found = f"{len(numbers)} numbers from {start}"
        accepted = f"at most {MAX_ELEMENTS} elements in the range of int64"
        raise InputError("length", found=found, accepted=accepted, fix="make it shorter")
    row = np.arange(numbers.start, numbers.stop, step, dtype=np.int64)
    return np.tile(row, (batch, 1)) if batch else row


@node(category="tensor/convert", search_aliases=("array", "constant"))
def list_to_tensor(
    items: Annotated[list[Any], Help("Numbers, or lists of numbers of equal length")],
    dtype: Annotated[
        AutoDTypeName, Help("Dtype of the tensor; auto takes int64 for whole numbers, bool for booleans, else float32")
    ] = "auto",
) -> Annotated[Array, Out("tensor", "The list as a tensor; each level of nesting is an axis")]:
    """Turn a list of numbers into a tensor.

    Raises InputError for uneven rows, for anything that is not a number, and where the dtype cannot hold one.
    """
    try:
        tensor = np.asarray(items) if items else np.zeros(np.shape(items), FLOAT32)
    except ValueError:
        fix = "make all rows equally long"
        raise InputError("items", found="rows of different length", accepted="even rows", fix=fix) from None
    if tensor.dtype not in FLOATS and tensor.dtype != BOOL and not np.issubdtype(tensor.dtype, np.integer):
        raise InputError("items", found="items that are not numbers", accepted="numbers", fix="leave numbers only")
    if dtype != "auto":
        return cast(tensor, dtype)
    return tensor.astype(FLOAT32) if tensor.dtype == FLOAT64 else tensor


@node(category="tensor/convert", search_aliases=("array", "values"))
def tensor_to_list(
    tensor: Annotated[Array, Help("Tensor whose elements are wanted")],
) -> Annotated[list[Any], Out("items", "Its elements as Python numbers, a list for each axis")]:
    """Turn a tensor into a list, nested as the tensor has axes. A single number gives a list of one."""
    tensor = np.asarray(tensor)
    items: Any = (as_full_float(tensor) if tensor.dtype in FLOATS else tensor).tolist()
    return items if tensor.ndim else [items]


FloatValue = Annotated[float, Help("The number as a FLOAT")]
IntValue = Annotated[int, Help("The number as an INT, rounded half to even")]


class Number(NamedTuple):
    """A number in its two types."""

    float: FloatValue
    int: IntValue


@node(category="tensor/convert", search_aliases=("scalar", "item", "value"))
def tensor_to_number(tensor: Annotated[Array, Help("A tensor with exactly one element")]) -> Number:
    """Take the only element out of a tensor. Raises InputError for several elements or none, and for NaN and inf."""
    tensor = np.asarray(tensor)
    if tensor.size != 1:
        fix = "put a Select Row, Slice or Tensor Reduce node before it"
        raise InputError("tensor", found=f"shape {list(tensor.shape)}", accepted="exactly one element", fix=fix)
    item: Any = tensor.ravel()[0]
    if tensor.dtype not in FLOATS:
        return Number(float(item), int(item))
    return Number(float(item), nearest(float(item), "tensor"))


@node(category="math", name="Round", search_aliases=("integer", "whole number", "float to int"))
def round_number(
    value: Annotated[float, Range(None, None, help="Number to round")],
) -> Annotated[int, Out("int", "The nearest whole number; of two equally near ones the even one")]:
    """Round a number to a whole one, half to even: 2.5 gives 2, 3.5 gives 4. Raises InputError for NaN and inf."""
    return nearest(value, "value")


def nearest(value: float, input: str) -> int:
    """Return the nearest whole number, half to even. Raises InputError for NaN and inf."""
    if not math.isfinite(value):
        raise InputError(input, found=value, accepted="a finite number", fix="look where it is computed")
    return round(value)
