"""OwnWheel: a wheel of this library, made of what is installed here, for images of services."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import platform
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.gateway.build import BINARY

DISTRIBUTION = "pipeline-serving"

_PACKAGE = Path(__file__).resolve().parents[1]
_ANY = "py3-none-any"
_LEFT_OUT = re.compile(r"/(__pycache__|gatewaytest|\.build-[^/]*)/|_test\.go$")  # of a source tree
_DESCRIPTIONS = ("METADATA", "entry_points.txt")
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # the same files make the same bytes
_MODE = 0o100644
_PROGRAM = 0o100755


@dataclass(frozen=True, slots=True)
class OwnWheel:
    """A file that pip installs, and what it is called."""

    name: str
    data: bytes

    @property
    def requirement(self) -> str:
        """The line of a requirements.txt beside the folder `wheels`: this file, and no index."""
        digest = hashlib.sha256(self.data).hexdigest()
        return f"{DISTRIBUTION} @ file://${{PWD}}/wheels/{self.name}#sha256={digest}"


def own_wheel() -> OwnWheel:
    """Return the wheel. Raises ConfigError: the library is not installed as a package."""
    try:
        found = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        text = f"{DISTRIBUTION} is not installed here as a package: install it with pip first"
        raise ConfigError(text) from error
    stem = f"{DISTRIBUTION.replace('-', '_')}-{found.version}"
    tag = _tag(found)
    files = dict(_files())
    for name in _DESCRIPTIONS:
        files[f"{stem}.dist-info/{name}"] = (found.read_text(name) or "").encode()
    for path in found.files or ():
        if path.parts[0].endswith(".dist-info") and "licenses" in path.parts:
            name = "/".join(path.parts[1:])
            files[f"{stem}.dist-info/{name}"] = Path(str(path.locate())).read_bytes()
    files[f"{stem}.dist-info/WHEEL"] = _wheel(tag)
    return OwnWheel(f"{stem}-{tag}.whl", _zipped(files, f"{stem}.dist-info/RECORD"))


def _tag(found: importlib.metadata.Distribution) -> str:
    """Return the tag: with the gateway's binary that of this machine."""
    said = re.findall(r"^Tag: (\S+)$", found.read_text("WHEEL") or "", re.M)
    if not BINARY.is_file():
        return _ANY
    platforms = [tag.rpartition("-")[2] for tag in said if not tag.endswith("-any")]
    return f"py3-none-{'.'.join(platforms) or f'linux_{platform.machine()}'}"


def _wheel(tag: str) -> bytes:
    *others, platforms = tag.rpartition("-")
    tags = [f"{''.join(others)}{each}" for each in platforms.split(".")]
    lines = ["Wheel-Version: 1.0", f"Generator: {DISTRIBUTION}"]
    lines += [f"Root-Is-Purelib: {str(tag == _ANY).lower()}", *(f"Tag: {each}" for each in tags)]
    return "\n".join([*lines, ""]).encode()


def _files() -> Iterator[tuple[str, bytes]]:
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
