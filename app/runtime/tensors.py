"""Values at a component's border: what a model's input takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array
from app.graph.socket import FLOAT_DTYPES
from app.runtime.model_file import TensorPort

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


def is_number(value: Any) -> bool:
    """Return whether a value is one number or truth value, of Python or of numpy, that takes on a port's rank."""
    return value.ndim == 0 if isinstance(value, np.ndarray) else isinstance(value, _NUMBERS)


def to_port(value: Any, port: TensorPort, sizes: Mapping[str, int]) -> Any:
    """Return a value as an array that the port takes: no copy when it is one already.

    Floats of any width become the port's; no other array changes its dtype. A number takes the port's dtype and rank:
    it fills the fixed dimensions and the symbolic ones in `sizes` (size by symbol, bound by other inputs); others are
    1. A whole-number port cuts a number's fraction off. A list takes the port's dtype where no value changes by that.
    A number or list beyond a float port's range is refused; in an array it becomes infinite, which is what masks that
    hold the least float32 mean in float16.
    Raises InputError when dtype, rank or a fixed dimension does not fit.
    """
    dtype = numpy_dtype(port.dtype)
    if dtype is None:
        return value
    if is_number(value):
        return _from_number(value, port, dtype, sizes)
    if isinstance(value, str):
        array = _from_text(value, port, dtype, sizes)
    elif isinstance(value, list | tuple):
        array = _from_list(value, port, dtype)
    elif isinstance(value, np.ndarray):
        array = value if value.dtype == dtype else _converted(value, port, dtype)
    else:
        raise misfit(port, type(value).__name__, "wire a tensor")
    if port.shape is not None:
        _check_shape(array, port)
    # ONNX Runtime copies a strided feed on every call; one copy here saves one per step.
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


class PortFeed:
    """One input of a model during a run. What a loop feeds looks alike on every step, so it is checked in full once.

    port: under the name that the user knows it by. name: the model's own. has_symbols: a number fed here takes its size
    from other inputs.
    """

    __slots__ = ("_dtype", "_shape", "has_symbols", "name", "port")

    def __init__(self, port: TensorPort, name: str) -> None:
        self.port = port
        self.name = name
        self.has_symbols = any(isinstance(dim, str) for dim in port.shape or ())
        self._dtype = numpy_dtype(port.dtype)
        self._shape: tuple[int, ...] | None = None

    def fits(self, value: Any) -> bool:
        """Return whether a value can be fed as it is because one like it was."""
        return (
            type(value) is np.ndarray
            and value.shape == self._shape
            and value.dtype is self._dtype
            and value.flags.c_contiguous
        )

    def take(self, value: Any, sizes: Mapping[str, int]) -> Any:
        """Return a value as `to_port` does."""
        array = to_port(value, self.port, sizes)
        if self._dtype is not None:
            self._shape = array.shape
        return array


def symbol_sizes(feeds: Mapping[str, Any], ports: Mapping[str, TensorPort]) -> dict[str, int]:
    """Return the size of every symbolic dimension that the arrays among `feeds` bind; both by the same names."""
    sizes: dict[str, int] = {}
    for name, value in feeds.items():
        port = ports.get(name)
        if port is not None and port.shape is not None and isinstance(value, np.ndarray):
            for dim, size in zip(port.shape, value.shape, strict=False):
                if isinstance(dim, str):
                    sizes.setdefault(dim, size)
    return sizes


def misfit(port: TensorPort, found: str, fix: str) -> InputError:
    """Return the error for a value that a port does not take."""
    return InputError(port.name, found=found, accepted=str(port), fix=fix, code="misfit")


def _from_number(value: Any, port: TensorPort, dtype: np.dtype[Any], sizes: Mapping[str, int]) -> Array:
    plain = value.item() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(plain, str):
        return _from_text(plain, port, dtype, sizes)
    shape = _number_shape(port, sizes)
    if shape == () and isinstance(value, np.ndarray) and value.dtype == dtype:
        return value
    if not isinstance(plain, int | float):
        raise misfit(port, repr(plain), "give a number")
    if isinstance(plain, int) and plain.bit_length() > 1023:
        raise misfit(port, f"a number of {plain.bit_length()} bits", "give a smaller one")
    if _is_whole(dtype):
        if not math.isfinite(plain):
            raise misfit(port, f"{plain}", "give a finite number")
        # Toward zero, as a real-valued timestep goes into a whole-number port (pipeline-spec 2.10.4).
        plain = int(plain)
        _check_range(plain, plain, port, dtype)
    elif dtype.kind == "b" and plain not in (0, 1):
        raise misfit(port, f"{plain}", "give true or false")
    elif dtype.kind == "O":
        raise misfit(port, f"{plain}", "give a text")
    else:
        _check_magnitude(abs(plain), port, dtype)
    array: Array = np.empty(shape, dtype)
    array.fill(plain)
    return array


