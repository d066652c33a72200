"""Calls with bfloat16 and float8 tensors, which numpy and so `session.run` do not know; nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.graph.node import Array
from app.runtime.model_file import DTYPES, TensorPort
from app.runtime.tensors import numpy_dtype

EXTENDED = frozenset({"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})

_ONNX_TYPE_BY_DTYPE = {numpy_dtype(name): code for code, name in DTYPES.items() if name in EXTENDED}


def run_extended(session: Any, outputs: Sequence[TensorPort], feeds: Mapping[str, Array], options: Any) -> list[Array]:
    """Return what session.run would, for models with such tensors among their inputs or outputs."""
    from onnxruntime import OrtValue

    values = {}
    for name, array in feeds.items():
        code = _ONNX_TYPE_BY_DTYPE.get(array.dtype)
        if code is None:
            values[name] = OrtValue.ortvalue_from_numpy(array)
        else:
            values[name] = OrtValue.ortvalue_from_numpy_with_onnx_type(array, code)
    raw = {name: value._ortvalue for name, value in values.items()}
    # The public wrapper iterates the result, which costs 36 microseconds however short it is; indexing costs one.
    results = session._sess.run_with_ort_values(raw, [port.name for port in outputs], options)
    return [_array(results[index], port) for index, port in enumerate(outputs)]


def _array(value: Any, port: TensorPort) -> Array:
    dtype = numpy_dtype(port.dtype)
    if port.dtype not in EXTENDED or dtype is None:
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.asarray(_Memory(value, shape, dtype.itemsize)).view(dtype)


class _Memory:
    """Lends an OrtValue's memory to numpy as whole numbers, and keeps it alive as long as an array refers to it."""

    def __init__(self, value: Any, shape: tuple[int, ...], itemsize: int) -> None:
        self._value = value
        self.__array_interface__ = {
            "shape": shape,
            "typestr": f"{'<' if itemsize > 1 else '|'}u{itemsize}",
            "data": (value.data_ptr(), False),
            "version": 3,
        }
