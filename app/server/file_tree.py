"""Looking through a folder within bounds."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MAX_ENTRIES = 20_000
MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file below a folder. name: relative to that folder, with / between; modified_ns: nanoseconds since 1970."""

    name: str
    path: Path
    bytes: int
    modified_ns: int


def files_below(root: Path, most: int = MAX_ENTRIES) -> tuple[list[FoundFile], bool]:
    """Return the files up to `MAX_DEPTH` folders deep, sorted by name, and whether there was more than was looked at.

    At most `most` entries are looked at, the upper ones first, so that a whole disk given as a folder ends too. Hidden
    files are left out, and links to folders and to files outside: what opens a file here refuses those.
    """
    inside = root.resolve()
    entries = list(islice(_entries(root), most + 1))
    found = [file for name, entry in entries[:most] if (file := _file(entry, name, inside)) is not None]
    return sorted(found, key=lambda file: file.name), len(entries) > most


def _entries(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield everything below a folder with its relative name; folders that cannot be read count as empty."""
    folders = deque([(root, "", 1)])
    while folders:
        folder, prefix, depth = folders.popleft()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if depth < MAX_DEPTH and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        folders.append((Path(entry.path), f"{prefix}{entry.name}/", depth + 1))
                    yield f"{prefix}{entry.name}", entry
        except OSError:
            continue


def _file(entry: os.DirEntry[str], name: str, inside: Path) -> FoundFile | None:
    """Return the file, or None when it is none that may be opened."""
    path = Path(entry.path)
    try:
        is_outside = entry.is_symlink() and not path.resolve().is_relative_to(inside)
        if entry.name.startswith(".") or is_outside or not entry.is_file():
            return None
        stat = entry.stat()
    except (OSError, RuntimeError):  # it went away; Python before 3.13 calls links in a circle a RuntimeError
        return None
    return FoundFile(name, path, stat.st_size, stat.st_mtime_ns)
