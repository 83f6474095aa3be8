"""`pipeline run` and `pipeline analyse`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pipeline.cli.parsing import FAILED, WRONG_USAGE, above_0, command_parser, fails
from pipeline.dropin.import_hook import run_module, run_script
from pipeline.system.script import ScriptNotFoundError


def run(arguments: Sequence[str]) -> int:
    """Run `run SCRIPT ...` or `run -m MODULE ...`; the script may end with its own status."""
    parser = run_parser()
    options = parser.parse_args(list(arguments))
    if options.script is None and not options.module:
        parser.error("a script is missing, or -m MODULE")
    try:
        if options.module:
            run_module(options.module[0], options.module[1:])
        else:
            run_script(options.script, options.arguments)
    except ScriptNotFoundError as error:
        return fails("run", str(error), WRONG_USAGE)
    return 0


def run_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "run",
        "Run a script written for Paddle Serving's pipeline, unmodified, on this library: imports "
        "of paddle_serving_server, paddle_serving_server_gpu and paddle_serving_client are "
        "answered by `pipeline`, whether or not those packages are installed. Otherwise as "
        "`python SCRIPT`. docs/migration.md lists the differences.",
        "pipeline run web_service.py",
    )
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="run a module that can be imported, as `python -m MODULE` does",
    )
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="given to the script"
    )
    return parser


def analyse(arguments: Sequence[str]) -> int:
    """Print where the time of `analyse FILE` was spent, the slowest Op, and advice."""
    if list(arguments[:1]) == ["--serve"]:
        from pipeline.cli.advise import advise as advise_live

        return advise_live(arguments[1:])
    from pipeline.observe.analysis.advice import advise  # here: `pipeline run` does not need it
    from pipeline.observe.analysis.analyst import Analyst
    from pipeline.observe.analysis.report import report_json, report_text

    options = analyse_parser().parse_args(arguments)
    analyst = Analyst(options.file)
    try:
        figures = analyst.figures
        advice = advise(figures, options.qps)
        if options.trace is not None:
            analyst.save_trace(options.trace)
    except OSError as error:
        return fails("analyse", f"{error.filename}: {error.strerror}")
    if options.json:
        sys.stdout.write(report_json(figures, advice).decode())
    else:
        sys.stdout.write(report_text(options.file, figures, advice, analyst.profile.damaged))
    return 0 if figures.requests else FAILED


def analyse_parser() -> argparse.ArgumentParser:
    """Return the parser of `pipeline analyse`, without the options of `--serve`."""
    parser = command_parser(
        "analyse",
        "Read what a server with `dag.use_profile: true` wrote to stderr: print the time of each "
        "Op and which one limits the others, and advise on concurrency and batch_size. "
        "With --serve: try other workers and batch sizes of a script's Ops under a load, and write "
        "the best; see pipeline analyse --serve --help.",
        "pipeline analyse server.stderr --qps 200\n"
        "pipeline analyse --serve --load requests.jsonl web_server.py",
    )
    parser.add_argument("file", help="the server's stderr; also Paddle Serving's")
    parser.add_argument(
        "--qps",
        type=above_0,
        metavar="N",
        help="requests/s to aim at; otherwise the most that is reachable",
    )
    parser.add_argument(
        "--trace", metavar="OUT", help="also write a trace for chrome://tracing, ui.perfetto.dev"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
