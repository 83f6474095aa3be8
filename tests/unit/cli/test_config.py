"""`pipeline config`: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pipeline.cli.main import main
from pipeline.config import layers
from pipeline.config.json_schema import FILE


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(layers, "_here", [])
    Path("config.yml").write_text("rpc_port: 18070\nop:\n  bow:\n    concurrency: 2\n")
    Path("config.prod.yml").write_text("op: {bow: {concurrency: 8}}\n")


def test_show_prints_yaml_with_origins(capsys, monkeypatch):
    monkeypatch.setenv("PIPELINE__OP__bow__retry", "2")
    options = ["--given", "--profile", "prod", "--set", "timeout=500"]
    assert main(["config", "show", *options]) == 0
    out = capsys.readouterr().out
    assert yaml.safe_load(out) == {
        "rpc_port": 18070,
        "timeout": 500,
        "op": {"bow": {"concurrency": 8, "retry": 2}},
    }
    assert [line.split("  # ")[1] for line in out.splitlines() if "#" in line] == [
        "config.yml:1",
        "--set",
        "config.prod.yml:1",
        "environment variable PIPELINE__OP__bow__retry",
    ]


def test_show_has_defaults_too(capsys):
    assert main(["config", "show"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["queue_size"] == 4096
    assert shown["op"]["bow"]["batch_size"] == 1


def test_show_prints_json(capsys):
    assert main(["config", "show", "--json", "--given"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"key": "rpc_port", "value": 18070, "origin": "config.yml:1"},
        {"key": "op.bow.concurrency", "value": 2, "origin": "config.yml:4"},
    ]


def test_an_invalid_setting_is_shown_and_reported(capsys):
    assert main(["config", "show", "--set", "op.bow.retry=x"]) == 1
    printed = capsys.readouterr()
    assert "retry: x" in printed.out
    assert printed.err.startswith("pipeline config show: --set: op.bow.retry: expected int >= 1")


def test_a_file_that_is_not_there_is_named(capsys):
    assert main(["config", "show", "absent.yml"]) == 1
    assert "absent.yml: No such file or directory" in capsys.readouterr().err


def test_schema_prints_the_committed_schema(capsys):
    assert main(["config", "schema"]) == 0
    assert capsys.readouterr().out.encode() == FILE.read_bytes()


def test_check_reads_layers(capsys):
    assert main(["check", "config.yml", "--profile", "absent"]) == 1
    assert "--profile=absent: config.absent.yml: No such file" in capsys.readouterr().out
