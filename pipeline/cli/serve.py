"""`pipeline serve`: runs the script of a server, with other settings, and again when it changes."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from pipeline.cli.parsing import FAILED, WRONG_USAGE, add_layers, command_parser, fails
from pipeline.config.layers import use
from pipeline.errors import ConfigError
from pipeline.system.script import ScriptNotFoundError, check_script, run_script

SCRIPT = "web_server.py"
_PR_SET_PDEATHSIG = 1


def serve(arguments: Sequence[str]) -> int:
    """Run `pipeline serve`; the script may end with a status of its own."""
    given, words = _arguments(arguments)
    script = str(Path(given.script, SCRIPT)) if Path(given.script).is_dir() else given.script
    settings = [*_settings(given), *given.set]
    try:
        check_script(script)
        if given.reload:
            from pipeline.cli.reload import serve_and_reload  # here: no other start needs it

            return serve_and_reload(script, words, settings, given.profile)
        if given.parent:
            _end_with(given.parent)
        use(given.profile, settings)
        run_script(script, words)
    except ScriptNotFoundError as error:
        return fails("serve", str(error), WRONG_USAGE)
    except ConfigError as error:  # it says where; a traceback would say less
        for line in str(error).splitlines():
            fails("serve", line)
        return FAILED
    return 0


def serve_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "serve",
        "Run the script of a server, as `python SCRIPT` does. The options win over config.yml and "
        "over what the script says; what stands behind -- is given to the script.",
        "pipeline serve\n"
        "pipeline serve web_server.py --reload --port 8080 --set op.bow.concurrency=4",
    )
    parser.add_argument(
        "script",
        nargs="?",
        default=SCRIPT,
        metavar="SCRIPT",
        help=f"a Python file, or a folder with {SCRIPT}; default: {SCRIPT}",
    )
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on; ::: all of them")
    parser.add_argument("--port", metavar="N", help="HTTP port; gRPC's is the next: 0: free ones")
    parser.add_argument(
        "--reload",
        action="store_true",
        help="for development: serve with the new code when a file beside the script changes",
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


def _settings(given: argparse.Namespace) -> list[str]:
    """Return what `--host` and `--port` stand for, as `--set` has it."""
    settings = []
    if given.host is not None:
        settings += [f"host={given.host}", "rpc_host=", "http_host="]
    if given.port is not None:
        settings += [f"http_port={given.port}", "rpc_port="]
    return settings


def _end_with(parent: int) -> None:
    """End when the process that started this one does, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was too late for that
        signal.raise_signal(signal.SIGTERM)
