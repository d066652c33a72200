"""Dtypes of tensor nodes: the one in which several tensors meet, and the numbers a dtype can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import ml_dtypes
import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array
from app.graph.socket import SocketType

DType: TypeAlias = np.dtype[Any]
DTypeName = Literal["float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"]
AutoDTypeName = Literal["auto", DTypeName]

IntTensor: TypeAlias = Annotated[Array, SocketType("TENSOR", frozenset({"int64"}))]
"""int64 of any shape."""

BoolTensor: TypeAlias = Annotated[Array, SocketType("TENSOR", frozenset({"bool"}))]
"""bool of any shape."""

FLOAT32: DType = np.dtype(np.float32)
FLOAT64: DType = np.dtype(np.float64)
INT64: DType = np.dtype(np.int64)
BOOL: DType = np.dtype(np.bool_)
HALVES: frozenset[DType] = frozenset({np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)})
FLOATS: frozenset[DType] = HALVES | {FLOAT32, FLOAT64}

_BY_NAME: dict[str, DType] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    **{name: np.dtype(name) for name in ("float16", "float32", "float64", "int64", "int32", "int16", "int8", "uint8")},
    "bool": BOOL,
}

T = TypeVar("T")


def dtype_of(name: str) -> DType:
    """Return the dtype of that name. Raises InputError on input `dtype` for another name."""
    return choice(_BY_NAME, name, "dtype")


def choice(table: Mapping[str, T], name: str, input: str) -> T:
    """Return the entry of that name; a name that came on a wire was not checked before. Raises InputError."""
    try:
        return table[name]
    except (KeyError, TypeError):
        raise InputError(input, found=repr(name), accepted=", ".join(table), fix="choose one of them") from None


def common_dtype(*tensors: Array) -> DType:
    """Return the dtype in which tensors meet.

    One without dimensions is a number and adapts to the others as far as its kind allows: float16 + 0.5 stays
    float16, int64 + 0.5 becomes float32. Among tensors a float wins over whole numbers, different floats meet in
    float32, or float64 if one is, and whole numbers in the smallest dtype that holds both.
    """
    sized = {tensor.dtype for tensor in tensors if tensor.ndim}
    if not sized:
        return _widest({tensor.dtype for tensor in tensors})
    dtype = _widest(sized)
    for number in (tensor for tensor in tensors if not tensor.ndim):
        if dtype not in FLOATS and not _holds(dtype, number):
            dtype = FLOAT32 if number.dtype in FLOATS else number.dtype
    return dtype


def meet(*tensors: Array) -> tuple[Array, ...]:
    """Return the tensors in their common dtype; one that has it already is not copied."""
    arrays = [np.asarray(tensor) for tensor in tensors]
    first = arrays[0].dtype
    if all(array.dtype == first for array in arrays):
        return tuple(arrays)
    dtype = common_dtype(*arrays)
    return tuple(array.astype(dtype, copy=False) for array in arrays)


def as_float(tensor: Array) -> Array:
    """Return whole numbers and booleans as float32, floats unchanged."""
    return tensor if tensor.dtype in FLOATS else tensor.astype(FLOAT32)


def as_full_float(tensor: Array) -> Array:
    """Return the tensor as float32, or float64 if it is that: sums of many half floats lose digits."""
    return tensor if tensor.dtype == FLOAT64 else tensor.astype(FLOAT32, copy=False)


def as_number(tensor: Array) -> Array:
    """Return booleans as int64 0 and 1, numbers unchanged."""
    return tensor.astype(INT64) if tensor.dtype == BOOL else tensor


def number_for(dtype: DType, value: float, input: str) -> Any:
    """Return a number as a scalar of a dtype. Raises InputError when the dtype cannot hold it."""
    if dtype in FLOATS:
        return dtype.type(value)
    whole = math.isfinite(value) and value == int(value)
    if not whole or not _holds(dtype, np.asarray(int(value))):
        accepted = "0 or 1" if dtype == BOOL else f"a whole number that {dtype} can hold"
        raise InputError(input, found=value, accepted=accepted, fix="change it or choose a float dtype")
    return dtype.type(value)


def _widest(dtypes: set[DType]) -> DType:
    if len(dtypes) == 1:
        return next(iter(dtypes))
    floats = dtypes & FLOATS
    if floats:
        return next(iter(floats)) if len(floats) == 1 else FLOAT64 if FLOAT64 in floats else FLOAT32
    return np.result_type(*dtypes)


def _holds(dtype: DType, number: Array) -> bool:
    """Return whether a dtype of whole numbers or booleans holds a number exactly, by its kind and range."""
    if number.dtype in FLOATS:
        return False
    if dtype == BOOL:
        return number.dtype == BOOL or int(number) in (0, 1)
    info = np.iinfo(dtype)
    return bool(info.min <= int(number) <= info.max)
