"""`pipeline dockerize`: writes the files for an image of a service's folder, with our own wheel."""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib.metadata
import io
import platform
import re
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.cli.parsing import command_parser, fails
from pipeline.config.layers import NO_LAYERS, read_layers
from pipeline.config.schema import ServiceConfig
from pipeline.errors import ConfigError
from pipeline.gateway.build import BINARY

TEMPLATES = Path(__file__).with_name("templates")
_RPC_PORT, _HTTP_PORT = 18070, 18071  # of the template
_SCRIPT, _CONFIG, _REQUIREMENTS = "web_server.py", "config.yml", "requirements.txt"
_WHERE_FROM = """\
# The library is on no package index, where its name is anybody's: it comes from this file, whose
# hash is compared. With extras: pipeline-serving[onnx] @ ... Run pip in this folder.
"""


def dockerize(arguments: Sequence[str]) -> int:
    """Run `pipeline dockerize`; return the exit status."""
    options = dockerize_parser().parse_args(list(arguments))
    folder = Path(options.folder)
    try:
        files = _files(folder)
        existing = [name for name in files if (folder / name).exists() and not options.force]
        if (folder / _REQUIREMENTS).exists() and _REQUIREMENTS not in existing:
            existing.append(
                _REQUIREMENTS
            )  # the user's file: the user knows what the service imports
        if len(existing) == len(files):
            raise ConfigError(f"{folder / existing[0]} is there already: --force replaces it")
        write_files(folder, {name: data for name, data in files.items() if name not in existing})
    except ConfigError as error:
        return fails("dockerize", str(error))
    except OSError as error:
        return fails("dockerize", f"{error.filename}: {error.strerror}")
    _report(folder, files, existing)
    return 0


def _report(folder: Path, files: Mapping[str, bytes], existing: Collection[str]) -> None:
    """Print which files were written or kept, and the next steps."""
    written = ", ".join(str(folder / name) for name in files if name not in existing)
    lines = [f"written: {written}"]
    lines += [f"kept: {folder / name}, which was there already" for name in existing]
    if _REQUIREMENTS not in existing:
        lines.append(f"add what the service imports: {folder / _REQUIREMENTS}")
    elif (line := files[_REQUIREMENTS].decode().splitlines()[-1]) and not _has_pin(folder, line):
        lines.append(f"{folder / _REQUIREMENTS} needs this line for the library:\n  {line}")
    lines.append(f"build it: docker build --tag my-service {folder}")
    sys.stdout.write("\n".join([*lines, ""]))


def _has_pin(folder: Path, line: str) -> bool:
    """Return whether the requirements name the file of a line, with any extras."""
    place = line.partition(" @ ")[2]
    return place in (folder / _REQUIREMENTS).read_text("utf-8", errors="replace")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder. Raises OSError: a file cannot be written."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def dockerize_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "dockerize",
        "Write a Dockerfile, a .dockerignore, a requirements.txt and a wheel of this library into "
        f"the folder of a service, which has a {_SCRIPT} and a {_CONFIG}; the image exposes its "
        "ports. Existing files stay. See docs/deployment.md.",
        "pipeline dockerize hello",
    )
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="default: this one")
    parser.add_argument(
        "--force", action="store_true", help="replace existing files except requirements.txt"
    )
    return parser


def docker_files(rpc_port: int, http_port: int) -> dict[str, bytes]:
    """Return the files of an image by name. Raises ConfigError: there is no wheel."""
    ports = {str(_RPC_PORT): str(rpc_port), str(_HTTP_PORT): str(http_port)}
    text = (TEMPLATES / "Dockerfile").read_text("utf-8")
    dockerfile = re.sub("|".join(ports), lambda match: ports[match[0]], text)
    wheel = own_wheel()
    return {
        "Dockerfile": dockerfile.encode(),
        ".dockerignore": (TEMPLATES / "dockerignore").read_bytes(),
        _REQUIREMENTS: f"{_WHERE_FROM}{wheel.requirement}\n".encode(),
        f"wheels/{wheel.name}": wheel.data,
    }


