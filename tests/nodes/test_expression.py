"""Math Expression: values against Python's own arithmetic, and texts that must be refused."""

from __future__ import annotations

import contextlib
import math
import time

import numpy as np
import pytest

from app.expression import MAX_LENGTH, compile_formula
from app.graph.errors import InputError
from nodes.expression import math_expression


@pytest.mark.parametrize(
    "text",
    [
        "1 + 4 * a / 19", "-a ** 2", "2 ** -1", "2 ** 3 ** 2", "-2 ** 2", "a - b - c", "a / b / c", "a // b", "-a // b",
        "-a % b", "a < b < c", "a < b > c", "not a == b", "a and b", "0 or b", "not 0", "a if b > c else c",
        "1 if a > 100 else 2 if b > 100 else 3", "(a + b) * c", "+a - -b", "2 * -a", "1e3 + .5 + 2.", "1.5e-3 * a",
        "pi * e", "min(a, b, c)", "max(a, b)", "abs(-a)", "round(2.5)", "round(3.14159, 2)", "int(-2.7)", "float(a)",
        "pow(a, 2)", "a != b", "a >= 7 and b <= 3 or c == 2", "not a or b and c", "a ** 0.5", "1 + (2 if a else 3) * 4",
        "a<b", "1<=2==2", "((a))",
    ],
)  # fmt: skip
def test_operators_mean_what_they_mean_in_python(text: str) -> None:
    """Expected: Python's own value of the same text; exact."""
    names = {"a": 7, "b": 3, "c": 2, "pi": math.pi, "e": math.e}
    expected = eval(text, {"__builtins__": {}, **names, "min": min, "max": max, "abs": abs, "round": round, "int": int,
                           "float": float, "pow": pow})  # fmt: skip
    result = math_expression(text, a=7, b=3, c=2)
    assert (result.float, result.int, result.boolean) == (float(expected), round(expected), bool(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqrt(a)", math.sqrt(2)), ("exp(a)", math.exp(2)), ("log(a)", math.log(2)), ("log(8, a)", 3.0),
        ("log2(8)", 3.0), ("log10(1000)", 3.0), ("sin(a)", math.sin(2)), ("cos(a)", math.cos(2)),
        ("tan(a)", math.tan(2)), ("atan2(1, a)", math.atan2(1, 2)), ("tanh(a)", math.tanh(2)), ("floor(-1.5)", -2),
        ("ceil(-1.5)", -1), ("clamp(a, 0, 1)", 1), ("clamp(-a, 0, 1)", 0), ("clamp(0.5, 0, 1)", 0.5),
        ("lerp(10, 20, 0.25)", 12.5), ("smoothstep(0, 4, a)", 0.5), ("smoothstep(0, 8, a)", 3 / 16 - 2 / 64),
        ("smoothstep(3, 4, a)", 0), ("step(2, a)", 1), ("step(2.1, a)", 0),
    ],
)  # fmt: skip
def test_functions_have_their_closed_forms(text: str, expected: float) -> None:
    """Expected: math's function, or the formula of GLSL 4.60 section 8.3 by hand; relative error 1e-15."""
    assert math_expression(text, a=2).float == pytest.approx(expected, rel=1e-15)


def test_a_cfg_ramp_from_the_step_number() -> None:
    """1 + 4 * step / 19 goes from 1 at step 0 to 5 at step 19."""
    ramp = [math_expression("1 + 4 * a / 19", a=step).float for step in range(20)]
    np.testing.assert_allclose(ramp, np.linspace(1, 5, 20), rtol=1e-15)


def test_only_the_branch_that_is_taken_is_computed() -> None:
    """1 / a has no value at a = 0; neither `if` nor `and` nor `or` may look at it then."""
    assert math_expression("1 / a if a else 9", a=0).int == 9
    assert math_expression("a != 0 and 1 / a > 2", a=0).boolean is False
    assert math_expression("a == 0 or 1 / a > 2", a=0).boolean is True


def test_int_is_rounded_half_to_even() -> None:
    """2.5 lies as near to 2 as to 3, 3.5 as near to 3 as to 4: the even one counts."""
    assert [math_expression(text).int for text in ("2.5", "3.5", "-2.5", "2.6")] == [2, 4, -2, 3]


