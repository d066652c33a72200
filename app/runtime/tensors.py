"""Values at a component's border: what a model's input takes, and what it gives back."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array
from app.graph.socket import FLOAT_DTYPES
from app.runtime.model_file import TensorPort

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_BFLOAT16_ONNX = 16
_NUMBERS = (int, float, bool, np.number, np.bool_)


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """Return the numpy dtype of a port's dtype name, or None where there is none."""
    if name == "string":
        return np.dtype(object)
    try:
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        return None
    return found


def to_port(value: Any, port: TensorPort, sizes: Mapping[str, int]) -> Any:
    """Return a value as an array that the port takes: no copy when it is one already.

    Floats of any width become the port's; nothing else changes its dtype. A number takes the port's rank; for rank 1 it
    becomes [n], n being what `sizes` (size by symbol, bound by other inputs) says, else 1. A whole-number port cuts a
    fraction off.
    Raises InputError when dtype, rank or a fixed dimension does not fit.
    """
    dtype = numpy_dtype(port.dtype)
    if dtype is None:
        return value
    if not isinstance(value, np.ndarray):
        value = _from_plain(value, port, dtype, sizes)
    if value.dtype != dtype:
        value = _converted(value, port, dtype)
    if port.shape is not None:
        _check_shape(value, port)
    if not value.dtype.isnative or not value.flags.c_contiguous:
        value = np.ascontiguousarray(value, dtype)
    return value


class PortFeed:
    """One input of a model during a run. What a loop feeds looks alike on every step, so it is checked in full once."""

    __slots__ = ("_dtype", "_has_symbols", "_shape", "name", "port")

    def __init__(self, port: TensorPort) -> None:
        self.port = port
        self.name = port.name
        self._dtype = numpy_dtype(port.dtype)
        self._has_symbols = any(isinstance(dim, str) for dim in port.shape or ())
        self._shape: tuple[int, ...] | None = None

    def take(self, value: Any, values: Mapping[str, Any], ports: Mapping[str, TensorPort]) -> Any:
        """Return a value as `to_port` does. values: all inputs of the call; ports: the model's, by the same names."""
        if type(value) is np.ndarray:
            if value.dtype is self._dtype and value.shape == self._shape and value.flags.c_contiguous:
                return value
            array = to_port(value, self.port, {})
            self._shape = value.shape if value.dtype is self._dtype else None
            return array
        return to_port(value, self.port, symbol_sizes(values, ports) if self._has_symbols else {})


def symbol_sizes(values: Mapping[str, Any], ports: Mapping[str, TensorPort]) -> dict[str, int]:
    """Return the size of every symbolic dimension that the arrays among `values` bind."""
    sizes: dict[str, int] = {}
    for name, value in values.items():
        port = ports.get(name)
        if port is not None and port.shape is not None and isinstance(value, np.ndarray) and value.ndim:
            for dim, size in zip(port.shape, value.shape, strict=False):
                if isinstance(dim, str):
                    sizes.setdefault(dim, size)
    return sizes


def _from_plain(value: Any, port: TensorPort, dtype: np.dtype[Any], sizes: Mapping[str, int]) -> Array:
    if isinstance(value, _NUMBERS):
        if dtype.kind in "iu":
            value = int(value)
        return np.full(_number_shape(port, sizes), value, dtype)
    if isinstance(value, str):
        return np.array(value, object)
    if not isinstance(value, list | tuple):
        raise _misfit(port, type(value).__name__, "wire a tensor")
    array = np.asarray(value)
    fits = array.dtype.kind == dtype.kind or (array.dtype.kind in "iub" and dtype.kind in "iufV")
    if array.dtype.kind == "O" and dtype.kind != "O":
        raise _misfit(port, "a list of unequal rows", "make its rows equally long")
    return array.astype(dtype) if fits or array.size == 0 else array


def _number_shape(port: TensorPort, sizes: Mapping[str, int]) -> tuple[int, ...]:
    dims = port.shape or ()
    return tuple(dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in dims)


def _converted(value: Array, port: TensorPort, dtype: np.dtype[Any]) -> Array:
    if value.dtype.newbyteorder("=") == dtype:
        return value.astype(dtype)
    if value.dtype.name in FLOAT_DTYPES and dtype.name in FLOAT_DTYPES:
        return value.astype(dtype)
    if dtype.kind == "O" and value.dtype.kind == "U":
        return value.astype(object)
    raise _misfit(port, f"{value.dtype.name} {list(value.shape)}", f"put a Cast node to {port.dtype} before it")


def _check_shape(value: Array, port: TensorPort) -> None:
    shape = port.shape or ()
    if value.ndim != len(shape):
        ranks = f"{value.ndim} dimensions do not fit {len(shape)}; reshape it"
        raise _misfit(port, f"{value.dtype.name} {list(value.shape)}", ranks)
    for axis, (size, dim) in enumerate(zip(value.shape, shape, strict=True)):
        if isinstance(dim, int) and size != dim:
            fix = f"axis {axis} must be {dim}; wire what was made for this model"
            raise _misfit(port, f"{value.dtype.name} {list(value.shape)}", fix)


def _misfit(port: TensorPort, found: str, fix: str) -> InputError:
    dims = "" if port.shape is None else f" [{', '.join('?' if dim is None else str(dim) for dim in port.shape)}]"
    return InputError(port.name, found=found, accepted=f"{port.dtype}{dims}", fix=fix, code="misfit")


# --- bfloat16, which numpy and so session.run do not know --------------------------------------------------------


def run_with_bfloat16(session: Any, output_names: list[str], feeds: Mapping[str, Array], options: Any) -> list[Array]:
    """Return what session.run would, for models with bfloat16 among their inputs or outputs."""
    import onnxruntime as ort

    values = {}
    for name, array in feeds.items():
        if array.dtype == BFLOAT16:
            values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16_ONNX)
        else:
            values[name] = ort.OrtValue.ortvalue_from_numpy(array)
    raw = {name: value._ortvalue for name, value in values.items()}
    results = session._sess.run_with_ort_values(raw, output_names, options)
    return [_from_ort_value(results[index]) for index in range(len(output_names))]


def _from_ort_value(value: Any) -> Array:
    if "bfloat16" not in value.data_type():
        return np.array(value.numpy())
    shape = tuple(value.shape())
    if 0 in shape:
        return np.zeros(shape, BFLOAT16)
    memory = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    result: Array = np.array(np.ctypeslib.as_array(memory)).view(BFLOAT16).reshape(shape)
    return result
