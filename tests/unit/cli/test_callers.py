"""`python -m pipeline callers`: what it writes, prints and refuses."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from pipeline.cli.callers import callers, digest_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "callers.json"


def test_a_token_is_printed_once_and_stored_as_its_digest(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callers(["--file", str(file), "add", "alice"]) == 0
    token = capsys.readouterr().out.strip()
    assert len(token) >= 43
    document = json.loads(file.read_text())
    assert document == {
        "callers": [{"name": "alice", "roles": ["infer"], "tokens": [digest_of(token)]}]
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_another_token_of_a_caller_leaves_its_roles(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = ["--file", str(file)]
    assert callers([*ours, "add", "ops", "--roles", "observe,admin"]) == 0
    assert callers([*ours, "add", "ops"]) == 0
    assert callers([*ours, "add", "ops", "--certificate", "ops.example"]) == 0
    assert len(set(capsys.readouterr().out.split())) == 2
    assert callers([*ours, "list"]) == 0
    assert capsys.readouterr().out == "ops: observe,admin (2 tokens, 1 certificates)\n"
    assert callers([*ours, "add", "ops", "--roles", "infer"]) == 0
    assert json.loads(file.read_text())["callers"][0]["roles"] == ["infer"]


def test_a_caller_is_removed_and_the_rest_of_the_file_is_unchanged(file: Path) -> None:
    kept = {"name": "bob", "limits": {"in_flight": 3}}
    file.write_text(json.dumps({"callers": [{"name": "alice"}, kept]}))
    assert callers(["--file", str(file), "remove", "alice"]) == 0
    assert json.loads(file.read_text()) == {"callers": [kept]}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["add", "anonymous"], "anonymous"),
        (["add", "two words"], "cannot be a name"),
        (["add", "a", "--roles", "boss"], "'boss' is not a role"),
        (["remove", "nobody"], "there is no caller 'nobody'"),
    ],
)
def test_a_refused_command_changes_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert callers(["--file", str(file), *arguments]) == 1
    assert text in capsys.readouterr().err
    assert not file.exists()


def test_a_broken_file_is_named_and_stays(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('{"callers": [{"name": 1}]}')
    assert callers(["--file", str(file), "add", "a"]) == 1
    assert str(file) in capsys.readouterr().err
    assert file.read_text() == '{"callers": [{"name": 1}]}'
