"""The versions that pyproject.toml allows: both ends of every range, on every Python, are tried.

`make packages` runs it: minutes, and a network. The lowest versions on a newer Python are the
lowest that have a wheel for it. With `TRIED=FILE`, each try that succeeds writes its row there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clean_install import Stranger, package
from paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
EXTRAS = ("otel", "ocr", "redis", "onnx", "openvino-runtime", "paddle")
"""Those whose packages run on any machine; `gpu` and `openvino` take the place of `onnx`."""

WITHOUT = {"3.14": ["paddle"], "3.15": ["onnx", "openvino-runtime", "paddle"]}
"""Extras without a wheel, by Python."""

TOOLS = ("pytest", "pytest-randomly", "pytest-timeout", "hypothesis", "onnx", "trustme")
TESTS = {
    "": (
        "tests/integration/test_server.py",
        "tests/integration/frontends/grpc",
        "tests/integration/frontends/http",  # httptools
        "tests/integration/frontends/v2/test_http_v2.py",
        "tests/unit/workers",
        "tests/unit/frontends",  # python-multipart, orjson
        "tests/unit/schema",
        "tests/unit/proto",
        "tests/unit/cli/test_completion.py",
    ),
    "onnx": ("tests/unit/predictors/onnx/test_onnx_predictor.py",),
    "openvino-runtime": ("tests/unit/predictors/openvino",),
    "paddle": ("tests/integration/predictors/paddle/test_paddle_real.py",),
    "otel": ("tests/integration/tracing/test_recorder.py",),
    "redis": ("tests/integration/caches",),
}
"""By the extra that they need."""

NEED_MORE = (
    "tests/integration/proto/test_generated.py",  # grpcio-tools
    "tests/unit/schema/test_caller_json_schemas.py",  # jsonschema
)
OLD_ONNX = "bfloat16 or float8"
"""What an old onnxruntime refuses, in words that say so."""

OLD_UVLOOP = "ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning"
"""uvloop 0.22 calls what Python 3.14 warns of; 0.23 does not."""

SHOWN = ("grpcio", "protobuf", "numpy", "orjson", "msgspec", "uvloop", "onnxruntime", "redis")


def extras_on(python: str) -> list[str]:
    return [extra for extra in EXTRAS if extra not in WITHOUT.get(python, ())]


def requirements(python: str) -> list[str]:
    """All that pyproject.toml asks of users' environments, one string a package."""
    return [
        *PROJECT["dependencies"],
        *(one for extra in extras_on(python) for one in OPTIONAL[extra]),
    ]


def tools() -> list[str]:
    return [one for one in OPTIONAL["dev"] if re.split("[<>=~]", one)[0] in TOOLS]


def test_every_requirement_has_a_lower_end():
    asked = [*requirements(PYTHONS[0]), *tools()]
    assert [one for one in asked if not re.match(r"[\w.-]+>=\d", one)] == []
    assert len(tools()) == len(TOOLS)


def interpreter(version: str) -> str:
    """Return the Python of that version; skip if this machine has none.

    It is on the PATH, where pyenv puts it, or where scripts/debian_pythons.py does.
    """
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    own = sorted(home.glob(f"versions/{version}.*/bin/python{version}"))
    brought = ROOT / "build/pythons/usr/bin" / f"python{version}"
    places = [shutil.which(f"python{version}"), *map(str, own), str(brought)]
    found = next((place for place in places if place and _runs(place)), None)
    if found is None:
        pytest.skip(f"NOT TRIED on Python {version}: no python{version} on this machine")
    return found


def _runs(python: str) -> bool:
    """False of pyenv's placeholders for versions that are not chosen."""
    return (
        bool(shutil.which(python))
        and not subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without the gateway, which has tests of its own."""
    return package("wheel", tmp_path_factory.mktemp("wheel"), PIPELINE_GATEWAY="skip")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """A folder for an environment of more than a gigabyte: gone after the test."""
    yield tmp_path
    shutil.rmtree(tmp_path / "venv", ignore_errors=True)


def install(stranger: Stranger, python: str, end: str, wheel: Path) -> None:
    """Install the wheel and the packages at one end of their ranges."""
    asked = stranger.folder / "asked.txt"
    asked.write_text("\n".join([*requirements(python), *tools()]))
    stranger.pip_install("uv")
    resolution = {"lowest": "lowest-direct", "newest": "highest"}[end]
    done = stranger.run(
        "-m", "uv", "pip", "install", "--quiet", "--python", stranger.python,
        "--only-binary", ":all:", "--resolution", resolution, "--requirement", asked,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    stranger.pip_install("--no-deps", wheel)
    stranger.pip_install("--dry-run", "--no-index", wheel)  # they are what the wheel asks for


def try_out(stranger: Stranger, python: str, end: str) -> str:
    """Run the tests against the wheel as it is installed, not against this tree."""
    tests = [ROOT / one for extra in ("", *extras_on(python)) for one in TESTS.get(extra, ())]
    done = stranger.run(
        "-c", "import pytest; raise SystemExit(pytest.main())",
        "-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT,
        *(("-k", f"not ({OLD_ONNX})", "-W", OLD_UVLOOP) if end == "lowest" else ()),
        *(word for one in NEED_MORE for word in ("--ignore", ROOT / one)), *tests,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout.splitlines()[-1].partition(" in ")[0]


def write_row(stranger: Stranger, python: str, end: str, result: str) -> None:
    if "TRIED" not in os.environ:
        return
    code = (
        "import platform, sys; from importlib.metadata import distributions as d;"
        "v = {x.name.lower(): x.version for x in d()};"
        "print(platform.python_version());"
        "print(*(f'{n} {v[n]}' for n in sys.argv[1:] if n in v), sep=', ')"
    )
    full, versions = stranger.run("-c", code, *SHOWN).stdout.splitlines()
    row = f"| {full} | {end} | {result} | {datetime.now(UTC):%Y-%m-%d} | {versions} |"
    file = Path(os.environ["TRIED"])
    lines = file.read_text(encoding="utf-8").splitlines()
    same = re.compile(rf"\| {re.escape(python)}\.\S+ \| {end} \|")
    rows = [line for line in lines if line.startswith("| 3") and not same.match(line)]
    text = [line for line in lines if not line.startswith("| 3")]
    file.write_text("\n".join([*text, *sorted([*rows, row])]) + "\n", encoding="utf-8")


@pytest.mark.packages
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("end", ["lowest", "newest"])
@pytest.mark.parametrize("python", PYTHONS)
def test_versions_work(environment: Path, wheel: Path, python: str, end: str):
    stranger = Stranger(environment, interpreter(python))
    install(stranger, python, end, wheel)
    write_row(stranger, python, end, try_out(stranger, python, end))
