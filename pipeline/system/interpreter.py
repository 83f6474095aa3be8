"""Interpreter: another Python than the server's, for separate processes."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import msgspec

_ACTIVATED = 'command=("$@"); set --; source "$0" && exec "${command[@]}"'  # it sees no arguments
_HOME = "PYTHONHOME"  # of the server's interpreter
# The library's dependencies come from the server, also if the environment has them. The exception
# is numpy, which user code shares with the library. Packages that the environment lacks also come
# from the server.
_LENT = """
import sys
own, ours = [*filter(None, sys.path)], sys.argv[1].split("\\n")
sys.path[:] = [*ours, *own]
import dill, google.api, google.protobuf, msgspec, orjson, yaml
sys.path[:] = [*own, *ours]
"""
_APART = """
import sys
sys.path[:] = filter(None, sys.path)
"""
# The library is always the server's, also if the environment has another `pipeline`.
_OURS = """
import importlib.util
spec = importlib.util.spec_from_file_location("pipeline", sys.argv[2])
sys.modules["pipeline"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
del sys.argv[1:3]
"""
_LIBRARY = str(Path(__file__).resolve().parents[1] / "__init__.py")


class Interpreter(msgspec.Struct, frozen=True):
    """A Python interpreter in an environment with its own packages.

    Args:
        file: path of the interpreter.
        activation: bash script that runs before it; "" without one.
        is_like_ours: whether it has the server's Python version, so that it can use the server's
            packages. Otherwise its environment must have every package that this library needs.
    """

    file: str
    activation: str = ""
    is_like_ours: bool = True

    def command(self, code: str, *arguments: str) -> list[str]:
        """Return the command that runs code which can import this library."""
        first = (_LENT if self.is_like_ours else _APART) + _OURS
        return self.bare_command("-c", first + code, "\n".join(_lent()), _LIBRARY, *arguments)

    def bare_command(self, *arguments: str) -> list[str]:
        """Return the command that runs the bare interpreter with these arguments."""
        command = [self.file, *arguments]
        if not self.activation:
            return command
        return ["bash", "-c", _ACTIVATED, self.activation, *command]

    def variables(self) -> Mapping[str, str]:
        """Return the environment of its processes: the server's, with its folder of programs."""
        variables = {name: value for name, value in os.environ.items() if name != _HOME}
        if not self.activation:
            folder = os.path.dirname(self.file)
            variables["VIRTUAL_ENV"] = os.path.dirname(folder)
            variables["PATH"] = os.pathsep.join(filter(None, (folder, variables.get("PATH", ""))))
        return variables


def _lent() -> list[str]:
    """Return this process's folders of packages."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    roots = tuple(os.path.join(path, "") for path in filter(None, paths))
    return [
        path
        for path in filter(os.path.isdir, map(str, sys.path))
        if "-packages" in path or not os.path.join(path, "").startswith(roots)
    ]
