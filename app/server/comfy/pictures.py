"""Pictures of clients: their size is checked before anything is decoded; previews, channels and masks of them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from app.server.errors import ApiError
from app.server.user_files import unwritable
from nodes.image_loading import FORMATS, MAX_PIXELS

if TYPE_CHECKING:
    from PIL import Image

DEFAULT_QUALITY = 90
_FORMATS = {"webp": "image/webp", "jpeg": "image/jpeg"}


def check_pixels(file: Path) -> None:
    """Refuse a picture with more pixels than can be decoded; what is no picture passes. Raises ApiError 400."""
    from PIL import Image, UnidentifiedImageError

    try:
        with _opened(file):
            return
    except ApiError as error:
        if error.problem.code == "too_many_pixels":
            raise
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return


def re_encoded(file: Path, preview: str | None, channel: str) -> tuple[bytes, str]:
    """Return a picture encoded anew, and its content type. Raises ApiError 400.

    preview: `webp` or `jpeg`, with `;quality`; unknown formats become webp; None keeps PNG.
    channel: `rgba` all, `rgb` without transparency, `a` only the transparency, as alpha over black.
    """
    with _opened(file) as picture:
        if channel == "a":
            return _saved(_alpha_only(picture), "PNG"), "image/png"
        if channel == "rgb":
            picture = picture.convert("RGB")
        if preview is None:
            return _saved(picture, "PNG"), "image/png"
        name, _, quality_text = preview.partition(";")
        name = name if name in _FORMATS else "webp"
        quality = int(quality_text) if quality_text.isdecimal() and len(quality_text) < 4 else DEFAULT_QUALITY
        if name == "jpeg" or channel == "rgb":
            picture = picture.convert("RGB")
        return _saved(picture, name.upper(), quality=min(quality, 100)), _FORMATS[name]


def with_alpha(original: Path, mask: Path) -> None:
    """Turn the file of a mask into the original picture with the mask's alpha. Raises ApiError 400 and 507."""
    from PIL import Image

    with _opened(original) as picture, _opened(mask) as painted:
        alpha = painted.convert("RGBA").getchannel("A")
        merged = picture.convert("RGBA")
        if alpha.size != merged.size:
            alpha = alpha.resize(merged.size, Image.Resampling.LANCZOS)
        merged.putalpha(alpha)
        data = _saved(merged, "PNG", compress_level=4)
    try:
        mask.write_bytes(data)
    except OSError as error:
        raise unwritable(error, original.name) from None


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    """Open a picture; what goes wrong with it while it is used becomes an ApiError 400."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(file, formats=FORMATS)
        with picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise _too_many(f"{picture.width} x {picture.height}")
            yield picture
    except Image.DecompressionBombError:
        raise _too_many("far too many") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        reason = str(error).splitlines()[0].replace(str(file), file.name) if str(error) else type(error).__name__
        message = f"found a file that is no whole picture ({reason}), accepted PNG, JPEG, WebP; choose another"
        raise ApiError(400, message, "bad_picture") from None


def _too_many(size: str) -> ApiError:
    message = f"found a picture of {size} pixels, accepted at most {MAX_PIXELS}; make it smaller first"
    return ApiError(400, message, "too_many_pixels")


def _alpha_only(picture: Image.Image) -> Image.Image:
    from PIL import Image

    has_alpha = "A" in picture.getbands() or "transparency" in picture.info
    alpha = picture.convert("RGBA").getchannel("A") if has_alpha else Image.new("L", picture.size, 255)
    black = Image.new("RGBA", picture.size)
    black.putalpha(alpha)
    return black


def _saved(picture: Image.Image, kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()
