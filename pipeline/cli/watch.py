"""Watch: tells which files of a folder have changed, by their times and sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

SUFFIXES = (".py", ".yml", ".yaml", ".json", ".pbtxt", ".prototxt", ".toml")
_LEFT_OUT = {"__pycache__", "node_modules", "site-packages", "PipelineServingLogs"}
MAX_FILES = 20_000

Stamps = Mapping[str, tuple[int, int]]
"""Time of the last change, ns, and size of each file."""


class Watch:
    """The files of a folder that a server may be made of; hidden folders and environments not."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        self._known = self._last = self._stamps()

    def changed(self) -> list[str]:
        """Return the files that have changed since they were told last, relative to the folder.

        They are told when nothing has changed from one call to the next: an editor or a checkout
        may not be through with the others.
        """
        now = self._stamps()
        is_calm, self._last = now == self._last, now
        if not is_calm or now == self._known:
            return []
        known, self._known = self._known, now
        names = {name for name in {*known, *now} if known.get(name) != now.get(name)}
        return sorted(os.path.relpath(name, self._folder) for name in names)

    def _stamps(self) -> Stamps:
        stamps = {}
        for name in self._files():
            try:
                found = os.stat(name)
            except OSError:  # it has gone meanwhile
                continue
            stamps[name] = (found.st_mtime_ns, found.st_size)
            if len(stamps) >= MAX_FILES:
                break
        return stamps

    def _files(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if _is_watched(folder, name))
            for name in files:  # hidden ones are of editors: locks, drafts
                if name.endswith(SUFFIXES) and not name.startswith("."):
                    yield os.path.join(folder, name)


def _is_watched(folder: str, name: str) -> bool:
    is_left_out = name.startswith(".") or name in _LEFT_OUT
    return not is_left_out and not Path(folder, name, "pyvenv.cfg").exists()
