"""What the server was started with, and the folders that follow from it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from app.folders import BUNDLED_INPUTS, BUNDLED_MODELS, Folders

DEFAULT_PORT = 8188


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything that `ortloom serve` can be told.

    data: folder of all that the server keeps; its subfolders are properties here.
    models: further folders of models, searched before `data/models` and the bundled ones.
    token: what clients must show; None for none. paused: do not start runs until told to.
    worker_grace_s: how long a cancelled run may stay inside one operator before its worker is ended.
    watchdog_s: how long a worker may be silent (not even a heartbeat) before it counts as hung.
    memory_bytes: what a worker may hold before it is ended; 0 for nine tenths of this machine's memory.
    keep_runs: how many ended runs the history holds; the oldest go first.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    models: tuple[Path, ...] = ()
    token: str | None = None
    paused: bool = False
    device: str = "auto"
    custom_nodes: Path | None = None
    worker_grace_s: float = 5.0
    watchdog_s: float = 30.0
    memory_bytes: int = 0
    keep_runs: int = 10_000

    @property
    def input(self) -> Path:
        """Uploaded files."""
        return self.data / "input"

    @property
    def output(self) -> Path:
        """Files that output nodes write."""
        return self.data / "output"

    @property
    def temp(self) -> Path:
        """Previews and results of live revisions; emptied at every start."""
        return self.data / "temp"

    @property
    def user(self) -> Path:
        """Files that clients keep (ComfyUI's userdata)."""
        return self.data / "user"

    @property
    def workflows(self) -> Path:
        """Saved workflows: inside `user`, so that clients of ComfyUI's API see the same ones."""
        return self.user / "workflows"

    @property
    def logs(self) -> Path:
        """What the server and its worker note down."""
        return self.data / "logs"

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.data / "ortloom.db"

    @property
    def folders(self) -> Folders:
        """Folders that runs read from and write to."""
        own = self.data / "models"
        return Folders(
            (*self.models, own, BUNDLED_MODELS), (self.input, BUNDLED_INPUTS), self.output, shows_paths=False
        )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    def make_folders(self) -> None:
        """Make every folder that is missing. Raises OSError."""
        for folder in (
            self.input,
            self.output,
            self.temp,
            self.workflows,
            self.logs,
            self.data / "models",
            self.data / "custom_nodes",
        ):
            folder.mkdir(parents=True, exist_ok=True)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address can only mean this machine."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
