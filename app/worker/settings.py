"""What a worker is started with, and what it is asked to run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from app.folders import Folders


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Folders and device of a worker; travels as JSON on its command line.

    skip_extensions: extensions that killed an earlier worker while it loaded them.
    note: file for the worker's last words; none when empty.
    """

    models: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str
    temp: str
    custom_nodes: str
    device: str = "auto"
    skip_extensions: tuple[str, ...] = ()
    note: str = ""

    def to_json(self) -> str:
        """Return the settings as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> WorkerSettings:
        """Return the settings in a JSON text made by `to_json`."""
        data: dict[str, Any] = json.loads(text)
        for name in ("models", "inputs", "skip_extensions"):
            data[name] = tuple(data[name])
        return cls(**data)

    @property
    def folders(self) -> Folders:
        """Folders of a run that keeps its outputs."""
        return Folders(
            tuple(map(Path, self.models)), tuple(map(Path, self.inputs)), Path(self.output), shows_paths=False
        )


@dataclass(frozen=True, slots=True)
class PreviewSettings:
    """How often and how large previews are sent. every: each n-th step; px: longest side, 0 for as it is."""

    every: int = 1
    px: int = 512


@dataclass(frozen=True, slots=True)
class Job:
    """One run, as a worker gets it.

    document: the workflow as JSON. targets: node ids; every output node when None.
    folder: where outputs go: "output", or "temp" for results that may be superseded. subfolder: inside of it.
    """

    id: str
    document: dict[str, Any]
    targets: tuple[str, ...] | None = None
    folder: Literal["output", "temp"] = "output"
    subfolder: str = ""
    previews: PreviewSettings = field(default_factory=PreviewSettings)

    def to_json(self) -> dict[str, Any]:
        """Return the job as JSON-ready data."""
        return asdict(self)

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Job:
        """Return the job in data made by `to_json`."""
        targets = data["targets"]
        return cls(
            data["id"],
            data["document"],
            None if targets is None else tuple(targets),
            data["folder"],
            data["subfolder"],
            PreviewSettings(**data["previews"]),
        )
