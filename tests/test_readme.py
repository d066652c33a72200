"""The README's commands are run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.kit import ortloom
from tests.server.kit import serving

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [line for line in README.splitlines() if line.startswith(".venv/bin/ortloom ")]


def test_there_are_commands_to_test() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_works(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    arguments = [str(tmp_path) if word == "pictures" else word for word in shlex.split(command, comments=True)[1:]]
    result = ortloom(*arguments)
    assert result.code == 0, result.err
    assert result.out


def test_the_server_examples_work_as_they_stand(tmp_path: Path) -> None:
    """The request with curl's method, path and body, and the Python program, against a server on another port."""
    request = re.search(r'curl -X POST "http://127.0.0.1:8188(\S+)" -d \'(.+)\'', README)
    program = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "app.client" in block)
    assert request is not None
    with serving(tmp_path / "data") as server:
        assert server.call("POST", request[1], request[2].encode()).json["state"] == "done"
        (tmp_path / "program.py").write_text(program.replace("http://127.0.0.1:8188", server.url))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(tmp_path / "program.py")]
        printed = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, timeout=120
        ).stdout
    assert "bytes of PNG" in printed
    assert "'folder': 'output'" in printed.splitlines()[-1]


def test_both_installing_commands_are_one_line_each() -> None:
    installing = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert len(installing) == 2
    assert installing[0].endswith(".venv/bin/ortloom")
    assert installing[1].endswith("-m pytest")
