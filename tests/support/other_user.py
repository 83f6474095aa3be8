"""Programs of another user of the machine, which only root can start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

_BECOME = f"""
import os
import socket
import sys

os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""
_CONNECT = f"""
{_BECOME}
with socket.socket(socket.AF_UNIX) as conn:
    try:
        conn.connect(sys.argv[1])
        print("heard", conn.recv(1))
    except OSError as error:
        print(type(error).__name__)
"""
_LISTEN = f"""
{_BECOME}
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listens", flush=True)
    sys.stdin.read()
"""


def connects(path: Path) -> str:
    """What another user finds at a socket that it connects to."""
    done = subprocess.run(
        [sys.executable, "-c", _CONNECT, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def listens(path: Path) -> subprocess.Popen[str]:
    """A program of another user that listens at a path, until its stdin is closed."""
    listening = subprocess.Popen(
        [sys.executable, "-c", _LISTEN, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert listening.stdout is not None
    assert listening.stdout.readline() == "listens\n"
    return listening
