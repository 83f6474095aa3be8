"""User modules with this library's name: only one of the two can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

_OURS = Path(__file__).resolve().parents[1]


def namesake_in(folder: str | Path) -> Path | None:
    """Return a module or package `pipeline` in a folder, unless it is this library."""
    for path in (Path(folder, "pipeline.py"), Path(folder, "pipeline", "__init__.py")):
        if path.exists() and path.resolve().parent != _OURS:
            return path if path.name == "pipeline.py" else path.parent
    return None


def refuse_name(name: str) -> None:
    """Raise ImportError if `name`, which this library lacks, may be meant for another `pipeline`.

    For a name that exists nowhere Python's own error is raised.
    """
    is_ours = (_OURS / name).is_dir() or (_OURS / f"{name}.py").exists()
    if is_ours or name.startswith("__"):  # tools look for these in any module
        return
    namesake = namesake_in(sys.path[0]) if sys.path and sys.path[0] else None
    namesake = namesake or namesake_in(".")
    if namesake is not None:
        raise ImportError(
            f"cannot import name {name!r} from 'pipeline', which is this library here ({_OURS}), "
            f"and not {namesake.resolve()}: rename that one",
            name="pipeline",
        )
