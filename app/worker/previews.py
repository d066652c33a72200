"""Previews: encoded in the worker, at a bounded share of the run's time, and kept as files when the run ends."""

from __future__ import annotations

import io
from pathlib import Path
from time import perf_counter

from app.engine.events import Preview
from app.graph.node import Array
from app.worker.settings import PreviewSettings

SHARE = 0.1
"""Largest share of a run's time that its previews may take on average (live.md: a tenth of the step time)."""
HEAD_START_S = 0.05
"""What previews may take before the share counts, so that a run's first picture is never skipped."""
QUALITY = 85


class PreviewBudget:
    """Decides which previews of one run are worth their cost."""

    def __init__(self, settings: PreviewSettings) -> None:
        self._settings = settings
        self._started = perf_counter()
        self._spent = 0.0
        self._last_cost = 0.0

    def encode(self, event: Preview) -> bytes | None:
        """Return a preview as JPEG, or None when it is not its step's turn or the share is used up."""
        if event.step is not None and event.step % max(1, self._settings.every):
            return None
        started = perf_counter()
        allowed = HEAD_START_S + SHARE * (started - self._started)
        if self._spent + self._last_cost > allowed:
            return None
        data = jpeg(event.image, self._settings.px)
        self._last_cost = perf_counter() - started
        self._spent += self._last_cost
        return data


def jpeg(pixels: Array, px: int) -> bytes:
    """Return uint8 [H, W, 3] as JPEG, made smaller until no side is longer than `px`; 0 leaves it as it is."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    longest = max(picture.size)
    if 0 < px < longest:
        picture.thumbnail((px, px), Image.Resampling.BILINEAR, reducing_gap=1.0)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


class LastPreviews:
    """The pictures that each preview node showed last, to be kept as files of the run."""

    def __init__(self) -> None:
        self._by_node: dict[str, tuple[int | None, list[Array]]] = {}

    def add(self, event: Preview) -> int:
        """Remember a preview; return its number among those of the same node and step."""
        step, pictures = self._by_node.get(event.node, (None, []))
        if event.step is not None and step != event.step:
            pictures = []
        pictures.append(event.image)
        self._by_node[event.node] = (event.step, pictures)
        return len(pictures) - 1

    def clear(self) -> None:
        """Forget all: the run starts again."""
        self._by_node.clear()

    def write(self, folder: Path, document: dict[str, object]) -> list[tuple[str, Path]]:
        """Write the pictures as PNG files that carry the workflow; return (node, path) of each. Raises OSError."""
        from app.png import write_png

        written = []
        for node, (_, pictures) in self._by_node.items():
            for index, pixels in enumerate(pictures):
                path = folder / f"preview_{_name(node)}_{index + 1:05d}.png"
                write_png(path, pixels, document)
                written.append((node, path))
        return written


def _name(node: str) -> str:
    """Return a node id as part of a file's name."""
    return "".join(character if character.isalnum() else "_" for character in node)[:60] or "node"
