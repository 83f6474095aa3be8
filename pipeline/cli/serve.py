"""`pipeline serve`: runs scripts of servers, with other settings, and again when they change."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.cli.parsing import FAILED, WRONG_USAGE, add_layers, command_parser, fails
from pipeline.config.layers import use
from pipeline.errors import ConfigError, PipelineError
from pipeline.system.script import ScriptNotFoundError, check_script, run_script

SCRIPT = "web_server.py"
_PR_SET_PDEATHSIG = 1


def serve(arguments: Sequence[str]) -> int:
    """Run `pipeline serve`; the script may end with a status of its own."""
    options, words = _arguments(arguments)
    named = options.scripts or [SCRIPT]
    scripts = [str(Path(name, SCRIPT)) if Path(name).is_dir() else name for name in named]
    settings = [*_settings(options), *options.set]
    try:
        for script in scripts:
            check_script(script)
        if options.reload:
            from pipeline.cli.reload import serve_and_reload  # here: no other start needs it

            return serve_and_reload(scripts, words, settings, options.profile)
        if options.parent:
            _end_with(options.parent)
        use(options.profile, settings)
        if len(scripts) == 1:
            run_script(scripts[0], words)
        else:
            serve_together(scripts, words)
    except ScriptNotFoundError as error:
        return fails("serve", str(error), WRONG_USAGE)
    except PipelineError as error:
        if len(scripts) == 1 and not isinstance(error, ConfigError):
            raise
        # It says where; a traceback would say less.
        for line in str(error).splitlines():
            fails("serve", line)
        return FAILED
    return 0


def module_names(scripts: Sequence[str]) -> dict[str, str]:
    """Return scripts by the names of their modules: a name that is taken has folders before it."""
    from pipeline.cli.graph import module_name  # here: one script alone needs no other

    names: dict[str, str] = {}
    for script in scripts:
        names[module_name(Path(script).resolve(), names)] = script
    return names


def serve_together(scripts: Sequence[str], words: Sequence[str]) -> None:
    """Serve the pipelines of several scripts in one server: that of the first one.

    Raises:
        PipelineError: a script makes no server, or one that cannot be served with the others.
    """
    from pipeline.cli.graph import server_of_script

    sys.argv[1:] = words
    names = module_names(scripts)
    hint = 'one, outside of `if __name__ == "__main__":`, is served with the others'
    first, *others = [server_of_script(script, name, hint) for name, script in names.items()]
    for other in others:
        first._join(other)
    first.run_server()


def serve_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "serve",
        "Run the script of a server, as `python SCRIPT` does. The options override config.yml and "
        "the script; arguments after -- go to the script.",
        "pipeline serve\n"
        "pipeline serve chat.py embed.py\n"
        "pipeline serve web_server.py --reload --port 8080 --set op.bow.concurrency=4",
    )
    parser.add_argument(
        "scripts",
        nargs="*",
        metavar="SCRIPT",
        help=f"a Python file, or a folder with {SCRIPT}; default: {SCRIPT}; of several files the "
        "pipelines are served by one server, which the first one's configuration is for",
    )
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on; ::: all addresses")
    parser.add_argument(
        "--port", metavar="N", help="HTTP port; gRPC's is the next one; 0: free ports"
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        help="for development: restart when a file in the script's folder changes",
    )
    add_layers(parser)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    return parser


def _arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the script's own arguments."""
    ours = list(arguments)
    words: list[str] = []
    if "--" in ours:
        at = ours.index("--")
        ours, words = ours[:at], ours[at + 1 :]
    return serve_parser().parse_args(ours), words


def _settings(options: argparse.Namespace) -> list[str]:
    """Return what `--host` and `--port` stand for, as `--set` has it."""
    settings = []
    if options.host is not None:
        settings += [f"host={options.host}", "rpc_host=", "http_host="]
    if options.port is not None:
        settings += [f"http_port={options.port}", "rpc_port="]
    return settings


def _end_with(parent: int) -> None:
    """End when the process that started this one does, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was too late for that
        signal.raise_signal(signal.SIGTERM)
