"""Names from clients: none leads out of its folder, none is what some system reads as something else.

Expected values: POSIX path resolution; Microsoft, "Naming Files, Paths, and Namespaces" (devices, forbidden characters,
dots and spaces at an end); NAME_MAX of 255 bytes on Linux.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.server.client_paths import MAX_NAME_BYTES, inside
from app.server.errors import ApiError


def refusal(root: Path, *names: str) -> int:
    """Return the status with which names are refused; the message must fit into an answer."""
    with pytest.raises(ApiError) as caught:
        inside(root, *names)
    message = caught.value.problem.message
    message.encode()
    assert "found" in message
    assert "accepted" in message
    assert str(root) not in message
    return caught.value.status


@pytest.mark.parametrize(
    "names",
    [
        ("a.png",),
        ("s/t", "a.png"),
        ("", "a.png"),
        ("s/t/a.png",),
        ("a (1).png",),
        ("caf\u00e9 \u6f22 \U0001f427.png",),
        (".index.json",),
        ("a..b.png",),
        ("..a",),
        ("%2e%2e%2fa",),
        ("..%2Fa",),
        ("console.png",),
        ("com10.txt",),
        ("a.part",),
        ("~", "a$b&c;d'e"),
        ("x" * MAX_NAME_BYTES,),
    ],
)
def test_plain_names_are_paths_below_the_folder(tmp_path: Path, names: tuple[str, ...]) -> None:
    """What looks percent-encoded is a plain name: it has been decoded once and is not again."""
    assert inside(tmp_path, *names) == tmp_path.joinpath(*[name for name in names if name])


@pytest.mark.parametrize(
    "names",
    [
        ("..",),
        ("../a",),
        ("a/../../b",),
        ("a/..",),
        ("s", "../../a"),
        ("../s", "a"),
        ("/etc/passwd",),
        ("s", "/etc/passwd"),
        ("//server/share/a",),
        ("\\\\server\\share\\a",),
        ("C:\\a",),
        ("c:/a",),
        ("C:a",),
    ],
)
def test_names_that_lead_out_are_forbidden(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Parent folders, absolute paths, network shares and drives, whichever name of several it is."""
    assert refusal(tmp_path, *names) == 403


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "./a",
        "a/.",
        "a//b",
        "a/",
        "a\0.png",
        "a\n",
        "a\x1f",
        "a\x7f",
        "a\x85",
        "a\\b",
        "..\\a",
        "ab:c",
        'a"b',
        "a*",
        "a?",
        "<a>",
        "a|b",
        "a.",
        "a...",
        "a ",
        " a",
        "a /b",
        "CON",
        "con",
        "nul.txt",
        "NUL .txt",
        "s/Aux.png",
        "COM1",
        "lpt9.tar.gz",
        "com\u00b9",
        "CONIN$",
        ".0123456789abcdef.part",
        "s/.x.PART/a",
        "\ud800.png",
        "a\udcff",
        "x" * (MAX_NAME_BYTES + 1),
        "\u6f22" * 81,
        "/".join("x" * 200 for _ in range(6)),
    ],
)
def test_names_that_some_system_reads_otherwise_are_refused(tmp_path: Path, name: str) -> None:
    """On this system too, so that a folder can be copied to another one."""
    assert refusal(tmp_path, name) == 400


def test_no_name_at_all_is_refused(tmp_path: Path) -> None:
    """The folder itself is no file in it."""
    assert refusal(tmp_path) == 400
    assert refusal(tmp_path, "", "") == 400


def test_links_may_point_within_the_folder_only(tmp_path: Path) -> None:
    """To a file, a folder, nothing, the folder itself, each other: what counts is where they end."""
    root, outside = tmp_path / "root", tmp_path / "root-beside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "own").mkdir()
    links = {
        "file": outside / "secret",
        "folder": outside,
        "dangling": outside / "none",
        "self": root,
        "parent": Path(".."),
        "one": Path("two"),
        "two": Path("one"),
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    (root / "good").symlink_to("own")
    assert inside(root, "good", "a") == root / "good" / "a"
    for names in (["file"], ["folder", "secret"], ["folder/new"], ["dangling"], ["self"], ["parent"], ["parent", "x"]):
        assert refusal(root, *names) == 403
    if os.name == "posix":
        assert refusal(root, "one") == 403


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    """Users put big folders on other disks."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    assert inside(tmp_path / "root", "a") == tmp_path / "root" / "a"


PIECES = st.sampled_from(
    [
        "..",
        ".",
        "/",
        "\\",
        "a",
        "link",
        "%2e",
        "%2f",
        "\0",
        ":",
        "C:",
        "CON",
        " ",
        "...",
        "\ud800",
        "\u6f22",
        "~",
        "part",
    ]
)
NAMES = st.lists(PIECES | st.text(max_size=3), max_size=8).map("".join)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAMES, min_size=1, max_size=3))
def test_whatever_is_not_refused_lies_inside(tmp_path: Path, names: list[str]) -> None:
    """Either ApiError 400 or 403, or a path that can be written and whose end, links followed, is below the folder."""
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    if not (root / "link").is_symlink():
        (root / "link").symlink_to(tmp_path)
    try:
        path = inside(root, *names)
    except ApiError:
        assert refusal(root, *names) in (400, 403)
        return
    assert path.resolve().is_relative_to(root.resolve())
    assert path.resolve() != root.resolve()
    assert path.relative_to(root).parts == tuple(part for name in names for part in name.split("/") if part)
    assert not path.exists()
