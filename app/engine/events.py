"""The typed stream of events that one run sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from app.graph.errors import Problem
from app.graph.node import Array


@dataclass(frozen=True, slots=True)
class Queued:
    """The run waits for its turn."""

    run: str


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins. nodes: the ids that it will compute or take from cache, in order."""

    run: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cached:
    """These nodes' outputs came from cache."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """A node outside of loop bodies begins; a node inside one is reported by its loop's steps."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeFinished:
    """A node is done. seconds: wall time, for a loop its whole body included."""

    node: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A loop has done a step. step: from 1; steps: how many there will be, 0 when not known; seconds: of this one."""

    node: str
    step: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Preview:
    """A picture to look at while the run goes on. image: uint8 [H, W, 3]. step: as in NodeContext."""

    node: str
    image: Array
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A node's result. type: "image", "text", "tensor", ...; path: the file, or None; value: what is not a file."""

    node: str
    type: str
    path: str | None = None
    value: Any = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Steered:
    """A live value of a loop changed while it ran and acts from `step` on, counted from 1."""

    node: str
    input: str
    step: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """An override could not be steered: the run starts again, everything before `node` from cache."""

    node: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The run ends with errors."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The run was cancelled."""


@dataclass(frozen=True, slots=True)
class Done:
    """The run ends well. seconds: wall time of the whole run; seconds_by_node: of each node computed."""

    seconds: float
    seconds_by_node: Mapping[str, float] = field(default_factory=dict)


Event: TypeAlias = (
    Queued
    | Started
    | Cached
    | NodeStarted
    | NodeFinished
    | StepFinished
    | Preview
    | Output
    | Steered
    | Restarted
    | Failed
    | Cancelled
    | Done
)
