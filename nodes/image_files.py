"""Loading, saving and showing pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

from app.engine.events import Output, Preview
from app.folders import Folders
from app.graph.errors import InputError
from app.graph.node import Help, Image, Mask, NodeType, node
from app.png import write_png
from nodes.image_loading import load_picture
from nodes.output_files import claim, next_number, stem_of, unwritable
from nodes.pixels import checked_image, to_bytes


class Loaded(NamedTuple):
    """A picture file."""

    image: Annotated[Image, Help("float32 [1, H, W, 3] in 0..1")]
    mask: Annotated[Mask, Help("float32 [1, H, W]: 1 where the picture is transparent, 0 without transparency")]


@node(category="image", search_aliases=("open", "read", "picture", "photo", "file"))
def load_image(
    context: Any,
    image: Annotated[str, Help("A picture file in an input folder", widget="image", literal_only=True)],
) -> Loaded:
    """Load a picture, turned upright as its EXIF data says.

    Gray, palette, 16 bit and CMYK pictures become RGB. Raises InputError for a file that is missing, no picture,
    damaged or has more than 89,478,485 pixels.
    """
    return Loaded(*load_picture(context.folders.input(image, "image")))


@node(category="image", output_node=True, search_aliases=("write", "export", "png", "file"))
def save_image(
    context: Any,
    image: Annotated[Image, Help("Picture or batch of pictures to save")],
    filename_prefix: Annotated[
        str, Help("Start of the files' names, with / for subfolders of the output folder")
    ] = "ortloom",
) -> None:
    """Save pictures as numbered PNG files that carry the workflow; none is ever replaced.

    In a loop every step is saved, as `prefix_00001_step0001.png` and so on. Raises InputError for a prefix outside of
    the output folder.
    """
    save_pictures(context, image, filename_prefix, None)


def save_pictures(context: Any, image: Any, prefix: str, number: int | None) -> int:
    """Save a batch under numbers from `number` on, None for the next free one; return the first number."""
    pixels = to_bytes(checked_image(image))
    stem = stem_of(context.folders.output, prefix)
    first = next_number(stem) if number is None else number
    for offset, picture in enumerate(pixels):
        path = claim(stem, ".png", context.step, first + offset)
        try:
            write_png(path, picture, context.document)
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise unwritable(error, path) from None
            raise
        context.emit(Output(context.node, "image", path=str(path), step=context.step))
    return first


@dataclass(slots=True)
class SaveImageInstance:
    """Save Image during one run. numbers: by lane, the number that all steps of the loop around it share."""

    context: Any
    numbers: dict[int, int] = field(default_factory=dict)

    def run(self, inputs: dict[str, Any], lane: int) -> Sequence[Any]:
        """Save the pictures."""
        prefix = inputs.get("filename_prefix", "ortloom")
        number = None if self.context.step is None else self.numbers.get(lane)
        self.numbers[lane] = save_pictures(self.context, inputs["image"], prefix, number)
        return ()

    def reset(self) -> None:
        """Take new numbers: the loop starts again."""
        self.numbers.clear()

    def close(self) -> None:
        """Do nothing: it holds nothing."""


@node(category="image", output_node=True, search_aliases=("show", "display", "watch"))
def preview_image(context: Any, image: Annotated[Image, Help("Picture or batch of pictures to show")]) -> None:
    """Show pictures in the editor, in a loop on every step, without saving them in the output folder."""
    for pixels in to_bytes(checked_image(image)):
        context.emit(Preview(context.node, pixels, context.step))


def image_file_nodes(folders: Folders) -> list[NodeType]:
    """Return the node types here that need more than a function: loading sees when a file changes in these folders."""

    def fingerprint(literals: Mapping[str, Any]) -> str:
        try:
            path = folders.input(literals.get("image", ""), "image")
            stat = path.stat()
        except (InputError, OSError):
            return ""
        return f"{path}|{stat.st_mtime_ns}|{stat.st_size}"

    functions: tuple[Any, ...] = (load_image, save_image)
    loading, saving = (function.node_type for function in functions)
    return [
        replace(loading, fingerprint=fingerprint),
        replace(saving, prepare=lambda context, literals: SaveImageInstance(context)),
    ]
