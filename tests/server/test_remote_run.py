"""`ortloom run --server`: the same on a server as without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.kit import ortloom
from tests.server.client_kit import local_file, slow
from tests.server.kit import ROOT, Server, free_port, serving, template, text_document, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.mark.parametrize("name", ["text-to-image", "preview-every-step", "masked-diffusion"])
def test_the_command_prints_and_writes_what_it_does_without_a_server(name: str, server: Server, tmp_path: Path) -> None:
    """Peer: `ortloom run` in this process; server and worker may have cached nodes and numbered files before."""
    here = ortloom("run", name, "--out", tmp_path / "here", "--json").json
    result = ortloom("run", name, "--out", tmp_path / "there", "--json", "--server", server.url)
    assert result.code == 0, result.err
    there = result.json
    assert set(there) == set(here)
    assert set(there["timings"]) == set(here["timings"])
    results = [[entry for entry in summary["outputs"] if entry["type"] != "preview"] for summary in (here, there)]
    assert len(results[0]) == len(results[1]) > 0
    for ours, theirs in zip(*results, strict=True):
        assert {**ours, "path": None} == {**theirs, "path": None}
        assert (ours["path"] is None) == (theirs["path"] is None)
        if ours["path"] is not None:
            assert Path(ours["path"]).read_bytes() == Path(theirs["path"]).read_bytes()
            assert Path(theirs["path"]).is_relative_to(tmp_path / "there")


def test_the_command_takes_changes_and_prints_the_file(server: Server, tmp_path: Path) -> None:
    """A text input takes `12` as a text, as it does locally."""
    changes = ("Prompt.text=12", "Denoise.steps=3")
    here = local_file(tmp_path / "here", "text-to-image", *changes)
    options = [part for change in changes for part in ("--set", change)]
    result = ortloom("run", "text-to-image", "--out", tmp_path / "there", "--server", server.url + "/", *options)
    assert result.code == 0, result.err
    assert Path(result.out.strip()).read_bytes() == here.read_bytes()


def test_the_command_sends_pictures_that_lie_beside_the_workflow(server: Server, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (128, 128), (200, 30, 40)).save(tmp_path / "réd here.png")
    document = template("image-to-image")
    picture = next(node for node in document["nodes"].values() if node["class_type"] == "LoadImage")
    picture["inputs"]["image"] = "réd here.png"
    (tmp_path / "mine.json").write_text(json.dumps(document))
    here = local_file(tmp_path / "here", str(tmp_path / "mine.json"))
    result = ortloom("run", tmp_path / "mine.json", "--out", tmp_path / "there", "--server", server.url)
    assert result.code == 0, result.err
    assert (server.data / "input" / "réd here.png").read_bytes() == (tmp_path / "réd here.png").read_bytes()
    assert Path(result.out.strip()).read_bytes() == here.read_bytes()


def test_the_command_says_why_it_cannot_run_there(server: Server, tmp_path: Path) -> None:
    def refused(*arguments: str | Path) -> str:
        result = ortloom("run", *arguments, "--out", tmp_path / "out")
        assert (result.code, result.out, "Traceback" in result.err) == (1, "", False)
        assert len(result.err.splitlines()) == 1
        return result.err

    away = f"http://127.0.0.1:{free_port()}"
    assert f"found no server at {away} (Connection refused)" in refused("text-to-image", "--server", away)
    assert "accepted an address" in refused("text-to-image", "--server", "nowhere")
    assert "Denoise (node 9), input cfg: found 'high'" in refused(
        "text-to-image", "--server", server.url, "--set", "Denoise.cfg=high"
    )
    assert "no such file" in refused("none.json", "--server", server.url)
    assert "--device" in refused("text-to-image", "--server", server.url, "--device", "cpu")
    assert "Picture (node" in refused("image-to-image", "--server", server.url, "--set", "Picture.image=none.png")
    assert not (tmp_path / "out").exists()


def test_the_command_needs_the_servers_token(tmp_path: Path) -> None:
    def run(url: str, *arguments: str) -> Any:
        return ortloom("run", str(tmp_path / "w.json"), "--server", url, "--out", tmp_path / "out", *arguments)

    (tmp_path / "w.json").write_text(json.dumps(text_document("hi")))
    with serving(tmp_path / "data", "--token", "s3cret wörd") as guarded:
        for arguments in ((), ("--token", "wrong")):
            result = run(guarded.url, *arguments)
            assert (result.code, result.out) == (1, "")
            assert "found no valid token" in result.err
        assert run(guarded.url, "--token", "s3cret wörd").out == "hi\n"
        assert run(f"{guarded.url}/?token=s3cret%20w%C3%B6rd").out == "hi\n"


def test_ctrl_c_cancels_the_run_on_the_server(server: Server, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps(slow(900)))
    command = [sys.executable, "-m", "app.cli", "run", str(tmp_path / "w.json"), "--server", server.url]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")], cwd=ROOT, stderr=subprocess.PIPE, env=dict(os.environ), text=True
    )
    running = wait_for(lambda: server.get("/api/runs?state=running")["runs"])
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (130, "stopped\n")
    assert server.get(f"/api/runs/{running[0]['run']}?wait=10")["state"] == "cancelled"
