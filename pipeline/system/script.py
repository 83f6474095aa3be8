"""Runs a script or a module as `__main__`, as `python script.py` and `python -m module` would."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from pipeline.system.namesake import namesake_in


class ScriptNotFoundError(Exception):
    """The script or module does not exist; the text says why."""


def check_script(path: str) -> None:
    """Raise ScriptNotFoundError if there is no file that can be run."""
    if not Path(path).is_file():
        reason = "is a folder, not a script" if Path(path).is_dir() else "no such file"
        raise ScriptNotFoundError(f"can't open {path!r}: {reason} (current folder: {Path.cwd()})")


def run_script(path: str, arguments: Sequence[str] = ()) -> None:
    """Run a file as `__main__`, with `sys.argv` and `sys.path` as plain Python sets them.

    Exceptions pass through; an uncaught one is shown with the script's frames alone.
    """
    check_script(path)
    _prepare(os.path.dirname(os.path.realpath(path)))
    sys.argv[:] = [path, *arguments]
    _run_as_main(os.path.abspath(path), None)


def run_module(name: str, arguments: Sequence[str] = ()) -> None:
    """Run an importable module, or the `__main__` of a package, as `python -m` does."""
    _prepare(os.getcwd())
    spec = _spec_of(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec_of(f"{name}.__main__")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ScriptNotFoundError(f"no module named {name!r} that can be run (in {sys.path[:1]})")
    sys.argv[:] = [spec.origin, *arguments]
    _run_as_main(spec.origin, spec)


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        raise ScriptNotFoundError(str(error)) from error


def _prepare(folder: str) -> None:
    """Put the script's folder in place of the current folder, which `-m pipeline` put there."""
    namesake = namesake_in(folder)
    if namesake is not None:
        sys.stderr.write(
            f"warning: `import pipeline` in the script is the library, not {namesake}: "
            "rename that one if the script needs it\n"
        )
    if not sys.flags.safe_path:
        sys.path[0] = folder


MODULES: list[ModuleType] = []
"""Scripts that run as modules; other interpreters get their classes like those of `__main__`."""


class SourceLoader(SourceFileLoader):
    """Compiles the file each time, as Python does with scripts, without a `.pyc`.

    Bytecode would change a model's folder, and misses a second edit within a second.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the current file."""
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _run_as_main(file: str, spec: ModuleSpec | None) -> None:
    """Run a file as a module in `sys.modules`, where process workers find its classes."""
    loader = SourceLoader("__main__", file)
    module = ModuleType("__main__")
    module.__file__ = file
    module.__loader__ = loader
    module.__spec__ = spec
    module.__package__ = spec.parent if spec is not None else None
    vars(module)["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    _show_tracebacks_from(file)
    loader.exec_module(module)


def _show_tracebacks_from(file: str) -> None:
    """Show uncaught exceptions without the frames before the script."""
    show = sys.excepthook

    def show_of_script(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        frames = traceback
        while frames is not None and frames.tb_frame.f_code.co_filename != file:
            frames = frames.tb_next
        if frames is not None or isinstance(
            error, SyntaxError
        ):  # a SyntaxError names its line itself
            error = error.with_traceback(frames)
            traceback = frames
        show(kind, error, traceback)

    sys.excepthook = show_of_script
