"""`pipeline graph SCRIPT` and `pipeline check FILE`: checks without a start."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from pipeline.cli.drawing import FORMATS, drawing_of, fused
from pipeline.cli.parsing import FAILED, WRONG_USAGE, add_layers, command_parser, fails
from pipeline.config import schema as configuration
from pipeline.config.layers import layers_here, read_layers, use
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import (
    REQUEST_OP,
    ServiceConfig,
    batch_warnings,
    config_of,
    op_warnings,
    unknown_ops,
)
from pipeline.config.yaml import ConfigSource, KeyPath
from pipeline.dropin.import_hook import run_module, run_script
from pipeline.errors import ConfigError, InitError, PipelineError
from pipeline.runtime.predictor_loader import resolve_path
from pipeline.server import PipelineServer
from pipeline.system.script import MODULES, ScriptNotFoundError, SourceLoader
from pipeline.system.service_manager import VARIABLE
from pipeline.web_service import WebService

_START_TIMEOUT_S = 10.0  # for a thread of the script to run its server
_POLL_INTERVAL_S = 0.01


# graph ------------------------------------------------------------------------------------


def graph(arguments: Sequence[str]) -> int:
    """Run `pipeline graph`; return the exit status."""
    options = _graph_arguments(arguments)
    before = _threads()
    status = _draw(options)
    if _threads() - before:  # the script's threads: Python would wait for them
        sys.stdout.flush()
        os._exit(status)
    return status


def _draw(options: argparse.Namespace) -> int:
    try:
        server = server_of(options.is_module, options.script, options.arguments)
    except ScriptNotFoundError as error:
        return fails("graph", str(error), WRONG_USAGE)
    except PipelineError as error:
        return fails("graph", f"{_place(error)}{type(error).__name__}: {error}")
    if server is None or (config := server._config) is None:
        return fails(
            "graph",
            f"{options.script} ended without running a server. Its last call must be run_server() "
            "of a PipelineServer, or run_service() of a WebService.",
        )
    for name, graph in server._graphs.items():
        drawing = drawing_of(graph, name or options.script, fused(graph, config.dag))
        sys.stdout.write(FORMATS[options.format](drawing))
    ops = {op.name: op.pipeline_config for graph in server._graphs.values() for op in graph.ops}
    # Warnings that `prepare_server` has not logged.
    for warning in (*unknown_ops(config, list(ops)), *op_warnings(config, ops)):
        sys.stderr.write(f"warning: {warning}\n")
    return 0


def graph_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "graph",
        "Print the graph of the server that a script runs. The script is executed as by `pipeline "
        "run` up to where its server would start: no worker, no model and no port is opened. What "
        "it prints goes to stderr. The last lines list the Ops that run in one pass while they are "
        "quick, and why others never do.",
        "pipeline graph --format mermaid web_server.py",
    )
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="text",
        help="text (the default), mermaid, or dot for Graphviz; may also follow SCRIPT",
    )
    parser.add_argument(
        "-m",
        dest="is_module",
        action="store_true",
        help="SCRIPT is a module that can be imported, as `python -m SCRIPT` runs it",
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file that runs a server")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="the script's arguments; everything after -- is passed to it",
    )
    return parser


def _graph_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; those of the script may look like options, in any order."""
    rest, ours, words = list(arguments), list[str](), list[str]()
    while rest:
        word = rest.pop(0)
        if word == "--":
            words += rest
            break
        if word == "--format" or (not words and word in ("-h", "--help", "-m")):
            ours += [word, *rest[:1]] if word == "--format" else [word]
            del rest[: word == "--format"]
        elif word.startswith("--format=") or (not words and word.startswith("-")):
            ours.append(word)
        else:
            words.append(word)
    options = graph_parser().parse_args([*words[:1], *ours])
    options.arguments = words[1:]
    return options


def server_of(is_module: bool, script: str, arguments: Sequence[str]) -> PipelineServer | None:
    """Return the first server that the script would run; its exceptions pass through."""
    run = run_module if is_module else run_script
    before = _threads()
    with nothing_starts() as servers, contextlib.redirect_stdout(sys.stderr):
        try:
            run(script, arguments)
        except SystemExit as end:
            if not servers and end.code:
                raise
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not servers and _threads() - before and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)  # a thread may be about to run it
    return servers[0] if servers else None


def server_of_script(
    path: str | Path, name: str | None = None, hint: str = "give TestClient the server itself"
) -> PipelineServer:
    """Run a script up to the start of its server; return that server.

    It runs in its own folder, as a module of its `module_name`, or of `name`: code under `if
    __name__ == "__main__":` does not run, and its only server is returned. Raises InitError: the
    file does not exist, or it makes no server, or several and runs none, for which there is a
    `hint`.
    """
    script = Path(path).resolve()
    name = name or module_name(script)
    if not script.is_file():
        raise InitError(f"{path}: there is no such script (current folder: {Path.cwd()})")
    loader = _ScriptLoader(name, str(script))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None, "it has a loader"
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # process workers find its classes there
    if str(script.parent) not in sys.path:
        sys.path.insert(0, str(script.parent))
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        raise
    _FINDER.add(name, str(script))
    MODULES[:] = [*(other for other in MODULES if other.__name__ != name), module]
    servers = loader.servers
    made: Sequence[PipelineServer | WebService] = servers or [
        value for value in vars(module).values() if isinstance(value, PipelineServer | WebService)
    ]
    if not servers and len(made) != 1:
        raise InitError(f"{path} runs no server, and makes {len(made)}: {hint}")
    return pipeline_server(made[0])


