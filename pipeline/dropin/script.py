"""Executes a script as `python script.py` would, with the predecessor's names leading here."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.dropin.import_hook import install, write_scalars_as_before
from pipeline.system import script
from pipeline.system.script import ScriptNotFoundError, check_script

__all__ = ["ScriptNotFoundError", "run_module", "run_script"]


def run_script(path: str, arguments: Sequence[str] = ()) -> None:
    """Run a file, as `system.script.run_script` does."""
    check_script(path)
    _lead_imports_here()
    script.run_script(path, arguments)


def run_module(name: str, arguments: Sequence[str] = ()) -> None:
    """Run a module, as `system.script.run_module` does."""
    _lead_imports_here()
    script.run_module(name, arguments)


def _lead_imports_here() -> None:
    install()
    write_scalars_as_before()
