"""Loading, saving and showing pictures, with Pillow as the peer that writes and reads the files."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.engine.events import Output, Preview
from app.graph.errors import InputError
from nodes.image_files import image_file_nodes, load_image, preview_image, save_image
from nodes.image_loading import load_picture
from nodes.pixels import to_bytes, to_floats
from tests.nodes.context import context_in

RNG = np.random.default_rng(5)
RGB = RNG.integers(0, 256, (4, 6, 3), np.uint8)
RGBA = RNG.integers(0, 256, (4, 6, 4), np.uint8)
GRAY = RGB[..., 0]
BATCH = to_floats(RNG.integers(0, 256, (2, 4, 6, 3), np.uint8))


def load(folder: Path, image: Image.Image, name: str = "a.png", **options: Any) -> tuple[Any, Any]:
    context = context_in(folder)
    image.save(folder / "inputs" / name, **options)
    return load_image(context, name)


def test_every_byte_comes_back() -> None:
    """k / 255 in float32 times 255 rounds to k again, for every k; halves go to the even neighbour."""
    values = np.arange(256, dtype=np.uint8)
    assert np.array_equal(to_bytes(to_floats(values)), values)
    assert to_bytes(np.array([0.5 / 255, 1.5 / 255, 2.5 / 255, -1, 2, np.nan, np.inf])).tolist() == [
        0, 2, 2, 0, 255, 0, 255,
    ]  # fmt: skip


def test_rgb_has_no_mask(tmp_path: Path) -> None:
    image, mask = load(tmp_path, Image.fromarray(RGB))
    assert image.dtype == mask.dtype == np.float32
    assert np.array_equal(image, RGB[None] / np.float32(255))
    assert np.array_equal(mask, np.zeros((1, 4, 6)))


def test_transparency_becomes_the_mask(tmp_path: Path) -> None:
    image, mask = load(tmp_path, Image.fromarray(RGBA))
    assert np.array_equal(image, RGBA[None, ..., :3] / np.float32(255))
    np.testing.assert_allclose(mask, 1 - RGBA[None, ..., 3] / 255, atol=1e-7)


def test_a_transparent_palette_colour_becomes_the_mask(tmp_path: Path) -> None:
    """Two colours, the second of them transparent."""
    palette = Image.fromarray(np.array([[0, 1, 1]], np.uint8), "P")
    palette.putpalette([255, 0, 0, 0, 0, 255])
    image, mask = load(tmp_path, palette, transparency=1)
    assert image[0, 0].tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert mask.tolist() == [[[0, 1, 1]]]


def test_gray_and_wide_gray_become_rgb(tmp_path: Path) -> None:
    """16 bit values keep their precision: v / 65535."""
    image, _ = load(tmp_path, Image.fromarray(GRAY))
    assert np.array_equal(image, np.repeat(GRAY[None, ..., None] / np.float32(255), 3, -1))
    wide = np.array([[0, 1, 65535]], np.uint16)
    image, mask = load(tmp_path, Image.fromarray(wide))
    np.testing.assert_allclose(image[0, 0, :, 1], [0, 1 / 65535, 1], rtol=1e-6)
    assert mask.tolist() == [[[0, 0, 0]]]
    _, mask = load(tmp_path, Image.fromarray(wide), transparency=1)
    assert mask.tolist() == [[[0, 1, 0]]]


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    """No ink is white, full black ink black."""
    inks = np.zeros((8, 16, 4), np.uint8)
    inks[:, 8:, 3] = 255
    image, _ = load(tmp_path, Image.fromarray(inks, "CMYK"), "a.tiff")
    assert image[0, 0, 0].tolist() == [1, 1, 1]
    assert image[0, 0, 15].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("orientation", "turned"), [(1, RGB), (3, RGB[::-1, ::-1]), (6, np.rot90(RGB, -1)), (8, np.rot90(RGB))]
)
def test_pictures_stand_upright(tmp_path: Path, orientation: int, turned: Any) -> None:
    """EXIF tag 0x0112: 3 is half a turn, 6 needs a quarter turn clockwise, 8 one counterclockwise."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    image, _ = load(tmp_path, Image.fromarray(RGB), exif=exif)
    assert np.array_equal(to_bytes(image[0]), turned)


def test_a_file_that_claims_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    """Headers of 30,000 x 30,000 and 10,000 x 10,000 pixels with no pixels behind them."""
    context = context_in(tmp_path)
    for side in (30_000, 10_000):
        header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
        idat = b"IDAT" + zlib.compress(bytes(9))
        data += struct.pack(">I", len(idat) - 4) + idat + struct.pack(">I", zlib.crc32(idat))
        (tmp_path / "inputs" / "big.png").write_bytes(data)
        with pytest.raises(InputError, match="89478485 pixels") as caught:
            load_image(context, "big.png")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp"])
