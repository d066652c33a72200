"""Arithmetic on tensors, element by element, and the matrix product."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array, Help, Out, Range, node
from nodes.tensor_axes import misfit
from nodes.tensor_dtypes import (
    BOOL,
    FLOATS,
    HALVES,
    BoolTensor,
    DType,
    as_float,
    as_full_float,
    as_number,
    choice,
    meet,
)

_ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.true_divide,
    "floor_divide": np.floor_divide,
    "mod": np.mod,
    "power": np.power,
    "minimum": np.minimum,
    "maximum": np.maximum,
}
_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


@node(category="tensor/math", search_aliases=("add", "subtract", "multiply", "divide", "plus", "times"))
def tensor_arithmetic(
    a: Annotated[Array, Help("First tensor or number")],
    b: Annotated[Array, Help("Second tensor or number; shapes broadcast")],
    operation: Annotated[
        Literal["add", "subtract", "multiply", "divide", "floor_divide", "mod", "power", "minimum", "maximum"],
        Help("What to do with a and b, element by element"),
    ] = "add",
) -> Annotated[Array, Out("tensor", "a and b combined, in their common dtype")]:
    """Combine two tensors element by element.

    A number takes the tensor's dtype, so float16 stays float16. Whole numbers stay whole, but divided they give
    float32. `mod` has the sign of b. Floats follow IEEE 754: 1 / 0 is inf, 0 / 0 is NaN. On booleans `minimum` is
    and, `maximum` is or.
    Raises InputError when the shapes do not broadcast, or when whole numbers are divided by 0 or get a negative power.
    """
    function = choice(_ARITHMETIC, operation, "operation")
    a, b = meet(a, b)
    if a.dtype not in FLOATS:
        a, b = _whole_operands(a, b, operation)
    try:
        with np.errstate(all="ignore"):
            return np.asarray(function(a, b))
    except ValueError:
        raise misfit("b", b, a) from None


def _whole_operands(a: Array, b: Array, operation: str) -> tuple[Array, Array]:
    """Return whole numbers or booleans ready for an operation. Raises InputError where it has no result."""
    if operation == "divide":
        return as_float(a), as_float(b)
    if operation not in ("minimum", "maximum"):
        a, b = as_number(a), as_number(b)
    if operation in ("floor_divide", "mod") and not b.all():
        raise InputError("b", found="0", accepted="whole numbers other than 0", fix="use divide or a float tensor")
    if operation == "power" and (b < 0).any():
        fix = "put a Cast node to float32 before a"
        raise InputError("b", found="a negative power of whole numbers", accepted="powers from 0", fix=fix)
    return a, b


def _sigmoid(x: Array) -> Array:
    full = as_full_float(x)  # exp(-x) leaves the range of float16 at x = -11, where the result is still not 0
    return np.asarray(1 / (1 + np.exp(-full))).astype(x.dtype, copy=False)


_UNARY: dict[str, Callable[[Array], Array]] = {
    "negate": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "round": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
}
_KEEPS_WHOLE = frozenset({"negate", "abs", "round", "floor", "ceil"})


@node(category="tensor/math", search_aliases=("exp", "log", "sqrt", "abs", "negate", "sigmoid"))
def tensor_unary(
    tensor: Annotated[Array, Help("Tensor or number")],
    operation: Annotated[
        Literal["negate", "abs", "exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "round", "floor", "ceil"],
        Help("Function of every element; round is half to even"),
    ] = "negate",
) -> Annotated[Array, Out("tensor", "The function of every element; same shape")]:
    """Apply a function to every element.

    Floats keep their dtype. Whole numbers stay whole under negate, abs, round, floor and ceil and give float32 else.
    Outside of a function's domain the result is NaN or inf, as in IEEE 754.
    """
    function = choice(_UNARY, operation, "operation")
    tensor = np.asarray(tensor)
    if tensor.dtype not in FLOATS:
        tensor = as_number(tensor) if operation in _KEEPS_WHOLE else as_float(tensor)
    with np.errstate(all="ignore"):
        return np.asarray(function(tensor))


@node(category="tensor/math", search_aliases=("clamp", "limit"))
def clip_tensor(
    tensor: Annotated[Array, Help("Tensor or number")],
    minimum: Annotated[float, Range(None, None, 0.1, help="Smaller elements become this")] = -1.0,
    maximum: Annotated[float, Range(None, None, 0.1, help="Larger elements become this")] = 1.0,
) -> Annotated[Array, Out("tensor", "The tensor with every element inside the range; same shape and dtype")]:
    """Limit every element to a range. NaN stays NaN. Raises InputError when minimum is above maximum."""
    if not minimum <= maximum:
        fix = "swap the two"
        raise InputError("minimum", found=minimum, accepted=f"at most maximum, which is {maximum}", fix=fix)
    tensor = np.asarray(tensor)
    low, high = _bounds(tensor.dtype, minimum, maximum)
    return np.asarray(np.minimum(np.maximum(tensor, low), high))


def _bounds(dtype: DType, minimum: float, maximum: float) -> tuple[Any, Any]:
    """Return a range as scalars of the dtype: for whole numbers the range between them that it can hold."""
    if dtype in FLOATS:
        return dtype.type(minimum), dtype.type(maximum)
    least, most = (0, 1) if dtype == BOOL else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    low = least if minimum <= least else most if minimum > most else math.ceil(minimum)
    high = most if maximum >= most else least if maximum < least else math.floor(maximum)
    return dtype.type(low), dtype.type(high)


class Comparison(NamedTuple):
    """Outcome of comparing two tensors."""

    tensor: Annotated[BoolTensor, Help("bool, in the broadcast shape of a and b: where it holds")]
    all: Annotated[bool, Help("Whether it holds everywhere; for two numbers, whether it holds")]
    any: Annotated[bool, Help("Whether it holds anywhere")]


@node(category="tensor/math", search_aliases=("equal", "less", "greater", "is"))
def compare(
    a: Annotated[Array, Help("First tensor or number")],
    b: Annotated[Array, Help("Second tensor or number; shapes broadcast")],
    operation: Annotated[
        Literal["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"], Help("a ... b")
    ] = "equal",
) -> Comparison:
    """Compare two tensors or numbers element by element. NaN equals nothing.

    Raises InputError when the shapes do not broadcast.
    """
    function = choice(_COMPARISONS, operation, "operation")
    a, b = meet(a, b)
    try:
        where = np.asarray(function(a, b))
    except ValueError:
        raise misfit("b", b, a) from None
    return Comparison(where, bool(where.all()), bool(where.any()))


@node(category="tensor/math", search_aliases=("if", "choose", "mask", "select"))
def where(
    condition: Annotated[Array, Help("bool, or numbers of which 0 is false; broadcasts with a and b")],
    a: Annotated[Array, Help("Taken where the condition is true")],
    b: Annotated[Array, Help("Taken where the condition is false")],
) -> Annotated[Array, Out("tensor", "Elements of a or b, in their common dtype")]:
    """Choose between two tensors element by element. Raises InputError when the shapes do not broadcast."""
    condition = np.asarray(condition).astype(BOOL, copy=False)
    a, b = meet(a, b)
    try:
        return np.where(condition, a, b)
    except ValueError:
        try:
            fitting = np.broadcast(condition, a)
        except ValueError:
            raise misfit("a", a, condition) from None
        raise misfit("b", b, np.empty(fitting.shape, BOOL)) from None


@node(category="tensor/math", display_name="MatMul", search_aliases=("matrix", "product", "dot"))
def mat_mul(
    a: Annotated[Array, Help("[..., n, k], or a vector [k]")],
    b: Annotated[Array, Help("[..., k, m], or a vector [k]")],
) -> Annotated[Array, Out("tensor", "[..., n, m] in the common dtype; half floats are summed in float32")]:
    """Multiply matrices over the last two axes; the axes before broadcast.

    Raises InputError when the inner sizes differ or one of the two is a single number.
    """
    a, b = map(as_number, meet(a, b))
    dtype = a.dtype
    if dtype in HALVES:
        a, b = as_full_float(a), as_full_float(b)
    try:
        return np.asarray(np.matmul(a, b)).astype(dtype, copy=False)
    except ValueError:
        raise misfit("b", b, a, "a shape whose last but one size is the last of") from None
