"""The shell command `pipeline`, also `python -m pipeline`: finds and runs sub-commands."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.cli.parsing import INTERRUPTED, PROGRAM, WRONG_USAGE
from pipeline.config.registry import did_you_mean
from pipeline.system.resources import run_on_huge_pages


class Command(NamedTuple):
    """A sub-command. Its places, "module:function", are imported when they are needed.

    `run` takes the arguments after the command's name, and returns the exit status; `parser` makes
    the parser, for its help and for completion by shells. `environment` is set before the import,
    unless it is set already. `is_on_huge_pages`: for processes that load and drop large models.
    """

    summary: str
    run: str
    parser: str
    environment: Mapping[str, str] = {}
    is_on_huge_pages: bool = False


COMMANDS: Mapping[str, Command] = {
    "init": Command(
        "make a folder with a service that runs, its test and its image",
        "pipeline.cli.init:init",
        "pipeline.cli.init:init_parser",
    ),
    "serve": Command(
        "run the script of a server; --reload restarts it when its files change",
        "pipeline.cli.serve:serve",
        "pipeline.cli.serve:serve_parser",
    ),
    "run": Command(
        "run a script written for Paddle Serving, unmodified",
        "pipeline.cli.commands:run",
        "pipeline.cli.commands:run_parser",
    ),
    "graph": Command(
        "print the graph of Ops that a script serves, without serving it",
        "pipeline.cli.graph:graph",
        "pipeline.cli.graph:graph_parser",
    ),
    "check": Command(
        "check config.yml files without starting anything",
        "pipeline.cli.graph:check",
        "pipeline.cli.graph:check_parser",
    ),
    "client": Command(
        "send a request over HTTP, and print the answer",
        "pipeline.cli.client:client",
        "pipeline.cli.client:client_parser",
    ),
    "bench": Command(
        "send requests as fast as a server answers, and print rates and times",
        "pipeline.cli.bench:bench",
        "pipeline.cli.bench:bench_parser",
    ),
    "dockerize": Command(
        "write the Dockerfile of a service",
        "pipeline.cli.dockerize:dockerize",
        "pipeline.cli.dockerize:dockerize_parser",
    ),
    "config": Command(
        "show: print the configuration and the origin of each value; schema: its JSON Schema",
        "pipeline.cli.config:config",
        "pipeline.cli.config:config_parser",
    ),
    "analyse": Command(
        "print what limits a server; --serve: try other settings, write the best",
        "pipeline.cli.commands:analyse",
        "pipeline.cli.commands:analyse_parser",
    ),
    "callers": Command(
        "manage the file of callers, their roles and their tokens",
        "pipeline.cli.callers:callers",
        "pipeline.cli.callers:callers_parser",
    ),
    "repository": Command(
        "serve model repositories, with the flags of Triton's server",
        "pipeline.cli.repository:repository",
        "pipeline.cli.repository:repository_parser",
        # Its processes are new interpreters, and gRPC's fork handlers only warn.
        {"GRPC_ENABLE_FORK_SUPPORT": "0"},
        is_on_huge_pages=True,
    ),
    "cluster": Command(
        "serve a script on the nodes of a Ray cluster",
        "pipeline.cli.cluster:cluster",
        "pipeline.cli.cluster:cluster_parser",
    ),
    "completion": Command(
        "print a script that completes this command's words in a shell",
        "pipeline.cli.completion:completion",
        "pipeline.cli.completion:completion_parser",
    ),
}
"""All sub-commands, in the order of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status, unless a script ends with its own.

    As in argparse, SystemExit ends a sub-command that prints its help or gets wrong options.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] in (["-h"], ["--help"], ["help"]):
        sys.stdout.write(usage())
        return 0
    if words[:1] in (["-V"], ["--version"]):
        library = importlib.import_module(__name__.partition(".")[0])
        python = f"{platform.python_implementation()} {platform.python_version()}"
        sys.stdout.write(f"{PROGRAM} {library.__version__} ({python})\n")
        return 0
    if not words:
        sys.stderr.write(usage())
        return WRONG_USAGE
    command = COMMANDS.get(words[0])
    if command is None:
        hint = did_you_mean(words[0], COMMANDS) or f"; {PROGRAM} --help lists them"
        sys.stderr.write(f"{PROGRAM}: there is no command {words[0]!r}{hint}\nusage: {_LINE}\n")
        return WRONG_USAGE
    if arguments is None and command.is_on_huge_pages:
        run_on_huge_pages()
    for variable, value in command.environment.items():
        os.environ.setdefault(variable, value)
    run: Callable[[Sequence[str]], int] = pkgutil.resolve_name(command.run)
    try:
        return run(words[1:])
    except KeyboardInterrupt:
        sys.stderr.write(f"{PROGRAM} {words[0]}: interrupted\n")
        return INTERRUPTED


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a sub-command."""
    make: Callable[[], argparse.ArgumentParser] = pkgutil.resolve_name(COMMANDS[name].parser)
    return make()


def usage() -> str:
    """Return the help of the whole command."""
    width = max(map(len, COMMANDS))
    lines = "".join(f"  {name:<{width}}  {command.summary}\n" for name, command in COMMANDS.items())
    return _HELP.format(line=_LINE, program=PROGRAM, commands=lines)


_HELP = """\
usage: {line}

Serve graphs of models over gRPC and HTTP. Also as python -m {program}. To serve a single model:
python -m {program}.serve --help

commands:
{commands}
options:
  -h, --help     show this text; after a command: the command's help
  -V, --version  show the version

example:
  {program} serve web_server.py
"""
_LINE = f"{PROGRAM} COMMAND [ARGUMENT ...]"
