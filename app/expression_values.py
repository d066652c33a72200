"""What formulas compute with: operators, functions and constants over Python numbers, as closures that name faults."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from app.graph.errors import InputError

Number: TypeAlias = int | float
Values: TypeAlias = Sequence[Any]
Closure: TypeAlias = Callable[[Values], Number]

MAX_POWER_BITS = 1024
"""Size of the largest whole power, that of the largest float: 9 ** 9 ** 9 would fill the memory before it fails."""

MAX_DIGITS = 15
"""Decimals that round takes: a float has no more, and a large number of them would be slow."""


class Function(NamedTuple):
    """A function of formulas and how many arguments it takes."""

    call: Callable[..., Number]
    fewest: int
    most: int


def power(x: Number, y: Number) -> Number:
    """Return x ** y. Raises OverflowError when a whole power is too large, ValueError when it is not real."""
    if isinstance(x, int) and isinstance(y, int) and y > 0 and x.bit_length() * y > MAX_POWER_BITS:
        raise OverflowError
    result = x**y
    if isinstance(result, complex):
        raise ValueError
    return result


def rounded(x: Number, digits: Number = 0) -> Number:
    """Return x rounded half to even, a whole number unless decimals are asked for."""
    if digits != int(digits) or abs(digits) > MAX_DIGITS:
        raise ValueError
    return round(x, int(digits)) if digits else round(x)


def clamp(x: Number, low: Number, high: Number) -> Number:
    """Return x, or the nearer end of the range if it is outside."""
    return min(max(x, low), high)


def lerp(x: Number, y: Number, t: Number) -> Number:
    """Return the point between x (t = 0) and y (t = 1)."""
    return x + (y - x) * t


def smoothstep(low: Number, high: Number, x: Number) -> Number:
    """Return 0 below low, 1 above high and 3 t**2 - 2 t**3 between (GLSL specification 4.60, section 8.3)."""
    t = clamp((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def step(edge: Number, x: Number) -> Number:
    """Return 0 below the edge, else 1 (GLSL specification 4.60, section 8.3)."""
    return 0 if x < edge else 1


CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e}

FUNCTIONS: dict[str, Function] = {
    "min": Function(min, 2, 99),
    "max": Function(max, 2, 99),
    "abs": Function(abs, 1, 1),
    "round": Function(rounded, 1, 2),
    "floor": Function(math.floor, 1, 1),
    "ceil": Function(math.ceil, 1, 1),
    "sqrt": Function(math.sqrt, 1, 1),
    "exp": Function(math.exp, 1, 1),
    "log": Function(math.log, 1, 2),
    "log2": Function(math.log2, 1, 1),
    "log10": Function(math.log10, 1, 1),
    "sin": Function(math.sin, 1, 1),
    "cos": Function(math.cos, 1, 1),
    "tan": Function(math.tan, 1, 1),
    "atan2": Function(math.atan2, 2, 2),
    "tanh": Function(math.tanh, 1, 1),
    "clamp": Function(clamp, 3, 3),
    "lerp": Function(lerp, 3, 3),
    "smoothstep": Function(smoothstep, 3, 3),
    "step": Function(step, 2, 2),
    "pow": Function(power, 2, 2),
    "int": Function(int, 1, 1),
    "float": Function(float, 1, 1),
}

OPERATORS: dict[str, Callable[[Any, Any], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": power,
}

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def fault(found: str, position: int, accepted: str, fix: str) -> InputError:
    """Return the error for a place in the text. position: index of the character, from 0; shown from 1."""
    return InputError("expression", found=f"{found} at character {position + 1}", accepted=accepted, fix=fix)


def constant(value: Number) -> Closure:
    """Return the closure of a number."""
    return lambda values: value


def variable(index: int) -> Closure:
    """Return the closure of an input. index: 0 for a to 3 for d."""
    return lambda values: values[index]


def binary(symbol: str, position: int, left: Closure, right: Closure) -> Closure:
    """Return the closure of an arithmetic operator; a fault names its position."""
    operation = OPERATORS[symbol]

    def apply(values: Values) -> Number:
        x, y = left(values), right(values)
        try:
            return operation(x, y)
        except (ArithmeticError, ValueError) as error:
            raise _arithmetic_fault(error, symbol, position, (x, y)) from None

    return apply


def calling(name: str, position: int, arguments: Sequence[Closure]) -> Closure:
    """Return the closure of a function call; a fault names its position."""
    function = FUNCTIONS[name].call

    def apply(values: Values) -> Number:
        numbers = [argument(values) for argument in arguments]
        try:
            return function(*numbers)
        except (ArithmeticError, ValueError) as error:
            raise _arithmetic_fault(error, name, position, numbers) from None

    return apply


def comparing(first: Closure, links: Sequence[tuple[str, Closure]]) -> Closure:
    """Return the closure of a chain of comparisons, all of which must hold, as in Python."""
    if len(links) == 1:
        compare, second = COMPARISONS[links[0][0]], links[0][1]
        return lambda values: compare(first(values), second(values))
    chain = [(COMPARISONS[symbol], operand) for symbol, operand in links]

    def apply(values: Values) -> Number:
        x = first(values)
        for compare, operand in chain:
            y = operand(values)
            if not compare(x, y):
                return False
            x = y
        return True

    return apply


def _arithmetic_fault(error: Exception, what: str, position: int, numbers: Sequence[Number]) -> InputError:
    """Return the sentence for an operator or function that has no result for its numbers."""
    if isinstance(error, ZeroDivisionError):
        return fault(f"a division by 0 in {what}", position, "other numbers there", "guard it with max(..., 1)")
    if isinstance(error, OverflowError):
        return fault(f"a result of {what} that is too large", position, "results up to 1.8e308", "use smaller numbers")
    shown = " and ".join(f"{number:.6g}" if abs(number) < 1e300 else "a huge number" for number in numbers[:3])
    return fault(f"{what} of {shown}, which has no value,", position, "numbers it is defined for", "clamp them first")
