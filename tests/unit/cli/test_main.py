"""The command `pipeline`: its sub-commands, their help, and what is said of unknown ones."""

from __future__ import annotations

import tomllib

import pytest
from paths import ROOT

from pipeline import __version__
from pipeline.cli.main import COMMANDS, main, parser_of


@pytest.mark.parametrize("option", ["-h", "--help", "help"])
def test_the_help_lists_every_command(option, capsys):
    assert main([option]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "]
    assert listed[: len(COMMANDS)] == list(COMMANDS)


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_is_that_of_the_package(option, capsys):
    assert main([option]) == 0
    assert capsys.readouterr().out.startswith(f"pipeline {__version__} (")


def test_no_command_is_wrong_usage(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: pipeline COMMAND")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("grpah", "there is no command 'grpah'; did you mean graph?"),
        ("xyzzy", "there is no command 'xyzzy'; pipeline --help lists them"),
    ],
)
def test_an_unknown_command_is_refused_with_the_nearest(word, said, capsys):
    assert main([word]) == 2
    assert capsys.readouterr().err.startswith(f"pipeline: {said}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_has_an_example(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"usage: pipeline {name}")
    assert f"pipeline {name} " in text.partition("xample:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_reports_an_invalid_option(name, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([name, "--no-such-option-at-all"])
    assert f"usage: pipeline {name}" in capsys.readouterr().err


def test_an_unknown_option_is_refused_with_the_nearest(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["check", "--stric", "config.yml"])
    assert "unrecognized arguments: --stric; did you mean --strict?" in capsys.readouterr().err


def test_an_unknown_choice_is_refused_with_the_nearest(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["config", "shwo"])
    assert "invalid choice: 'shwo'" in (said := capsys.readouterr().err)
    assert said.endswith("; did you mean show?\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_parsers_are_called_as_their_command(name):
    assert parser_of(name).prog == f"pipeline {name}"


def test_the_package_installs_the_command():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["pipeline"] == scripts["pipeline-serving"] == "pipeline.__main__:main"
