"""Who listens on a port already."""

from __future__ import annotations

import os
from pathlib import Path

_LISTEN = "0A"


def port_sentence(host: str, port: int) -> str:
    """Return why the server cannot listen, and which process to look for."""
    owner = port_owner(port)
    who = f"process {owner[0]} ({owner[1]})" if owner else f"another program; `ss -ltnp sport = :{port}` may name it"
    free = port + 1 if port < 65535 else port - 1
    return f"found port {port} of {host} taken by {who}; end that, or choose another port, e.g. --port {free}"


def port_owner(port: int) -> tuple[int, str] | None:
    """Return process id and command line of who listens on a TCP port, or None where the system does not tell."""
    inodes = {inode for name in ("tcp", "tcp6") for inode in _listening(Path(f"/proc/net/{name}"), port)}
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(link) in wanted for link in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                return int(process.name), command[:100]
        except OSError:
            continue
    return None


def _listening(table: Path, port: int) -> list[str]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]
