"""Zygotes that are fresh interpreters: the shipment for them, and how they unpack it."""

from __future__ import annotations

import functools
import importlib
import io
import mmap
import os
import reprlib
import signal
import socket
import subprocess
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from pipeline.errors import InitError
from pipeline.system.interpreter import Interpreter
from pipeline.system.pickling import make_annotations_picklable, reduced_code
from pipeline.workers.zygote.main import EntryPoint, serve, signals_blocked

_ROOT = str(Path(__file__).resolve().parents[3])
# Perhaps only the script's changes of sys.path make this package importable, hence no `-m`. Imports
# must find the same modules as in the parent, and this package at its own place, because there may
# be another package of its name next to the script.
_FIRST_LINES = """
import sys
sys.path[:] = [*filter(None, sys.path), sys.argv[1]]
import pipeline
sys.path[:] = sys.argv[2].split("\\n")
from pipeline.workers.zygote.spawn import serve_spawned
serve_spawned(*map(int, sys.argv[3:]))
"""
_FIRST_LINES_ELSEWHERE = """
from pipeline.workers.zygote.spawn import serve_spawned
serve_spawned(*map(int, sys.argv[1:]))
"""
_SEARCH_DEPTH = 8

ScriptClass = tuple[str, str, type]
"""A class of a script: the names of its module and of its variable, and the class."""


class ParentState(msgspec.Struct, frozen=True):
    """State of the parent that a fresh interpreter needs."""

    argv: list[str]
    preparations: bytes
    entry_points: bytes
    preload: tuple[str, ...] = ()


# In the parent ----------------------------------------------------------------------------


def pack(
    entry_points: Sequence[EntryPoint], preload: Sequence[str] = (), is_prepared: bool = True
) -> int:
    """Return the file descriptor of a Shipment, in memory without a name.

    If `is_prepared`, the interpreter gets the settings of this one.

    Raises:
        InitError: an entry point refers to something that cannot be shipped; the text names it.
    """
    classes = classes_of(sys.modules["__main__"])
    try:
        data = _dump((list(entry_points), classes))
    except Exception as error:
        culprits = (
            _find_culprit(list(entry_points), "workers", {}, d) for d in range(_SEARCH_DEPTH)
        )
        culprit = next(filter(None, culprits), None)  # the least nested one
        if culprit is not None:
            raise InitError(_cannot_ship(*culprit)) from error
        # Then the cause is a class of the script that the entry_points do not need.
        classes = [entry for entry in classes if _why_not(entry[2]) is None]
        data = _dump((list(entry_points), classes))
    preparations = _dump(_preparations() if is_prepared else [])
    shipment = ParentState(list(sys.argv), preparations, data, tuple(preload))
    fd = os.memfd_create("pipeline-zygote")
    with open(fd, "wb", closefd=False) as file:
        file.write(msgspec.msgpack.encode(shipment))
    return fd


def spawn(
    control: socket.socket,
    parent_life: int,
    shipment: int,
    pass_fds: Sequence[int],
    interpreter: Interpreter | None = None,
) -> tuple[int, Callable[[], object]]:
    """Start a fresh interpreter that is a zygote and inherits `pass_fds` under their own numbers.

    It is the one that runs here, unless another `interpreter` is given.

    Returns:
        Its pid, and a function that reaps it after its end.

    Raises:
        OSError: no more processes or memory.
        InitError: there is no Python interpreter to run, as in a program that embeds one.
    """
    ours = (control.fileno(), parent_life, shipment)
    variables = None
    if interpreter is None:
        command = _own_command(*map(str, ours))
    else:
        command = interpreter.command(_FIRST_LINES_ELSEWHERE, *map(str, ours))
        variables = interpreter.variables()
    mask = signals_blocked()  # until the zygote has handlers: the mask is inherited
    try:
        process = subprocess.Popen(command, pass_fds=(*ours, *pass_fds), env=variables)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return process.pid, process.poll


def _own_command(*arguments: str) -> list[str]:
    """Return the command that runs this interpreter. Raises InitError: there is none."""
    if not sys.executable:
        raise InitError("start_method spawn needs sys.executable: set it, or use fork.")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    path = "\n".join([*map(str, sys.path), _ROOT])
    return [sys.executable, *flags, "-c", _FIRST_LINES, _ROOT, path, *arguments]


def _dump(value: object) -> bytes:
    import dill

    data = io.BytesIO()
    pickler = dill.Pickler(data, recurse=True)
    forms = {types.ModuleType: _save_module, types.CodeType: _save_code}
    pickler.dispatch = {**pickler.dispatch, **forms}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dill warns about failed attempts
        pickler.dump(value)
    return data.getvalue()


