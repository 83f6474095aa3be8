"""`pipeline completion`: what its scripts offer."""

from __future__ import annotations

import pytest

from pipeline.cli.main import COMMANDS, main


@pytest.fixture(params=["bash", "zsh", "fish"])
def script(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", request.param]) == 0
    return capsys.readouterr().out


def test_a_script_has_every_command_with_its_options_and_their_choices(script: str):
    assert [name for name in COMMANDS if name not in script] == []
    for word in ("format", "text", "mermaid", "dot", "-m", "strict"):
        assert word in script


def test_commands_of_a_command_are_words_with_their_options(script: str):
    for word in ("callers", "add", "list", "remove", "roles", "file"):
        assert word in script


def test_internal_options_are_not_offered(script: str):
    assert "--parent" not in script
    assert "-l parent" not in script  # as fish has it
