"""Both guidance lanes in one call: inputs joined along axis 0, outputs parted again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.graph.node import Array
from app.runtime.carried import Feeds
from app.runtime.model_file import TensorPort


def join(
    positive: Feeds, negative: Feeds, paired: frozenset[str], ports: Mapping[str, TensorPort]
) -> tuple[Feeds, int] | None:
    """Return the feeds of both lanes as one and the batch size of one lane; None when they cannot be joined.

    paired: names of what differs between the lanes. Anything else is repeated when its axis 0 is the batch, and shared
    otherwise. None means that two calls are the only way to the same result: the lanes differ in shape, or an axis
    that would have to be twice as long is fixed.
    """
    joined: Feeds = {}
    batch, symbols = 0, set()
    for name in paired:
        first, second = positive[name], negative[name]
        dim = _first_dim(ports[name])
        if not (_is_array(first) and _is_array(second)) or first.shape != second.shape or isinstance(dim, int):
            return None
        if batch and len(first) != batch:
            return None
        batch = len(first)
        symbols.add(dim)
        joined[name] = np.concatenate([first, second])
    for name, value in positive.items():
        if name not in paired:
            is_repeated = _is_repeated(value, ports[name], batch, symbols - {None})
            if is_repeated is None:
                return None
            joined[name] = np.concatenate([value, value]) if is_repeated else value
    return joined, batch


def part(outputs: Sequence[Any], batch: int) -> list[tuple[Array, Array]] | None:
    """Return each output as its two lanes, which share its memory; None when one does not hold both along axis 0."""
    if not all(_is_array(value) and len(value) == 2 * batch for value in outputs):
        return None
    return [(value[:batch], value[batch:]) for value in outputs]


def can_part(outputs: Sequence[TensorPort]) -> bool:
    """Return whether all outputs may have a batch along axis 0, as far as the file says."""
    return all(port.shape is None or (port.shape != () and not isinstance(port.shape[0], int)) for port in outputs)


def _is_repeated(value: Any, port: TensorPort, batch: int, symbols: set[Any]) -> bool | None:
    """Return whether a value that both lanes share has their batch along axis 0; None when it stands in the way."""
    if not isinstance(value, np.ndarray):
        return None
    if value.ndim == 0:
        return False
    dim = _first_dim(port)
    has_batch = len(value) == batch
    if isinstance(dim, int):
        return None if has_batch and value.ndim > 1 else False
    if dim in symbols:
        return True if has_batch else None
    # One number in a list of its own, say a timestep, is shared unless its dimension is called the batch.
    return has_batch and (value.ndim > 1 or batch > 1)


def _first_dim(port: TensorPort) -> int | str | None:
    return port.shape[0] if port.shape else None


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0
