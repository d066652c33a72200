"""Where output nodes write: numbered files inside the output folder that never replace one another."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from app.graph.errors import InputError

_FORBIDDEN = re.compile(r'[<>:"|?*\\\x00-\x1f\ud800-\udfff]')


def stem_of(output: Path, prefix: str, input: str = "filename_prefix") -> Path:
    """Return the path that a prefix such as `portraits/cat` stands for, number and suffix still missing.

    Raises InputError for a prefix that names no file, leaves the output folder or holds characters that some file
    systems lack.
    """
    accepted = "a name, with / for subfolders of the output folder"
    fix = 'write a name without < > : " | ? * and \\'
    if not isinstance(prefix, str) or not prefix.strip() or prefix.endswith("/") or _FORBIDDEN.search(prefix):
        raise InputError(input, found=repr(prefix), accepted=accepted, fix=fix)
    parts = PurePosixPath(prefix)
    if not parts.name:  # "." is the folder itself: the number would be added to the folder's own name, outside of it
        raise InputError(input, found=repr(prefix), accepted=accepted, fix=fix)
    path = output / parts
    if parts.is_absolute() or ".." in parts.parts or not path.resolve().is_relative_to(output.resolve()):
        found = f"{prefix!r}, which leaves the output folder"
        raise InputError(input, found=found, accepted=accepted, fix="leave out .. and a leading /", code="file_outside")
    return path


def next_number(stem: Path) -> int:
    """Return the number after the highest one in use with this stem, of whatever suffix and step; 1 if none is."""
    numbered = re.compile(re.escape(stem.name) + r"_(\d{5,})(?:_step\d+)?\.\w+")
    try:
        names = os.listdir(stem.parent)
    except (FileNotFoundError, NotADirectoryError):
        return 1
    return 1 + max((int(match[1]) for name in names if (match := numbered.fullmatch(name))), default=0)


def claim(stem: Path, suffix: str, step: int | None, number: int, input: str = "filename_prefix") -> Path:
    """Create an empty file `stem_00001.png`, in loops `stem_00001_step0001.png`, and return its path.

    step: from 0, None outside of loops. number: the first one to try; one in use is skipped, so that two runs at the
    same time never get the same file. Raises InputError when the folder cannot be written.
    """
    mark = "" if step is None else f"_step{step + 1:04d}"
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        while True:
            path = stem.with_name(f"{stem.name}_{number:05d}{mark}{suffix}")
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                number += 1
            else:
                return path
    except OSError as error:
        raise unwritable(error, stem, input) from None


def unwritable(error: OSError, path: Path, input: str = "filename_prefix") -> InputError:
    """Return the error for a file that the system refuses to write."""
    found = f"{path}, which cannot be written ({error.strerror or error})"
    fix = "check the output folder's permissions and free space, or choose another name"
    return InputError(input, found=found, accepted="a place to write files", fix=fix, code="file_unwritable")
