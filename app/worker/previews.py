"""Previews: encoded in the worker, at a bounded share of the run's time, and kept as files when the run ends."""

from __future__ import annotations

import io
import logging
from collections import Counter
from pathlib import Path
from time import perf_counter

from app.engine.events import Preview
from app.graph.node import Array
from app.png import write_png
from app.worker.settings import PreviewSettings

log = logging.getLogger(__name__)

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


class KeptPreviews:
    """Previews as PNG files of the run: outside of loops at once, of a loop those of its last step, at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: dict[str, tuple[int, list[Array]]] = {}
        self._written: Counter[str] = Counter()

    def add(self, event: Preview, document: dict[str, object]) -> tuple[int, Path | None]:
        """Return a preview's number among those of the same node and step, and its file if one was written now."""
        if event.step is None:
            path = self._write(event.node, event.image, document)
            return self._written[event.node] - 1, path
        step, pictures = self._last.get(event.node, (event.step, []))
        pictures = [*(pictures if step == event.step else []), event.image]
        self._last[event.node] = (event.step, pictures)
        return len(pictures) - 1, None

    def restart(self) -> None:
        """Forget what was shown: the run starts again."""
        self._last.clear()

    def finish(self, document: dict[str, object]) -> list[tuple[str, Path]]:
        """Write what loops showed last; return (node, path) of each."""
        shown = [(node, pixels) for node, (_, pictures) in self._last.items() for pixels in pictures]
        written = [(node, self._write(node, pixels, document)) for node, pixels in shown]
        return [(node, path) for node, path in written if path is not None]

    def _write(self, node: str, pixels: Array, document: dict[str, object]) -> Path | None:
        """Write one picture; a preview is not worth losing the run's results when it cannot be written."""
        self._written[node] += 1
        path = self._folder / f"preview_{_name(node)}_{self._written[node]:05d}.png"
        try:
            write_png(path, pixels, document)
        except (OSError, ValueError) as error:
            log.warning("preview %s cannot be kept: %s", path, error)
            return None
        return path


def _name(node: str) -> str:
    """Return a node id as part of a file's name."""
    return "".join(character if character.isalnum() else "_" for character in node)[:60] or "node"
