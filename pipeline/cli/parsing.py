"""Parsers of sub-commands: one form for their help, each with an example."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import sys
from typing import NoReturn

from pipeline.config.registry import did_you_mean

PROGRAM = "pipeline"
FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
"""Exit statuses: it did not go well; it was asked in a wrong way; Ctrl-C came."""


_EXAMPLE = "example:"
_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A formatter that wraps sentences but not the example."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLE):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests a known word for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, with a suggestion; exit with status 2."""
        super().error(f"{message}{self._hint(message)}")

    def _hint(self, message: str) -> str:
        choice = _CHOICE.search(message)
        if choice:
            return did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]))
        word = message.removeprefix("unrecognized arguments: ").split(" ")[0].split("=")[0]
        return did_you_mean(word, self._option_string_actions) if word.startswith("-") else ""


def command_parser(command: str, description: str, example: str) -> CommandParser:
    """Return the parser of a sub-command, without its options.

    Args:
        command: its words after the program's name, for example "config show".
        description: what it does, in sentences.
        example: command lines, one a line, shown below the options.
    """
    lines = "".join(f"\n  {line}" for line in example.splitlines())
    return CommandParser(
        prog=f"{PROGRAM} {command}",
        description=description,
        epilog=f"{_EXAMPLE}{lines}",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )


def add_layers(parser: argparse.ArgumentParser) -> None:
    """Add the options that override a configuration file."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of config.yml and its value, such as op.bow.concurrency=4; may be repeated",
    )
    parser.add_argument(
        "--profile",
        action="append",
        metavar="NAME",
        help="lay config.NAME.yml over config.yml; may be repeated; default: PIPELINE_PROFILE",
    )


def amount(text: str) -> float:
    """Return a finite number of at least 0."""
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"expected a number from 0, found {text!r}")


def count(text: str) -> int:
    """Return a whole number of at least 0."""
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= 0:
            return value
    raise argparse.ArgumentTypeError(f"expected a whole number from 0, found {text!r}")


def above_0(text: str) -> float:
    """Return a finite number above 0."""
    if value := amount(text):
        return value
    raise argparse.ArgumentTypeError(f"expected more than 0, found {text!r}")


def at_least_1(text: str) -> int:
    """Return a whole number of at least 1."""
    if value := count(text):
        return value
    raise argparse.ArgumentTypeError(f"expected at least 1, found {text!r}")


def fails(command: str, text: str, status: int = FAILED) -> int:
    """Print on stderr why a sub-command failed; return the exit status."""
    sys.stderr.write(f"{PROGRAM} {command}: {text}\n")
    return status
