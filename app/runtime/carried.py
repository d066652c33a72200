"""The state that a component carries from step to step, for each guidance lane: handed on, never copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array
from app.runtime.model_file import TensorPort
from app.runtime.state import StatePair
from app.runtime.tensors import numpy_dtype, symbol_sizes

Feeds: TypeAlias = "dict[str, Any]"
"""Values of a model's inputs by the model's own names."""


class CarriedState:
    """State of one component during one run. lanes: 0 positive or only lane, 1 negative.

    After a call for both lanes at once it is held as that call gave it, both lanes along axis 0, until one lane alone
    is asked for.
    """

    def __init__(self, pairs: Sequence[StatePair], ports: Mapping[str, TensorPort]) -> None:
        """ports: the model's inputs by name."""
        self._pairs = tuple(pairs)
        self._places = tuple((pair.input.name, pair.index) for pair in pairs)
        self._ports = ports
        self._by_lane: dict[int, Feeds] = {}
        self._joint: Feeds | None = None
        self._batch = 0

    def reset(self) -> None:
        """Forget everything: a loop starts."""
        self._by_lane.clear()
        self._joint = None

    def of(self, lane: int, feeds: Feeds) -> Feeds:
        """Return what one lane carries; before its first step, what `feeds`, the call's other inputs, ask for.

        Raises InputError when the size of a first state cannot be told.
        """
        if self._joint is not None:
            self._part(self._joint)
        carried = self._by_lane.get(lane)
        if carried is not None:
            return carried
        sizes = symbol_sizes(feeds, self._ports)
        return {pair.input.name: first_state(pair, sizes) for pair in self._pairs}

    def keep(self, lane: int, outputs: Sequence[Any]) -> None:
        """Carry a call's outputs to the lane's next step."""
        self._by_lane[lane] = {name: outputs[index] for name, index in self._places}

    def of_both(self, batch: int, lanes: Callable[[], tuple[Feeds, Feeds]]) -> Feeds | None:
        """Return what both lanes carry, joined along axis 0; None when it cannot be joined.

        batch: of one lane. lanes: gives the two lanes' other inputs, wanted only before the first joint step.
        """
        if self._joint is not None and self._batch == batch:
            return self._joint
        positive, negative = lanes()
        first, second = self.of(0, positive), self.of(1, negative)
        joint: Feeds = {}
        for pair in self._pairs:
            name = pair.input.name
            halves = (first[name], second[name])
            if halves[0].shape != halves[1].shape or not halves[0].ndim or len(halves[0]) != batch:
                return None
            if pair.input.shape is not None and isinstance(pair.input.shape[0], int):
                return None
            joint[name] = np.concatenate(halves)
        return joint

    def keep_both(self, batch: int, outputs: Sequence[Any]) -> None:
        """Carry the outputs of a joint call to the next step. batch: of one lane."""
        self._joint = {name: outputs[index] for name, index in self._places}
        self._batch = batch
        self._by_lane.clear()

    def _part(self, joint: Feeds) -> None:
        for lane, half in enumerate((slice(None, self._batch), slice(self._batch, None))):
            self._by_lane[lane] = {name: value[half] for name, value in joint.items()}
        self._joint = None


def first_state(pair: StatePair, sizes: Mapping[str, int]) -> Array:
    """Return a state before the first step: zeros; for `empty`, growing dimensions have length 0.

    sizes: size by symbol, bound by the other inputs of the call. A symbolic dimension that does not grow takes its size
    from there; else axis 0 is 1 and, for `empty`, the others are 0.
    Raises InputError when a dimension of a `zeros` state is not known.
    """
    port = pair.input
    growing = _growing(port, pair.output) if pair.init == "empty" else frozenset()
    shape = []
    for axis, dim in enumerate(port.shape or ()):
        if isinstance(dim, int):
            shape.append(dim)
        elif axis in growing:
            shape.append(0)
        elif dim is not None and dim in sizes:
            shape.append(sizes[dim])
        elif axis == 0:
            shape.append(1)
        elif pair.init == "empty":
            shape.append(0)
        else:
            found = f"axis {axis} of {port.name} ({dim or 'unnamed'}) without a size"
            fix = "set init to empty if it grows, or wire an input that has this dimension"
            raise InputError("state", found=found, accepted="known dimensions for zeros", fix=fix)
    return np.zeros(shape, numpy_dtype(port.dtype))


def _growing(past: TensorPort, present: TensorPort) -> frozenset[int]:
    """Return the axes along which a state grows: those named differently before and after.

    Exporters that call both lengths by one name leave that open: then every free axis but the first may grow.
    """
    free = [axis for axis, dim in enumerate(past.shape or ()) if axis and not isinstance(dim, int)]
    after = present.shape or (None,) * len(past.shape or ())
    renamed = [axis for axis in free if (past.shape or ())[axis] != after[axis]]
    return frozenset(renamed or free)
