"""`python -m pipeline analyse --serve`: tries other settings of a service, writes the best."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.config.yaml_edit import Changes, with_ops_changed
from pipeline.errors import ConfigError
from pipeline.tuning.load import read_load
from pipeline.tuning.search import Search
from pipeline.tuning.settings import Goal, OpSettings, OpSpace, Settings, Space, Trial
from pipeline.tuning.tried_server import Bench, Described, DescribedOp, Script, TrialError, keys_of

_FAILED = 1
_CLIENT_CORES = 0.5  # of this process, which asks


def advise(arguments: Sequence[str]) -> int:
    """Run the trials; 0: the best settings are written; 1: none are within the limits."""
    given = _arguments(arguments)
    script = Script(tuple(given.script))
    try:
        requests = read_load(given.load)
        service = script.describe()
    except (ConfigError, TrialError) as error:
        return _fails(str(error))
    for op in service.ops:
        if op.held:
            _say(f"note: {op.name} stays as it is: {op.held}")
    space, start = space_of(service, given.clients, given.most_workers, given.most_batch)
    if space.size == 1:
        return _fails("no Op has settings that may be tried")
    names = tuple(op.name for op in service.ops)
    bench = Bench(script, names, requests, given.clients, seconds=given.seconds)
    goal = Goal(given.objective == "latency", given.latency_p99_ms, given.memory_mb)
    search = Search(space, goal, start, given.most_trials)
    _say(f"{len(requests):,} requests, {given.clients} clients, {space.size:,} choices")
    while (settings := search.propose()) is not None:
        why = search.why
        search.tell(bench.trial(settings))
        _say(_line(len(search.trials), search.trials[-1], names, why))
    if search.best is None:
        return _fails("no settings that were tried are within the limits, or all failed")
    _say(f"best: {_line(0, search.best, names, '')}")
    for op in service.ops:
        if op.said:
            _say(f"note: the constructor of {op.name} says {', '.join(op.said)}: take it out")
    text = advised(service, search.trials[0], search.best)
    Path(given.out).write_text(text, encoding="utf-8")
    _say(f"written: {given.out}")
    return 0


def space_of(
    service: Described, clients: int, most_workers: int, most_batch: int
) -> tuple[Space, Settings]:
    """Return what may be tried of a service, and the settings that it has."""
    cores = max(1.0, len(os.sched_getaffinity(0)) - _CLIENT_CORES)
    ops = tuple(_op_space(op, most_workers, most_batch) for op in service.ops)
    start = tuple(OpSettings(op.concurrency, op.batch_size, op.delay_ms) for op in service.ops)
    return Space(ops, clients, cores), start


def _op_space(op: DescribedOp, most_workers: int, most_batch: int) -> OpSpace:
    workers, sizes = {op.concurrency}, {op.batch_size}
    delays = {op.delay_ms}
    if not op.held:
        workers |= set(_doublings(most_workers))
        if op.takes_batches:
            sizes |= set(_doublings(most_batch))
            delays |= {0.0, 2.0, 5.0}
    return OpSpace(
        op.name,
        tuple(sorted(workers)),
        tuple(sorted(sizes)),
        tuple(sorted(delays)),
        op.in_processes,
    )


def _doublings(most: int) -> Iterator[int]:
    number = 1
    while number <= most:
        yield number
        number *= 2


def advised(service: Described, before: Trial, best: Trial) -> str:
    """Return the text of the config.yml with the best settings, and above each the reason."""
    text = Path(service.config).read_text(encoding="utf-8") if service.config else ""
    figures = (
        f"{best.per_s:,.0f} requests/s and p99 {best.p99_ms:.1f} ms, "
        f"before {before.per_s:,.0f} and {before.p99_ms:.1f}"
        if not before.problem
        else f"{best.per_s:,.0f} requests/s and p99 {best.p99_ms:.1f} ms"
    )
    changes: Changes = {
        op.name: values
        for op, old, new in zip(service.ops, before.settings, best.settings, strict=True)
        if (values := dict(_changed_keys(old, new, figures)))
    }
    return with_ops_changed(text, changes) if changes else text


def _changed_keys(
    old: OpSettings, new: OpSettings, figures: str
) -> Iterator[tuple[str, tuple[int | float, str]]]:
    was = keys_of(*old)
    for key, value in keys_of(*new).items():
        if value != was[key]:
            yield key, (value, f"advised, was {was[key]}; all changes together: {figures}")


def _line(number: int, trial: Trial, names: Sequence[str], why: str) -> str:
    what = "  ".join(
        f"{name} {op.concurrency}x{op.batch_size}" + f"+{op.delay_ms:g}ms" * bool(op.delay_ms)
        for name, op in zip(names, trial.settings, strict=True)
    )
    begin = f"{number:>3}  " if number else ""
    if trial.problem:
        return f"{begin}{what}: {trial.problem}"
    figures = (
        f"{trial.per_s:>9,.1f}/s  p50 {trial.p50_ms:.1f} ms  p99 {trial.p99_ms:.1f} ms  "
        f"{trial.memory_mb:,.0f} MiB  {trial.cpu:.2f} cores"
    )
    return f"{begin}{figures}  {what}" + f"  ({why})" * bool(why)


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline analyse --serve",
        description="Try other workers, batch sizes and waits of a script's Ops, each in a server "
        "of its own under a recorded load, and write the best as a config.yml.",
    )
    parser.add_argument("--load", required=True, metavar="FILE", help="requests, as JSON lines")
    parser.add_argument("--clients", type=int, default=64, help="requests at the same time")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a trial's load")
    parser.add_argument("--objective", choices=("throughput", "latency"), default="throughput")
    parser.add_argument("--latency-p99-ms", type=float, metavar="MS", help="limit")
    parser.add_argument("--memory-mb", type=float, metavar="MIB", help="limit, all processes")
    parser.add_argument("--most-trials", type=int, default=20, metavar="N")
    parser.add_argument("--most-workers", type=int, default=16, metavar="N", help="of an Op")
    parser.add_argument("--most-batch", type=int, default=32, metavar="N")
    parser.add_argument("--out", default="config.advised.yml", metavar="FILE")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="SCRIPT ... or -m MODULE ...")
    given = parser.parse_args(arguments)
    if not given.script:
        parser.error("a script is missing")
    return given


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _fails(text: str) -> int:
    sys.stderr.write(f"python -m pipeline analyse --serve: {text}\n")
    return _FAILED
