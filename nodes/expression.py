"""Math Expression: a formula over wired numbers, for example to drive cfg from the step number."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from app.expression import NAMES, compile_formula
from app.expression_values import Number
from app.graph.errors import InputError
from app.graph.node import Help, node

FloatValue = Annotated[float, Help("The value as a FLOAT")]
IntValue = Annotated[int, Help("The value as an INT, rounded half to even")]
BooleanValue = Annotated[bool, Help("Whether the value is true: a comparison that holds, or a number other than 0")]

MAX_NUMBER = 1e300
"""Inputs are smaller than this: a whole number of any length would make arithmetic slow."""


class ExpressionValue(NamedTuple):
    """Value of a formula in three types."""

    float: FloatValue
    int: IntValue
    boolean: BooleanValue


@node(category="math", search_aliases=("formula", "calculate", "cfg schedule", "equation"))
def math_expression(
    expression: Annotated[
        str,
        Help(
            "A formula of a, b, c and d such as 1 + 4 * a / 19. Known: + - * / // % **, < <= > >= == !=, and or not, "
            "x if condition else y, pi, e and min max abs round floor ceil sqrt exp log log2 log10 sin cos tan atan2 "
            "tanh clamp(x, low, high) lerp(x, y, t) smoothstep(low, high, x) step(edge, x) pow int float"
        ),
    ] = "a",
    a: Annotated[Any, Help("Number or boolean that the formula calls a")] = None,
    b: Annotated[Any, Help("Number or boolean that the formula calls b")] = None,
    c: Annotated[Any, Help("Number or boolean that the formula calls c")] = None,
    d: Annotated[Any, Help("Number or boolean that the formula calls d")] = None,
) -> ExpressionValue:
    """Compute a formula. Wired to a loop's step number, it changes cfg from step to step.

    Operators mean what they mean in Python. Raises InputError, naming the position, for a text that is not a formula,
    a name without a value, a division by zero and other undefined results, and for results that are infinite or NaN.
    """
    formula = compile_formula(expression)
    given = {"a": a, "b": b, "c": c, "d": d}
    values: list[Number | None] = [0, 0, 0, 0]
    for name in formula.names:
        values[NAMES.index(name)] = _number(given[name], name)
    value = formula.value(values)
    try:
        return ExpressionValue(float(value), round(value), bool(value))
    except (OverflowError, ValueError):  # of round(inf), round(nan) and float() of a long whole number
        found = "a result that is not a number" if value != value else "a result that is infinite or too large"
        fix = "keep the formula inside its range, e.g. with clamp"
        raise InputError("expression", found=found, accepted="a finite result", fix=fix) from None


def _number(value: Any, name: str) -> Number:
    """Return an input as a finite number. Raises InputError when it is none."""
    if isinstance(value, np.ndarray | np.generic) and value.size == 1 and value.dtype.kind != "U":
        value = value.item()
    if value is None:
        fix = "wire or type it, or take it out of the expression"
        raise InputError(name, found="no value", accepted=f"a number: the expression reads {name}", fix=fix)
    if not isinstance(value, int | float):
        found = f"a tensor of shape {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        fix = "put a node before it that gives one number, such as Tensor To Number"
        raise InputError(name, found=found, accepted="an INT, FLOAT or BOOLEAN", fix=fix)
    if not -MAX_NUMBER < value < MAX_NUMBER:
        found = "NaN" if value != value else "a number that is infinite or huge"
        raise InputError(name, found=found, accepted=f"numbers below {MAX_NUMBER:g}", fix="look where it is computed")
    return value
