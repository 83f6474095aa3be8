"""`pipeline completion SHELL`: scripts by which a shell completes words, made of the parsers."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.cli.parsing import PROGRAM, command_parser

_INSTALL = {
    "bash": f'eval "$({PROGRAM} completion bash)"',
    "zsh": f'eval "$({PROGRAM} completion zsh)"',
    "fish": f"{PROGRAM} completion fish | source",
}


class Word(NamedTuple):
    """A word that may come next, and what it is for."""

    word: str
    summary: str = ""


class Words(NamedTuple):
    """The words that may stand behind a command: those at any place, and those behind options."""

    anywhere: Sequence[Word]
    behind: Mapping[str, Sequence[str]]


def completion(arguments: Sequence[str]) -> int:
    """Print the script of a shell; the exit status."""
    from pipeline.cli.main import COMMANDS, parser_of  # which loads this module

    given = completion_parser().parse_args(list(arguments))
    commands = {name: words_of(parser_of(name)) for name in COMMANDS}
    summaries = {name: command.summary for name, command in COMMANDS.items()}
    sys.stdout.write(_SCRIPTS[given.shell](commands, summaries))
    return 0


def completion_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "completion",
        "Print a script that makes a shell complete the words of this command. The example is a "
        "line for ~/.bashrc; for zsh and fish it is "
        f"  {_INSTALL['zsh']}\n  {_INSTALL['fish']}",
        _INSTALL["bash"],
    )
    parser.add_argument("shell", choices=tuple(_SCRIPTS))
    return parser


def words_of(parser: argparse.ArgumentParser) -> Words:
    anywhere: dict[str, Word] = {}
    behind: dict[str, Sequence[str]] = {}
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        choices = [str(choice) for choice in action.choices or ()]
        if not action.option_strings:
            anywhere |= {choice: Word(choice) for choice in choices}
            continue
        for option in action.option_strings:
            anywhere[option] = Word(option, action.help or "")
            if choices:
                behind[option] = choices
    for name, words in _below(parser):
        anywhere.setdefault(name, Word(name))
        anywhere |= {word.word: word for word in words.anywhere if word.word not in anywhere}
        behind |= words.behind
    return Words(tuple(anywhere.values()), behind)


def _below(parser: argparse.ArgumentParser) -> Iterator[tuple[str, Words]]:
    """Yield the sub-commands of a sub-command, whose words are offered together with its own."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield name, words_of(inner)


def _bash(commands: Mapping[str, Words], summaries: Mapping[str, str]) -> str:
    cases = "".join(
        f"    {name}) words={shlex.quote(_joined(words))} ;;\n" for name, words in commands.items()
    )
    behind = "".join(
        f"    {shlex.quote(f'{name} {option}')}) words={shlex.quote(' '.join(choices))} ;; "
        for name, words in commands.items()
        for option, choices in words.behind.items()
    )
    return f"""\
_{PROGRAM}() {{
  local words='' word="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    words={shlex.quote(" ".join([*summaries, "--help", "--version"]))}
  else
    case "${{COMP_WORDS[1]}}" in
{cases}    esac
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{behind}    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _{PROGRAM} {PROGRAM}
"""


def _zsh(commands: Mapping[str, Words], summaries: Mapping[str, str]) -> str:
    names = " ".join(_described(name, summary) for name, summary in summaries.items())
    cases = "".join(
        f"    {name}) words=({' '.join(_described(*word) for word in words.anywhere)}) ;; "
        for name, words in commands.items()
    )
    behind = "".join(
        f"    {shlex.quote(f'{name} {option}')}) words=({shlex.join(choices)}) ;; "
        for name, words in commands.items()
        for option, choices in words.behind.items()
    )
    return f"""\
#compdef {PROGRAM}
_{PROGRAM}() {{
  local -a words_of_it=("${{words[@]}}") words=()
  if (( CURRENT == 2 )); then
    words=({names})
  else
    case "${{words_of_it[2]}}" in
{cases}    esac
    case "${{words_of_it[2]}} ${{words_of_it[CURRENT-1]}}" in
{behind}    esac
  fi
  _describe word words || _files
}}
compdef _{PROGRAM} {PROGRAM}
"""


def _fish(commands: Mapping[str, Words], summaries: Mapping[str, str]) -> str:
    first = f"complete -c {PROGRAM} -n __fish_use_subcommand"
    lines = [
        f"{first} -f -a {name} -d {_fish_quoted(summary)}" for name, summary in summaries.items()
    ]
    for name, words in commands.items():
        here = f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {name}'"
        for word, summary in words.anywhere:
            dashes = "-l" if word.startswith("--") else "-s" if word.startswith("-") else "-a"
            line = f"{here} {dashes} {word.lstrip('-')}"
            if word in words.behind:
                line += f" -x -a {_fish_quoted(' '.join(words.behind[word]))}"
            lines.append(line + (f" -d {_fish_quoted(summary)}" if summary else ""))
    return "".join(f"{line}\n" for line in lines)


def _joined(words: Words) -> str:
    return " ".join(word for word, _ in words.anywhere)


def _described(word: str, summary: str) -> str:
    """Return `word:summary` as zsh's _describe takes it."""
    escaped = word.replace(":", "\\:")
    return shlex.quote(f"{escaped}:{summary}" if summary else escaped)


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_SCRIPTS: Mapping[str, Callable[[Mapping[str, Words], Mapping[str, str]], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
