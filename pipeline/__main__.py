"""`python -m pipeline COMMAND`: runs scripts written for Paddle Serving, tells what servers do."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pipeline.cli.commands import WRONG_USAGE, analyse, run

USAGE = """\
usage: python -m pipeline run SCRIPT [ARGUMENT ...]
       python -m pipeline run -m MODULE [ARGUMENT ...]
       python -m pipeline analyse FILE [--qps N] [--trace OUT] [--json]
       python -m pipeline analyse --serve --load FILE [FLAG ...] SCRIPT [ARGUMENT ...]
       python -m pipeline graph [--format text|mermaid|dot] SCRIPT [ARGUMENT ...]
       python -m pipeline check [--strict] FILE ...
       python -m pipeline callers [--file FILE] add|list|remove [NAME]
       python -m pipeline repository --model-repository=DIR [FLAG ...]

run: run a script written for Paddle Serving's pipeline, unmodified, on this library: imports of
paddle_serving_server, paddle_serving_server_gpu and paddle_serving_client are answered by
`pipeline`, whether or not those packages are installed. Otherwise as `python SCRIPT`.

  -m MODULE   run a module that can be imported, as `python -m MODULE` does

analyse: say where the time went, from what a server with `dag.use_profile: true` wrote to stderr.
With --serve: try other workers and batch sizes of a script's Ops under a load; write the best.
graph: print the graph of Ops that a script serves, without serving it.
check: check config.yml files without starting anything.
callers: keep the file of who may ask a server, and for what; makes tokens.
repository: serve model repositories, with the flags of Triton's server.

  -h, --help  show this text; after analyse, graph, check, callers or repository: their own

docs/migration.md tells what differs. To serve a single model: python -m pipeline.serve --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status, if the script does not end with one of its own."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(given[:1] + given[1:2] * (given[:1] == ["run"])):
        sys.stdout.write(USAGE)
        return 0
    command = _COMMANDS.get(given[0]) if given else None
    names_no_script = given[:1] == ["run"] and len(given) <= 1 + (given[1:2] == ["-m"])
    if command is None or names_no_script:
        sys.stderr.write(USAGE)
        return WRONG_USAGE
    return command(given[1:])


def _graph(arguments: Sequence[str]) -> int:
    from pipeline.cli.graph import graph  # here: it loads the server

    return graph(arguments)


def _check(arguments: Sequence[str]) -> int:
    from pipeline.cli.graph import check

    return check(arguments)


def _callers(arguments: Sequence[str]) -> int:
    from pipeline.cli.callers import callers

    return callers(arguments)


def _repository(arguments: Sequence[str]) -> int:
    # Its processes are fresh interpreters, and gRPC's own handlers of forks only warn.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from pipeline.cli.repository import repository

    return repository(arguments)


_COMMANDS = {
    "run": run,
    "analyse": analyse,
    "graph": _graph,
    "check": _check,
    "callers": _callers,
    "repository": _repository,
}


if __name__ == "__main__":
    raise SystemExit(main())
