"""ScriptBundle: the folder of a script as one archive, which goes to the nodes of a cluster."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from pipeline.config.yaml import is_text
from pipeline.errors import ConfigError

MAX_BYTES = 256 * 2**20
"""Most bytes of all files: what is larger is put on the nodes beforehand."""

_LEFT_OUT = frozenset({"__pycache__", ".git", ".venv", "node_modules", "PipelineServingLogs"})
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same archive


class ScriptBundle(msgspec.Struct, frozen=True):
    """A script and what lies beside it.

    Attributes:
        script: its path within the folder; absolute: it is on each node, at this place.
        archive: ZIP of the folder; empty where the script is on each node.
        digest: of the archive, 12 characters.
    """

    script: str
    archive: bytes = b""
    digest: str = ""


def bundle_of(script: Path, is_in_place: bool = False) -> ScriptBundle:
    """Return the bundle of a script; `is_in_place`: its folder is on all nodes already.

    Raises ConfigError: there is no such script, or its folder is too large or cannot be read.
    """
    if not script.is_file():
        raise ConfigError(f"{script}: there is no such file")
    script = script.resolve()
    if is_in_place:
        return ScriptBundle(str(script))
    try:
        archive = _packed(script.parent)
    except OSError as error:  # also of a file that was removed meanwhile
        raise ConfigError(f"{error.filename}: {error.strerror}, while it was packed") from error
    return ScriptBundle(script.name, archive, hashlib.sha256(archive).hexdigest()[:12])


def unpacked(bundle: ScriptBundle, folder: Path) -> Path:
    """Return the path of the script on this node; its files are in `folder` then.

    Raises ConfigError: a name in the archive leads out of the folder, or the script is not there.
    """
    if not bundle.archive:
        script = Path(bundle.script)
        if not script.is_file():
            raise ConfigError(f"{script} is not on this node: leave out --in-place")
        return script
    with zipfile.ZipFile(io.BytesIO(bundle.archive)) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise ConfigError(f"the bundle has a file {name!r}, which leads out of its folder")
        for info in archive.infolist():
            place = Path(archive.extract(info, folder))
            place.chmod((info.external_attr >> 16) & 0o777 or 0o644)
    return folder / bundle.script


def _packed(folder: Path) -> bytes:
    size, target = 0, io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in _files(folder):
            size += path.stat().st_size
            if size > MAX_BYTES:
                raise ConfigError(
                    f"{folder}: more than {MAX_BYTES // 2**20} MiB. Put what is large (models) on "
                    "all nodes and use absolute paths, or put all of it there: --in-place"
                )
            name = path.relative_to(folder).as_posix()
            if not is_text(name):
                raise ConfigError(f"{folder}: the name of {name!a} is not UTF-8 text")
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = (path.stat().st_mode & 0o777) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())
    return target.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for path in (Path(parent, name) for name in folders):
            if path.is_symlink():
                raise ConfigError(
                    f"{path}: a link to a folder is not packed. Put that folder on all nodes and "
                    "use absolute paths, or put all of it there: --in-place"
                )
        for name in sorted(names):
            path = Path(parent, name)
            if path.is_file() and not name.endswith(".pyc"):  # no sockets, no pipes
                yield path


def _raise(error: OSError) -> None:
    raise error