class _ScriptLoader(SourceLoader):
    """Loader that executes a script in its own folder, up to where its server would start.

    Attributes:
        servers: the servers of the script, none of which started.
    """

    servers: Sequence[PipelineServer] = ()

    def exec_module(self, module: ModuleType) -> None:
        """See `Loader.exec_module`; SystemExit of a script that starts no server goes through."""
        before = Path.cwd()
        os.chdir(Path(self.path).parent)  # the folder of its config.yml
        try:
            with nothing_starts() as self.servers:
                super().exec_module(module)
        except SystemExit:
            if not self.servers:
                raise
        finally:
            os.chdir(before)


class _ScriptFinder(MetaPathFinder):
    """Finder of scripts by the names of their modules: a fresh interpreter starts no server."""

    def __init__(self) -> None:
        self._scripts: dict[str, str] = {}

    def add(self, name: str, script: str) -> None:
        """Find this script from now on."""
        self._scripts[name] = script
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def prepare_spawned(self) -> None:
        """Find the scripts also in a fresh interpreter; see `workers.zygote.spawn`."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        script = self._scripts.get(fullname)
        if script is None:
            return None
        return importlib.util.spec_from_loader(fullname, _ScriptLoader(fullname, script))


_FINDER = _ScriptFinder()


def module_name(script: Path, taken: Collection[str] = ()) -> str:
    """Return a name for a script's module, with folders before it if the name is in use."""
    name = script.stem
    for folder in script.parents:
        if name not in taken and _file_of(name) in (None, str(script)):
            break
        name = f"{folder.name}_{name}"
    return name


def _file_of(name: str) -> str | None:
    """Return the file of a module; "": it has no file; None: it does not exist."""
    if (module := sys.modules.get(name)) is not None:
        return getattr(module, "__file__", None) or ""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    return None if spec is None else spec.origin or ""


def pipeline_server(server: PipelineServer | WebService) -> PipelineServer:
    """Return the PipelineServer in a WebService; a PipelineServer itself."""
    return server._server if isinstance(server, WebService) else server


def _threads() -> set[threading.Thread]:
    """Return the threads that Python waits for before it ends."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


@contextlib.contextmanager
def nothing_starts() -> Iterator[list[PipelineServer]]:
    """Collect servers that would start, instead of starting them."""
    servers: list[PipelineServer] = []

    def stop(server: PipelineServer) -> None:
        servers.append(server)
        raise SystemExit(0)  # no `except Exception` catches it, and threads end silently

    name = "_new_service"  # every kind of start calls it
    original, manager = getattr(PipelineServer, name), os.environ.get(VARIABLE)
    setattr(PipelineServer, name, stop)
    try:
        yield servers
    finally:
        setattr(PipelineServer, name, original)
        if manager is not None:  # a server that is about to start uses it
            os.environ[VARIABLE] = manager


def _place(error: BaseException) -> str:
    """Return `web_server.py:12: ` for the line outside this library that led to an error."""
    ours = f"{Path(__file__).resolve().parents[1]}{os.sep}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((ours, "<")):
            return f"{os.path.relpath(frame.filename)}:{frame.lineno}: "
    return ""


# check ------------------------------------------------------------------------------------


def check(arguments: Sequence[str]) -> int:
    """Run `pipeline check`; return the exit status."""
    options = check_parser().parse_args(list(arguments))
    use(options.profile, options.set)
    return max(_check_file(file, options.strict) for file in options.files)


def check_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "check",
        "Check configuration files as a server here would read them, with the environment and "
        "profiles, without starting one. Prints a line for each mistake; the exit status is 1 if "
        "there is any. Warnings are for unknown keys, model files that are not there, batches that "
        "can never be full. "
        "Constructor arguments of Ops, and which Ops there are, are in the script: see `pipeline "
        "graph`.",
        "pipeline check --strict config.yml",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there are warnings")
    add_layers(parser)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a config.yml")
    return parser


def _check_file(file: str, is_strict: bool) -> int:
    errors: list[str] = []
    with _warnings_of_the_configuration() as warnings:
        try:
            source, overrides = read_layers(ServiceConfig, file, None, layers_here())
            config = config_of(source, overrides)
        except ConfigError as error:
            errors = str(error).split("\n")
        else:
            warnings += _warnings_about(config, source, Path(file).resolve().parent)
    lines = [f"error: {line}" for line in errors] + [f"warning: {line}" for line in warnings]
    counts = [_count(len(errors), "error")] * bool(errors)
    counts += [_count(len(warnings), "warning")] * bool(warnings)
    sys.stdout.write("\n".join([*lines, f"{file}: {', '.join(counts) or 'ok'}", ""]))
    return FAILED if errors or (warnings and is_strict) else 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@contextlib.contextmanager
def _warnings_of_the_configuration() -> Iterator[list[str]]:
    """Collect warnings from the log: after an error they would be lost."""
    warnings: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())

    logger = logging.getLogger(configuration.__name__)
    collector, propagates = Collector(logging.WARNING), logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        yield warnings
    finally:
        logger.propagate = propagates
        logger.removeHandler(collector)


def _warnings_about(config: ServiceConfig, source: ConfigSource, folder: Path) -> Iterator[str]:
    """Yield what a server would find when it starts."""
    ops = {name: resolve_op(name, {}, config) for name in config.op if name != REQUEST_OP}
    yield from batch_warnings(config, ops)
    for path, named in _files_named(config):
        if not resolve_path(folder, named).exists():
            yield f"{source.place(path)}: no such file or folder: {named}"


def _files_named(config: ServiceConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yield keys and values of the files that Ops need at the start."""
    for name, op in config.op.items():
        if op.client_config:
            yield ("op", name, "client_config"), op.client_config
        model = op.local_service_conf.model_config
        if model and not op.server_endpoints:
            yield ("op", name, "local_service_conf", "model_config"), model
