"""Names in a workflow become paths inside the given folders, or a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.folders import Folders
from app.graph.errors import InputError


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    (tmp_path / "outside.onnx").write_text("")
    (second / "inside.onnx").write_text("")
    (second / "link.onnx").symlink_to(second / "inside.onnx")
    (second / "escape.onnx").symlink_to(tmp_path / "outside.onnx")
    (second / "circle.onnx").symlink_to(second / "circle.onnx")
    return Folders(models=(first, second))


@pytest.mark.parametrize("name", ["inside.onnx", "link.onnx"])
def test_a_name_is_looked_up_in_every_folder(folders: Folders, name: str) -> None:
    assert folders.model(name) == folders.models[1] / name


@pytest.mark.parametrize(
    "name",
    [
        "none.onnx",
        "../outside.onnx",
        "/etc/passwd",
        "escape.onnx",
        "circle.onnx",
        "x" * 5000,
        "",
        "a\0b",
        "inside.onnx/x",
    ],
)
def test_what_is_missing_or_outside_is_one_sentence(folders: Folders, name: str) -> None:
    with pytest.raises(InputError) as caught:
        folders.model(name)
    assert caught.value.input == "model"
    assert "accepted a model inside" in caught.value.message


def test_a_name_that_no_file_can_have_is_missing(tmp_path: Path) -> None:
    """Half of a surrogate pair, which JSON can hold, cannot be encoded as a file's name."""
    with pytest.raises(InputError, match="not there"):
        Folders(models=(tmp_path,)).model("\ud800.onnx")


def test_a_server_does_not_tell_where_its_folders_lie(tmp_path: Path) -> None:
    folder = tmp_path / "my-models"
    with pytest.raises(InputError) as caught:
        Folders(models=(folder,), shows_paths=False).model("unet.onnx")
    assert "my-models" in caught.value.message
    assert str(tmp_path) not in caught.value.message
