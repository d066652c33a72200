"""Axes and shapes as nodes receive them: checked axis numbers, lists written as text, sizes that fit in memory."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Range

MAX_ELEMENTS = 2**28
"""Most elements a node makes out of nothing: 1 GiB of float32. A slip in a shape must not eat the machine's memory."""

Axis: TypeAlias = Annotated[int, Range(-8, 7, 1, help="Axis to work along, from 0; negative counts from the last")]
"""An axis number, negative from the end."""

_SEPARATORS = re.compile(r"[\s,]+")


def checked_axis(tensor: Array, axis: int, input: str = "axis", extra: int = 0) -> int:
    """Return an axis counted from 0.

    extra: how many axes more than the tensor's own are allowed (1 for a new axis).
    Raises InputError when the tensor has no such axis.
    """
    rank = tensor.ndim + extra
    if not -rank <= axis < rank:
        what = f"{-rank} to {rank - 1}" if rank else "no axis: a single number has none"
        found = f"axis {axis} for shape {list(tensor.shape)}"
        raise InputError(input, found=found, accepted=what, fix="choose an axis that the tensor has")
    return axis % rank


def checked_axes(tensor: Array, axes: Any, input: str = "axes", extra: int = 0) -> tuple[int, ...]:
    """Return axes given as a number, a list or text, counted from 0. Raises InputError when one is missing or twice."""
    found = tuple(checked_axis(tensor, axis, input, extra) for axis in whole_numbers(axes, input))
    if len(set(found)) < len(found):
        raise InputError(input, found=f"an axis twice in {list(found)}", accepted="each axis once", fix="leave one out")
    return found


def whole_numbers(value: Any, input: str) -> tuple[int, ...]:
    """Return whole numbers given as one number, a list, a tensor, or text such as `1, -1, 4`.

    Nothing, an empty text and an empty list give (). Raises InputError for anything else.
    """
    if value is None:
        return ()
    if type(value) is int:
        return (value,)
    try:
        if isinstance(value, str):
            return _numbers_in(value)
        items: Sequence[Any] = np.asarray(value).ravel().tolist()
        numbers = tuple(int(item) for item in items)
        if all(type(item) is not bool and number == item for number, item in zip(numbers, items, strict=True)):
            return numbers
    except (ValueError, TypeError, OverflowError):
        pass
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    fix = "write them with commas between"
    raise InputError(input, found=shown, accepted="whole numbers such as 1, -1, 4", fix=fix)


@lru_cache(maxsize=512)
def _numbers_in(text: str) -> tuple[int, ...]:
    words = _SEPARATORS.split(text.strip().removeprefix("[").removesuffix("]").strip())
    return tuple(int(word) for word in words if word)


def checked_size(shape: Sequence[int], input: str) -> tuple[int, ...]:
    """Return a shape to be made. Raises InputError when a dimension is negative or the whole is too large."""
    if any(size < 0 for size in shape) or math.prod(shape) > MAX_ELEMENTS:
        accepted = f"dimensions from 0 that make at most {MAX_ELEMENTS} elements"
        raise InputError(input, found=f"shape {list(shape)}", accepted=accepted, fix="choose smaller sizes")
    return tuple(shape)


def misfit(input: str, tensor: Array, other: Array, rule: str = "a shape that broadcasts with") -> InputError:
    """Return the error for a tensor whose shape does not fit another's."""
    fix = "put a Reshape, Unsqueeze or Slice node before it"
    return InputError(input, found=f"shape {list(tensor.shape)}", accepted=f"{rule} {list(other.shape)}", fix=fix)
