"""The versions that pyproject.toml allows: both ends of every range, and every Python, are tried.

`make packages` runs it: minutes, and a network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from clean_install import Stranger, package
from paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("onnx", "openvino-runtime", "paddle", "otel", "ocr")
"""Those whose packages run on any machine; `gpu` and `openvino` take the place of `onnx`."""

NEWER = ("3.12", "3.13")
"""Pythons beside the oldest one, which the other tests run on."""

TOOLS = ("pytest", "pytest-randomly", "pytest-timeout", "hypothesis", "onnx")
TESTS = (
    "tests/integration/test_server.py",
    "tests/integration/frontends/http",  # httptools
    "tests/integration/frontends/v2/test_http_v2.py",
    "tests/unit/workers/process/test_pool.py",
    "tests/unit/workers/shm/test_payload.py",
    "tests/unit/frontends",  # python-multipart, orjson
    "tests/unit/schema",
    "tests/unit/proto",
    "tests/unit/predictors/onnx/test_onnx_predictor.py",
    "tests/unit/predictors/openvino",
    "tests/integration/predictors/paddle/test_paddle_real.py",
    "tests/integration/tracing/test_recorder.py",
)
BUILD_ONLY = "tests/integration/proto/test_generated.py"  # needs grpcio-tools
OLD_ONNX = "bfloat16 or float8"
"""What an old onnxruntime refuses, in words that say so."""


def requirements() -> list[str]:
    """All that pyproject.toml asks of users' environments, one string a package."""
    optional = PROJECT["optional-dependencies"]
    return [*PROJECT["dependencies"], *(one for extra in EXTRAS for one in optional[extra])]


def lowest() -> list[str]:
    """The same, each at the lower end of its range."""
    bounds = [re.match(r"([\w.-]+)>=([\d.]+)", one) for one in requirements()]
    (onnx,) = [one for one in PROJECT["optional-dependencies"]["dev"] if one.startswith("onnx>")]
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound] + [onnx.replace(">=", "==")]


def test_every_requirement_has_a_lower_end():
    without = [one for one in requirements() if not re.match(r"[\w.-]+>=\d", one)]
    assert without == []


def interpreter(version: str) -> str | None:
    """The Python of that version, on the PATH or where pyenv puts it."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    own = sorted(home.glob(f"versions/{version}.*/bin/python{version}"))
    places = [shutil.which(f"python{version}"), *map(str, own)]
    return next((place for place in places if place and _runs(place)), None)


def _runs(python: str) -> bool:
    """False of pyenv's placeholders for versions that are not chosen."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without the gateway, which has tests of its own."""
    return package("wheel", tmp_path_factory.mktemp("wheel"), PIPELINE_GATEWAY="skip")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """A folder for an environment of more than a gigabyte: gone after the test."""
    yield tmp_path
    shutil.rmtree(tmp_path / "venv", ignore_errors=True)


def try_out(stranger: Stranger, wheel: Path, *options: str) -> None:
    """Run the tests against the wheel as it is installed, not against this tree."""
    done = stranger.run(
        "-c", "import pytest; raise SystemExit(pytest.main())",
        "-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT,
        *options, "--ignore", ROOT / BUILD_ONLY, *(ROOT / one for one in TESTS),
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


@pytest.mark.packages
@pytest.mark.timeout(1800)
def test_the_lowest_versions_work(environment: Path, wheel: Path):
    stranger = Stranger(environment)
    (environment / "lowest.txt").write_text("\n".join(lowest()))
    stranger.pip_install("-c", "lowest.txt", f"{wheel}[{','.join(EXTRAS)}]", *TOOLS)
    try_out(stranger, wheel, "-k", f"not ({OLD_ONNX})")


@pytest.mark.packages
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["this one", *NEWER])
def test_the_newest_versions_work(environment: Path, wheel: Path, version: str):
    python = None if version == "this one" else interpreter(version)
    if python is None and version != "this one":
        pytest.skip(f"NOT TRIED on Python {version}: no python{version} on this machine")
    stranger = Stranger(environment, *([python] if python else []))
    stranger.pip_install("--upgrade", f"{wheel}[{','.join(EXTRAS)}]", *TOOLS)
    try_out(stranger, wheel)
