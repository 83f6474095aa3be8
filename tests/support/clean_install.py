"""Packages of this tree, and virtual environments to install them into; for `make packages`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from paths import ROOT

_NOT_ITS_OWN = ("PIPELINE_GATEWAY", "PYTHONPATH")


def package(kind: str, out: Path, **env: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, check=True)
    (file,) = out.iterdir()
    return file


class Stranger:
    """A virtual environment of its own, on a machine without Go.

    Args:
        folder: where it is, and where its programs run.
        python: the interpreter that it is made of.
    """

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        self.python = folder / "venv" / "bin" / "python"
        places = os.environ["PATH"].split(os.pathsep)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(_NOT_ITS_OWN)},
            "PATH": os.pathsep.join(at for at in places if not Path(at, "go").exists()),
        }

    def run(self, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.folder, env={**self.env, **env}, capture_output=True, text=True,
        )  # fmt: skip

    def pip_install(self, *what: str | Path, **env: str) -> None:
        done = self.run("-m", "pip", "install", "--quiet", *what, **env)
        assert done.returncode == 0, done.stderr
