"""`python -m pipeline run web_server.py`: runs scripts written for Paddle Serving."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipeline.dropin.script import ScriptNotFoundError, run_module, run_script

USAGE = """\
usage: python -m pipeline run SCRIPT [ARGUMENT ...]
       python -m pipeline run -m MODULE [ARGUMENT ...]

Run a script written for Paddle Serving's pipeline, unmodified, on this library: imports of
paddle_serving_server, paddle_serving_server_gpu and paddle_serving_client are answered by
`pipeline`, whether or not those packages are installed. Otherwise as `python SCRIPT`.

  -m MODULE   run a module that can be imported, as `python -m MODULE` does
  -h, --help  show this text

docs/migration.md tells what differs. To serve a single model: python -m pipeline.serve --help
"""
_WRONG_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status, if the script does not end with one of its own."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(given[:1] + given[1:2] * (given[:1] == ["run"])):
        sys.stdout.write(USAGE)
        return 0
    if given[:1] != ["run"] or len(given) < 2 or (given[1] == "-m" and len(given) < 3):
        sys.stderr.write(USAGE)
        return _WRONG_USAGE
    try:
        if given[1] == "-m":
            run_module(given[2], given[3:])
        else:
            run_script(given[1], given[2:])
    except ScriptNotFoundError as error:
        sys.stderr.write(f"python -m pipeline run: {error}\n")
        return _WRONG_USAGE
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
