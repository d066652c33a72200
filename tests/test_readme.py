"""The README's commands are run as they stand there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.kit import ortloom

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


def test_both_installing_commands_are_one_line_each() -> None:
    installing = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert len(installing) == 2
    assert installing[0].endswith(".venv/bin/ortloom")
    assert installing[1].endswith("-m pytest")
