"""`pipeline bench`: loads a server with requests, and prints rates and times."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import sys
from collections.abc import Sequence

import msgspec

from pipeline.cli.client import ServerAddress, add_question, named, question_of
from pipeline.cli.parsing import FAILED, above_0, amount, at_least_1, command_parser, fails
from pipeline.cli.progress import ProgressLine
from pipeline.errors import ConfigError
from pipeline.system.event_loop import loop_factory
from pipeline.tuning.load import LoadFigures, LoadRequest, read_load, replay

_PERCENTS = (50, 90, 99)
_TIMEOUT_S = 30.0


def bench(arguments: Sequence[str]) -> int:
    """Run `pipeline bench`; return the exit status: 1 if a request failed."""
    options = bench_parser().parse_intermixed_args(list(arguments))
    try:
        address, requests = _load(options)
        with (
            ProgressLine(
                sys.stderr, f"{options.concurrency} callers", options.warmup + options.seconds
            ),
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            figures = runner.run(_measure(address, requests, options))
    except ConfigError as error:
        return fails("bench", str(error))
    except (OSError, http.client.HTTPException) as error:
        return fails("bench", f"{options.url}: {error}")
    sys.stdout.write(_as_json(figures) if options.json else _as_text(figures))
    return FAILED if figures.failed or not figures.times_s else 0


def bench_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "bench",
        "Send requests to a server from several callers, each the next one after an answer, and "
        "print requests/s and the times of answers. The callers share one processor.",
        "pipeline bench http://127.0.0.1:18071/hello name=Anna --concurrency 8 --seconds 5",
    )
    add_question(parser)
    parser.add_argument(
        "--load",
        metavar="FILE",
        help="requests instead of fields, in the form that the filter record writes",
    )
    parser.add_argument(
        "--concurrency",
        type=at_least_1,
        default=8,
        metavar="N",
        help="callers; default: %(default)s",
    )
    parser.add_argument(
        "--seconds", type=above_0, default=5.0, metavar="S", help="default: %(default)s"
    )
    parser.add_argument(
        "--warmup", type=amount, default=1.0, metavar="S", help="not counted; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _load(options: argparse.Namespace) -> tuple[ServerAddress, list[LoadRequest]]:
    """Return the server's address, and the requests."""
    address = ServerAddress.of(options.url)
    if address.is_tls:
        raise ConfigError("bench asks over http, without TLS")
    if options.load is not None:
        return address, read_load(options.load)
    address = named(address, _TIMEOUT_S)
    question = question_of(address, options.form, options.fields)
    return address, [LoadRequest(question.path, msgspec.Raw(question.body))]


async def _measure(
    address: ServerAddress, requests: Sequence[LoadRequest], options: argparse.Namespace
) -> LoadFigures:
    callers, host = options.concurrency, address.host
    if options.warmup:
        await replay(address.port, requests, callers, options.warmup, host)
    return await replay(address.port, requests, callers, options.seconds, host)


def _as_text(figures: LoadFigures) -> str:
    times = ", ".join(f"p{percent} {figures.percentile_ms(percent):.2f}" for percent in _PERCENTS)
    lines = [
        f"{figures.per_s:,.0f} requests/s ({len(figures.times_s):,} in {figures.seconds:.1f} s)",
        f"time of an answer, ms: {times}, longest {figures.percentile_ms(100):.2f}",
    ]
    if figures.failed:
        lines.append(f"{figures.failed:,} failed; the first: {figures.error}")
    return "".join(f"{line}\n" for line in lines)


def _as_json(figures: LoadFigures) -> str:
    report = {
        "requests": len(figures.times_s),
        "failed": figures.failed,
        "seconds": figures.seconds,
        "per_s": figures.per_s,
        **{f"p{percent}_ms": figures.percentile_ms(percent) for percent in _PERCENTS},
        "longest_ms": figures.percentile_ms(100),
        "error": figures.error,
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
