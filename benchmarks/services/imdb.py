"""I: the example ensemble, run from a copy whose config.yml names our ports."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from benchmarks.services.ports import GRPC_PORT, HTTP_PORT

EXAMPLE = Path(__file__).parents[2] / "examples" / "imdb_ensemble"


def set_ports(path: Path) -> None:
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config |= {"http_port": HTTP_PORT, "rpc_port": GRPC_PORT, "edge": "embedded"}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(EXAMPLE, Path(folder, "imdb_ensemble")))
        set_ports(copy / "config.yml")
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        sys.argv = ["web_server.py"]
        runpy.run_path("web_server.py", run_name="__main__")
