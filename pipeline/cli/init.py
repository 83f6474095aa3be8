"""`pipeline init NAME`: makes a folder with a service, its test, its image and its README."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.cli.dockerize import docker_files, write_files
from pipeline.cli.parsing import command_parser, fails
from pipeline.config.json_schema import config_schema, encoded
from pipeline.errors import ConfigError
from pipeline.frontends.api.pipelines import RESERVED

TEMPLATES = Path(__file__).with_name("templates") / "service"
_SUFFIX = ".in"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_TAKEN = {*RESERVED, "v2", "health", "metrics", "docs", "static"}
_PLACEHOLDER = "@NAME@"
_HIDDEN = {"gitignore": ".gitignore"}
"""Names of templates; hidden files would take effect on tools in this repository."""


def init(arguments: Sequence[str]) -> int:
    """Run `pipeline init`; return the exit status."""
    options = init_parser().parse_args(list(arguments))
    folder = Path(options.folder)
    name = options.name or folder.resolve().name
    try:
        write_new(folder, service_files(name))
    except ConfigError as error:
        return fails("init", str(error))
    except OSError as error:
        return fails("init", f"{error.filename}: {error.strerror}")
    enter = "" if folder.resolve() == Path.cwd() else f"cd {options.folder} && "
    sys.stdout.write(
        f"wrote {folder / 'web_server.py'} and its files.\n"
        f"  test it:  {enter}pytest\n"
        f"  serve it: {enter}pipeline serve --reload\n"
        f"  ask it:   pipeline client http://127.0.0.1:18071/{name} name=Anna\n"
    )
    return 0


def init_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "init",
        "Make a folder with a service that runs: web_server.py, config.yml, a test, a Dockerfile, "
        "a README. It asks no questions and changes no existing file.",
        "pipeline init hello && cd hello && pipeline serve",
    )
    parser.add_argument("folder", metavar="NAME", help="folder to make, and the service's name")
    parser.add_argument("--name", help="the service's name, if it differs from the folder's")
    return parser


def service_files(name: str) -> dict[str, bytes]:
    """Return the files of a new service by name. Raises ConfigError: the name is invalid."""
    if not _NAME.fullmatch(name) or name in _TAKEN:
        why = (
            "paths of the server's own pages begin so"
            if name in _TAKEN
            else "letters, digits, _ and -"
        )
        raise ConfigError(f"{name!r} cannot be a service's name ({why}): give one by --name")
    files = {
        _HIDDEN.get(name_of := path.name.removesuffix(_SUFFIX), name_of): path.read_text("utf-8")
        for path in sorted(TEMPLATES.glob(f"*{_SUFFIX}"))
    }
    files[".config.schema.json"] = encoded(config_schema()).decode()
    filled = {file: text.replace(_PLACEHOLDER, name).encode() for file, text in files.items()}
    return filled | docker_files(18070, 18071)


def write_new(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder; make the folder if needed.

    Raises:
        ConfigError: a file exists already; none is written.
        OSError: a file cannot be written.
    """
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise ConfigError(f"{folder / there[0]} is there already; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder, files)
