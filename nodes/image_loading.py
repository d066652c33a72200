"""Reading picture files: header first, then pixels and transparency."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from app.graph.errors import InputError
from app.graph.node import Array
from nodes.pixels import to_floats

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 89_478_485
"""Most pixels that are decoded: 256 MiB as 8 bit RGB. A small file can claim any size."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is decoded. Pillow knows more: some start other programs (EPS), some claim sizes they have not got (ICO)."""

_WIDE_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")


def load_picture(path: Path, input: str = "image") -> tuple[Array, Array]:
    """Return a picture file's image, float32 [1, H, W, 3] in 0..1, and mask, float32 [1, H, W], 1 where transparent.

    Turned upright as its EXIF data says. Of an animation the first picture. Raises InputError for a file that is no
    picture, is cut off or damaged, or has more than MAX_PIXELS pixels.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    accepted = "a picture such as PNG, JPEG or WebP"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            file = Image.open(path, formats=FORMATS)
        with file:
            _check_size(file.size, path, input)
            upright = ImageOps.exif_transpose(file)
            return _image_and_mask(upright)
    except UnidentifiedImageError:
        found = f"{path.name}, which is not a picture"
        raise InputError(input, found=found, accepted=accepted, fix="choose another file") from None
    except Image.DecompressionBombError as error:
        # Raised before the size can be asked for; Pillow's sentence holds the number of pixels.
        count = re.search(r"\d+", str(error))
        raise _too_large(path, count[0] if count else "far too many", input) from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        found = f"{path.name}, which cannot be decoded ({reason})"
        raise InputError(input, found=found, accepted=accepted, fix="take another copy of it") from None


def _check_size(size: tuple[int, int], path: Path, input: str) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise _too_large(path, f"{width} x {height}", input)


def _too_large(path: Path, size: str, input: str) -> InputError:
    found = f"{path.name} with {size} pixels"
    return InputError(input, found=found, accepted=f"at most {MAX_PIXELS} pixels", fix="make it smaller first")


def _image_and_mask(picture: Image.Image) -> tuple[Array, Array]:
    if picture.mode in _WIDE_MODES:
        levels = np.asarray(picture)
        gray = levels.astype(np.float32) / np.float32(65535)
        image = np.repeat(gray.clip(0, 1)[None, :, :, None], 3, axis=-1)
        if isinstance(clear := picture.info.get("transparency"), int):
            return image, (levels == clear)[None].astype(np.float32)
    elif picture.mode == "F":
        image = np.repeat(np.asarray(picture, np.float32).clip(0, 1)[None, :, :, None], 3, axis=-1)
    elif _is_transparent(picture):
        pixels = to_floats(np.asarray(picture.convert("RGBA")))[None]
        return np.ascontiguousarray(pixels[..., :3]), np.float32(1) - pixels[..., 3]
    else:
        image = to_floats(np.asarray(picture.convert("RGB")))[None]
    return image, np.zeros(image.shape[:3], np.float32)


def _is_transparent(picture: Image.Image) -> bool:
    return picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info