def test_a_cut_off_file_gives_one_sentence(tmp_path: Path, suffix: str) -> None:
    context = context_in(tmp_path)
    path = tmp_path / "inputs" / f"a.{suffix}"
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=rf"^image: found a\.{suffix}, which (cannot be decoded|is not a picture)"):
        load_image(context, path.name)


def test_what_is_no_picture_gives_one_sentence(tmp_path: Path) -> None:
    context = context_in(tmp_path)
    (tmp_path / "inputs" / "a.png").write_text("hello")
    (tmp_path / "inputs" / "folder").mkdir()
    (tmp_path / "secret.png").write_text("x")
    cases = {
        "a.png": "is not a picture",
        "folder": "cannot be decoded",
        "none.png": "not there",
        "../secret.png": "outside",
        str(tmp_path / "secret.png"): "outside",
    }
    for name, sentence in cases.items():
        with pytest.raises(InputError, match=sentence) as caught:
            load_image(context, name)
        assert caught.value.input == "image"


def test_a_changed_file_changes_the_fingerprint(tmp_path: Path) -> None:
    context = context_in(tmp_path)
    load_type = image_file_nodes(context.folders)[0]
    assert load_type.fingerprint is not None
    literals = {"image": "a.png"}
    missing = load_type.fingerprint(literals)
    path = tmp_path / "inputs" / "a.png"
    path.write_bytes(b"1")
    first = load_type.fingerprint(literals)
    os.utime(path, ns=(1, 1))
    assert len({missing, first, load_type.fingerprint(literals)}) == 3


def test_pictures_are_saved_with_their_workflow_and_never_replaced(tmp_path: Path) -> None:
    document = {"version": 1, "nodes": {"7": {"class_type": "SaveImage"}}}
    context = context_in(tmp_path, document=document)
    save_image(context, BATCH, "sub/cat")
    save_image(context, BATCH[:1], "sub/cat")
    save_image(context, BATCH[:1], "sub/cat_b")
    names = ["cat_00001.png", "cat_00002.png", "cat_00003.png", "cat_b_00001.png"]
    assert sorted(path.name for path in (tmp_path / "output" / "sub").iterdir()) == names
    path = tmp_path / "output" / "sub" / "cat_00002.png"
    assert context.shown[1] == Output("7", "image", str(path))
    with Image.open(path) as image:
        assert np.array_equal(np.asarray(image), to_bytes(BATCH[1]))
        assert json.loads(image.info["workflow"]) == document


def test_steps_of_a_loop_share_a_number(tmp_path: Path) -> None:
    """A second pass through the loop gets a number of its own, even after one that ended early."""
    save_type = image_file_nodes(context_in(tmp_path).folders)[1]
    for steps in (3, 2):
        context = context_in(tmp_path)
        instance = save_type.prepare(context, {})
        instance.reset()
        for step in range(steps):
            context.step = step
            instance.run({"image": BATCH[:1], "filename_prefix": "a"}, 0)
    assert sorted(path.name for path in (tmp_path / "output").iterdir()) == [
        "a_00001_step0001.png",
        "a_00001_step0002.png",
        "a_00001_step0003.png",
        "a_00002_step0001.png",
        "a_00002_step0002.png",
    ]


@pytest.mark.parametrize(
    "prefix",
    ["../a", "/a", "a/../../b", "", " ", "a/", ".", "./.", "..", "a\0b", "a\\b", "link/a", "a:b", "a\ud800"],
)
def test_nothing_is_written_outside_of_the_output_folder(tmp_path: Path, prefix: str) -> None:
    context = context_in(tmp_path)
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "link").symlink_to(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError) as caught:
        save_image(context, BATCH, prefix)
    assert caught.value.input == "filename_prefix"
    assert sorted(tmp_path.rglob("*")) == before


def test_an_output_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    context = context_in(tmp_path)
    (tmp_path / "output").write_text("a file where the folder should be")
    with pytest.raises(InputError, match="cannot be written"):
        save_image(context, BATCH, "a")


def test_previews_are_bytes_one_for_each_picture(tmp_path: Path) -> None:
    context = context_in(tmp_path, step=4)
    preview_image(context, BATCH)
    assert [type(event) for event in context.shown] == [Preview, Preview]
    assert [event.step for event in context.shown] == [4, 4]
    assert np.array_equal(context.shown[1].image, to_bytes(BATCH[1]))


def test_a_tensor_that_is_no_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"shape \[1, 3, 4, 4\]"):
        save_image(context_in(tmp_path), np.zeros((1, 3, 4, 4), np.float32))


def test_formats_whose_decoders_start_other_programs_are_no_pictures(tmp_path: Path) -> None:
    """Pillow hands EPS to Ghostscript where it is installed."""
    (tmp_path / "cat.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    with pytest.raises(InputError, match="accepted a picture"):
        load_picture(tmp_path / "cat.png")
