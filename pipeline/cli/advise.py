"""`pipeline analyse --serve`: tries settings of a service or of models, and writes the best."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline.cli.parsing import above_0, at_least_1, command_parser, fails
from pipeline.cli.progress import ProgressLine
from pipeline.config.yaml_edit import OpChange, with_ops_changed
from pipeline.errors import ConfigError
from pipeline.tuning.load import LoadRequest, read_load
from pipeline.tuning.search import Search
from pipeline.tuning.settings import Goal, OpSettings, OpSpace, Settings, Space, Trial
from pipeline.tuning.tried_models import (
    ModelsBench,
    ModelsServer,
    advised_files,
    asked_models,
    tried_models,
    tried_op,
)
from pipeline.tuning.tried_server import Bench, Script, TrialError, TriedOp, TriedService, keys_of

_CLIENTS = 64  # concurrent requests, if no recording says
_CLIENT_CORES = 0.5  # for this process, the client


def advise(arguments: Sequence[str]) -> int:
    """Run the trials. Returns 0: the best settings are written; 1: none are within the limits."""
    options = _arguments(arguments)
    try:
        requests = read_load(options.load)
        if options.model_repository:
            return _advise_models(options, requests)
        script = Script(tuple(options.script))
        service = script.describe()
    except (ConfigError, TrialError) as error:
        return fails("analyse --serve", str(error))
    names = tuple(op.name for op in service.ops)
    clients = _clients(options, requests)
    bench = Bench(script, names, requests, clients, seconds=options.seconds)
    _report(f"{len(requests):,} requests, {clients} clients")
    search = _searched(options, service, clients, bench.trial)
    if search is None or search.best is None:
        return 1
    for op in service.ops:
        if op.said:
            _report(f"note: the constructor of {op.name} sets {', '.join(op.said)}: take it out")
    out = options.out or "config.advised.yml"
    text = advised(service, search.trials[0], search.best)
    Path(out).write_text(text, encoding="utf-8")
    _report(f"written: {out}")
    return 0


def _advise_models(options: argparse.Namespace, requests: Sequence[LoadRequest]) -> int:
    """Try settings of the models of a repository that a load asks. ConfigError, TrialError."""
    repositories = [Path(path) for path in options.model_repository]
    models = asked_models(requests)
    clients = _clients(options, requests)
    with ModelsServer(repositories, models) as server:
        configs = tried_models(server, models)
        service = TriedService("", tuple(map(tried_op, configs.values())))
        bench = ModelsBench(server, configs, requests, clients, seconds=options.seconds)
        _report(f"{len(requests):,} requests, {clients} clients")
        search = _searched(options, service, clients, bench.trial)
    if search is None or search.best is None:
        return 1
    before, best = search.trials[0], search.best
    head = f"# pipeline analyse --serve: {_figures(best)}; before: {_figures(before)}\n"
    files = advised_files(repositories, configs, before.settings, best.settings)
    for name, text in files.items():
        file = Path(options.out or "advised", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(head + text, encoding="utf-8")
        _report(f"written: {file}")
    if not files:
        _report("no tried setting is better than the present ones")
    return 0


def _clients(options: argparse.Namespace, requests: Sequence[LoadRequest]) -> int:
    return options.clients or max(request.at_once for request in requests) or _CLIENTS


def _searched(
    options: argparse.Namespace,
    service: TriedService,
    clients: int,
    try_out: Callable[[Settings], Trial],
) -> Search | None:
    """Run the trials, and print their results; None: there is nothing to try."""
    for op in service.ops:
        if op.held:
            _report(f"note: {op.name} is not changed: {op.held}")
    names = tuple(op.name for op in service.ops)
    space, start = space_of(service, clients, options.most_workers, options.most_batch)
    if space.size == 1:
        fails("analyse --serve", "no Op has settings that may be tried")
        return None
    goal = Goal(options.objective == "latency", options.latency_p99_ms, options.memory_mb)
    search = Search(space, goal, start, options.most_trials)
    _report(f"{space.size:,} choices")
    with contextlib.suppress(KeyboardInterrupt):  # keep the best result until then
        while (settings := search.propose()) is not None:
            with ProgressLine(sys.stderr, f"trial {len(search.trials) + 1}"):
                search.tell(try_out(settings))
            line = _line(search.trials[-1], names)
            _report(f"{len(search.trials):>3}  {line}  ({search.why})")
    if search.best is None:
        text = "every trial failed or exceeded the limits"
        fails("analyse --serve", text)
    else:
        _report(f"best: {_line(search.best, names)}")
    return search


def space_of(
    service: TriedService, clients: int, most_workers: int, most_batch: int
) -> tuple[Space, Settings]:
    """Return the settings to try of a service, and its current settings."""
    cores = max(1.0, len(os.sched_getaffinity(0)) - _CLIENT_CORES)
    ops = tuple(_op_space(op, most_workers, most_batch) for op in service.ops)
    start = tuple(OpSettings(op.concurrency, op.batch_size, op.delay_ms) for op in service.ops)
    return Space(ops, clients, cores), start


def _op_space(op: TriedOp, most_workers: int, most_batch: int) -> OpSpace:
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


def advised(service: TriedService, before: Trial, best: Trial) -> str:
    """Return the text of config.yml with the best settings, and the old ones above each Op."""
    text = Path(service.config).read_text(encoding="utf-8") if service.config else ""
    changes = {}
    for op, old, new in zip(service.ops, before.settings, best.settings, strict=True):
        was, values = keys_of(old), keys_of(new)
        different = {key: value for key, value in values.items() if value != was[key]}
        if different:
            had = ", ".join(f"{key} {was[key]}" for key in different)
            changes[op.name] = OpChange(different, f"was {had}")
    head = f"# pipeline analyse --serve: {_figures(best)}; before: {_figures(before)} "
    return head + (with_ops_changed(text, changes) if changes else text)


def _line(trial: Trial, names: Sequence[str]) -> str:
    what = "  ".join(
        f"{name} {op.concurrency}x{op.batch_size}" + f"+{op.delay_ms:g}ms" * bool(op.delay_ms)
        for name, op in zip(names, trial.settings, strict=True)
    )
    return f"{what}: {trial.problem or _figures(trial)}"


def _figures(trial: Trial) -> str:
    if trial.problem:
        return "it failed"
    return (
        f"{trial.per_s:,.1f}/s, p50 {trial.p50_ms:.1f} ms, p99 {trial.p99_ms:.1f} ms, "
        f"{trial.memory_mb:,.0f} MiB, {trial.cpu:.2f} cores"
    )


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = command_parser(
        "analyse --serve",
        "Try other workers, batch sizes and waits of a script's Ops, each in a server of its own "
        "under a recorded load, and write the best as a config.yml.",
        "pipeline analyse --serve --load requests.jsonl web_server.py",
    )
    parser.add_argument("--load", required=True, metavar="FILE", help="requests, as JSON lines")
    parser.add_argument(
        "--clients",
        type=at_least_1,
        metavar="N",
        help=f"requests at a time; as many as were recorded, or {_CLIENTS}",
    )
    parser.add_argument(
        "--seconds", type=above_0, default=2.0, metavar="S", help="length of a trial's load"
    )
    parser.add_argument("--objective", choices=("throughput", "latency"), default="throughput")
    parser.add_argument("--latency-p99-ms", type=above_0, metavar="MS", help="limit")
    parser.add_argument("--memory-mb", type=above_0, metavar="MIB", help="limit, all processes")
    parser.add_argument("--most-trials", type=at_least_1, default=20, metavar="N")
    parser.add_argument("--most-workers", type=at_least_1, default=16, metavar="N", help="of an Op")
    parser.add_argument("--most-batch", type=at_least_1, default=32, metavar="N")
    parser.add_argument(
        "--out",
        metavar="PATH",
        help="file, config.advised.yml; for a repository: the folder advised, with config.pbtxt "
        "files",
    )
    parser.add_argument(
        "--model-repository",
        action="append",
        metavar="DIR",
        help="instead of a script: the models of this repository that the load calls, their "
        "instances, dynamic batching and its delay",
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, help="SCRIPT ... or -m MODULE ...")
    options = parser.parse_args(arguments)
    if bool(options.script) == bool(options.model_repository):
        parser.error("a script is missing, or --model-repository: one of them")
    return options


def _report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
