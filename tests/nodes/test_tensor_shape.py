"""Shapes, selections and conversions against numpy and closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from app.graph.errors import InputError
from app.graph.node import Array, NodeType
from nodes import tensor_convert, tensor_math, tensor_reduce, tensor_select, tensor_shape
from nodes.tensor_convert import (
    cast,
    list_to_tensor,
    round_number,
    tensor_fill,
    tensor_to_list,
    tensor_to_number,
    whole_range,
)
from nodes.tensor_select import argmax, concatenate, gather, masked_scatter, select_row, slice_tensor, stack, top_k
from nodes.tensor_shape import make_shape, pad_tensor, reshape, squeeze, tile, transpose, unsqueeze

BF16 = ml_dtypes.bfloat16
X = np.arange(24).reshape(2, 3, 4)
WRONG_DTYPE: Any = "complex"

NODE_TYPES = [
    value.node_type
    for module in (tensor_convert, tensor_math, tensor_reduce, tensor_select, tensor_shape)
    for value in vars(module).values()
    if isinstance(getattr(value, "node_type", None), NodeType) and value.__module__ == module.__name__
]


@pytest.mark.parametrize("node_type", NODE_TYPES, ids=lambda node_type: node_type.name)
def test_every_input_and_output_has_help(node_type: NodeType) -> None:
    """The editor shows it beside the socket."""
    assert [port.name for port in node_type.ports.inputs if not port.help] == []
    assert [port.name for port in node_type.ports.outputs if not port.help] == []


@pytest.mark.parametrize(
    ("shape", "expected"),
    [("-1", (24,)), ("0, -1", (2, 12)), ([6, 4], (6, 4)), ("4 -1 2", (4, 3, 2)), ("[0, 0, 2, -1]", (2, 3, 2, 2)),
     (np.array([24]), (24,)), (24, (24,))],
)  # fmt: skip
def test_reshape(shape: Any, expected: tuple[int, ...]) -> None:
    """0 keeps an axis and -1 takes the rest, as ONNX's Reshape defines; the elements keep their order."""
    result = reshape(X, shape)
    assert result.shape == expected
    assert result.ravel().tolist() == list(range(24))


