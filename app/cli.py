"""The command `ortloom`: reads arguments and calls one of app/commands; what is heavy is imported only there."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 with errors on stderr, 2 for wrong usage, 130 if stopped."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help", "--version")):
        given.insert(0, "serve")
    options = _parser().parse_args(given)
    command = importlib.import_module(f"app.commands.{options.command}")
    exit_code: int = command.main(options)
    return exit_code


class _Version(argparse.Action):
    """Prints the version; it is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print it and end."""
        from importlib.metadata import version

        print(version("ortloom"))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ortloom",
        description="Node-graph workflows for ONNX models.",
        epilog="Without a command it serves: `ortloom --port 9000` is `ortloom serve --port 9000`.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    _add_serve(commands.add_parser("serve", help="start the server and open it in the browser"))

    run = commands.add_parser("run", help="run a workflow and write its outputs")
    _add_workflow(run)
    run.add_argument(
        "--out", type=Path, default=Path("output"), metavar="DIR", help="where outputs go (default: output)"
    )
    run.add_argument("--device", default="auto", help="what components marked auto run on: auto, cpu, cuda, ...")
    run.add_argument("--json", action="store_true", help="print one JSON object about the run on stdout")
    run.add_argument("--server", metavar="URL", help="run it on that server and fetch the outputs from there")
    run.add_argument("--token", metavar="T", help="what that server was started with (default: $ORTLOOM_TOKEN)")

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


def _add_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=_port, default=8188, metavar="P", help="port to listen on (default: 8188)")
    serve.add_argument("--no-browser", action="store_true", help="do not open a browser")
    serve.add_argument("--data", type=Path, metavar="DIR", help="where everything is kept (default: the user's data)")
    _add_models(serve)
    serve.add_argument("--token", metavar="T", help="what clients must show; needed for other hosts than this machine")
    serve.add_argument("--paused", action="store_true", help="let queued runs wait until the queue is resumed")
    serve.add_argument("--device", default="auto", help="what components marked auto run on: auto, cpu, cuda, ...")
    serve.add_argument(
        "--memory", type=float, default=0.0, metavar="GIB", help="end the worker when it holds more (default: 90 %%)"
    )
    _add_custom_nodes(serve)


def _port(text: str) -> int:
    """Return a port number; 0 lets the system choose."""
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"found {text!r}, accepted 0 to 65535; choose one of these")
    return int(text)


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
    _add_models(parser)
    parser.add_argument(
        "--inputs",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="a folder of input files; may be given again",
    )
    _add_custom_nodes(parser)


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", action="append", type=Path, default=[], metavar="DIR", help="a folder of models; may be given again"
    )


def _add_custom_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--custom-nodes",
        type=Path,
        default=None,
        metavar="DIR",
        help="folder of your own nodes (default: in the user's data folder)",
    )


if __name__ == "__main__":
    sys.exit(main())
