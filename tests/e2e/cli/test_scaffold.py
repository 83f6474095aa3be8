"""What `pipeline init` writes, as a stranger takes it: its requirements, and its own tests."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from clean_install import Stranger

LINE = re.compile(r"pipeline-serving @ file://\$\{PWD\}/wheels/(\S+)#sha256=([0-9a-f]{64})")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scaffold")
    command = [sys.executable, "-m", "pipeline", "init", "hello"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "hello"


def in_shell(folder: Path) -> dict[str, str]:
    """The environment of a program that a shell starts in a folder."""
    return {**os.environ, "PWD": str(folder)}


def test_the_library_is_a_file_with_a_checked_hash(service, tmp_path):
    lines = (service / "requirements.txt").read_text().splitlines()
    (named,) = [LINE.fullmatch(line) for line in lines if not line.startswith("#")]
    data = (service / "wheels" / named[1]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == named[2]
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        (record,) = [name for name in wheel.namelist() if name.endswith(".dist-info/RECORD")]
        lines = wheel.read(record).decode().splitlines()
        rows = {name: digest for name, digest, _ in csv.reader(lines)}
        assert set(rows) == set(wheel.namelist())
        for name in set(rows) - {record}:
            digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest())
            assert rows[name] == f"sha256={digest.rstrip(b'=').decode()}"
    pip = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", tmp_path]
    done = subprocess.run(
        [sys.executable, *pip, "--requirement", "requirements.txt"],
        cwd=service, env=in_shell(service), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pipeline" / "__init__.py").is_file()
    assert (tmp_path / "bin" / "pipeline").is_file()


@pytest.mark.packages
@pytest.mark.timeout(900)
def test_the_requirements_of_a_new_service_are_all_that_its_tests_need(service, tmp_path):
    stranger = Stranger(tmp_path)
    install = ["-m", "pip", "install", "--quiet", "--requirement", "requirements.txt", "pytest"]
    env = {**stranger.env, "PWD": str(service)}
    for command in (install, ["-m", "pytest", "-q"]):
        done = subprocess.run(
            [stranger.python, *command],
            cwd=service, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
