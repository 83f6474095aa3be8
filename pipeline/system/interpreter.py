"""Interpreter: a Python other than the one that runs the server, for processes of its own."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import msgspec

_ACTIVATED = 'command=("$@"); set --; source "$0" && exec "${command[@]}"'  # it sees no arguments
_HOME = "PYTHONHOME"  # of the server's interpreter
# Packages that this library needs come from the server, also if the environment has them; except
# numpy, which users' code shares with us. Packages that the environment lacks also come from the
# server.
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
# This library is the server's, whatever is there under its name.
_OURS = """
import importlib.util
spec = importlib.util.spec_from_file_location("pipeline", sys.argv[2])
sys.modules["pipeline"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
del sys.argv[1:3]
"""
_LIBRARY = str(Path(__file__).resolve().parents[1] / "__init__.py")


class Interpreter(msgspec.Struct, frozen=True):
    """An interpreter of Python, in an environment with packages of its own.

    Args:
        file: its path.
        activation: bash script that is run before it; "": none.
        is_like_ours: it has the server's Python version, so it can use the server's packages where
            its own environment lacks them. Otherwise its environment must have every package that
            this library needs.
    """

    file: str
    activation: str = ""
    is_like_ours: bool = True

    def command(self, code: str, *arguments: str) -> list[str]:
        """Return the command that runs code, which can import this library."""
        first = (_LENT if self.is_like_ours else _APART) + _OURS
        return self.bare_command("-c", first + code, "\n".join(_lent()), _LIBRARY, *arguments)

    def bare_command(self, *arguments: str) -> list[str]:
        """Return the command that runs it with these arguments, as its environment has it."""
        command = [self.file, *arguments]
        if not self.activation:
            return command
        return ["bash", "-c", _ACTIVATED, self.activation, *command]

    def variables(self) -> Mapping[str, str]:
        """Return the variables of its processes: the server's, and where its programs are."""
        variables = {name: value for name, value in os.environ.items() if name != _HOME}
        if not self.activation:
            folder = os.path.dirname(self.file)
            variables["VIRTUAL_ENV"] = os.path.dirname(folder)
            variables["PATH"] = os.pathsep.join(filter(None, (folder, variables.get("PATH", ""))))
        return variables


def _lent() -> list[str]:
    """Return the folders of packages of this process."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    roots = tuple(os.path.join(path, "") for path in filter(None, paths))
    return [
        path
        for path in filter(os.path.isdir, map(str, sys.path))
        if "-packages" in path or not os.path.join(path, "").startswith(roots)
    ]