@pytest.mark.parametrize(
    ("call", "input"),
    [
        (lambda: reshape(X, "5, -1"), "shape"), (lambda: reshape(X, "-1, -1"), "shape"),
        (lambda: reshape(X, "two"), "shape"), (lambda: reshape(X, [1.5]), "shape"),
        (lambda: reshape(X, [True]), "shape"),
        (lambda: transpose(X, "0, 1"), "order"), (lambda: transpose(X, "0, 1, 1"), "order"),
        (lambda: squeeze(X, "1"), "axes"), (lambda: unsqueeze(X, "7"), "axes"), (lambda: unsqueeze(X, "0, 0"), "axes"),
        (lambda: tile(X, 3), "axis"), (lambda: tile(X, 0, 2**40), "count"),
        (lambda: pad_tensor(X, 0, after=2**40), "after"),
        (lambda: pad_tensor(X, value=0.5), "value"), (lambda: slice_tensor(X, 3), "axis"),
        (lambda: slice_tensor(X, step=0), "step"), (lambda: select_row(X, 3), "index"),
        (lambda: gather(X, np.array([2])), "indices"), (lambda: gather(X, np.array([0.0])), "indices"),
        (lambda: argmax(np.zeros((2, 0))), "tensor"), (lambda: argmax(np.array(1)), "axis"),
        (lambda: top_k(X, 5), "k"), (lambda: top_k(np.array(1), 1), "k"),
        (lambda: concatenate(X, X, d=np.zeros((2, 3)), axis=0), "d"), (lambda: concatenate(X, X[:, :2]), "b"),
        (lambda: stack(X, X, X[0]), "c"), (lambda: masked_scatter(X, np.ones((2, 2)), X), "mask"),
        (lambda: masked_scatter(X, np.ones((2, 3)), X[0]), "rows"),
        (lambda: cast(np.array([np.nan]), "int64"), "tensor"),
        (lambda: cast(np.array([np.inf]), "bool"), "tensor"), (lambda: cast(np.array([300.0]), "uint8"), "tensor"),
        (lambda: cast(np.array([2.0**63]), "int64"), "tensor"), (lambda: cast(np.array([2**40]), "int32"), "tensor"),
        (lambda: cast(X, WRONG_DTYPE), "dtype"), (lambda: tensor_fill("2, -1"), "shape"),
        (lambda: tensor_fill("100000, 100000"), "shape"), (lambda: tensor_fill("2", 0.5, "int64"), "value"),
        (lambda: tensor_fill("2", 300, "uint8"), "value"), (lambda: tensor_fill("2", math.nan, "int64"), "value"),
        (lambda: whole_range(), "length"), (lambda: whole_range(0, 1, 2), "length"),
        (lambda: whole_range(0, 3, step=0), "step"),
        (lambda: whole_range(0, 10**10), "length"), (lambda: whole_range(2**63, 1), "length"),
        (lambda: list_to_tensor([[1], [1, 2]]), "items"), (lambda: list_to_tensor(["a"]), "items"),
        (lambda: list_to_tensor([None]), "items"), (lambda: list_to_tensor([1.5, math.nan], "int64"), "tensor"),
        (lambda: tensor_to_number(X), "tensor"), (lambda: tensor_to_number(np.array([np.nan])), "tensor"),
        (lambda: round_number(math.inf), "value"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_input(call: Callable[[], Any], input: str) -> None:
    """An InputError at the input to change, not an exception of numpy."""
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.input == input


def test_axes_come_and_go() -> None:
    """Numpy's own transpose, squeeze and expand_dims."""
    assert transpose(X, "0, 2, 1").tolist() == X.transpose(0, 2, 1).tolist()
    assert transpose(X).shape == (4, 3, 2)
    assert transpose(X, [-1, 0, 1]).shape == (4, 2, 3)
    assert unsqueeze(X, "0, -1").shape == (1, 2, 3, 4, 1)
    assert unsqueeze(np.array(5), 0).tolist() == [5]
    assert squeeze(np.zeros((1, 2, 1)), "0").shape == (2, 1)
    assert squeeze(np.zeros((1, 2, 1))).shape == (2,)


def test_tile_and_pad() -> None:
    """Positions [1, S] become [3, 1, S]; padding by hand, dtype kept."""
    positions = unsqueeze(whole_range(0, 4, batch=1), 0)
    assert tile(positions, 0, 3).tolist() == [[[0, 1, 2, 3]]] * 3
    padded = pad_tensor(np.array([[1, 2]], np.int32), 1, 1, 2, 7)
    assert padded.tolist() == [[7, 1, 2, 7, 7]]
    assert padded.dtype == np.int32
    assert pad_tensor(np.ones(1, BF16), 0, 0, 1, -1).tolist() == [1, -1]


def test_sizes() -> None:
    """By hand."""
    sizes = tensor_shape.tensor_shape(X, 1)
    assert (sizes.shape, sizes.size, sizes.elements) == ([2, 3, 4], 3, 24)
    assert tensor_shape.tensor_shape(np.array(7.0)) == ([], 1, 1)
    assert make_shape(1, 16) == [1, 16]
    assert tensor_fill(make_shape(2, None, 3), 1).shape == (2, 3)


@pytest.mark.parametrize(
    "range_of",
    [(0, None, 1), (-1, None, 1), (1, 3, 1), (-2, -1, 1), (0, 99, 2), (-1, None, -1), (3, 1, 1), (-99, 2, 1)],
)
def test_slice_is_pythons(range_of: tuple[int, int | None, int]) -> None:
    """Python's own slice of each row."""
    start, end, step = range_of
    result = slice_tensor(X, -1, start, end, step)
    assert result.tolist() == [[row[start:end:step] for row in rows] for rows in X.tolist()]


def test_the_last_position_of_logits_does_not_keep_the_others_alive() -> None:
    """The result owns its memory."""
    logits = np.zeros((1, 100, 50), np.float32)
    last = slice_tensor(logits, 1, -1)
    assert last.shape == (1, 1, 50)
    assert last.base is None


def test_select_row_and_gather() -> None:
    """Numpy's indexing; past the end zeros if wanted; a single index drops the axis in gather."""
    assert select_row(X, -1, axis=1).tolist() == X[:, -1:].tolist()
    assert select_row(X, 0, axis=2, keepdims=False).tolist() == X[:, :, 0].tolist()
    assert select_row(X, 3, axis=1, outside="zeros").tolist() == np.zeros((2, 1, 4)).tolist()
    assert gather(X, np.array([[2, -1]]), 1).shape == (2, 1, 2, 4)
    assert gather(X, np.array(1), 1).tolist() == X[:, 1].tolist()


def test_argmax_takes_the_lowest_of_equal_ones() -> None:
    """Pipeline-spec 2.11: ties give the lowest id; a token keeps its [1, 1] shape with keepdims off."""
    logits = np.array([[[1, 3, 3, 0]]], np.float16)
    token = argmax(logits)
    assert token.tolist() == [[1]]
    assert token.dtype == np.int64
    assert argmax(logits, keepdims=True).shape == (1, 1, 1)
    assert argmax(logits.astype(BF16)).tolist() == [[1]]


@pytest.mark.parametrize("size", [7, 5000])
def test_top_k_is_a_stable_sort(size: int) -> None:
    """Python's sorted by (-value, index), on values with many ties, short rows and long ones."""
    x = np.random.default_rng(1).integers(0, 5, size=(2, size)).astype(np.float32)
    values, indices = top_k(x, 6)
    for row, found in zip(x.tolist(), indices.tolist(), strict=True):
        assert found == sorted(range(size), key=lambda index: (-row[index], index))[:6]
    assert values.tolist() == np.take_along_axis(x, indices, -1).tolist()
    assert indices.dtype == np.int64


def test_concatenate_and_stack() -> None:
    """Numpy's; whole numbers join floats as floats, ids stay int64."""
    ids = concatenate(np.array([[5, 6]]), np.full((1, 2), 9), c=np.array([[1]]))
    assert ids.tolist() == [[5, 6, 9, 9, 1]]
    assert ids.dtype == np.int64
    assert concatenate(X, X, d=X, axis=0).shape == (6, 3, 4)
    assert concatenate(np.zeros(1, BF16), np.zeros(1, np.float16)).dtype == np.float32
    assert stack(X, X, axis=-1).shape == (2, 3, 4, 2)
    assert stack(np.array(1), np.array(2)).tolist() == [1, 2]


def test_masked_scatter_puts_image_features_at_their_placeholders() -> None:
    """Rows 1 and 3 are replaced in order; the embeddings given stay as they were."""
    embeds = np.zeros((1, 4, 2), np.float16)
    features = np.array([[1, 2], [3, 4]], np.float32)
    result = masked_scatter(embeds, np.array([[7, 9, 7, 9]]) == 9, features)
    assert result.tolist() == [[[0, 0], [1, 2], [0, 0], [3, 4]]]
    assert result.dtype == np.float16
    assert not embeds.any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8"])
def test_cast_cuts_toward_zero(dtype: Any) -> None:
    """-1.75 and 2.75 become -1 and 2 as whole numbers and stay as floats; all are exact in every float dtype."""
    result = cast(np.array([-1.75, 2.75], np.float32), dtype)
    assert str(result.dtype) == dtype
    assert result.astype(float).tolist() == ([-1, 2] if dtype.startswith("int") else [-1.75, 2.75])


def test_cast_at_the_edges() -> None:
    """-128.9 is cut to -128, which int8 holds; 0.5 is true; bfloat16 rounds 1 + 2**-9 to 1 (8 bits of mantissa)."""
    assert cast(np.array([-128.9, 127.9]), "int8").tolist() == [-128, 127]
    assert cast(np.array([0.5, 0.0]), "bool").tolist() == [True, False]
    assert cast(np.array([1 + 2**-9], np.float32), "bfloat16").astype(float).tolist() == [1]
    assert cast(np.array([2.9], BF16), "int64").tolist() == [2]
    assert cast(X, "int64") is X


def test_constants_and_ranges() -> None:
    """By hand: Python's range, as rows of a batch if wanted."""
    filled = tensor_fill("1, 4", 2, "int64")
    assert filled.tolist() == [[2, 2, 2, 2]]
    assert filled.dtype == np.int64
    assert tensor_fill([2], 0.5, "bfloat16").astype(float).tolist() == [0.5, 0.5]
    assert tensor_fill([], 3).shape == ()
    assert whole_range(5, 3).tolist() == [5, 6, 7]
    assert whole_range(0, end=-6, step=-2).tolist() == [0, -2, -4]
    assert whole_range(4, 2, step=-3).tolist() == [4, 1]
    assert whole_range(3, 0).tolist() == []
    assert whole_range(1, end=3, batch=2).tolist() == [[1, 2], [1, 2]]
    assert whole_range(1, 3).dtype == np.int64


def test_lists_and_numbers() -> None:
    """There and back; auto takes int64, bool or float32."""
    assert [str(list_to_tensor(items).dtype) for items in ([1, 2], [True], [0.5], [1, 0.5], [])] == [
        "int64", "bool", "float32", "float32", "float32",
    ]  # fmt: skip
    assert list_to_tensor([[1, 2], [3, 4]], "bfloat16").shape == (2, 2)
    assert tensor_to_list(np.array([[1.5]], BF16)) == [[1.5]]
    assert tensor_to_list(np.array(3)) == [3]
    assert tensor_to_number(np.array([[2.5]], np.float16)) == (2.5, 2)
    assert tensor_to_number(np.array(2**60 + 1)).int == 2**60 + 1
    assert [round_number(value) for value in (2.5, 3.5, -0.5, 1.4999)] == [2, 4, 0, 1]


def test_nested_speech_with_prefill_needs_no_other_nodes() -> None:
    """Pipeline-spec section 7, tiny-tts-nested-prefill: prompt [8], two frames, gives [9..12] and [43..46].

    The models are the closed forms of that table; everything between them is a node of this library.
    """
    groups, hidden_size = 4, 8
    prompt = np.array([[8]])
    prefix, trailing = np.full((1, 2, hidden_size), prompt.sum(), np.float32), rows_of(1, 2, hidden_size)
    embeds, frames = prefix, []
    for frame in range(2):
        hidden = np.repeat(embeds.mean(-1, keepdims=True), hidden_size, -1)
        token = argmax(slice_tensor(one_hot(np.rint(hidden[..., 0]), 64), 1, -1))
        vector, codes = slice_tensor(hidden, 1, -1), []
        for _ in range(groups):
            code = argmax(slice_tensor(one_hot(vector.mean(-1) + 1, 64), 1, -1))
            vector = np.full((1, 1, hidden_size), code.item(), np.float32)
            codes.append(code)
        row = concatenate(codes[0], codes[1], codes[2], codes[3], axis=1)
        frames.append(row)
        feedback = concatenate(token, slice_tensor(row, 1, 1), axis=1)
        text = select_row(trailing, frame, axis=1, outside="zeros")
        embeds = tensor_math.tensor_arithmetic(text, tensor_reduce.tensor_reduce(feedback, "sum"))
    assert squeeze(stack(frames[0], frames[1], axis=1)).tolist() == [[9, 10, 11, 12], [43, 44, 45, 46]]


def rows_of(*values: float) -> Array:
    *rows, width = values
    return np.repeat(np.array(rows, np.float32)[None, :, None], int(width), -1)


def one_hot(index: Array, size: int) -> Array:
    return np.asarray(np.arange(size) == index[..., None]).astype(np.float32)