def _files(folder: Path) -> dict[str, bytes]:
    """Return the files for the service in a folder. Raises ConfigError: it has no service."""
    if not (folder / _SCRIPT).is_file():
        raise ConfigError(f"{folder / _SCRIPT}: no such file; the image runs it")
    if not (folder / _CONFIG).is_file():
        return docker_files(_RPC_PORT, _HTTP_PORT)
    source, _ = read_layers(ServiceConfig, folder / _CONFIG, None, NO_LAYERS)
    values = source.data if isinstance(source.data, dict) else {}
    http_port = values.get("http_port")
    if not isinstance(http_port, int) or http_port <= 0:
        raise ConfigError(
            f"{source.place(('http_port',))}: the image's healthcheck needs a fixed port"
        )
    rpc_port = values.get("rpc_port")
    return docker_files(rpc_port if isinstance(rpc_port, int) else http_port + 1, http_port)


# A wheel of what is installed here --------------------------------------------------------------


DISTRIBUTION = "pipeline-serving"

_PACKAGE = Path(__file__).resolve().parents[1]
_ANY = "py3-none-any"
_LEFT_OUT = re.compile(r"/(__pycache__|gatewaytest|\.build-[^/]*)/|_test\.go$")  # of a source tree
_DESCRIPTIONS = ("METADATA", "entry_points.txt")
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # reproducible: the same files give the same bytes
_MODE = 0o100644
_PROGRAM = 0o100755


@dataclass(frozen=True, slots=True)
class OwnWheel:
    """A file for pip, and its name."""

    name: str
    data: bytes

    @property
    def requirement(self) -> str:
        """Return the line of requirements.txt for this file in the folder `wheels`."""
        digest = hashlib.sha256(self.data).hexdigest()
        return f"{DISTRIBUTION} @ file://${{PWD}}/wheels/{self.name}#sha256={digest}"


def own_wheel() -> OwnWheel:
    """Return the wheel. Raises ConfigError: the library is not installed as a package."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        text = f"{DISTRIBUTION} is not installed here as a package: install it with pip first"
        raise ConfigError(text) from error
    stem = f"{DISTRIBUTION.replace('-', '_')}-{distribution.version}"
    tag = _tag(distribution)
    files = dict(_of_package())
    for name in _DESCRIPTIONS:
        files[f"{stem}.dist-info/{name}"] = (distribution.read_text(name) or "").encode()
    for path in distribution.files or ():
        if path.parts[0].endswith(".dist-info") and "licenses" in path.parts:
            name = "/".join(path.parts[1:])
            files[f"{stem}.dist-info/{name}"] = Path(str(path.locate())).read_bytes()
    files[f"{stem}.dist-info/WHEEL"] = _wheel(tag)
    return OwnWheel(f"{stem}-{tag}.whl", _zipped(files, f"{stem}.dist-info/RECORD"))


def _tag(distribution: importlib.metadata.Distribution) -> str:
    """Return the wheel's tag: this machine's if it has the gateway's binary."""
    tags = re.findall(r"^Tag: (\S+)$", distribution.read_text("WHEEL") or "", re.M)
    if not BINARY.is_file():
        return _ANY
    platforms = [tag.rpartition("-")[2] for tag in tags if not tag.endswith("-any")]
    return f"py3-none-{'.'.join(platforms) or f'linux_{platform.machine()}'}"


def _wheel(tag: str) -> bytes:
    *others, platforms = tag.rpartition("-")
    tags = [f"{''.join(others)}{platform}" for platform in platforms.split(".")]
    lines = ["Wheel-Version: 1.0", f"Generator: {DISTRIBUTION}"]
    lines += [
        f"Root-Is-Purelib: {str(tag == _ANY).lower()}",
        *(f"Tag: {one_tag}" for one_tag in tags),
    ]
    return "\n".join([*lines, ""]).encode()


def _of_package() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the package by their names in a wheel."""
    for path in sorted(_PACKAGE.rglob("*")):
        name = path.relative_to(_PACKAGE.parent).as_posix()
        if path.is_file() and not _LEFT_OUT.search(name):
            yield name, path.read_bytes()


def _zipped(files: dict[str, bytes], record: str) -> bytes:
    program = BINARY.relative_to(_PACKAGE.parent).as_posix()
    rows = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    files = {**files, record: "".join([*rows, f"{record},,\n"]).encode()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _FIRST_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (_PROGRAM if name == program else _MODE) << 16
            archive.writestr(entry, data)
    return out.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