def _save_module(pickler: Any, module: types.ModuleType) -> None:
    """Save a module by name: dill would save all of its content, if it is not in site-packages."""
    name = module.__name__
    if name != "__main__" and sys.modules.get(name) is module:
        pickler.save_reduce(importlib.import_module, (name,), obj=module)
    else:
        type(pickler).dispatch[types.ModuleType](pickler, module)


def _save_code(pickler: Any, code: types.CodeType) -> None:
    pickler.save_reduce(*reduced_code(code), obj=code)


def classes_of(*scripts: types.ModuleType) -> list[ScriptClass]:
    """Return the classes that scripts define.

    They are shipped by value, so that a payload of such a class can be pickled by name.
    """
    make_annotations_picklable()
    return [
        (script.__name__, name, value)
        for script in scripts
        for name, value in vars(script).items()
        if isinstance(value, type) and value.__module__ == script.__name__
    ]


def place_classes(classes: Sequence[ScriptClass]) -> None:
    """Put classes of scripts where they are found by name in this process."""
    for script, name, kind in classes:
        module = sys.modules.setdefault(script, types.ModuleType(script))
        setattr(module, name, kind)


def _preparations() -> list[Callable[[], None]]:
    """Return functions that give a fresh interpreter the settings of this one.

    These install import hooks, such as that of `dropin`, and set numpy's print options.
    """
    hooks = (getattr(finder, "prepare_spawned", None) for finder in sys.meta_path)
    preparations = [hook for hook in hooks if hook is not None]
    if (np := sys.modules.get("numpy")) is not None:
        preparations.append(functools.partial(np.set_printoptions, **np.get_printoptions()))
    return preparations


def _why_not(value: object) -> str | None:
    """Return why dill cannot ship a value; None if it can."""
    try:
        _dump(value)
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def _find_culprit(
    value: object, path: str, reasons: dict[int, str | None], depth: int, holder: object = None
) -> tuple[str, object, str, object] | None:
    """Return the innermost part of a value that cannot be shipped.

    Returns its path, itself, the reason, and the object that has it as an attribute. `reasons` has
    the results so far, by id. A value with parts that cannot be shipped is not the cause, and
    neither is one that only leads back to such a value, as an Op's reader does to the Op.
    """
    reason = reasons[id(value)] = _why_not(value)
    if reason is None:
        return None
    is_to_blame = True
    for name, part in _parts(value):
        if not depth:
            return None
        if id(part) not in reasons:
            whose = value if name.startswith(".") else holder
            culprit = _find_culprit(part, path + name, reasons, depth - 1, whose)
            if culprit is not None:
                return culprit
        is_to_blame = is_to_blame and reasons[id(part)] is None
    return (path, value, reason, holder) if is_to_blame else None


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Return the parts of a value, as far as they are known, with the path to each."""
    if isinstance(value, functools.partial):
        yield "", value.func
        yield "", value.args
        yield "", value.keywords
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
    elif isinstance(value, types.FunctionType):
        import dill

        names, cells = value.__code__.co_freevars, value.__closure__ or ()
        for name, part in dill.detect.globalvars(value, recurse=False).items():
            yield f": global {name}", part
        for name, cell in zip(names, cells, strict=True):
            yield f": variable {name}", cell.cell_contents
    elif isinstance(value, weakref.ref):
        yield "", value()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif hasattr(value, "__dict__"):
        for name, part in vars(value).items():
            if not isinstance(part, types.GetSetDescriptorType):  # they belong to their class
                yield f".{name}", part
        if not isinstance(value, type):
            yield "", type(value)


def _cannot_ship(path: str, value: object, reason: str, holder: object) -> str:
    whose = f" of {reprlib.repr(holder)}" if holder is not None else ""
    return (
        f"{path} ({type(value).__name__}){whose} cannot be shipped to a fresh interpreter: "
        f"{reason}. Use start_method: fork, or create it in init_op, or move what it belongs to "
        f"into a module that the workers can import."
    )


# In the zygote ----------------------------------------------------------------------------


def serve_spawned(control: int, parent_life: int, shipment: int) -> NoReturn:
    """Be a zygote; the arguments are file descriptors. Never returns."""
    with mmap.mmap(shipment, 0, prot=mmap.PROT_READ) as data:
        cargo = msgspec.msgpack.decode(data, type=ParentState)
    os.close(shipment)
    sys.argv[:] = cargo.argv
    for name in cargo.preload:
        importlib.import_module(name)
    serve(socket.socket(fileno=control), functools.partial(_unpack, cargo), parent_life)


def _unpack(cargo: ParentState) -> Sequence[EntryPoint]:
    """Unpack, in a child only, so that scripts' import code runs in no process that forks."""
    import dill

    for prepare in dill.loads(cargo.preparations):
        prepare()
    entry_points: Sequence[EntryPoint]
    entry_points, classes = dill.loads(cargo.entry_points)
    place_classes(classes)
    return entry_points
