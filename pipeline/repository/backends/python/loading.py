"""Loads the class of a Python model, and its own modules, whose names are private to it."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable
from importlib.abc import PathEntryFinder
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourcelessFileLoader,
)
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import msgspec

from pipeline.errors import InitError
from pipeline.repository.backends.python import utils_module
from pipeline.system.script import SourceLoader

MODEL_CLASS = "TritonPythonModel"


class ModelCode(msgspec.Struct, frozen=True):
    """The file of a model's class, and the folder of its version.

    Args:
        file: of the class, in the folder of the version or of its backend.
        version_folder: of the model, with its own files.
    """

    name: str
    version: int
    file: str
    version_folder: str

    @property
    def import_folders(self) -> list[str]:
        """Return the folders with modules of the class."""
        folder = Path(self.file).parent
        is_own = Path(self.version_folder) in Path(self.file).parents
        return [str(folder), str(folder.parent)] if is_own else [str(folder)]


LoadClass = Callable[[ModelCode], Any]
"""Returns the class of a model. InitError: its file has none."""

_folders: set[Path] = set()  # of models
_on_path: set[str] = set()  # added to sys.path by models that share a process
_alone: set[str] = set()  # the folders of a model with its own process
_spaces: dict[str, _Space] = {}  # by package name
_numbers = itertools.count()
_lock = (
    threading.RLock()
)  # the garbage collector ends spaces in any thread, also in one that holds the lock


def load_alone(code: ModelCode) -> Any:
    """Load a model with its own process: its folders are the first of `sys.path`."""
    folders = code.import_folders
    with _lock:
        _alone.update(folders)
        _open(folders)
        utils_module.FOLDERS[utils_module.ALONE] = code.version_folder
        sys.path[:] = [*folders, *(path for path in sys.path if path not in folders)]
    return _class_of(code, f"{code.name}_{code.version}_model", folders)


class LoadBesideOthers:
    """A LoadClass of a model that shares its process: its modules belong to a package.

    An import of a module in the model's folder gets that module, at any time, whatever other models
    have imported by this name. Instances share all modules but the model's own. The modules live as
    long as this object.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)

    def __call__(self, code: ModelCode) -> Any:
        folders = code.import_folders
        package = f"{code.name}_{code.version}_model_{self._number}"
        with _lock:
            is_new = package not in _spaces
            if is_new:
                _spaces[package] = _Space(package, folders)
                weakref.finalize(self, _end, package).atexit = False
            _open(folders)
            if is_new:
                utils_module.FOLDERS[package] = code.version_folder
                # importlib finds them there, without the package.
                more = [folder for folder in folders if folder not in sys.path]
                _on_path.update(more)
                sys.path += more
        return _class_of(code, package, folders)


def _end(package: str) -> None:
    """Forget the modules of a load, and its folders if no other load uses them."""
    with _lock:
        space = _spaces.pop(package)
        utils_module.FOLDERS.pop(package, None)
        for module in [name for name in list(sys.modules) if name.partition(".")[0] == package]:
            sys.modules.pop(module, None)
        others = _alone.union(*(other.folders for other in list(_spaces.values())))
        unused = [folder for folder in space.folders if folder not in others]
        for folder in unused:
            if folder in _on_path:
                _on_path.discard(folder)
                with contextlib.suppress(ValueError):  # it was removed elsewhere
                    sys.path.remove(folder)
        if space.folders[-1] in unused:
            _forget_finders()
            _folders.discard(Path(space.folders[-1]))


def _forget_finders() -> None:
    for path in [path for path in list(sys.path_importer_cache) if _is_of_model(Path(path))]:
        sys.path_importer_cache.pop(path, None)


def _open(folders: list[str]) -> None:
    """Stop using bytecode from the folders of a model."""
    utils_module.install()
    folder = Path(folders[-1])
    if folder not in _folders:
        if _finder not in sys.path_hooks:
            sys.path_hooks.insert(0, _finder)
        _folders.add(folder)
        _forget_finders()
    importlib.invalidate_caches()  # its files may be newer than the cache


def _class_of(code: ModelCode, full_name: str, folders: list[str] | None = None) -> Any:
    file, name = Path(code.file), code.name
    if file.suffix not in SOURCE_SUFFIXES:
        raise InitError(f"model '{name}': {file} is not a Python file")
    spec = ModuleSpec(full_name, _Loader(full_name, str(file)), origin=str(file))
    spec.has_location = True
    spec.submodule_search_locations = folders
    module = module_from_spec(spec)
    sys.modules[full_name] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)
    model_class = getattr(module, MODEL_CLASS, None)
    if model_class is None:
        raise InitError(f"model '{name}': {file.name} has no class {MODEL_CLASS}")
    return model_class


class _Loader(SourceLoader):
    """A loader that sets the namespace of imports in models' modules."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the code in the module."""
        space = _spaces.get(module.__name__.partition(".")[0])
        if space is not None:
            vars(module)["__builtins__"] = space.builtins
        super().exec_module(module)


def _finder(path: str) -> PathEntryFinder:
    """Find modules in a folder of a model; a hook of `sys.path_hooks`."""
    if not _is_of_model(Path(path)):
        raise ImportError("no folder of a model")
    return FileFinder(
        path,
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (_Loader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )


def _is_of_model(path: Path) -> bool:
    return any(path == folder or folder in path.parents for folder in tuple(_folders))


class _Space:
    """The names of the modules of one model, as members of a package."""

    def __init__(self, package: str, folders: list[str]) -> None:
        self.folders = folders
        self._package = package
        self._is_own: dict[str, bool] = {utils_module.NAME: False}
        self.builtins = {**vars(builtins), "__import__": self._import}

    def _import(
        self,
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        """Import as the statement does; the model's own modules come from its package."""
        first = name.partition(".")[0]
        if level or not self._has(first):
            return builtins.__import__(name, globals, locals, fromlist, level)
        full = f"{self._package}.{name}"
        if fromlist:
            return builtins.__import__(full, globals, locals, fromlist, 0)
        importlib.import_module(full)
        return sys.modules[f"{self._package}.{first}"]

    def _has(self, name: str) -> bool:
        if name not in self._is_own:
            spec = PathFinder.find_spec(f"{self._package}.{name}", self.folders)
            # As in Python, a folder without __init__.py has the lowest priority.
            is_package = spec is not None and spec.loader is not None
            self._is_own[name] = is_package or (spec is not None and not _is_elsewhere(name))
        return self._is_own[name]


def _is_elsewhere(name: str) -> bool:
    """Return whether a module exists outside the folders of models."""
    paths = [path for path in list(sys.path) if not _is_of_model(Path(path))]
    return name in sys.builtin_module_names or PathFinder.find_spec(name, paths) is not None
