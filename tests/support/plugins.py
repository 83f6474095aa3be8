"""The distribution tests/plugin_package, installed as far as importlib.metadata can tell."""

from __future__ import annotations

import tomllib
from pathlib import Path

from paths import TESTS

PACKAGE = TESTS / "plugin_package"


def install(folder: Path) -> list[str]:
    """Write the .dist-info of the package to a folder; return what has to be in sys.path."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (info / "entry_points.txt").write_text(
        "\n".join(
            "\n".join([f"[{group}]", *(f"{name} = {place}" for name, place in points.items())])
            for group, points in project["entry-points"].items()
        )
    )
    return [str(PACKAGE), str(folder)]