def _from_text(value: str, port: TensorPort, dtype: np.dtype[Any], sizes: Mapping[str, int]) -> Array:
    if dtype.kind != "O":
        raise misfit(port, repr(value), "wire a tensor")
    return np.full(_number_shape(port, sizes), value, dtype)


def _from_list(value: Any, port: TensorPort, dtype: np.dtype[Any]) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise misfit(port, "a list of unequal rows", "make its rows equally long") from error
    if array.size == 0 or array.dtype == dtype:
        return array.astype(dtype, copy=False)
    if array.dtype.kind not in "biufU" or (array.dtype.kind == "U") != (dtype.kind == "O"):
        raise misfit(port, "a list of something else", f"write {'texts' if dtype.kind == 'O' else 'numbers'} only")
    if _is_whole(dtype):
        if not np.all(np.isfinite(array)) or np.any(array != np.trunc(array)):
            raise misfit(port, "a list with fractions", "write whole numbers")
        _check_range(array.min().item(), array.max().item(), port, dtype)
    elif dtype.kind == "b" and not np.isin(array, (0, 1)).all():
        raise misfit(port, "a list with other values", "write true and false only")
    elif dtype.kind != "O":
        finite = array[np.isfinite(array)]
        _check_magnitude(np.abs(finite).max().item() if finite.size else 0, port, dtype)
    return array.astype(dtype)


@functools.cache
def _is_whole(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or dtype.name in ("int4", "uint4")


def _check_magnitude(magnitude: float, port: TensorPort, dtype: np.dtype[Any]) -> None:
    if _float_limit(dtype) < magnitude < math.inf:
        raise misfit(port, f"a magnitude of {float(magnitude):.9g}", f"stay within ±{_float_limit(dtype):.6g}")


@functools.cache
def _float_limit(dtype: np.dtype[Any]) -> float:
    """Return the magnitude beyond which a number does not round to a finite one of this dtype."""
    if dtype.name not in FLOAT_DTYPES:
        return math.inf
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    # Half a unit in the last place, seen from the greatest number, which is nearly 2 ** (exponent + 1).
    return float(info.max) * (1 + float(info.eps) / 4)


def _check_range(least: float, most: float, port: TensorPort, dtype: np.dtype[Any]) -> None:
    limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    if least < limits.min or most > limits.max:
        found = f"{most if most > limits.max else least:.20g}"
        raise misfit(port, found, f"stay within {limits.min} and {limits.max}")


def _number_shape(port: TensorPort, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in port.shape or ())


def _converted(value: Array, port: TensorPort, dtype: np.dtype[Any]) -> Array:
    """Return an array of another dtype as the port's: another byte order, float width or kind of text."""
    if value.dtype.newbyteorder("=") == dtype:
        return value.astype(dtype)
    if value.dtype.name in FLOAT_DTYPES and dtype.name in FLOAT_DTYPES:
        with np.errstate(over="ignore"):
            return value.astype(dtype)
    if dtype.kind == "O" and value.dtype.kind in "UT":
        return value.astype(object)
    raise misfit(port, f"{value.dtype.name} {list(value.shape)}", f"put a Cast node to {port.dtype} before it")


def _check_shape(value: Array, port: TensorPort) -> None:
    shape = port.shape or ()
    found = f"{value.dtype.name} {list(value.shape)}"
    if value.ndim != len(shape):
        raise misfit(port, found, f"{value.ndim} dimensions do not fit {len(shape)}; reshape it")
    for axis, (size, dim) in enumerate(zip(value.shape, shape, strict=True)):
        if isinstance(dim, int) and size != dim:
            raise misfit(port, found, f"axis {axis} must be {dim}; wire what was made for this model")
