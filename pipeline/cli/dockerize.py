"""`pipeline dockerize`: writes what makes an image of a service's folder."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.cli.parsing import command_parser, fails
from pipeline.config.layers import NO_LAYERS, read_layers
from pipeline.config.schema import ServiceConfig
from pipeline.errors import ConfigError

TEMPLATES = Path(__file__).with_name("templates")
_RPC_PORT, _HTTP_PORT = 18070, 18071  # of the template
_SCRIPT, _CONFIG, _REQUIREMENTS = "web_server.py", "config.yml", "requirements.txt"


def dockerize(arguments: Sequence[str]) -> int:
    """Run `pipeline dockerize`; the exit status."""
    given = dockerize_parser().parse_args(list(arguments))
    folder = Path(given.folder)
    try:
        files = _files(folder)
        there = [name for name in files if (folder / name).exists()]
        if there and not given.force:
            raise ConfigError(f"{folder / there[0]} is there already: --force replaces it")
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except ConfigError as error:
        return fails("dockerize", str(error))
    except OSError as error:
        return fails("dockerize", f"{error.filename}: {error.strerror}")
    sys.stdout.write(f"written: {', '.join(str(folder / name) for name in files)}\n")
    if not (folder / _REQUIREMENTS).exists():
        (folder / _REQUIREMENTS).write_text("pipeline-serving\n", encoding="utf-8")
        sys.stdout.write(f"and {folder / _REQUIREMENTS}: add what the service imports\n")
    sys.stdout.write(f"build it: docker build --tag my-service {folder}\n")
    return 0


def dockerize_parser() -> argparse.ArgumentParser:
    """Return the parser of `pipeline dockerize`."""
    parser = command_parser(
        "dockerize",
        "Write a Dockerfile and a .dockerignore into the folder of a service, which has a "
        f"{_SCRIPT} and a {_CONFIG}; its ports are the image's. What they do: docs/deployment.md.",
        "pipeline dockerize hello",
    )
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="default: this one")
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    return parser


def docker_files(rpc_port: int, http_port: int) -> dict[str, str]:
    """Return the files of an image by their names."""
    ports = {str(_RPC_PORT): str(rpc_port), str(_HTTP_PORT): str(http_port)}
    text = (TEMPLATES / "Dockerfile").read_text("utf-8")
    dockerfile = re.sub("|".join(ports), lambda match: ports[match[0]], text)
    return {
        "Dockerfile": dockerfile,
        ".dockerignore": (TEMPLATES / "dockerignore").read_text("utf-8"),
    }


def _files(folder: Path) -> dict[str, str]:
    """Return the files for the service in a folder. Raises ConfigError: there is none."""
    if not (folder / _SCRIPT).is_file():
        raise ConfigError(f"{folder / _SCRIPT}: no such file; the image runs it")
    if not (folder / _CONFIG).is_file():
        return docker_files(_RPC_PORT, _HTTP_PORT)
    source, _ = read_layers(ServiceConfig, folder / _CONFIG, None, NO_LAYERS)
    given = source.data if isinstance(source.data, dict) else {}
    http_port = given.get("http_port")
    if not isinstance(http_port, int) or http_port <= 0:
        raise ConfigError(
            f"{source.place(('http_port',))}: the image's healthcheck needs a port that is fixed"
        )
    rpc_port = given.get("rpc_port")
    return docker_files(rpc_port if isinstance(rpc_port, int) else http_port + 1, http_port)
