"""What `ortloom serve` refuses before it listens, and that it is what `ortloom` alone means."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.kit import ortloom
from tests.server.kit import ROOT, answers, free_port, wait_for
from tests.server.kit import Server as Started


@pytest.mark.parametrize("command", [["serve"], []])
def test_options_without_a_command_are_those_of_serve(tmp_path: Path, command: list[str]) -> None:
    port = free_port()
    options = ["--no-browser", "--data", str(tmp_path), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", *command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    server = Started(port, tmp_path, process)  # type: ignore[arg-type]
    wait_for(lambda: answers(server))
    assert server.get("/health")["status"] == "ok"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"http://127.0.0.1:{port}/" in out
    assert str(tmp_path) in out


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--device", "quantum"], "accepted one of auto, cpu"),
        (["--models", "/nowhere/at/all"], "no folder '/nowhere/at/all'"),
        (["--data", "/proc/nothing"], "cannot be written"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_sentence(tmp_path: Path, options: list[str], part: str) -> None:
    result = ortloom("serve", "--no-browser", "--data", tmp_path, *options)
    assert result.code == 1
    assert part in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("port", ["-1", "65536", "many"])
def test_a_port_that_is_none_is_wrong_usage(port: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        ortloom("serve", "--port", port)
    assert stopped.value.code == 2
