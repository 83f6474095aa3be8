"""The files that are watched, and the time at which a change is reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.cli.reload import Watch


def stamp(path: Path, second: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (second, second))


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    stamp(tmp_path / "web_server.py", 1)
    stamp(tmp_path / "below" / "ops.py", 1)
    return Watch(tmp_path)


def test_without_a_change_nothing_is_reported(watch):
    assert [watch.changed() for _ in range(3)] == [[], [], []]


def test_a_change_is_reported_once_when_it_is_complete(watch, tmp_path):
    stamp(tmp_path / "web_server.py", 2)
    assert watch.changed() == []
    stamp(tmp_path / "below" / "ops.py", 2)
    assert watch.changed() == []
    assert watch.changed() == ["below/ops.py", "web_server.py"]
    assert watch.changed() == []


def test_new_and_removed_files_are_changes(watch, tmp_path):
    stamp(tmp_path / "config.yml", 1)
    (tmp_path / "below" / "ops.py").unlink()
    watch.changed()
    assert watch.changed() == ["below/ops.py", "config.yml"]


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        ".git/x.py",
        ".#web_server.py",
        ".hidden/x.py",
        "__pycache__/x.py",
        "PipelineServingLogs/x.json",
        "env/lib/x.py",
    ],
)
def test_files_outside_the_service_are_not_watched(watch, tmp_path, name):
    stamp(tmp_path / "env" / "pyvenv.cfg", 1)
    watch.changed()
    watch.changed()
    stamp(tmp_path / name, 1)
    watch.changed()
    assert watch.changed() == []
