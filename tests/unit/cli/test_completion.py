"""`pipeline completion`: what its scripts offer."""

from __future__ import annotations

import pytest

from pipeline.cli.completion import words_of
from pipeline.cli.main import COMMANDS, main, parser_of


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_every_command_and_the_choices_of_an_option(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
    assert "text mermaid dot" in script


def test_words_are_those_of_the_parser():
    words = words_of(parser_of("graph"))
    assert {word for word, _ in words.anywhere} == {"-h", "--help", "--format", "-m"}
    assert words.behind == {"--format": ["text", "mermaid", "dot"]}


def test_commands_of_a_command_are_words_with_their_options():
    words = {word for word, _ in words_of(parser_of("callers")).anywhere}
    assert {"add", "list", "remove", "--roles", "--file"} <= words


def test_what_is_no_users_is_no_word():
    assert "--parent" not in {word for word, _ in words_of(parser_of("serve")).anywhere}
