"""The command `ortloom`: reads arguments and calls one of app/commands; what is heavy is imported only there."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

DEFAULT_TEMPLATE = "text-to-image"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 with errors on stderr, 2 for wrong usage, 130 if stopped."""
    options = _parser().parse_args(arguments)
    if options.command is None:
        options = _parser().parse_args(["run", DEFAULT_TEMPLATE])
    command = importlib.import_module(f"app.commands.{options.command}")
    exit_code: int = command.main(options)
    return exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ortloom",
        description="Node-graph workflows for ONNX models.",
        epilog=f"Without a command, the template {DEFAULT_TEMPLATE} is run on the bundled model.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    run = commands.add_parser("run", help="run a workflow and write its outputs")
    _add_workflow(run)
    run.add_argument(
        "--out", type=Path, default=Path("output"), metavar="DIR", help="where outputs go (default: output)"
    )
    run.add_argument("--device", default="auto", help="what components marked auto run on: auto, cpu, cuda, ...")
    run.add_argument("--json", action="store_true", help="print one JSON object about the run on stdout")

    check = commands.add_parser("check", help="say what is wrong with a workflow, all at once, without running it")
    _add_workflow(check)

    nodes = commands.add_parser("nodes", help="list the node types, or show one")
    nodes.add_argument("name", nargs="?", help="a node type, e.g. DenoiseLoop")
    nodes.add_argument("--json", action="store_true", help="print the full schema as JSON")
    _add_folders(nodes)

    inspect = commands.add_parser("inspect", help="show what a model file, or every model in a folder, takes and gives")
    inspect.add_argument("path", type=Path, metavar="MODEL.onnx|FOLDER")
    inspect.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _add_workflow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workflow", metavar="WORKFLOW", help="a workflow's JSON file, a PNG that carries one, or a template's name"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NODE.INPUT=VALUE",
        dest="changes",
        help="change an input; NODE is an id or a title, VALUE is JSON or plain text; may be given again",
    )
    _add_folders(parser)


def _add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", action="append", type=Path, default=[], metavar="DIR", help="a folder of models; may be given again"
    )
    parser.add_argument(
        "--inputs",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="a folder of input files; may be given again",
    )
    parser.add_argument(
        "--custom-nodes",
        type=Path,
        default=None,
        metavar="DIR",
        help="folder of your own nodes (default: in the user's data folder)",
    )


if __name__ == "__main__":
    sys.exit(main())
