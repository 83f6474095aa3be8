"""Answers imports of Paddle Serving's packages with modules of this library."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from pipeline.config.sections import listen_as_the_predecessor
from pipeline.errors import InitError
from pipeline.observe.logs.remote import log_as_the_predecessor
from pipeline.system import script
from pipeline.system.script import check_script

_SERVER = "pipeline.dropin.server"
_CLIENT = "pipeline.dropin.client"

_IN_THE_PACKAGE = ("analyse", "dag", "error_catch", "logger", "operator")

_NEEDS_FLUID = "paddle_serving_app.reader.imdb_reader"
_FLUID = "paddle.fluid.incubate.data_generator"

ROOTS = {
    "paddle_serving_server": _SERVER,
    "paddle_serving_server_gpu": _SERVER,
    "paddle_serving_client": _CLIENT,
}
"""The predecessor's packages and the packages that replace them, module by module."""

COUNTERPARTS = {
    f"{_SERVER}.proto": "pipeline.proto",
    f"{_SERVER}.pipeline.proto": "pipeline.proto",
    f"{_SERVER}.pipeline.channel": "pipeline.channel",
    f"{_SERVER}.pipeline.pipeline_client": "pipeline.client",
    f"{_SERVER}.pipeline.local_service_handler": "pipeline.dropin.local_service_handler",
    **dict.fromkeys(
        (f"{_SERVER}.pipeline.{name}" for name in _IN_THE_PACKAGE), f"{_SERVER}.pipeline"
    ),
    f"{_CLIENT}.convert": f"{_CLIENT}.io",
    f"{_CLIENT}.proto": "pipeline.proto",
    f"{_CLIENT}.pipeline": f"{_SERVER}.pipeline",
}
"""Modules that are aliases of other modules, so that no class exists twice."""


def home_of(name: str) -> str | None:
    """Return the module that replaces `name`; None if the predecessor has no such module."""
    root, _, rest = name.partition(".")
    home = name
    if root in ROOTS:
        home = f"{ROOTS[root]}.{rest}".rstrip(".")
    while prefix := next((p for p in COUNTERPARTS if f"{home}.".startswith(f"{p}.")), None):
        home = COUNTERPARTS[prefix] + home.removeprefix(prefix)
    return None if home == name else home


class ImportHook(MetaPathFinder):
    """Finds the predecessor's modules."""

    @staticmethod
    def prepare_spawned() -> None:
        """Install the hook in a spawned worker before it imports the script's modules.

        `workers.zygote.spawn` calls it.
        """
        install()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module that replaces `fullname`.

        Raises ModuleNotFoundError for a module of the predecessor that this library does not
        replace: then no other finder imports it from an installed original.
        """
        if fullname == _NEEDS_FLUID:
            _stand_in_for_fluid()
        home = home_of(fullname)
        if home is None:
            return None
        try:
            spec = find_spec(home)
        except ModuleNotFoundError:  # not even its package
            spec = None
        if spec is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: this library has no counterpart of that module of "
                "Paddle Serving (docs/migration.md)",
                name=fullname,
            )
        is_package = spec.submodule_search_locations is not None
        return ModuleSpec(fullname, _Alias(home), origin=spec.origin, is_package=is_package)


class MultiSlotDataGenerator:
    """Stand-in for Paddle's former base class of `ImdbDataset`, which uses nothing of it."""


def _stand_in_for_fluid() -> None:
    """Add stand-ins for modules of the former `paddle.fluid`, if Paddle lacks them."""
    try:
        if _FLUID in sys.modules or find_spec(_FLUID) is not None:
            return
    except ModuleNotFoundError:  # not even its package
        pass
    name = "paddle"
    for part in _FLUID.split(".")[1:]:
        name = f"{name}.{part}"
        sys.modules.setdefault(
            name, ModuleType(name, "A stand-in: see pipeline.dropin.import_hook.")
        )
    vars(sys.modules[_FLUID])["MultiSlotDataGenerator"] = MultiSlotDataGenerator


class _Alias(Loader):
    """Puts a module of this library under a second name into `sys.modules`."""

    def __init__(self, home: str) -> None:
        self._home = home

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the module that is in sys.modules afterwards.
        sys.modules[module.__name__] = importlib.import_module(self._home)


def install() -> None:
    """Lead imports of the predecessor's packages to this library. Idempotent.

    Also restores NumPy's old names (`np.float`, `np.fromstring`). Servers listen on all addresses
    unless their configuration names one, and they also log the records of the root logger.

    Raises:
        InitError: the program has already imported one of these packages, so each class would
            exist twice.
    """
    if any(isinstance(finder, ImportHook) for finder in sys.meta_path):
        return
    strangers = sorted(name for name in sys.modules if name.partition(".")[0] in ROOTS)
    if strangers:
        where = getattr(sys.modules[strangers[0]], "__file__", None) or "unknown file"
        raise InitError(
            f"{strangers[0]} ({where}) was imported before pipeline.dropin.install(): call "
            "install() first, or start the script by `python -m pipeline run`."
        )
    restore_numpy_names()
    listen_as_the_predecessor()
    log_as_the_predecessor()
    sys.meta_path.insert(0, ImportHook())


# Names that NumPy has dropped -------------------------------------------------------------------


_FORMER = {
    "bool": bool,
    "complex": complex,
    "complex_": np.complex128,
    "float": float,
    "float_": np.float64,
    "Inf": np.inf,
    "infty": np.inf,
    "int": int,
    "NaN": np.nan,
    "object": object,
    "product": np.prod,
    "row_stack": np.vstack,
    "str": str,
    "string_": np.bytes_,
    "unicode_": np.str_,
}
_text_to_array = np.fromstring


def restore_numpy_names() -> None:
    """Add the names above that this NumPy lacks, and `np.fromstring` of bytes. Idempotent."""
    for name, value in _FORMER.items():
        vars(np).setdefault(name, value)  # hasattr would warn
    np.fromstring = _fromstring  # type: ignore[assignment]  # it is overloaded there


def write_scalars_as_before() -> None:
    """Write `0.9` where NumPy 2 writes `np.float32(0.9)`, in this context.

    Scripts send the `str()` of lists of NumPy scalars, and their clients evaluate it.
    """
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # NumPy 1 writes them so by default
        np.set_printoptions(legacy="1.25")


def _fromstring(
    string: Any, dtype: Any = float, count: int = -1, *, sep: str = "", **like: Any
) -> np.ndarray:
    """Without `sep`, return a writable copy of the bytes as an array."""
    if sep:
        return _text_to_array(string, dtype, count, sep=sep, **like)
    data = string.encode("latin-1") if isinstance(string, str) else string
    return np.frombuffer(data, dtype, count).copy()


# Scripts ----------------------------------------------------------------------------------------


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
