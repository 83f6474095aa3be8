"""Peers are installed into folders of their own, in the cache of the user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PYTHON = "{}.{}".format(*sys.version_info)


def folder_of(name: str, sign: str, *arguments: str) -> Path:
    """Return a peer's folder; without `sign` in it, pip is given the arguments to fill it first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    site = cache / "pipeline-benchmarks" / f"{name}-{PYTHON}"
    if not (site / sign).exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", f"--target={site}"]
        done = subprocess.run([*pip, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"skipped: {name} cannot be installed: {done.stderr.strip()}")
    return site


def use_peers() -> None:
    """Have FastAPI and LitServe imported, with what they depend on."""
    packages = ("fastapi==0.165.0", "litserve==0.2.19", "uvicorn[standard]==0.54.0")
    site = folder_of("peers", "litserve", *packages, "python-multipart==0.0.34")
    sys.path.insert(0, str(site))
