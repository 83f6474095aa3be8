"""`pipeline completion SHELL`: completion scripts for shells, made from the parsers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import shtab

from pipeline.cli.parsing import PROGRAM, command_parser

_INSTALL = {
    "bash": f'eval "$({PROGRAM} completion bash)"',
    "zsh": f'eval "$({PROGRAM} completion zsh)"',
    "fish": f"{PROGRAM} completion fish | source",
}


def completion(arguments: Sequence[str]) -> int:
    """Print the script for a shell; return the exit status."""
    options = completion_parser().parse_args(list(arguments))
    sys.stdout.write(shtab.complete(_all_commands(), options.shell) + "\n")
    return 0


def completion_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "completion",
        "Print a script that makes a shell complete the words of this command. The example is a "
        "line for ~/.bashrc; for zsh and fish it is "
        f"  {_INSTALL['zsh']}\n  {_INSTALL['fish']}",
        _INSTALL["bash"],
    )
    parser.add_argument("shell", choices=tuple(_INSTALL))
    return parser


def _all_commands() -> argparse.ArgumentParser:
    """Return one parser with those of all sub-commands; their arguments may be files."""
    from pipeline.cli.main import COMMANDS, parser_of  # main.py imports this module

    root = argparse.ArgumentParser(PROGRAM)
    root.add_argument("-V", "--version", action="store_true", help="show the version")
    parsers: dict[str, Any] = {name: parser_of(name) for name in COMMANDS}
    made: Any = lambda **words: parsers[words["prog"].split()[-1]]  # noqa: E731 - for a class, to mypy
    subparsers = root.add_subparsers(parser_class=made)
    for name, command in COMMANDS.items():
        subparsers.add_parser(name, help=command.summary)
        for action in parsers[name]._actions:
            if action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE
    return root
