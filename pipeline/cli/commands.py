"""The subcommands of `python -m pipeline`: each takes its arguments and gives an exit status."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from pipeline.dropin.script import ScriptNotFoundError, run_module, run_script

WRONG_USAGE = 2
_FAILED = 1


def run(arguments: Sequence[str]) -> int:
    """Run `run SCRIPT ...` or `run -m MODULE ...`; the script may end with a status of its own."""
    given = list(arguments)
    try:
        if given[0] == "-m":
            run_module(given[1], given[2:])
        else:
            run_script(given[0], given[1:])
    except ScriptNotFoundError as error:
        sys.stderr.write(f"python -m pipeline run: {error}\n")
        return WRONG_USAGE
    return 0


def analyse(arguments: Sequence[str]) -> int:
    """Print where the time of `analyse FILE` went, which Op holds it up, what to change."""
    if list(arguments[:1]) == ["--serve"]:
        from pipeline.cli.advise import advise as advise_live

        return advise_live(arguments[1:])
    from pipeline.observe.analysis.advice import advise  # here: scripts that run need none of it
    from pipeline.observe.analysis.analyst import Analyst
    from pipeline.observe.analysis.report import report_json, report_text

    given = _analyse_arguments(arguments)
    analyst = Analyst(given.file)
    try:
        figures = analyst.figures
        advice = advise(figures, given.qps)
        if given.trace is not None:
            analyst.save_trace(given.trace)
    except OSError as error:
        sys.stderr.write(f"python -m pipeline analyse: {error.filename}: {error.strerror}\n")
        return _FAILED
    if given.json:
        sys.stdout.write(report_json(figures, advice).decode())
    else:
        sys.stdout.write(report_text(given.file, figures, advice, analyst.profile.damaged))
    return 0 if figures.requests else _FAILED


def _analyse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline analyse",
        description="Read what a server with `dag.use_profile: true` wrote to stderr: print what "
        "each Op takes and which one holds the others up, and advise on concurrency and "
        "batch_size.",
    )
    parser.add_argument("file", help="the server's stderr, of Paddle Serving's too")
    parser.add_argument(
        "--qps", type=_rate, metavar="N", help="requests/s to aim at; otherwise what is in reach"
    )
    parser.add_argument(
        "--trace", metavar="OUT", help="also write a trace for chrome://tracing, ui.perfetto.dev"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def _rate(text: str) -> float:
    rate = float(text)
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError(text)
    return rate
