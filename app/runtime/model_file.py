"""The signature of a model file, read in milliseconds without its weights, without onnx and without onnxruntime."""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path

from app.graph.errors import InputError
from app.runtime.protobuf import Buffer, Malformed, fields, message, number, text, varints

DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn",
}  # fmt: skip
"""numpy and ml_dtypes names by ONNX's TensorProto.DataType."""

_BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "bool": 8, "string": 0, "bfloat16": 16, "complex64": 64}
_NOT_TENSORS = {4: "sequence", 5: "map", 8: "sparse", 9: "optional"}

_FIRST_IR_WITH_DEFAULTS = 4
"""Before this version a file had to list its weights among its inputs, and ONNX Runtime does not let one feed them."""

_MOST_DIMENSIONS = 64
"""numpy's limit. A damaged file may claim millions, whose product would take minutes."""

_DEEPEST_GRAPH = 32
"""Protobuf's own readers stop at 100 nested messages, and each graph inside a graph is three."""

_HOLDS_MORE = re.compile(rb"\xa0\x01[\x04\x05\x09\x0a]")
"""AttributeProto.type (field 20) as TENSOR, GRAPH, TENSORS or GRAPHS: a node without these bytes holds none."""

_LARGE_NODE = 4096
"""Bytes. Not searched for `_HOLDS_MORE`, which would read the pages of its weights."""


