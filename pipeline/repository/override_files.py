"""OverrideFiles: models whose files came with the request to load them, in temporary folders."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pipeline.errors import ConfigError
from pipeline.frontends.v2.control import Overrides
from pipeline.system.temp_dir import TempDir


class OverrideFiles:
    """Folders of models that are in no repository; `close` removes them."""

    def __init__(self) -> None:
        self._root = TempDir("models that were sent")
        self._number = 0

    def write(self, name: str, overrides: Overrides) -> Path:
        """Write the files of a model, and return their folder, which has the model's name.

        Raises:
            ConfigError: there is no configuration beside the files.
            OSError: two paths cannot both be there.
        """
        if overrides.config is None:
            raise ConfigError(f"failed to load '{name}', override files need a config beside them")
        self._number += 1
        folder = self._root.make() / str(self._number) / name
        for path, content in overrides.files.items():
            place = PurePosixPath(path.lstrip("/"))  # `check_sent` has looked at it
            file = folder.joinpath(*place.parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return folder

    def close(self) -> None:
        """Remove all of them."""
        self._root.remove()
