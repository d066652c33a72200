"""Nodes and schedulers of your own, and what happens when they are broken."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from app.extensions import load_extensions
from app.folders import Folders
from nodes import builtin_registry
from tests.engine.kit import engine, values, workflow

GOOD = '''
from typing import Annotated
from app.graph.node import Help, Out, node

@node(category="mine")
def add_seven(value: Annotated[int, Help("a number")]) -> Annotated[int, Out("value")]:
    """Add seven."""
    return value + 7
'''


def load(folder: Path, files: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    registry = builtin_registry(Folders())
    before = {node_type.name for node_type in registry}
    reports = load_extensions(registry, folder)
    return sorted({node_type.name for node_type in registry} - before), {
        report.name: report.error for report in reports
    }


def test_a_file_and_a_package_add_their_nodes(tmp_path: Path) -> None:
    package = "from .inner import add_eight"
    inner = GOOD.replace("seven", "eight").replace("7", "8")
    names, errors = load(tmp_path, {"good.py": GOOD, "pack/__init__.py": package, "pack/inner.py": inner})
    assert names == ["AddEight", "AddSeven"]
    assert errors == {"good.py": "", "pack": ""}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("1 / 0", "ZeroDivisionError"),
        ("x = 1", "defines no node type"),
        (GOOD.replace("add_seven", "denoise_loop"), "DenoiseLoop already comes from"),
        (GOOD.replace("int, Help", "complex, Help"), "is not a socket type"),
    ],
)
def test_a_broken_extension_is_reported_and_the_others_still_load(tmp_path: Path, text: str, part: str) -> None:
    names, errors = load(tmp_path, {"broken.py": text, "good.py": GOOD})
    assert names == ["AddSeven"]
    assert part in errors["broken.py"]
    assert "\n" not in errors["broken.py"]


def test_no_folder_is_no_extension(tmp_path: Path) -> None:
    assert load_extensions(builtin_registry(Folders()), tmp_path / "none") == []


def test_the_readmes_node_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    blocks = [part.split("```")[0] for part in text.split("```python")[1:]]
    names, _ = load(tmp_path, {"mine.py": next(block for block in blocks if "@node" in block)})
    assert names == ["Brighten"]


SCHEDULER = '''
from typing import Annotated
from app.graph.node import Range
from nodes.schedulers.sampler import DenoiseCall, Sampling, SamplingJob, scheduler

@scheduler(kind="stretch")
def stretch(job: SamplingJob, factor: Annotated[float, Range(0, 9, help="what to stretch by")] = 2.0) -> Sampling:
    """Add the stretched prediction on every step."""
    x = job.latent
    for step in range(job.start_step, job.steps):
        x = x + factor * (yield DenoiseCall(x, float(step), step, 0.0))
    return x
'''


def test_a_scheduler_of_your_own_leads_a_loop(tmp_path: Path) -> None:
    """x <- x + 3 x from 1, two steps: 16."""
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom" / "mine.py").write_text(SCHEDULER)
    shared = engine(tmp_path)
    (report,) = load_extensions(shared.registry, tmp_path / "custom")
    assert (report.node_types, report.error) == (("StretchScheduler",), "")
    document = workflow(
        one=("TensorFill", {"shape": [1], "value": 1.0}),
        scheduler=("StretchScheduler", {"factor": 3.0}),
        loop=(
            "DenoiseLoop",
            {
                "latent": "->one.tensor",
                "scheduler": "->scheduler.sampler",
                "prediction": "->loop.sample",
                "steps": 2,
            },
        ),
        out=("Collect", {"value": "->loop.latent"}),
    )
    assert values(shared.run(document))[0].tolist() == [16.0]


def test_an_installed_package_adds_its_nodes_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed_nodes.py").write_text(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    entries = [EntryPoint("good", "installed_nodes", "ortloom.nodes"), EntryPoint("bad", "not_there", "ortloom.nodes")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries if group == "ortloom.nodes" else [])
    registry = builtin_registry(Folders())
    reports = {report.name: report for report in load_extensions(registry, tmp_path / "none")}
    assert reports["good"].node_types == ("AddSeven",)
    assert "not_there" in reports["bad"].error
