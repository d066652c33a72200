"""Tensor arithmetic and reductions against closed forms and numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from app.graph.errors import InputError
from app.graph.node import Array
from nodes.tensor_convert import tensor_to_list
from nodes.tensor_math import clip_tensor, compare, mat_mul, tensor_arithmetic, tensor_unary, where
from nodes.tensor_reduce import (
    cosine_similarity,
    cumulative_sum,
    l2_normalize,
    mean_pool,
    softmax,
    tensor_reduce,
)

BF16 = ml_dtypes.bfloat16
F32 = np.float32


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("add", [5, -5, 9]), ("subtract", [9, -9, 5]), ("multiply", [-14, -14, 14]), ("divide", [-3.5, -3.5, 3.5]),
     ("floor_divide", [-4, -4, 3]), ("mod", [-1, 1, 1]), ("minimum", [-2, -7, 2]), ("maximum", [7, 2, 7])],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float16, BF16])
def test_arithmetic_by_hand(operation: Any, expected: list[float], dtype: Any) -> None:
    """7 and 2 with either sign, done by hand; exact. Floor division goes down, mod has the sign of b."""
    a, b = np.array([7, -7, 7], dtype), np.array([-2, 2, 2], dtype)
    result = tensor_arithmetic(a, b, operation)
    assert result.astype(np.float64).tolist() == expected
    assert result.dtype == (np.float32 if operation == "divide" and dtype is np.int64 else dtype)


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [(np.ones(2, np.float16), np.array(0.5, F32), np.float16), (np.ones(2, BF16), np.array(0.5, F32), BF16),
     (np.ones(2, F32), np.array(2), F32), (np.ones(2, np.int64), np.array(0.5, F32), F32),
     (np.ones(2, np.int32), np.array(3), np.int32), (np.ones(2, np.int32), np.array(2**40), np.int64),
     (np.ones(2, np.uint8), np.array(-1), np.int64), (np.ones(2, np.float16), np.ones(2, np.int64), np.float16),
     (np.ones(2, np.float16), np.ones(2, BF16), F32), (np.ones(2, np.float16), np.ones(2, F32), F32),
     (np.ones(2, F32), np.ones(2), np.float64), (np.ones(2, np.int32), np.ones(2, np.int64), np.int64),
     (np.array(1), np.array(0.5, F32), F32), (np.ones(2, F32), 0.5, F32), (np.ones(2, bool), np.ones(2, F32), F32)],
)  # fmt: skip
def test_numbers_adapt_to_tensors_and_floats_win(a: Array, b: Array, dtype: Any) -> None:
    """The rule of `common_dtype`, both ways round: no half float is widened by a number."""
    assert tensor_arithmetic(a, b, "add").dtype == dtype
    assert tensor_arithmetic(b, a, "add").dtype == dtype


def test_power_keeps_whole_numbers_whole_and_refuses_negative_powers_of_them() -> None:
    """2 ** 10 = 1024; 2 ** -1 is no whole number, but is 0.5 as a float."""
    assert tensor_arithmetic(np.array([2]), np.array([10]), "power").tolist() == [1024]
    assert tensor_arithmetic(np.array([2.0], F32), np.array([-1.0], F32), "power").tolist() == [0.5]
    with pytest.raises(InputError, match="negative power"):
        tensor_arithmetic(np.array([2]), np.array([-1]), "power")


def test_division_by_zero_is_ieee_for_floats_and_refused_for_whole_numbers() -> None:
    """1 / 0 is inf and 0 / 0 is NaN (IEEE 754); whole numbers have neither, but divide gives floats."""
    assert np.isposinf(tensor_arithmetic(np.array([1.0], F32), np.array(0.0, F32), "divide"))[0]
    assert np.isposinf(tensor_arithmetic(np.array([1]), np.array(0), "divide"))[0]
    assert np.isnan(tensor_arithmetic(np.array([0.0], F32), np.array(0.0, F32), "divide"))[0]
    with pytest.raises(InputError, match="found 0"):
        tensor_arithmetic(np.array([1]), np.array([0]), "mod")
    with pytest.raises(InputError, match="found 0"):
        tensor_arithmetic(np.array([1]), np.array([0]), "floor_divide")


def test_booleans_count_as_0_and_1_and_minimum_maximum_are_and_or() -> None:
    """Truth tables."""
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert tensor_arithmetic(a, b, "add").tolist() == [2, 1, 1, 0]
    assert tensor_arithmetic(a, b, "minimum").tolist() == [True, False, False, False]
    assert tensor_arithmetic(a, b, "maximum").tolist() == [True, True, True, False]


def test_shapes_broadcast_or_are_refused_by_name() -> None:
    """[2, 1] and [3] give [2, 3]; [2] and [3] do not meet, and the sentence says both."""
    assert tensor_arithmetic(np.ones((2, 1)), np.ones(3)).shape == (2, 3)
    with pytest.raises(InputError, match=r"b: found shape \[3\], accepted .*\[2\]"):
        tensor_arithmetic(np.ones(2), np.ones(3))


@pytest.mark.parametrize(
    ("operation", "function"),
    [("negate", np.negative), ("abs", np.abs), ("exp", np.exp), ("sin", np.sin), ("cos", np.cos), ("tanh", np.tanh),
     ("round", np.round), ("floor", np.floor), ("ceil", np.ceil), ("sigmoid", lambda x: 1 / (1 + np.exp(-x)))],
)  # fmt: skip
@pytest.mark.parametrize(("dtype", "rtol"), [(F32, 3e-7), (np.float16, 1e-3), (BF16, 8e-3)])
def test_functions_of_elements(operation: Any, function: Any, dtype: Any, rtol: float) -> None:
    """Numpy's function in float64 of the same rounded inputs; tolerance: the dtype's own rounding."""
    x = np.array([-9.5, -2.5, -0.3, 0.0, 0.5, 1.7, 9.5], dtype)
    result = tensor_unary(x, operation)
    assert result.dtype == dtype
    np.testing.assert_allclose(result.astype(np.float64), function(x.astype(np.float64)), rtol=rtol, atol=1e-7)


def test_functions_of_whole_numbers() -> None:
    """-3 negated and rounded stays whole; its root does not exist, that of 4 is 2 in float32."""
    whole = np.array([4, -3])
    assert tensor_unary(whole, "negate").tolist() == [-4, 3]
    assert tensor_unary(whole, "ceil").dtype == np.int64
    root = tensor_unary(whole, "sqrt")
    assert root.dtype == F32
    assert root[0] == 2
    assert np.isnan(root[1])


def test_clip_keeps_the_dtype() -> None:
    """By hand; for whole numbers the bounds are those between the given ones, and never outside of the dtype."""
    assert clip_tensor(np.array([-3.0, 0.5, 3.0], np.float16)).tolist() == [-1, 0.5, 1]
    assert clip_tensor(np.array([-3, 0, 3]), -1.5, 2.5).tolist() == [-1, 0, 2]
    clipped = clip_tensor(np.array([0, 200], np.uint8), -5, 100)
    assert clipped.tolist() == [0, 100]
    assert clipped.dtype == np.uint8
    with pytest.raises(InputError, match="at most maximum"):
        clip_tensor(np.zeros(1), 2, 1)


def test_compare_tells_where_and_whether_everywhere_or_anywhere() -> None:
    """By hand; two numbers give one boolean. NaN equals nothing, itself included."""
    outcome = compare(np.array([1, 2, 3]), np.array(2), "less")
    assert (outcome.tensor.tolist(), outcome.all, outcome.any) == ([True, False, False], False, True)
    assert compare(np.array(3), np.array(3.0, F32)).all is True
    assert compare(np.array([np.nan]), np.array([np.nan])).any is False
    assert compare(np.array([0.1], F32), 0.1).all is True  # type: ignore[arg-type]


def test_where_chooses_by_element_and_names_the_shape_that_does_not_fit() -> None:
    """By hand; a number adapts to the other's dtype."""
    chosen = where(np.array([True, False]), np.array([1, 2], np.float16), np.array(9.0, F32))
    assert chosen.tolist() == [1, 9]
    assert chosen.dtype == np.float16
    assert where(np.array([[1], [0]]), np.zeros(3), np.ones(3)).sum() == 3
    with pytest.raises(InputError, match=r"a: found shape \[3\]"):
        where(np.zeros(2), np.zeros(3), np.zeros(2))
    with pytest.raises(InputError, match=r"b: found shape \[3\]"):
        where(np.zeros(2), np.zeros(2), np.zeros(3))