@dataclass(frozen=True, slots=True)
class TensorPort:
    """One input or output of a model.

    dtype: numpy or ml_dtypes name, or `string`; `sequence`, `optional`, `map`, `sparse` for what is no tensor.
    shape: numbers, symbols, or None for unnamed free dimensions; None when the rank is not given.
    has_default: an input that the file holds a value for and that need not be fed.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    has_default: bool = False

    @property
    def is_required(self) -> bool:
        """Return whether the model cannot run without a value for this input."""
        return not self.has_default and self.dtype != "optional"

    def __str__(self) -> str:
        if self.shape is None:
            return self.dtype
        return f"{self.dtype} [{', '.join('?' if dim is None else str(dim) for dim in self.shape)}]"


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """What a model file takes and gives, and facts about it.

    ops: how often each operator stands in the file, in the branches and bodies of others too.
    weight_bytes: of all initializers and constants, external ones included.
    external_files: files beside the model that hold them.
    """

    inputs: tuple[TensorPort, ...]
    outputs: tuple[TensorPort, ...]
    opsets: Mapping[str, int]
    ir_version: int
    producer: str
    metadata: Mapping[str, str]
    ops: Mapping[str, int]
    weight_bytes: int
    external_files: tuple[Path, ...]


def read_signature(path: Path) -> ModelSignature:
    """Return a model file's signature; unchanged files are read once.

    Raises InputError for input `model` when the file is missing, empty, truncated or no ONNX model, and when its
    external data is missing or lies outside of the model's folder.
    """
    try:
        stat = path.stat()
        signature = _read(path, stat.st_size, stat.st_mtime_ns)
        # Every time, as these files come and go without the model file changing.
        for file in signature.external_files:
            _check_external(path, file)
    except (OSError, RuntimeError, ValueError) as error:
        # Python 3.11 and 3.12 call links that go in a circle a RuntimeError, and odd characters in a path ValueError.
        found = f"{path.name}, which cannot be read ({getattr(error, 'strerror', None) or error})"
        raise _refused(found, "check the path and its permissions", "file_missing") from error
    return signature


def stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return what a model's content is known by: path, size, mtime in nanoseconds of its file and its external data.

    Raises InputError as `read_signature` does.
    """
    files = (path, *read_signature(path).external_files)
    try:
        stats = [(file.resolve(), file.stat()) for file in files]
    except OSError as error:
        raise _refused(f"{path.name}, which has just gone", "put it back", "file_missing") from error
    return tuple((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in stats)


@lru_cache(maxsize=4096)
def _read(path: Path, size: int, mtime_ns: int) -> ModelSignature:
    if not path.is_file():
        is_folder = path.is_dir()
        what, fix = ("a folder", "choose the .onnx file in it") if is_folder else ("no file", "choose a model file")
        raise _refused(f"{path.name}, which is {what}", fix, "file_missing")
    if size == 0:
        raise _refused(f"{path.name}, which is empty", "copy or download it again", "model_broken")
    try:
        with path.open("rb") as file:
            # Not closed here: an exception on its way may still refer to views of it; it closes with the last one.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _Walk(path).model(memoryview(mapped))
    except (Malformed, ValueError, OverflowError) as error:
        found = f"{path.name}, which is no ONNX model or is cut off ({error})"
        raise _refused(found, "copy or download it again", "model_broken") from error


def _check_external(model: Path, file: Path) -> None:
    location = str(file.relative_to(model.parent))
    if not file.resolve().is_relative_to(model.resolve().parent):
        raise _outside(model, location)
    if not file.is_file():
        found = f"{model.name} without its weights file {location!r}"
        raise _refused(found, "copy that file beside it", "external_data_missing")


def _outside(model: Path, location: str) -> InputError:
    found = f"{model.name}, whose weights are said to be at {location!r}, outside of its folder"
    return _refused(found, "do not use this file unless you trust it; export it again", "external_data_outside")


def _refused(found: str, fix: str, code: str) -> InputError:
    return InputError("model", found=found, accepted="a whole ONNX model file", fix=fix, code=code)


@dataclass(slots=True)
class _Walk:
    """The walk over one file. Field numbers are those of onnx.proto."""

    path: Path
    inputs: list[TensorPort] = field(default_factory=list)
    outputs: list[TensorPort] = field(default_factory=list)
    initializers: set[str] = field(default_factory=set)
    ops: Counter[str] = field(default_factory=Counter)
    weight_bytes: int = 0
    locations: dict[str, None] = field(default_factory=dict)

    def model(self, data: Buffer) -> ModelSignature:
        opsets: dict[str, int] = {}
        metadata: dict[str, str] = {}
        ir_version, producer, has_graph = 0, "", False
        for key, _, value in fields(data):
            if key == 1:
                ir_version = number(value)
            elif key == 2:
                producer = text(value)
            elif key == 7:
                has_graph = True
                self.graph(message(value))
            elif key == 8:
                domain, version = _pair(message(value))
                opsets[domain] = version if isinstance(version, int) else 0
            elif key == 14:
                name, content = _pair(message(value))
                metadata[name] = str(content)
        if not has_graph or not (self.outputs or self.ops):
            raise Malformed("it holds no graph")
        return ModelSignature(
            self.feedable_inputs(ir_version),
            tuple(self.outputs),
            opsets,
            ir_version,
            producer,
            metadata,
            dict(self.ops),
            self.weight_bytes,
            tuple(self.external(location) for location in self.locations),
        )

    def graph(self, data: Buffer) -> None:
        for key, _, value in fields(data):
            if key == 1:
                self.node(message(value), 0)
            elif key == 5:
                self.initializers.add(self.initializer(message(value)))
            elif key == 11:
                self.inputs.append(_port(message(value)))
            elif key == 12:
                self.outputs.append(_port(message(value)))

    def subgraph(self, data: Buffer, depth: int) -> None:
        if depth > _DEEPEST_GRAPH:
            raise Malformed(f"more than {_DEEPEST_GRAPH} graphs inside one another")
        for key, _, value in fields(data):
            if key == 1:
                self.node(message(value), depth)
            elif key == 5:
                self.initializer(message(value))

    def node(self, data: Buffer, depth: int) -> None:
        # Most nodes hold only numbers: to walk their attributes as well would triple the time.
        has_more = len(data) >= _LARGE_NODE or _HOLDS_MORE.search(data) is not None
        op_type = ""
        for key, _, value in fields(data):
            if key == 4:
                op_type = text(value)
                if not has_more:
                    break
            elif key == 5 and has_more:
                self.attribute(message(value), depth)
        self.ops[op_type] += 1

    def attribute(self, data: Buffer, depth: int) -> None:
        for key, _, value in fields(data):
            if key in (5, 10):
                self.initializer(message(value))
            elif key in (6, 11):
                self.subgraph(message(value), depth + 1)

    def initializer(self, data: Buffer) -> str:
        name, dtype = "", 0
        dims: list[int] = []
        for key, wire, value in fields(data):
            if key == 1:
                dims += varints(value, wire, _MOST_DIMENSIONS)
            elif key == 2:
                dtype = number(value)
            elif key == 8:
                name = text(value)
            elif key == 13:
                entry, content = _pair(message(value))
                if entry == "location":
                    self.locations[str(content)] = None
            if len(dims) > _MOST_DIMENSIONS or any(dim < 0 for dim in dims):
                raise Malformed(f"weight {name!r} has no possible shape")
        self.weight_bytes += prod(dims) * _bits(DTYPES.get(dtype, "")) // 8
        return name

    def feedable_inputs(self, ir_version: int) -> tuple[TensorPort, ...]:
        """Return the inputs, those with a value in the file marked, or left out where it cannot be replaced."""
        ports = [TensorPort(port.name, port.dtype, port.shape, port.name in self.initializers) for port in self.inputs]
        return tuple(port for port in ports if not port.has_default or ir_version >= _FIRST_IR_WITH_DEFAULTS)

    def external(self, location: str) -> Path:
        path = Path(location)
        if "\0" in location or path.is_absolute() or ".." in path.parts:
            raise _outside(self.path, location)
        return self.path.parent / path


def _pair(data: Buffer) -> tuple[str, str | int]:
    """Return fields 1 and 2 of a small message: a key and its value."""
    first = ""
    result: str | int = ""
    for key, _, value in fields(data):
        if key == 1:
            first = text(value)
        elif key == 2:
            result = value if isinstance(value, int) else text(value)
    return first, result


def _port(data: Buffer) -> TensorPort:
    """Return the port in a ValueInfoProto."""
    name, dtype = "", "unknown"
    shape: tuple[int | str | None, ...] | None = None
    for key, _, value in fields(data):
        if key == 1:
            name = text(value)
        elif key == 2:
            dtype, shape = _type(message(value))
    if not name:
        raise Malformed("a port without a name")
    return TensorPort(name, dtype, shape)


def _type(data: Buffer) -> tuple[str, tuple[int | str | None, ...] | None]:
    for key, _, value in fields(data):
        if key == 1:
            return _tensor_type(message(value))
        if key in _NOT_TENSORS:
            return _NOT_TENSORS[key], None
    return "unknown", None


def _tensor_type(data: Buffer) -> tuple[str, tuple[int | str | None, ...] | None]:
    dtype = "unknown"
    shape: tuple[int | str | None, ...] | None = None
    for key, _, value in fields(data):
        if key == 1:
            dtype = DTYPES.get(number(value), "unknown")
        elif key == 2:
            shape = tuple(_dimension(message(item)) for which, _, item in fields(message(value)) if which == 1)
    return dtype, shape


def _dimension(data: Buffer) -> int | str | None:
    found: int | str | None = None
    for key, _, value in fields(data):
        if key == 1:
            found = number(value)
        elif key == 2:
            found = text(value) or None
    # Some exporters write -1 for a free dimension.
    return None if isinstance(found, int) and found < 0 else found


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    digits = "".join(character for character in dtype.split("_")[0] if character.isdigit())
    return int(digits) if digits else 0
