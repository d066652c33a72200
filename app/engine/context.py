"""What a running node may use besides its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.engine.events import Event
from app.folders import Folders

if TYPE_CHECKING:
    from app.engine.cancel import CancelToken
    from app.runtime.sessions import SessionPool


@dataclass(slots=True)
class NodeContext:
    """Surroundings of one node in one run.

    step: number of the current pass of the innermost loop around the node, from 0; None outside of loops.
    document: the workflow as it runs, overrides applied, ready to be written into a picture.
    is_tap: the node runs in a loop only to watch it.
    """

    node: str
    title: str
    folders: Folders
    sessions: SessionPool
    cancel: CancelToken
    emit: Callable[[Event], None]
    document: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    device: str = "auto"