def test_matrix_product() -> None:
    """[[1, 2], [3, 4]] times [[0, 1], [1, 0]] swaps the columns, in every dtype; 4096 halves of 1 make 4096."""
    for dtype in (np.int64, F32, np.float16, BF16):
        product = mat_mul(np.array([[1, 2], [3, 4]], dtype), np.array([[0, 1], [1, 0]], dtype))
        assert product.astype(int).tolist() == [[2, 1], [4, 3]]
        assert product.dtype == dtype
    long = np.ones(4096, np.float16)
    assert float(mat_mul(long, long)) == 4096  # summed in float16 it would stop at 2048
    with pytest.raises(InputError, match="last but one"):
        mat_mul(np.ones((2, 3)), np.ones((2, 3)))


@pytest.mark.parametrize("operation", ["mean", "sum", "min", "max", "std", "prod"])
@pytest.mark.parametrize(("axes", "numpy_axes"), [("", None), ("1", 1), (-1, -1), ([0, 2], (0, 2)), ("0, -1", (0, 2))])
def test_reductions_are_numpys(operation: Any, axes: Any, numpy_axes: Any) -> None:
    """Numpy in float64; relative error 2e-6 of float32 sums of 24 numbers."""
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(F32)
    expected = getattr(np, operation)(x.astype(np.float64), axis=numpy_axes, keepdims=True)
    result = tensor_reduce(x, operation, axes, keepdims=True)
    assert result.dtype == F32
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-7)
    assert tensor_reduce(x, operation, axes).shape == getattr(np, operation)(x, axis=numpy_axes).shape


