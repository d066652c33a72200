"""What a model's input takes. Expected values are exact: conversions of values that both dtypes hold."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from app.graph.errors import InputError
from app.runtime.model_file import TensorPort
from app.runtime.tensors import symbol_sizes, to_port
from tests.runtime.graphs import Array

FLOATS = ["float16", "bfloat16", "float32", "float64"]


def dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def port(dtype: str, *shape: int | str | None) -> TensorPort:
    return TensorPort("x", dtype, shape)


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_floats_of_any_width_become_the_ports(source: str, target: str) -> None:
    values = np.array([[0.0, -1.5, 96.0]]).astype(dtype(source))
    result = to_port(values, port(target, "n", 3), {})
    assert result.dtype == dtype(target)
    assert result.astype(np.float64).tolist() == [[0.0, -1.5, 96.0]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [-3.4028235e38, [-3.4028235e38, float("-inf")]])
def test_the_least_float32_as_it_is_written_in_decimal_is_in_range(value: Any) -> None:
    """It lies beyond the least float32 by less than half a unit in the last place, and so rounds to it (IEEE 754)."""
    assert to_port(value, port("float32", "n"), {})[0] == np.finfo(np.float32).min


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("target", ["float16", "bfloat16"])
def test_an_array_of_masks_becomes_infinite_where_it_does_not_fit(target: str) -> None:
    values = np.array([np.finfo(np.float32).min, 0], np.float32)
    result = to_port(values, port(target, "n"), {})
    assert result.astype(np.float64).tolist() == [-np.inf, 0]


@pytest.mark.parametrize("name", [*FLOATS, "int64", "uint8", "bool"])
def test_an_array_that_fits_is_not_copied(name: str) -> None:
    values = np.zeros((2, 3), dtype(name))
    assert to_port(values, port(name, "n", 3), {}) is values


@pytest.mark.parametrize(
    ("source", "target"),
    [("int64", "float32"), ("float32", "int64"), ("int32", "int64"), ("bool", "float32"), ("float32", "float8_e5m2")],
)
def test_nothing_else_is_converted(source: str, target: str) -> None:
    with pytest.raises(InputError, match=rf"found {source} \[2\], accepted {target} \[n\]; put a Cast node") as caught:
        to_port(np.zeros(2, dtype(source)), port(target, "n"), {})
    assert caught.value.input == "x"


@pytest.mark.parametrize(
    ("value", "to", "expected"),
    [
        (5, port("float32"), np.array(5, np.float32)),
        (5, port("float32", 1), np.array([5], np.float32)),
        (2.5, port("float16", 2), np.array([2.5, 2.5], np.float16)),
        (2.5, port("bfloat16", "other"), np.array([2.5], ml_dtypes.bfloat16)),
        (981.7, port("int64", "B"), np.array([981] * 3)),
        (-981.7, port("int32"), np.array(-981, np.int32)),
        (True, port("int64", 1), np.array([1])),
        (False, port("bool"), np.array(False)),
        (1, port("bool", 1), np.array([True])),
        (np.float32(1.5), port("float64", "B"), np.array([1.5] * 3)),
        (np.array(7), port("float32", 1), np.array([7], np.float32)),
        (np.array(7.9, ml_dtypes.bfloat16), port("int64"), np.array(7)),
        (np.array(2.5, np.float32), port("float32"), np.array(2.5, np.float32)),
        (3, port("uint4", 2), np.array([3, 3], ml_dtypes.uint4)),
        ("text", port("string", "B"), np.array(["text"] * 3, object)),
        ("text", port("string"), np.array("text", object)),
    ],
)
def test_a_number_takes_the_ports_dtype_and_rank(value: Any, to: TensorPort, expected: Array) -> None:
    """B is bound to 3 by another input; timesteps are cut toward zero (pipeline-spec 2.10.4)."""
    result = to_port(value, to, {"B": 3})
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("value", "to", "expected"),
    [
        ([1, 2], port("float32", "n"), np.array([1, 2], np.float32)),
        ([[1.5], [2.5]], port("bfloat16", 2, 1), np.array([[1.5], [2.5]], ml_dtypes.bfloat16)),
        ([1.0, -2.0], port("int32", 2), np.array([1, -2], np.int32)),
        ([0, 255], port("uint8", 2), np.array([0, 255], np.uint8)),
        ([True, False], port("bool", 2), np.array([True, False])),
        ([1, 0], port("bool", 2), np.array([True, False])),
        ([True, False], port("int64", 2), np.array([1, 0])),
        ([], port("int64", "n"), np.array([], np.int64)),
        (["a", "bc"], port("string", "n"), np.array(["a", "bc"], object)),
    ],
)
def test_a_list_takes_the_ports_dtype(value: Any, to: TensorPort, expected: Array) -> None:
    result = to_port(value, to, {})
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("value", "to", "part"),
    [
        (float("nan"), port("int64", 1), "give a finite number"),
        (float("inf"), port("int64"), "give a finite number"),
        (300, port("uint8", 1), "found 300, .* stay within 0 and 255"),
        (-1, port("uint64"), "stay within 0"),
        (2**63, port("int64"), "found 9223372036854775808"),
        (0.5, port("bool"), "give true or false"),
        (3, port("string", 1), "give a text"),
        (70_000.0, port("float16", 1), "found a magnitude of 70000, .* stay within ±65520"),
        (-(10**39), port("float32"), "found a magnitude of 1e[+]39"),
        (1e39, port("bfloat16"), "found a magnitude of 1e[+]39"),
        (10**400, port("float32"), "found a number of 1329 bits"),
        (-(10**400), port("int64"), "found a number of 1329 bits"),
        ([0.5, -1e5], port("float16", 2), "found a magnitude of 100000"),
        (np.complex64(1j), port("float32"), "give a number"),
        ("text", port("float32"), "wire a tensor"),
        ([300], port("uint8", 1), "found 300, .* stay within 0 and 255"),
        ([1.5], port("int64", 1), "write whole numbers"),
        ([float("nan")], port("int64", 1), "write whole numbers"),
        ([2], port("bool", 1), "write true and false only"),
        ([[1, 2], [3]], port("float32", "a", "b"), "make its rows equally long"),
        ([1, None], port("float32", 2), "write numbers only"),
        (["a"], port("float32", 1), "write numbers only"),
        ([1], port("string", 1), "write texts only"),
        ({}, port("float32"), "wire a tensor"),
        (np.zeros((2, 3), np.float32), port("float32", "n"), "2 dimensions do not fit 1; reshape it"),
        (np.zeros((2, 3), np.float32), port("float32", "n", 4), r"float32 \[2, 3\], accepted float32 \[n, 4\]; axis 1"),
        ([1, 2, 3], port("float32", 1, "n"), "1 dimensions do not fit 2"),
    ],
)
def test_what_does_not_fit_is_one_sentence(value: Any, to: TensorPort, part: str) -> None:
    with pytest.raises(InputError, match=part) as caught:
        to_port(value, to, {})
    assert caught.value.input == "x"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(3, 2).T.copy("F"),
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
    ],
    ids=["big-endian", "Fortran order", "strided"],
)
def test_odd_memory_layouts_are_straightened(values: Array) -> None:
    result = to_port(values, port("float32", 2, 3), {})
    assert result.dtype == np.dtype("<f4")
    assert result.flags.c_contiguous
    assert result.tolist() == values.tolist()


@pytest.mark.parametrize("values", [np.array(["a", "bc"]), np.array(["a", "bc"], object)])
def test_texts_become_objects(values: Array) -> None:
    result = to_port(values, port("string", 2), {})
    assert result.dtype == object
    assert result.tolist() == ["a", "bc"]


def test_symbols_are_bound_by_the_arrays_of_a_call() -> None:
    ports = {"a": TensorPort("a", "float32", ("B", 4, "H", None)), "b": TensorPort("b", "int64", ("S",))}
    feeds = {"a": np.zeros((2, 4, 8, 9), np.float32), "b": np.zeros(5, np.int64), "c": np.zeros(3)}
    assert symbol_sizes(feeds, ports) == {"B": 2, "H": 8, "S": 5}
