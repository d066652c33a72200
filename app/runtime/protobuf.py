"""Just enough of the protobuf wire format to walk an ONNX file without reading its weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

Buffer: TypeAlias = "memoryview"

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Malformed(Exception):
    """The bytes are no protobuf message, or end too early."""


def fields(data: Buffer) -> Iterator[tuple[int, int, int | Buffer]]:
    """Yield (field number, wire type, value) of a message; a value is a number or a view of the bytes, not a copy.

    Raises Malformed, also for groups, which ONNX does not use.
    """
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise Malformed("field number 0")
        if wire == VARINT:
            value, position = _varint(data, position)
            yield number, wire, value
            continue
        if wire == BYTES:
            size, position = _varint(data, position)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise Malformed(f"wire type {wire}")
        if size > end - position:
            raise Malformed("ends too early")
        yield number, wire, data[position : position + size]
        position += size


def text(value: int | Buffer) -> str:
    """Return a bytes field as text. Raises Malformed."""
    if isinstance(value, int):
        raise Malformed("a number where a text belongs")
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed("a text that is not UTF-8") from error


def number(value: int | Buffer) -> int:
    """Return a varint field as a signed 64-bit number. Raises Malformed."""
    if not isinstance(value, int):
        raise Malformed("bytes where a number belongs")
    return value - (1 << 64) if value >= 1 << 63 else value


def message(value: int | Buffer) -> Buffer:
    """Return a nested message's bytes. Raises Malformed."""
    if isinstance(value, int):
        raise Malformed("a number where a message belongs")
    return value


def varints(value: int | Buffer, wire: int, most: int) -> list[int]:
    """Return a repeated varint field, packed or not. Raises Malformed when it holds more than `most` numbers."""
    if wire == VARINT:
        return [number(value)]
    data, position = message(value), 0
    found: list[int] = []
    while position < len(data):
        if len(found) == most:
            raise Malformed(f"more than {most} numbers where fewer belong")
        item, position = _varint(data, position)
        found.append(number(item))
    return found


def _varint(data: Buffer, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise Malformed("ends too early")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