def test_reductions_keep_their_dtype_and_do_not_lose_digits() -> None:
    """|(3, 4)| = 5; 4096 ones in float16 have mean 1 and sum 4096; whole numbers stay whole where they can."""
    assert tensor_reduce(np.array([3, 4]), "norm") == 5
    for dtype in (np.float16, BF16):
        ones = np.ones(4096, dtype)
        assert float(tensor_reduce(ones, "sum")) == 4096
        assert float(tensor_reduce(ones, "mean")) == 1
        assert tensor_reduce(ones, "sum").dtype == dtype
    assert tensor_reduce(np.array([1, 2]), "sum").dtype == np.int64
    assert tensor_reduce(np.array([1, 2]), "mean").dtype == F32
    assert tensor_reduce(np.array([True, True]), "sum").tolist() == 2
    with pytest.raises(InputError, match="at least one element"):
        tensor_reduce(np.zeros((0, 2)), "max")


def test_softmax() -> None:
    """exp(x) / sum: log-odds of 3 give 1/4 and 3/4; huge logits do not overflow; temperature 1/2 squares the odds."""
    logits = np.log(np.array([[1.0, 3.0]])).astype(F32)
    np.testing.assert_allclose(softmax(logits + 1000), [[0.25, 0.75]], rtol=1e-4)  # float32 steps of 6e-5 at 1000
    np.testing.assert_allclose(softmax(logits, temperature=0.5), [[0.1, 0.9]], rtol=1e-6)
    np.testing.assert_allclose(softmax(logits, axis=0), [[1, 1]])
    assert softmax(np.array([0.0, -np.inf], np.float16)).tolist() == [1, 0]
    assert softmax(np.zeros(2, BF16)).dtype == BF16


def test_cumulative_sum_of_a_mask_gives_positions() -> None:
    """Left-padded [0, 0, 1, 1, 1]: the tokens are at positions 0, 1, 2."""
    mask = np.array([[0, 0, 1, 1, 1]])
    assert (cumulative_sum(mask) - 1)[0, 2:].tolist() == [0, 1, 2]


def test_mean_pool_leaves_masked_tokens_out() -> None:
    """Mean of [1, 3] and [3, 5] is [2, 4], whatever the masked third is; a row without tokens gives zeros."""
    vectors = np.array([[[1, 3], [3, 5], [99, 99]], [[1, 1], [1, 1], [1, 1]]], F32)
    pooled = mean_pool(vectors, np.array([[1, 1, 0], [0, 0, 0]]))
    assert pooled.tolist() == [[2, 4], [0, 0]]
    np.testing.assert_allclose(mean_pool(vectors), vectors.mean(1), rtol=1e-6)
    with pytest.raises(InputError, match="mask: found shape"):
        mean_pool(vectors, np.ones((2, 2)))


def test_lengths_and_angles() -> None:
    """(3, 4) / 5; a right angle has cosine 0, opposite vectors -1, the zero vector 0; relative error 1e-6."""
    np.testing.assert_allclose(l2_normalize(np.array([[3, 4], [0, 0]])), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    a = np.array([[1, 0], [1, 1], [0, 0]], F32)
    np.testing.assert_allclose(cosine_similarity(a, np.array([0, 2], F32)), [0.0, math.sqrt(0.5), 0.0], rtol=1e-6)
    np.testing.assert_allclose(cosine_similarity(a[:1], -a[:1]), [-1], rtol=1e-6)
    assert cosine_similarity(a.astype(BF16), a.astype(BF16)).dtype == BF16


def test_no_operation_changes_its_inputs() -> None:
    """The inputs are read-only arrays: writing into one would raise."""
    x = np.arange(1, 7, dtype=F32).reshape(2, 3)
    x.flags.writeable = False
    for result in (
        tensor_arithmetic(x, x, "mod"), tensor_unary(x, "exp"), clip_tensor(x), where(x, x, x), mat_mul(x, x.T),
        tensor_reduce(x), softmax(x), cumulative_sum(x), l2_normalize(x), mean_pool(x[None]), compare(x, x).tensor,
    ):  # fmt: skip
        assert isinstance(result, np.ndarray)
    assert tensor_to_list(x) == [[1, 2, 3], [4, 5, 6]]
