"""Environments: Python interpreters with packages for single models."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tarfile
import threading
import weakref
from pathlib import Path

from pipeline.errors import ConfigError, InitError
from pipeline.repository.backends.base import ModelSource
from pipeline.system.interpreter import Interpreter
from pipeline.system.temp_dir import TempDir

_LOGGER = logging.getLogger(__name__)

EXECUTION_ENV_PATH = "EXECUTION_ENV_PATH"
"""The parameter of a model that names its environment: a folder, or an archive of one."""

_FOLDER_OF_MODEL = "$$TRITON_MODEL_DIRECTORY"
_PROGRAMS = ("bin/python", "bin/python3")
_ACTIVATION = "bin/activate"
_OLDEST = (3, 11)
_LIMIT_S = 60.0
# Third-party packages that a worker imports.
_NEEDED = (
    *("dill", "google.api", "google.protobuf", "ml_dtypes", "msgspec", "numpy", "orjson", "yaml"),
)
_LOOK = """
import importlib, json, sys
missing = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        missing.append(name)
print(json.dumps([list(sys.version_info[:2]), missing]))
"""

_Stamp = tuple[Path, int]  # its path and modification time


class Environments:
    """The environments of all models; archives are unpacked once.

    They are unpacked in a temporary folder, which is removed when the program ends.
    """

    def __init__(self) -> None:
        self._root = TempDir("environments of Python models")
        self._folders: dict[_Stamp, Path] = {}
        self._interpreters: dict[_Stamp, Interpreter] = {}
        self._latest: dict[Path, Interpreter] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, self._root.remove)

    def prepare(self, source: ModelSource) -> Interpreter | None:
        """Return the tested interpreter of a model's environment; None: it names none.

        Raises:
            ConfigError: the name is invalid.
            InitError: the environment does not exist, or cannot run models.
        """
        place = _place(source)
        if place is None:
            return None
        try:
            stamp = place, place.stat().st_mtime_ns
        except OSError as error:
            raise InitError(
                f"model '{source.name}': {EXECUTION_ENV_PATH}: {place} cannot be read: "
                f"{error.strerror}"
            ) from error
        with self._lock:
            if stamp not in self._interpreters:
                folder = place if place.is_dir() else self._unpacked(stamp)
                self._interpreters[stamp] = _tried(source.name, folder)
            self._latest[place] = self._interpreters[stamp]
            return self._latest[place]

    def of(self, source: ModelSource) -> Interpreter | None:
        """Return the last result of `prepare` for the environment of a model."""
        place = _place(source)
        return None if place is None else self._latest.get(place)

    def _unpacked(self, stamp: _Stamp) -> Path:
        """Return the folder of an unpacked archive. Raises InitError."""
        if stamp not in self._folders:
            archive = stamp[0]
            folder = self._root.make() / str(len(self._folders))
            if not hasattr(tarfile, "data_filter"):
                raise InitError(f"{EXECUTION_ENV_PATH}: {archive}: archives need Python 3.11.4")
            _LOGGER.info("Extracting Python execution env %s", archive)
            try:
                with tarfile.open(archive) as packed:
                    packed.extractall(folder, filter=_checked)
            except (OSError, tarfile.TarError) as error:
                raise InitError(
                    f"{EXECUTION_ENV_PATH}: {archive} cannot be unpacked: {error}"
                ) from error
            self._folders[stamp] = folder
        return self._folders[stamp]


def _checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Return an archive member for unpacking, if it stays in the folder and is not a device.

    Links may lead outside, for example to the interpreter; nothing is written through one.
    """
    check = tarfile.tar_filter if member.issym() else tarfile.data_filter
    return check(member, folder)


def _place(source: ModelSource) -> Path | None:
    """Return the configured path. Raises ConfigError: it is relative."""
    parameters = source.config.parameters
    text = parameters[EXECUTION_ENV_PATH].string_value if EXECUTION_ENV_PATH in parameters else ""
    if not text:
        return None
    if text.startswith(_FOLDER_OF_MODEL):
        return source.folder / text.removeprefix(_FOLDER_OF_MODEL).lstrip("/")
    place = Path(text)
    if not place.is_absolute():
        raise ConfigError(
            f"model '{source.name}': parameters: {EXECUTION_ENV_PATH}: {text} is to be an absolute "
            f"path, or begin with {_FOLDER_OF_MODEL}"
        )
    return place


def _tried(name: str, folder: Path) -> Interpreter:
    """Return the interpreter of an environment. Raises InitError: it cannot run models."""
    file = next((folder / program for program in _PROGRAMS if (folder / program).exists()), None)
    if file is None:
        raise InitError(f"{_about(name, folder)} has no {_PROGRAMS[0]}")
    activation = folder / _ACTIVATION
    interpreter = Interpreter(str(file), str(activation) if activation.exists() else "")
    version, missing = _look(name, folder, interpreter)
    if version == sys.version_info[:2]:
        return interpreter
    theirs, ours = (".".join(map(str, item)) for item in (version, sys.version_info[:2]))
    if version < _OLDEST:
        raise InitError(f"{_about(name, folder)} has Python {theirs}: at least 3.11 is needed")
    if missing:
        raise InitError(
            f"{_about(name, folder)} has Python {theirs}, which the packages of this server, of "
            f"Python {ours}, do not fit, and it lacks {', '.join(missing)}: install this library "
            f"there, or make it with Python {ours}"
        )
    return Interpreter(interpreter.file, interpreter.activation, is_like_ours=False)


def _look(name: str, folder: Path, interpreter: Interpreter) -> tuple[tuple[int, int], list[str]]:
    """Return the version of an interpreter, and its missing packages. Raises InitError."""
    try:
        done = subprocess.run(
            interpreter.bare_command("-c", _LOOK, *_NEEDED),
            env=dict(interpreter.variables()),
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        (major, minor), missing = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        reason = str(error)
        if not isinstance(error, OSError | subprocess.TimeoutExpired):
            reason = (
                done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
            )
        raise InitError(f"{_about(name, folder)} cannot be run: {reason}") from error
    return (major, minor), missing


def _about(name: str, folder: Path) -> str:
    return f"model '{name}': {EXECUTION_ENV_PATH}: the environment {folder}"
