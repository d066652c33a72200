"""Keeping the results of a live revision: from the temporary folder to where outputs stay."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

from nodes.output_files import claim, next_number

_NUMBERED = re.compile(r"(?P<stem>.+)_(?P<number>\d{5,})(?:_step(?P<step>\d+))?(?P<suffix>\.\w+)")


def keep(outputs: Iterable[dict[str, Any]], subfolder: str, temp: Path, output: Path) -> list[dict[str, Any]]:
    """Put a revision's files into the output folder, under the next free numbers; return the outputs as they are now.

    The temporary files stay for clients that are about to fetch them; previews stay only there.
    subfolder: where the revision's output folder lies inside of `temp`.
    Files of one number, the steps of a loop, get one number again. Raises OSError and InputError.
    """
    kept: list[dict[str, Any]] = []
    numbers: dict[tuple[Path, str], int] = {}
    for entry in outputs:
        if entry.get("folder") != "temp" or entry["type"] == "preview":
            kept.append(entry)
            continue
        source = temp / entry["path"]
        relative = PurePosixPath(entry["path"]).relative_to(subfolder)
        match = _NUMBERED.fullmatch(relative.name)
        if match is None:
            raise FileNotFoundError(f"{relative.name} is no numbered output")
        stem = output / relative.parent / match["stem"]
        key = (stem, match["number"])
        number = numbers.get(key) or max(next_number(stem), 1 + max(_taken(numbers, stem), default=0))
        step = None if match["step"] is None else int(match["step"]) - 1
        target = claim(stem, match["suffix"], step, number)
        numbers[key] = number
        _put(source, target)
        kept.append({**entry, "folder": "output", "path": target.relative_to(output).as_posix()})
    return kept


def _put(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no links; the target appears whole."""
    beside = target.with_name(f".{uuid4().hex}.part")
    try:
        try:
            os.link(source, beside)
        except OSError:
            shutil.copyfile(source, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def drop(folder: Path | None) -> None:
    """Delete a revision's files, if there are any."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _taken(numbers: dict[tuple[Path, str], int], stem: Path) -> list[int]:
    return [number for (known, _), number in numbers.items() if known == stem]
