"""An input port as ComfyUI describes it: `[type or choices, options]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.graph.node import InputPort

_ROLES = {
    "steerable": "Read again on every step of the loop.",
    "feedback": "Read at the end of each pass of the loop.",
}
_PAIRS = {"accept": "Takes a guidance pair as it is.", "refuse": "Takes no guidance pair."}


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names of the files that inputs may hold, relative to the folders they are looked up in, sorted."""

    images: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    tokenizers: tuple[str, ...] = ()

    def of(self, widget: str) -> tuple[str, ...] | None:
        """Return the names that a widget offers, or None when it is no list of files."""
        return {"image": self.images, "model": self.models, "tokenizer": self.tokenizers}.get(widget)


def input_config(port: InputPort, files: FileNames | None = None) -> list[Any]:
    """Return `[type, options]`; the type of a list of choices is the list itself, which every client can read.

    files: what inputs that name a file offer; without it they are plain STRINGs.
    """
    names = files.of(port.widget) if files is not None else None
    kind: Any = list(port.choices) or port.type.kind
    return [kind if names is None else list(names), _options(port)]


def number(value: float | None, port: InputPort) -> Any:
    """Return a bound of a port as its own type writes it: a whole number for an INT."""
    is_whole = isinstance(value, float) and port.type.kind == "INT" and value.is_integer()
    return int(value) if is_whole and value is not None else value


def _options(port: InputPort) -> dict[str, Any]:
    options = {
        "default": port.default,
        "min": number(port.minimum, port),
        "max": number(port.maximum, port),
        "step": number(port.step, port),
        "multiline": True if port.widget == "multiline" else None,
        "display": "slider" if port.widget == "slider" else None,
        "control_after_generate": True if port.widget == "seed" else None,
        "image_upload": True if port.widget == "image" else None,
        "socketless": True if port.literal_only else None,
        "tooltip": tooltip(port) or None,
    }
    return {key: value for key, value in options.items() if value is not None}


def tooltip(port: InputPort) -> str:
    """Return the help of an input, with what ComfyUI's schema has no words for: role, guidance pairs, dtype, shape."""
    is_detailed = bool(port.type.dtypes) or port.type.shape is not None
    parts = (_sentence(port.help), _ROLES.get(port.role), _PAIRS.get(port.pair), f"{port.type}." if is_detailed else "")
    return " ".join(part for part in parts if part)


def _sentence(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
