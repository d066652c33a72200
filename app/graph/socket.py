"""Socket types: what may flow on a wire, and why a wire that cannot work is refused."""

from __future__ import annotations

from dataclasses import dataclass

FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
"""Dtypes between which a component converts by itself; nothing else is converted in silence."""


@dataclass(frozen=True, slots=True)
class SocketType:
    """Type of an input or output.

    kind: one of `INT FLOAT BOOLEAN STRING TENSOR IMAGE MASK SAMPLER LIST *`, or a custom node's own word.
    dtypes: for TENSOR, the numpy dtype names it may have; empty when not known.
    shape: for TENSOR, its dimensions: a number, a symbol, or None for an unnamed free one; None when the rank
        is not known.
    """

    kind: str
    dtypes: frozenset[str] = frozenset()
    shape: tuple[int | str | None, ...] | None = None

    def __str__(self) -> str:
        if self.kind != "TENSOR":
            return self.kind
        dtype = "/".join(sorted(self.dtypes)) or "any dtype"
        if self.shape is None:
            return f"TENSOR ({dtype})"
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"TENSOR ({dtype} [{dims}])"


INT = SocketType("INT")
FLOAT = SocketType("FLOAT")
BOOLEAN = SocketType("BOOLEAN")
STRING = SocketType("STRING")
TENSOR = SocketType("TENSOR")
IMAGE = SocketType("IMAGE")
MASK = SocketType("MASK")
SAMPLER = SocketType("SAMPLER")
LIST = SocketType("LIST")
ANY = SocketType("*")

_WIDENS = {("INT", "FLOAT"), ("INT", "TENSOR"), ("FLOAT", "TENSOR"), ("BOOLEAN", "TENSOR")}
_CONVERTERS = {
    ("IMAGE", "TENSOR"): "put an Image To Tensor node between them",
    ("TENSOR", "IMAGE"): "put a Tensor To Image node between them",
    ("MASK", "TENSOR"): "put a Mask To Tensor node between them",
    ("TENSOR", "MASK"): "put a Tensor To Mask node between them",
    ("MASK", "IMAGE"): "put a Mask To Image node between them",
    ("IMAGE", "MASK"): "put an Image To Mask node between them",
    ("FLOAT", "INT"): "put a Round node between them",
    ("TENSOR", "FLOAT"): "put a Tensor To Number node between them",
    ("TENSOR", "INT"): "put a Tensor To Number node between them",
    ("LIST", "TENSOR"): "put a List To Tensor node between them",
    ("STRING", "TENSOR"): "put a Tokenize node between them",
    ("TENSOR", "LIST"): "put a Tensor To List node between them",
}


def why_not(source: SocketType, target: SocketType) -> str | None:
    """Return None when a wire from `source` to `target` can work, else the reason as the end of a sentence.

    The reason reads on from a place, e.g. `found TENSOR (int64), accepted TENSOR (float32); put a Cast node ...`.
    Types are compared as far as they are known: an unknown dtype, rank or dimension fits everything.
    """
    if "*" in (source.kind, target.kind) or (source.kind, target.kind) in _WIDENS:
        return None
    found = f"found {source}, accepted {target}"
    if source.kind != target.kind:
        fix = _CONVERTERS.get((source.kind, target.kind), f"wire an output of type {target.kind}")
        return f"{found}; {fix}"
    if source.dtypes and target.dtypes and not _dtypes_meet(source.dtypes, target.dtypes):
        return f"{found}: the dtypes differ; put a Cast node between them"
    if source.shape is None or target.shape is None:
        return None
    if len(source.shape) != len(target.shape):
        ranks = f"{len(source.shape)} dimensions do not fit {len(target.shape)}"
        return f"{found}: {ranks}; put a Reshape node between them"
    for axis, (have, want) in enumerate(zip(source.shape, target.shape, strict=True)):
        if isinstance(have, int) and isinstance(want, int) and have != want:
            return f"{found}: axis {axis} is {have} and must be {want}; wire an output made for this input"
    return None


def _dtypes_meet(source: frozenset[str], target: frozenset[str]) -> bool:
    return bool(source & target) or bool(source & FLOAT_DTYPES and target & FLOAT_DTYPES)
