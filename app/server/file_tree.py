"""Looking through a folder within bounds."""

from __future__ import annotations

import os
from collections import deque
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
    """Return the files below a folder, sorted by name, and whether some were left out.

    At most `most` entries are looked at, `MAX_DEPTH` folders deep, the upper ones first, so that a whole disk given as
    a folder ends too. Hidden files are left out, and links to folders and to files outside: nothing here opens those.
    """
    inside = root.resolve()
    found: list[FoundFile] = []
    folders = deque([(root, "", 1)])
    is_cut = False
    while folders:
        folder, prefix, depth = folders.popleft()
        entries = _entries(folder, most + 1)
        is_cut |= len(entries) > most
        most -= min(len(entries), most)
        for entry in entries[: most + len(entries)] if not is_cut else entries[:-1]:
            if entry.name.startswith("."):
                continue
            name = prefix + entry.name
            if not entry.is_dir(follow_symlinks=False):
                found += _file(entry, name, inside)
            elif depth < MAX_DEPTH:
                folders.append((Path(entry.path), f"{name}/", depth + 1))
            else:
                is_cut = True
    return sorted(found, key=lambda file: file.name), is_cut


def _entries(folder: Path, most: int) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing when it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(islice(entries, most))
    except OSError:
        return []


def _file(entry: os.DirEntry[str], name: str, inside: Path) -> list[FoundFile]:
    """Return the file, or nothing when it is none that may be opened."""
    path = Path(entry.path)
    try:
        if not entry.is_file() or (entry.is_symlink() and not path.resolve().is_relative_to(inside)):
            return []
        stat = entry.stat()
    except (OSError, RuntimeError):  # it went away; Python before 3.13 calls links in a circle a RuntimeError
        return []
    return [FoundFile(name, path, stat.st_size, stat.st_mtime_ns)]
