"""`python -m benchmarks.advice`: does a service do more that follows what `analyse` advises?

A service whose Ops are badly balanced is measured, then profiled under the same load; the advice
on the profile becomes its next configuration, for as long as there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import NotMeasuredError
from benchmarks.ask import Question, ask_http
from benchmarks.load import http_load, missing_tools
from benchmarks.process import Service
from benchmarks.services.unbalanced import NAME, OPS, PROFILE
from pipeline.observe.analysis.advice import Advice, advise
from pipeline.observe.analysis.analyst import Analyst

_CLIENTS = 64
_PROFILE_S = 2.0
_WARM_UP_S = 1.0
_MOST_ROUNDS = 5
_LEAST_GAIN = 3.0  # by all rounds together
_MOST_LOSS = 0.95  # by one of them
_TEXT = "0.5,1.5"
_QUESTION = Question("x", _TEXT, lambda answer: answer == {"x": _TEXT})

Settings = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Round:
    """The throughput of a configuration, and the advice after it; None: no advice."""

    settings: Settings
    per_s: float
    p99_ms: float
    advice: Advice | None


def main() -> int:
    arguments = _arguments()
    if missing := missing_tools():
        print(f"missing load generators: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 2
    rounds = []
    for round_ in follow(arguments.clients, arguments.seconds, arguments.repeats):
        rounds.append(round_)
        print(_text(len(rounds), round_), flush=True)
    gain = rounds[-1].per_s / rounds[0].per_s
    is_right = may_be_followed([round_.per_s for round_ in rounds])
    print(
        f"advice followed {len(rounds) - 1} times: {gain:.1f} times the throughput "
        f"(at least {_LEAST_GAIN:g}, no step back): {'met' if is_right else 'MISSED'}"
    )
    return 0 if is_right else 1


def follow(clients: int, seconds: float, repeats: int) -> Iterator[Round]:
    """Measure, profile, take the advice, and again, until there is no more of it."""
    settings: Settings = {op: {"concurrency": 1, "batch_size": 1} for op in OPS}
    for number in range(_MOST_ROUNDS):
        per_s, p99_ms = _measured(settings, clients, seconds, repeats)
        advice = _advised(settings, clients)
        is_last = not advice.ops or number + 1 == _MOST_ROUNDS
        yield Round(settings, per_s, p99_ms, None if is_last else advice)
        if is_last:
            return
        settings = followed(settings, advice)


def followed(settings: Settings, advice: Advice) -> Settings:
    """The configuration with the advice in it."""
    given = advice.as_config()
    return {op: of_op | given.get(op, {}) for op, of_op in settings.items()}


def may_be_followed(per_s: list[float]) -> bool:
    """Return whether throughput rose enough, and no round of advice lowered it."""
    steps = [after / before for before, after in itertools.pairwise(per_s)]
    return bool(steps) and per_s[-1] >= _LEAST_GAIN * per_s[0] and min(steps) >= _MOST_LOSS


def _measured(
    settings: Settings, clients: int, seconds: float, repeats: int
) -> tuple[float, float]:
    """(requests/s, p99 in ms) without a profile: the median of `repeats`."""
    with _running(settings) as (service, url, right):
        http_load(url, _QUESTION, clients, _WARM_UP_S, right)
        loads = [http_load(url, _QUESTION, clients, seconds) for _ in range(repeats)]
        service.usage()  # fails if it has died
    return (
        statistics.median(load.requests / load.seconds for load in loads),
        statistics.median(load.p99_ms for load in loads),
    )


def _advised(settings: Settings, clients: int) -> Advice:
    """Return the advice of `python -m pipeline analyse` for a server under load."""
    with TemporaryDirectory(prefix="bench-") as folder:
        with _running(settings, PROFILE, folder=folder) as (_, url, right):
            http_load(url, _QUESTION, clients, _PROFILE_S, right)
        return advise(Analyst(Path(folder, "output")).figures)


@contextlib.contextmanager
def _running(
    settings: Settings, *options: str, folder: str | None = None
) -> Iterator[tuple[Service, str, bytes]]:
    """(the service, its address, the answer that is right)"""
    with contextlib.ExitStack() as stack:
        place = folder or stack.enter_context(TemporaryDirectory(prefix="bench-"))
        service = Service(Path(place), NAME, json.dumps(settings), *options)
        stack.callback(service.stop)
        url = f"http://127.0.0.1:{service.http_port}/{NAME}/prediction"
        yield service, url, service.first_answer(lambda: ask_http(url, _QUESTION))


def _text(number: int, round_: Round) -> str:
    lines = [
        f"round {number}: {round_.per_s:,.0f} requests/s, p99 {round_.p99_ms:.1f} ms with "
        + ", ".join(f"{op}: {_brief(of_op)}" for op, of_op in round_.settings.items())
    ]
    if round_.advice is not None:
        lines.append(
            f"  bottleneck {round_.advice.bottleneck}, advice for "
            f"{round_.advice.expected_per_s:,.0f}/s:"
        )
        lines += [
            f"    {advice.op}: {_brief(round_.advice.as_config()[advice.op])}: "
            f"{'; '.join(advice.why)}"
            for advice in round_.advice.ops
        ]
    return "\n".join(lines)


def _brief(settings: dict[str, Any]) -> str:
    names = {"concurrency": "workers", "batch_size": "batch"}
    return ", ".join(f"{value} {names[key]}" for key, value in settings.items())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advice", description=__doc__)
    parser.add_argument("--clients", type=int, default=_CLIENTS)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a measurement")
    parser.add_argument("--repeats", type=int, default=3, help="the median is reported")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotMeasuredError as error:
        sys.exit(f"not measured: {error}")
