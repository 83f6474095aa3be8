"""Brings newer Pythons of Debian's suite `sid` into a folder, without installing them.

    python scripts/debian_pythons.py build/pythons 3.14 3.15

`make packages` tries them. The programs are in FOLDER/usr/bin and bring their own C library. Needs
Debian's apt and dpkg.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from pathlib import Path

SUITE = "sid"
LIBRARIES = (
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libbz2-1.0", "liblzma5", "libzstd1"),
    *("libexpat1", "libffi8", "libncursesw6", "libtinfo6", "libreadline8t64", "libsqlite3-0"),
    *("libssl3t64", "libuuid1", "python3-pip-whl", "python3-setuptools-whl"),
)
"""What the Pythons and the wheels for them load, and what `python -m venv` installs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("versions", nargs="+", help="for example 3.14")
    options = parser.parse_args()
    if platform.machine() != "x86_64":
        raise SystemExit(f"this script knows Pythons for x86_64 only, not {platform.machine()}")
    folder = options.folder.absolute()
    apt = {**os.environ, "APT_CONFIG": str(apt_of_its_own(folder / "apt"))}
    subprocess.run(["apt-get", "-qq", "update"], env=apt, check=True)
    packages = [name for version in options.versions for name in packages_of(version)]
    unpack(folder / "debs", folder, [*LIBRARIES, *packages], apt)
    unpack(folder / "tools", folder / "tools", ["patchelf"], dict(os.environ))
    for version in options.versions:
        print(settled(folder, version))


def apt_of_its_own(folder: Path) -> Path:
    """Return a configuration with lists and caches in `folder`, for the mirror of this machine."""
    for name in ("state/lists/partial", "cache/archives/partial", "sources"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    conditions = ("Created-By: Packages", "Origin: Debian", "Label: Debian")
    targets = subprocess.check_output(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", *conditions], text=True
    )
    if not targets:
        raise SystemExit("apt knows no mirror of Debian: run apt-get update first")
    mirror = targets.splitlines()[0]
    (folder / "sources" / "suite.list").write_text(f"deb {mirror} {SUITE} main\n")
    (folder / "status").touch()
    places = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "sources",
    }
    configuration = folder / "apt.conf"
    configuration.write_text("".join(f'{key} "{place}";\n' for key, place in places.items()))
    return configuration


def packages_of(version: str) -> list[str]:
    names = ("libpython{}-minimal", "libpython{}-stdlib", "python{}", "python{}-minimal")
    return [name.format(version) for name in (*names, "python{}-venv")]


def unpack(downloads: Path, into: Path, packages: list[str], env: dict[str, str]) -> None:
    downloads.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "-qq", "download", *packages], cwd=downloads, env=env, check=True)
    for package in downloads.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, into], check=True)
        package.unlink()


def settled(folder: Path, version: str) -> Path:
    """Let a Python find its libraries and wheels in `folder`; return its program."""
    libraries = folder / "usr/lib/x86_64-linux-gnu"
    program = folder / "usr/bin" / f"python{version}"
    loader = ("--set-interpreter", libraries / "ld-linux-x86-64.so.2")
    path = ("--force-rpath", "--set-rpath", libraries)
    subprocess.run([folder / "tools/usr/bin/patchelf", *loader, *path, program], check=True)
    for data in (folder / "usr/lib" / f"python{version}").glob("_sysconfigdata*.py"):
        wheels = "usr/share/python-wheels"
        text = data.read_text().replace(f"'/{wheels}", f"'{folder}/{wheels}")
        data.write_text(text)
    return program


if __name__ == "__main__":
    main()