@pytest.mark.parametrize("value", [True, np.float32(1), np.array([1]), np.array(1.0, np.float16)])
def test_booleans_and_tensors_of_one_element_are_numbers(value: object) -> None:
    """A loop's timestep is a tensor of one element: a * 2 is 2 for each of them."""
    assert math_expression("a * 2", a=value).float == 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "the end at character 1"), ("a +", "the end at character 4"), ("(a", "the end at character 3"),
        ("a b", "'b' at character 3"), ("2a", "'a' at character 2"), ("a ** * b", "'*' at character 6"),
        ("a.real", "'.' at character 2"), ("a[0]", "'[' at character 2"), ("a = 1", "'=' at character 3"),
        ("'x'", '"\'" at character 1'), ("lambda: 1", "':' at character 7"),
        ("x + 1", "unknown name 'x' at character 1"), ("1 + eval(a)", "unknown function 'eval' at character 5"),
        ("__import__(1)", "unknown function '__import__'"), ("a(1)", "unknown function 'a'"), ("min", "min without"),
        ("min(a)", "min with 1 argument"), ("sqrt(a, a)", "sqrt with 2 arguments"), ("sqrt()", "sqrt with 0 arguments"),
        ("a if a", "the end"), ("if a else 1", "'if' at character 1"), ("1e999", "1e999 at character 1"),
        ("a \u00d7 2", "'\u00d7' at character 3"), ("1 / (a - 1)", "division by 0 in / at character 3"),
        ("a // 0", "division by 0"), ("a % 0", "division by 0"), ("0 ** -1", "division by 0"),
        ("sqrt(-a)", "sqrt of -1"), ("log(0)", "log of 0"), ("(-8) ** (1 / 3)", "** of -8"),
        ("exp(1000)", "result of exp that is too large"), ("9 ** 9 ** 9 ** 9", "result of ** that is too large"),
        ("pow(pow(99, 99), 99)", "result of pow that is too large"), ("1e200 * 1e200", "infinite"),
        ("1e308 * 10 - 1e308 * 10", "not a number"), ("int(1e308 * 10)", "result of int that is too large"),
        ("round(1, 1000000000)", "round of 1"), ("round(12345, -1000000000)", "round of 12345"),
    ],
)  # fmt: skip
def test_what_is_no_formula_or_has_no_value_is_refused_with_its_place(text: str, found: str) -> None:
    """Every one of them is an InputError of the expression, whose sentence names what was found, and where."""
    with pytest.raises(InputError) as caught:
        math_expression(text, a=1, b=2)
    assert caught.value.input == "expression"
    assert found in caught.value.message


@pytest.mark.parametrize("piece", ["(", "-", "not ", "2**", "1 if 1 else ", "sqrt(", "1+", "((((", "9**9**", "a*"])
@pytest.mark.parametrize("length", [MAX_LENGTH - 1, 100_000])
def test_long_and_deep_texts_end_quickly(piece: str, length: int) -> None:
    """No recursion error and no hang: an InputError, or a value, in well under a second."""
    text = (piece * length)[: length - 1] + "1"
    started = time.perf_counter()
    with contextlib.suppress(InputError):
        math_expression(text, a=3)
    assert time.perf_counter() - started < 0.5


def test_products_of_the_longest_numbers_end_quickly() -> None:
    """The worst that fits into the length: whole powers of 1024 bits multiplied as often as possible."""
    text = "*".join(["(9**320)"] * 55)
    assert len(text) <= MAX_LENGTH
    started = time.perf_counter()
    with pytest.raises(InputError):
        math_expression(text)
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(
    ("value", "found"),
    [(None, "no value"), ("3", "str"), (np.zeros(3), "shape [3]"), (math.nan, "NaN"), (math.inf, "infinite"),
     (10**400, "huge"), ([1], "list")],
)  # fmt: skip
def test_an_input_that_is_no_number_is_refused_by_name(value: object, found: str) -> None:
    """Only inputs that the formula reads count."""
    with pytest.raises(InputError) as caught:
        math_expression("a + b", a=1, b=value)
    assert caught.value.input == "b"
    assert found in caught.value.message
    assert math_expression("a", a=1, b=value).int == 1


def test_a_text_is_compiled_once() -> None:
    """The cache gives back the same object."""
    assert compile_formula("a + 12345") is compile_formula("a + 12345")
