"""Signatures: equal signature, equal output. Ids, titles, positions and the order of a document never count."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.graph.graph import GraphNode, Source

_SIZE = 16


def node_signature(node: GraphNode, source_signature: Callable[[Source], bytes]) -> bytes:
    """Return the signature of a node: its type and version, literals, outside facts and its sources' signatures.

    source_signature: gives the signature of one output of another node.
    """
    parts = [encode((node.type.name, node.type.version))]
    if node.type.fingerprint is not None:
        parts.append(encode(node.type.fingerprint(node.literals)))
    for name in sorted({*node.literals, *node.links}):
        parts.append(encode(name))
        source = node.links.get(name)
        parts.append(encode(node.literals[name]) if source is None else b"L" + source_signature(source))
    return _digest(b"".join(parts))


def loop_signature(header: GraphNode, body: Sequence[GraphNode], outer: Callable[[Source], bytes]) -> bytes:
    """Return the signature of a loop: that of its header and of everything in its body, taps included.

    body: in planned order, headers of inner loops before their own bodies.
    outer: signature of one output of a node outside of the loop.
    Inside the body a node stands for its place in the planned order, so that renamed ids still give the same.
    """
    place = {node.id: index for index, node in enumerate((header, *body))}

    def of_source(source: Source) -> bytes:
        index = place.get(source.node)
        return outer(source) if index is None else b"P" + struct.pack("<II", index, source.output)

    return _digest(b"".join(node_signature(node, of_source) for node in (header, *body)))


def encode(value: Any) -> bytes:
    """Return bytes that differ whenever two JSON-like values do: 1, 1.0, True and -0.0 are four different values."""
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        digits = str(value).encode()
        return b"i" + _length(digits) + digits
    if isinstance(value, float):
        return b"d" + struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return b"s" + _length(text) + text
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: str(item[0]))
        return b"m" + _length(items) + b"".join(encode(key) + encode(item) for key, item in items)
    if isinstance(value, list | tuple):
        return b"l" + _length(value) + b"".join(map(encode, value))
    text = repr(value).encode()
    return b"r" + _length(text) + text


def _length(value: Any) -> bytes:
    return struct.pack("<I", len(value))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SIZE).digest()
